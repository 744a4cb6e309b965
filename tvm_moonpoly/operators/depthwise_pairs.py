"""Micro-kernels of depthwise convolution for two rows of outputs at once, with 3x3 taps.

An input is read once for all outputs of both rows that it belongs to: with rows one apart the two
have two of their three rows of taps in common, so that a tile of two rows and four columns reads
two thirds of the pixels that two tiles of one row read, and they arrive in the caches once. There
is no loop over the rows of taps: all of them are within the image. Columns that lie in the padding
are masked in the tiles at the edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    LINE,
    Expr,
    Functions,
    Pointer,
    as_int,
    ceil_div,
    cell,
    div,
    let,
    loop,
    minimum,
    prefetch,
    scratch,
    vector,
    when,
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

#: Rows of outputs of a tile, its fewest and most columns, and rows and columns of taps: 8 sums, the
#: weights of two rows of taps and one input are 15 registers.
ROWS, FEWEST, COLUMNS, TAPS = 2, 2, 4, 3


@dataclass(frozen=True)
class Pair:
    """The distances of two outputs, along a column and along a row, that these are written for."""

    stride_h: int
    stride_w: int

    @property
    def name(self) -> str:
        return f"moonpoly_depthwise_pair_{self.stride_h}_{self.stride_w}"

    @property
    def input_rows(self) -> int:
        """Rows of the input that a tile depends on."""
        return (ROWS - 1) * self.stride_h + TAPS

    def inputs(self, columns: int) -> int:
        """Columns of the input that ``columns`` outputs depend on."""
        return (columns - 1) * self.stride_w + TAPS


#: What networks have.
PAIRS = (Pair(1, 1), Pair(2, 2), Pair(2, 1), Pair(1, 2))


def pair_name(pair: Pair, columns: int, edge: bool) -> str:
    """The micro-kernel for ``columns`` outputs of two rows, at an edge of the image or not."""
    return f"{pair.name}_{'edge' if edge else 'inner'}_{columns}"


def crowded(stride_w: Expr, pixel: Expr) -> Expr:
    """Whether pixels that are ``pixel`` floats apart push each other out of the first-level cache:
    of 5 rows of 9, where they lie in two of its sets."""
    return tirx.all(stride_w == 2, tirx.bitwise_and(pixel, as_int(511)) == 0)


def emit(functions: Functions, lanes: int) -> None:
    """Define the micro-kernels of all `PAIRS`.

    They compute an even number of rows, all of whose taps lie within the rows of the image.
    """
    for pair in PAIRS:
        for columns in range(FEWEST, COLUMNS + 1):
            for edge in (False, True):
                _emit(functions, lanes, pair, columns, edge)


def _emit(functions: Functions, lanes: int, pair: Pair, columns: int, edge: bool) -> None:
    @functions.separate(pair_name(pair, columns, edge), **parameters(FLOAT))
    def _(**arguments: Any) -> None:
        call = Call(lanes, columns, arguments)
        with T.attr(tirx.const(0, "int32"), "pragma_import_llvm", PINNED_SOURCE):
            _tiles(call, pair, edge)


def _tiles(call: Call, pair: Pair, edge: bool) -> None:
    """All tiles that ``call`` is about."""
    s, lanes, arguments = call.sizes, call.lanes, call.arguments
    vectors, last = cell(ceil_div(s["channels"], lanes)), cell(s["channels"] - lanes)
    apart, kernel_row = cell(APART * s["x_pixel"]), cell(TAPS * s["weight_row"])
    columns = cell(arguments["column"] * pair.stride_w - s["left"])
    places, masks = edge_columns(s, columns, pair.inputs(call.columns)) if edge else (None, None)

    def pixel(row: Pointer, j: int) -> Expr:
        if places is None or masks is None:
            return row[vector(j % APART * s["x_pixel"], lanes)]
        return masked(row[vector(places[j], lanes)], masks[j], lanes)

    with loop(div(s["rows"], ROWS)) as i:
        row = cell(s["row"] + i * ROWS)
        top = cell((row * pair.stride_h - s["top"] - s["origin"]) * s["x_row"])
        with loop(arguments["count"]) as t:
            column = cell(arguments["column"] + t * call.columns)
            start = cell(column * pair.stride_w - s["left"])
            first = top if edge else cell(top + start * s["x_pixel"])
            out = cell(row * s["out_row"] + column * s["out_pixel"])
            with loop(vectors) as v:
                channel = cell(minimum(v * lanes, last))
                x = cell(first + channel)
                if not edge:
                    fetched = tirx.bitwise_and(channel, as_int(LINE - 1)) == 0
                    with when(tirx.all(s["far"] != 0, fetched)):
                        _prefetch_next(call, pair, x, apart)
                sums = _sums(call, pair, x, channel, None if edge else apart, kernel_row, pixel)
                call.finish(sums, _outputs(call, cell(out + channel)))


def _outputs(call: Call, out: Expr) -> list[Expr]:
    """Where the outputs of a tile are, that of its first one given."""
    s = call.sizes
    rows = [out + r * s["out_row"] for r in range(ROWS)]
    return [row + u * s["out_pixel"] for row in rows for u in range(call.columns)]


def _sums(
    call: Call,
    pair: Pair,
    x: Expr,
    channel: Expr,
    apart: Expr | None,
    kernel_row: Expr,
    pixel: Callable[[Pointer, int], Expr],
) -> list[Pointer]:
    """The sums of a tile with its first input at ``x``, column j of a row by ``pixel(row, j)``: as
    far from the row as it is, or, with ``apart``, from the last column that `APART` divides."""
    s, lanes, whole = call.sizes, call.lanes, vector(0, call.lanes)
    bias = let(call.bias[vector(channel, lanes)])
    sums = {(r, u): scratch(lanes) for r in range(ROWS) for u in range(call.columns)}
    for each in sums.values():
        each[whole] = bias
    weights: list[list[Expr]] = []
    start, factors = pinned(call.x, x), pinned(call.weight, channel)
    for i in range(pair.input_rows):
        if i > 0:
            start = pinned(start, s["x_row"])
        if i < TAPS:
            factors = pinned(factors, kernel_row) if i > 0 else factors
            taps = range(TAPS)
            weights.append([let(factors[vector(k * s["weight_row"], lanes)]) for k in taps])
        row = start
        for j in range(pair.inputs(call.columns)):
            if apart is not None and j > 0 and j % APART == 0:
                row = pinned(row, apart)
            found = let(pixel(row, j))
            for k, of_row in enumerate(weights):
                for tap, factor in enumerate(of_row):
                    r, down = divmod(i - k, pair.stride_h)
                    u, beside = divmod(j - tap, pair.stride_w)
                    if down == beside == 0 and (r, u) in sums:
                        sums[r, u][whole] = sums[r, u][whole] + found * factor
    return list(sums.values())


def _prefetch_next(call: Call, pair: Pair, x: Expr, apart: Expr) -> None:
    """What the next tile reads of the rows that the rows above have not brought."""
    s = call.sizes
    new = range(pair.input_rows - ROWS * pair.stride_h, pair.input_rows)
    beyond = x + pair.inputs(call.columns) * s["x_pixel"]
    start = pinned(call.x, beyond + new.start * s["x_row"])
    for i in new:
        if i > new.start:
            start = pinned(start, s["x_row"])
        row = start
        for j in range(call.columns * pair.stride_w):
            if j > 0 and j % APART == 0:
                row = pinned(row, apart)
            prefetch(row.at(j % APART * s["x_pixel"]))
