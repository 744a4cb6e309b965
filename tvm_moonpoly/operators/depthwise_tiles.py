"""Micro-kernels of depthwise convolution: several columns of a row, a vector of channels of each.

Layout NHWC. Those for a row of taps that is known when they are written read each input once for
all the outputs that it belongs to, and hold the row's weights in registers; the taps of a column,
the stride and the dilation along it are numbers of the call. Columns that lie in the padding are
masked in the tiles at the edges, and all taps are within the image in those between. The others
take any kernel. Bias, residual and activation are applied to the sums in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    Expr,
    Functions,
    Pointer,
    as_int,
    ceil_div,
    cell,
    let,
    loop,
    maximum,
    minimum,
    vector,
)
from tvm_moonpoly.operators.depthwise_call import (
    APART,
    PINNED_SOURCE,
    Call,
    edge_columns,
    masked,
    parameters,
    pinned,
)


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


def _emit_known(functions: Functions, lanes: int, taps: Taps, columns: int, edge: bool) -> None:
    """Taps that are known: an input is read once for all outputs of the tile that it belongs to."""
    inputs = taps.inputs(columns)

    @functions.separate(known_name(taps, columns, edge), **parameters(FLOAT))
    def _(**arguments: Any) -> None:
        call = Call(lanes, columns, arguments)
        s, whole = call.sizes, vector(0, lanes)
        if edge:
            start = cell(arguments["column"] * taps.stride - s["left"])
            places, masks = edge_columns(s, start, inputs)

        def value(row: Pointer, j: int) -> Expr:
            if not edge:
                return row[vector(j % APART * s["x_pixel"], lanes)]
            return masked(row[vector(places[j], lanes)], masks[j], lanes)

        def add(
            sums: list[Pointer], column: Expr, channel: Expr, x: Expr, weight: Expr, rows: Expr
        ) -> None:
            step = cell(s["dilation_h"] * s["x_row"])
            apart = cell(APART * s["x_pixel"])
            first = x if edge else cell(x + (column * taps.stride - s["left"]) * s["x_pixel"])
            with loop(rows) as k:
                row = pinned(call.x, first + k * step)
                of_row = cell(weight + k * (taps.count * s["weight_row"]))
                weights = [
                    let(call.weight[vector(of_row + tap * s["weight_row"], lanes)])
                    for tap in range(taps.count)
                ]
                for j in range(inputs):
                    if not edge and j > 0 and j % APART == 0:
                        row = pinned(row, apart)
                    found = let(value(row, j))
                    for tap, factor in enumerate(weights):
                        u, rest = divmod(j - tap, taps.stride)
                        if rest == 0 and 0 <= u < columns:
                            sums[u][whole] = sums[u][whole] + found * factor

        with T.attr(tirx.const(0, "int32"), "pragma_import_llvm", PINNED_SOURCE):
            call.tiles(add)


def _emit_any(functions: Functions, lanes: int, columns: int, dtype: str) -> None:
    """Any taps. Several columns at once must have all of them within the width of the image."""

    @functions.separate(any_name(lanes, columns, dtype), **parameters(dtype))
    def _(**arguments: Any) -> None:
        call = Call(lanes, columns, arguments)
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
