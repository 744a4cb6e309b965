"""What the micro-kernels of depthwise convolution share: what they are told, the loops around their
tiles, and what becomes of the sums of a tile.

Channels are taken a vector at a time. Where they are no multiple of it the last two vectors
overlap, and what both have is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
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

#: Inputs are addressed from every so manieth pixel: from there on, by what x86 can multiply with.
APART = 3

_PINNED = "moonpoly_pinned"

#: An address that LLVM does not see through. It would keep one for each input of a tile, more than
#: there are registers, and advance them all; this way each follows from the one before.
PINNED_SOURCE = f"""
define linkonce_odr hidden ptr @{_PINNED}(ptr %address) alwaysinline {{
  %same = call ptr asm "", "=r,0"(ptr %address)
  ret ptr %same
}}
"""


def pinned(values: Pointer, index: Expr) -> Pointer:
    """The elements from ``index`` on; within an attribute that imports `PINNED_SOURCE`."""
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


class Call:
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
                    places = cell(out + channel)
                    self.finish(sums, [places + u * s["out_pixel"] for u in range(self.columns)])

    def _prefetch_row(self, row: Expr, column: Expr) -> None:
        """What the next output row reads of the input that this one does not."""
        s = self.sizes
        first = cell(row + (column * s["stride_w"] - s["left"]) * s["x_pixel"])
        step = cell(s["stride_w"] * s["x_pixel"])
        for u in range(self.columns):
            prefetch(self.x.at(first + u * step), 2)

    def finish(self, sums: list[Pointer], places: list[Expr]) -> None:
        """Residual, activation, and the outputs to where they belong."""
        whole, s, arguments = self.at(as_int(0)), self.sizes, self.arguments
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
            copy = scratch(len(sums) * self.lanes)
            for u, each in enumerate(sums):
                copy[self.at(as_int(u * self.lanes))] = each[whole]
            size = len(sums) * self.lanes
            functions = Functions.current()
            functions[ACTIVATE_BOUNDED](copy.at(0), size, 1, size, s["activation"], *given)
            store([copy[self.at(as_int(u * self.lanes))] for u in range(len(sums))])

        hard = s["activation"] == int(ConvActivation.HARDSWISH)
        clips = s["activation"] == int(ConvActivation.CLIP)
        branch(clips, clipped, lambda: branch(hard, gated, others))


def edge_columns(s: dict[str, Expr], start: Expr, inputs: int) -> tuple[Pointer, Pointer]:
    """Of ``inputs`` columns from ``start`` on: the distance of each from the first column of the
    image, and a mask that is 0 for those outside, which are at distance 0."""
    places, masks = scratch(inputs, INT), scratch(inputs, "int32")
    with loop(as_int(inputs)) as j:
        inside = tirx.all(start + j >= 0, start + j < s["width"])
        places[j] = select(inside, start + j, 0) * s["x_pixel"]
        masks[j] = tirx.Select(inside, tirx.const(-1, "int32"), tirx.const(0, "int32"))
    return places, masks


def masked(found: Expr, mask: Expr, lanes: int) -> Expr:
    """``found``, or zeros where ``mask`` is 0."""
    bits = tirx.reinterpret(f"int32x{lanes}", found)
    return tirx.reinterpret(f"float32x{lanes}", tirx.bitwise_and(bits, T.Broadcast(mask, lanes)))
