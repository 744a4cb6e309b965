"""Micro-kernels of depthwise convolution: several columns of a row, a vector of channels of each.

Layout NHWC. Those for a row of taps that is known when they are written read each input once for
all the outputs that it belongs to, and hold the row's weights in registers; the taps of a column,
the stride and the dilation along it are numbers of the call. Columns that lie in the padding are
masked in the tiles at the edges, and all taps are within the image in those between. The others
take any kernel. Bias, residual and activation are applied to the sums in registers.

Channels are taken a vector at a time. Where they are no multiple of it the last two vectors
overlap, and what both have is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType, StringImm
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    INT,
    INTS,
    LINE,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    ceil_div,
    cell,
    fetched,
    let,
    loop,
    maximum,
    minimum,
    prefetch,
    scratch,
    select,
    vector,
    when,
)
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators.bounded_activation import ACTIVATE_BOUNDED, between, hardswish
from tvm_moonpoly.operators.conv_arguments import operands
from tvm_moonpoly.operators.conv_constants import ConvActivation


@dataclass(frozen=True)
class Taps:
    """A row of taps, and the distance of two outputs, that micro-kernels are written for.

    ``columns`` outputs at once: with as many sums, the weights of a row and one input there are
    registers to spare.
    """

    count: int
    stride: int
    columns: int

    @property
    def name(self) -> str:
        return f"moonpoly_depthwise_{self.count}_{self.stride}"

    def inputs(self, columns: int) -> int:
        """Columns of the input that ``columns`` outputs depend on."""
        return (columns - 1) * self.stride + self.count


#: What networks have: squares of 3 and 5, with strides that are often 1 in one direction only.
TAPS = (Taps(3, 1, 8), Taps(3, 2, 4), Taps(5, 1, 8), Taps(5, 2, 6))

#: Columns at once where the taps are numbers of the call.
ANY_COLUMNS = 6

#: Inputs are addressed from every so manieth pixel: from there on, by what x86 can multiply with.
_APART = 3

_PINNED = "moonpoly_pinned"

#: An address that LLVM does not see through. It would keep one for each input of a tile, more than
#: there are registers, and advance them all; this way each follows from the one before.
_SOURCE = f"""
define linkonce_odr hidden ptr @{_PINNED}(ptr %address) alwaysinline {{
  %same = call ptr asm "", "=r,0"(ptr %address)
  ret ptr %same
}}
"""


def _pinned(values: Pointer, index: Expr) -> Pointer:
    """The elements from ``index`` on; within an attribute that imports `_SOURCE`."""
    kind = PointerType(PrimType(FLOAT), "global")
    address = [StringImm(_PINNED), values.at(index)]
    return Pointer.to(T.Bind(tvm.ir.Call("tirx.call_extern", address, ret_ty=kind)), FLOAT)


#: What a micro-kernel is told about the tensors, one int64 each. Distances are in elements; that
#: of rows of taps is in rows of the input. ``origin`` is the row of the input that x begins with.
GEOMETRY = (
    "height",
    "width",
    "x_row",
    "x_pixel",
    "out_row",
    "out_pixel",
    "channels",
    "kernel_h",
    "kernel_w",
    "stride_h",
    "stride_w",
    "dilation_h",
    "dilation_w",
    "top",
    "left",
    "origin",
    "weight_row",
    "row",
    "rows",
    "activation",
    "adds",
    "far",
)


def parameters(dtype: str) -> dict[str, str]:
    """What a micro-kernel is given: ``count`` tiles side by side, from output column ``column`` on.

    All pointers are to the first channel of the block; the residual is laid out as the output.
    """
    return {
        **operands(dtype),
        "geometry": INTS,
        "first": FLOAT,
        "second": FLOAT,
        "column": INT,
        "count": INT,
    }


def emit(functions: Functions, lanes: int) -> None:
    """Define the micro-kernels of all `TAPS`, and those for any taps."""
    for taps in TAPS:
        for columns in range(1, taps.columns + 1):
            for edge in (False, True):
                _emit_known(functions, lanes, taps, columns, edge)
    for dtype in (FLOAT, "float16"):
        for width in (lanes, 1):
            for columns in (ANY_COLUMNS, 1):
                _emit_any(functions, width, columns, dtype)


def known_name(taps: Taps, columns: int, edge: bool) -> str:
    """The micro-kernel for ``columns`` outputs at an edge of the image, or away from it."""
    return f"{taps.name}_{'edge' if edge else 'inner'}_{columns}"


def any_name(lanes: int, columns: int, dtype: str) -> str:
    """The micro-kernel for any taps, with ``lanes`` channels at a time."""
    return f"moonpoly_depthwise_any_{lanes}_{columns}_{dtype}"


class _Call:
    """The arguments of a micro-kernel, and the loops around its tiles."""

    def __init__(self, lanes: int, columns: int, arguments: dict[str, Any]) -> None:
        self.lanes, self.columns, self.arguments = lanes, columns, arguments
        self.x, self.out, self.residual = (arguments[n] for n in ("x", "out", "residual"))
        self.weight, self.bias = arguments["weight"], arguments["bias"]
        self.sizes = Numbers(GEOMETRY, arguments["geometry"]).kept()

    def at(self, index: Expr) -> Expr:
        return vector(index, self.lanes)

    def tiles(self, add: Callable[[list[Pointer], Expr, Expr, Expr, Expr, Expr], None]) -> None:
        """All tiles. ``add(sums, tile's first column, channel, x index of the first row of taps,
        weight index, rows of taps)`` adds the products of one."""
        s = self.sizes
        stride, dilation = s["stride_h"], s["dilation_h"]
        vectors = cell(ceil_div(s["channels"], self.lanes))
        last = cell(s["channels"] - self.lanes)
        with loop(s["rows"]) as i:
            row = cell(s["row"] + i)
            top = cell(row * stride - s["top"])
            above = cell(ceil_div(maximum(0 - top, 0), dilation))
            below = minimum(s["kernel_h"], ceil_div(maximum(s["height"] - top, 0), dilation))
            taps = cell(maximum(below - above, 0))
            x_row = cell((top + above * dilation - s["origin"]) * s["x_row"])
            weight_row = cell(above * s["kernel_w"] * s["weight_row"])
            below_row = cell(x_row + taps * dilation * s["x_row"])
            with loop(self.arguments["count"]) as t:
                column = cell(self.arguments["column"] + t * self.columns)
                out = cell(row * s["out_row"] + column * s["out_pixel"])
                with loop(vectors) as v:
                    channel = cell(minimum(v * self.lanes, last))
                    # each line once: vectors of half a line come in pairs
                    with when(tirx.bitwise_and(channel, as_int(LINE - 1)) == 0):
                        # written when the sums are done: until then the lines have come
                        for u in range(self.columns):
                            place = out + channel + u * s["out_pixel"]
                            T.evaluate(fetched(self.out.at(place), write=True))
                        with when(s["far"] != 0):
                            self._prefetch_row(cell(below_row + channel), column)
                    sums = [scratch(self.lanes) for _ in range(self.columns)]
                    bias = let(self.bias[self.at(channel)])
                    for each in sums:
                        each[self.at(as_int(0))] = bias
                    add(
                        sums,
                        column,
                        channel,
                        cell(x_row + channel),
                        cell(weight_row + channel),
                        taps,
                    )
                    self._finish(sums, cell(out + channel))

    def _prefetch_row(self, row: Expr, column: Expr) -> None:
        """What the next output row reads of the input that this one does not."""
        s = self.sizes
        first = cell(row + (column * s["stride_w"] - s["left"]) * s["x_pixel"])
        step = cell(s["stride_w"] * s["x_pixel"])
        for u in range(self.columns):
            prefetch(self.x.at(first + u * step), 2)

    def _finish(self, sums: list[Pointer], out: Expr) -> None:
        """Residual, activation, and the outputs to where they belong."""
        whole, s, arguments = self.at(as_int(0)), self.sizes, self.arguments
        places = [out + u * s["out_pixel"] for u in range(self.columns)]
        with when(s["adds"] != 0):
            for each, place in zip(sums, places, strict=True):
                each[whole] = each[whole] + self.residual.floats(place, self.lanes)
        given = arguments["first"], arguments["second"]

        def store(values: list[Expr]) -> None:
            for value, place in zip(values, places, strict=True):
                self.out.put_floats(place, value, self.lanes)

        def clipped() -> None:
            store([between(each[whole], *given, self.lanes) for each in sums])

        def gated() -> None:
            store([hardswish(each[whole], self.lanes) for each in sums])

        def others() -> None:
            # long formulas: as a function, on a copy, so that the sums stay in registers
            copy = scratch(self.columns * self.lanes)
            for u, each in enumerate(sums):
                copy[self.at(as_int(u * self.lanes))] = each[whole]
            size = self.columns * self.lanes
            functions = Functions.current()
            functions[ACTIVATE_BOUNDED](copy.at(0), size, 1, size, s["activation"], *given)
            store([copy[self.at(as_int(u * self.lanes))] for u in range(self.columns)])

        hard = s["activation"] == int(ConvActivation.HARDSWISH)
        clips = s["activation"] == int(ConvActivation.CLIP)
        branch(clips, clipped, lambda: branch(hard, gated, others))


def _emit_known(functions: Functions, lanes: int, taps: Taps, columns: int, edge: bool) -> None:
    """Taps that are known: an input is read once for all outputs of the tile that it belongs to."""
    inputs = taps.inputs(columns)

    @functions.separate(known_name(taps, columns, edge), **parameters(FLOAT))
    def _(**arguments: Any) -> None:
        call = _Call(lanes, columns, arguments)
        s, whole = call.sizes, vector(0, lanes)
        if edge:
            places, masks = scratch(inputs, INT), scratch(inputs, "int32")
            start = cell(arguments["column"] * taps.stride - s["left"])
            with loop(as_int(inputs)) as j:
                inside = tirx.all(start + j >= 0, start + j < s["width"])
                places[j] = select(inside, start + j, 0) * s["x_pixel"]
                masks[j] = tirx.Select(inside, tirx.const(-1, "int32"), tirx.const(0, "int32"))

        def value(row: Pointer, j: int) -> Expr:
            if not edge:
                return row[vector(j % _APART * s["x_pixel"], lanes)]
            found = row[vector(places[j], lanes)]
            bits = tirx.reinterpret(f"int32x{lanes}", found)
            kept = tirx.bitwise_and(bits, T.Broadcast(masks[j], lanes))
            return tirx.reinterpret(f"float32x{lanes}", kept)

        def add(
            sums: list[Pointer], column: Expr, channel: Expr, x: Expr, weight: Expr, rows: Expr
        ) -> None:
            step = cell(s["dilation_h"] * s["x_row"])
            apart = cell(_APART * s["x_pixel"])
            first = x if edge else cell(x + (column * taps.stride - s["left"]) * s["x_pixel"])
            with loop(rows) as k:
                row = _pinned(call.x, first + k * step)
                of_row = cell(weight + k * (taps.count * s["weight_row"]))
                weights = [
                    let(call.weight[vector(of_row + tap * s["weight_row"], lanes)])
                    for tap in range(taps.count)
                ]
                for j in range(inputs):
                    if not edge and j > 0 and j % _APART == 0:
                        row = _pinned(row, apart)
                    found = let(value(row, j))
                    for tap, factor in enumerate(weights):
                        u, rest = divmod(j - tap, taps.stride)
                        if rest == 0 and 0 <= u < columns:
                            sums[u][whole] = sums[u][whole] + found * factor

        with T.attr(tirx.const(0, "int32"), "pragma_import_llvm", _SOURCE):
            call.tiles(add)


def _emit_any(functions: Functions, lanes: int, columns: int, dtype: str) -> None:
    """Any taps. Several columns at once must have all of them within the width of the image."""

    @functions.separate(any_name(lanes, columns, dtype), **parameters(dtype))
    def _(**arguments: Any) -> None:
        call = _Call(lanes, columns, arguments)
        s = call.sizes

        def add(
            sums: list[Pointer], column: Expr, channel: Expr, x: Expr, weight: Expr, rows: Expr
        ) -> None:
            dilation = s["dilation_w"]
            start = cell(column * s["stride_w"] - s["left"])
            before = cell(ceil_div(maximum(0 - start, 0), dilation))
            after = minimum(s["kernel_w"], ceil_div(maximum(s["width"] - start, 0), dilation))
            taps = cell(maximum(after - before, 0))
            first = cell(x + (start + before * dilation) * s["x_pixel"])
            step = cell(s["stride_w"] * s["x_pixel"])
            with loop(rows) as k:
                row = cell(first + k * (s["dilation_h"] * s["x_row"]))
                of_row = cell(weight + (k * s["kernel_w"] + before) * s["weight_row"])
                with loop(taps) as tap:
                    at = cell(row + tap * (dilation * s["x_pixel"]))
                    factor = let(call.weight[call.at(of_row + tap * s["weight_row"])])
                    for u, each in enumerate(sums):
                        whole = call.at(as_int(0))
                        each[whole] = each[whole] + call.x.floats(at + u * step, lanes) * factor

        call.tiles(add)
