"""The band of a block of output pixels: what the windows read, copied so that each is one run.

A column of the band holds the ``kernel_h`` elements above each other that a window has in one input
column, of each the channels of a group, with zeros where the window is outside of the input. In a
row of overlapping windows neighbouring columns are those of the input; of windows on their own each
has its ``kernel_w`` columns. All is float32; float16 is converted on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    div,
    let,
    loop,
    maximum,
    minimum,
    scratch,
    vector,
    when,
)
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.planner.conv_numbers import CONVOLUTION

#: Vectors that are copied in a turn where a run has so many.
_TOGETHER = 4

_ZEROS = "moonpoly_conv_zeros"

#: Heights of kernels of which short runs are copied by code of their own.
_HEIGHTS = (3, 5, 7)


def band_name(kind: str) -> str:
    """The function that fills a band from operands of ``kind``, "f32" or "f16"."""
    return f"moonpoly_conv_band_{kind}"


def emit(functions: Functions, kind: str, dtype: str, lanes: int) -> None:
    """Define the functions that fill a band with columns of elements of ``dtype``, after
    `emit_zeros`."""
    _emit_columns(functions, kind, dtype, lanes)
    _emit_band(functions, kind, dtype)


def emit_zeros(functions: Functions, lanes: int) -> None:
    """Define what fills columns that are not in the input, of operands of any kind."""

    @functions.compact(_ZEROS, q=FLOATS, count=INT)
    def _(q: Pointer, count: Expr) -> None:
        """``count`` zeros, and some more: the band goes on, or ends with room for them."""
        zeros = T.Broadcast(tirx.const(0.0, FLOAT), lanes)
        with loop(div(count + (lanes - 1), lanes)) as i:
            q[vector(i * lanes, lanes)] = zeros


#: Columns of a band from neighbouring input columns: ``x`` is the first element of the first one,
#: of rows ``row`` elements apart and columns ``column`` apart. ``count`` columns of ``height``
#: elements, of which those from ``top`` to ``bottom`` are in the input. ``left`` elements may be
#: read from ``x`` on.
_COLUMNS = {
    "row": INT,
    "column": INT,
    "count": INT,
    "channels": INT,
    "height": INT,
    "top": INT,
    "bottom": INT,
    "left": INT,
}


def _emit_columns(functions: Functions, kind: str, dtype: str, lanes: int) -> None:
    @functions.separate(f"moonpoly_conv_columns_{kind}", x=f"{dtype}*", q=FLOATS, **_COLUMNS)
    def _(
        x: Pointer,
        q: Pointer,
        row: Expr,
        column: Expr,
        count: Expr,
        channels: Expr,
        height: Expr,
        top: Expr,
        bottom: Expr,
        left: Expr,
    ) -> None:
        inside = let(bottom - top)

        def each_column(runs: Any) -> None:
            """``runs(source, target)`` copies those of a column that are in the input."""
            with loop(count) as j:
                target = let(j * (height * channels))
                with when(top > 0):
                    functions[_ZEROS](q.at(target), top * channels)
                runs(let(top * row + j * column), let(target + top * channels))
                with when(bottom < height):
                    functions[_ZEROS](
                        q.at(target + bottom * channels), (height - bottom) * channels
                    )

        def short(width: int) -> None:
            """Runs of one vector, which may be written beyond its end; of the usual heights all
            that are in a column at once."""

            def move(source: Expr, target: Expr, i: Expr) -> None:
                to, at = target + i * channels, source + i * row
                q[vector(to, width)] = x.floats(at, width)

            def any_number(source: Expr, target: Expr) -> None:
                with loop(inside) as i:
                    move(source, target, i)

            def at_once(number: int) -> None:
                with loop(count) as j:
                    for i in range(number):
                        move(j * column, j * (height * channels), as_int(i))

            def choose(heights: Sequence[int]) -> None:
                if not heights:
                    each_column(any_number)
                    return
                whole = tirx.all(inside == heights[0], height == heights[0])
                branch(whole, lambda: at_once(heights[0]), lambda: choose(heights[1:]))

            choose(_HEIGHTS)

        def long(vectors: Expr, rest: Expr | None) -> None:
            """Runs of ``vectors`` vectors, and ``rest`` elements if it may not write beyond."""
            turns = let(div(vectors, _TOGETHER))

            def runs(source: Expr, target: Expr) -> None:
                with loop(inside) as i:
                    at, to = let(source + i * row), let(target + i * channels)

                    def move(first: Expr, width: int, at: Expr = at, to: Expr = to) -> None:
                        q[vector(to + first, width)] = x.floats(at + first, width)

                    with loop(turns) as t:
                        for v in range(_TOGETHER):
                            move((t * _TOGETHER + v) * lanes, lanes)
                    with loop(vectors - turns * _TOGETHER) as v:
                        move((turns * _TOGETHER + v) * lanes, lanes)
                    if rest is not None:
                        with loop(rest) as e:
                            move(vectors * lanes + e, 1)

            each_column(runs)

        whole = let(div(channels, lanes))
        rest = let(channels - whole * lanes)
        # how far the last run reaches when it is read in whole vectors
        half = lanes // 2
        reach = let((bottom - 1) * row + (count - 1) * column + channels)

        def ragged() -> None:
            def beyond() -> None:
                branch(channels <= half, lambda: short(half), lambda: long(whole + 1, None))

            branch(reach + lanes <= left, beyond, lambda: long(whole, rest))

        def others() -> None:
            branch(rest == 0, lambda: long(whole, None), ragged)

        branch(channels == 1, lambda: short(1), others)


def _emit_band(functions: Functions, kind: str, dtype: str) -> None:
    """``moonpoly_conv_band(numbers, x, q, row, pixel, count, single)``: one row of ``count``
    windows from ``pixel`` on, of output row ``row`` of all images; ``single``: each on its own.
    The channels of the group begin at ``channel``.
    """

    @functions.separate(
        band_name(kind),
        numbers=INTS,
        x=f"{dtype}*",
        q=FLOATS,
        row=INT,
        pixel=INT,
        count=INT,
        single=INT,
        channel=INT,
    )
    def _(
        numbers: Pointer,
        x: Pointer,
        q: Pointer,
        row: Expr,
        pixel: Expr,
        count: Expr,
        single: Expr,
        channel: Expr,
    ) -> None:
        conv = Numbers(CONVOLUTION, numbers)
        s = conv.kept(
            "n", "h", "w", "oh", "in_channels", "channels", "kernel_h", "kernel_w", "stride_h",
            "stride_w", "dilation_h", "dilation_w", "top", "left",
        )  # fmt: skip
        image = let(div(row, s["oh"]))
        first_row = let((row - image * s["oh"]) * s["stride_h"] - s["top"])
        dilation = s["dilation_h"]
        # the kernel's rows that are in the input
        above = let(maximum(0 - first_row, 0))
        top = let(minimum(div(above + dilation - 1, dilation), s["kernel_h"]))
        below = let(maximum(s["h"] - first_row, 0))
        bottom = let(maximum(minimum(div(below + dilation - 1, dilation), s["kernel_h"]), top))
        height = let(s["kernel_h"] * s["channels"])
        step = let(s["w"] * s["in_channels"])
        # where the kernel's row 0 is, though it may be outside
        start = let((image * s["h"] + first_row) * step + channel)
        end = let(s["n"] * s["h"] * step)

        def zeros(target: Expr, columns: Expr) -> None:
            with when(columns > 0):
                functions[_ZEROS](q.at(target), columns * height)

        def neighbours(target: Expr, column: Expr, columns: Expr) -> None:
            """``columns`` neighbouring input columns from ``column`` on."""
            before = let(minimum(maximum(0 - column, 0), columns))
            after = let(maximum(minimum(s["w"] - column, columns), before))
            nothing = tirx.any(after == before, bottom == top)

            def copy() -> None:
                zeros(target, before)
                at = let(start + (column + before) * s["in_channels"])
                functions[f"moonpoly_conv_columns_{kind}"](
                    x.at(at),
                    q.at(target + before * height),
                    dilation * step,
                    s["in_channels"],
                    after - before,
                    s["channels"],
                    s["kernel_h"],
                    top,
                    bottom,
                    end - at,
                )
                zeros(target + after * height, columns - after)

            branch(nothing, lambda: zeros(target, columns), copy)

        def overlapping() -> None:
            columns = (count - 1) * s["stride_w"] + s["kernel_w"]
            neighbours(as_int(0), let(pixel * s["stride_w"] - s["left"]), let(columns))

        def apart() -> None:
            together = s["dilation_w"] == 1
            turns = scratch(2, INT)
            turns[0] = tirx.Select(together, as_int(1), s["kernel_w"])
            turns[1] = tirx.Select(together, s["kernel_w"], as_int(1))
            each, columns = let(turns[0]), let(turns[1])
            with loop(count) as i:
                column = let((pixel + i) * s["stride_w"] - s["left"])
                with loop(each) as j:
                    neighbours(
                        let((i * s["kernel_w"] + j) * height),
                        let(column + j * s["dilation_w"]),
                        columns,
                    )

        branch(single > 0, apart, overlapping)
