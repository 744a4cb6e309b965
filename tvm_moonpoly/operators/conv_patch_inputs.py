"""The inputs of Winograd's algorithm: 4x4 patches, transformed to ``V = B' d B``."""

from __future__ import annotations

from tvm import tirx

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    branch,
    ceil_div,
    cell,
    div,
    let,
    loop,
    vector,
)
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.planner.conv_blocks import SIDE, WIDE
from tvm_moonpoly.planner.conv_numbers import CONVOLUTION


def emit_transform(functions: Functions, lanes: int) -> None:
    """Define ``moonpoly_conv_patch(x, v, row, column, step, channels)``: the patch at ``x``, of
    rows and columns so many floats apart, transformed; its 16 elements are ``step`` floats apart.
    """

    @functions.separate(
        "moonpoly_conv_patch", x=FLOATS, v=FLOATS, row=INT, column=INT, step=INT, channels=INT
    )
    def _(x: Pointer, v: Pointer, row: Expr, column: Expr, step: Expr, channels: Expr) -> None:
        def combined(d: list[Expr], width: int) -> list[Expr]:
            """A column or row of the patch, transformed."""
            pairs = (d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3])
            return [cell(each, FLOAT, width) for each in pairs]

        def transform(at: Expr, width: int) -> None:
            columns = []
            for j in range(WIDE):
                places = [vector(i * row + j * column + at, width) for i in range(WIDE)]
                given = [cell(x[place], FLOAT, width) for place in places]
                columns.append(combined(given, width))
            for i in range(WIDE):
                for j, value in enumerate(combined([each[i] for each in columns], width)):
                    v[vector((i * WIDE + j) * step + at, width)] = value

        whole = let(div(channels, lanes))
        with loop(whole) as c:
            transform(let(c * lanes), lanes)
        with loop(channels - whole * lanes) as c:
            transform(let(whole * lanes + c), 1)


def emit(functions: Functions, kind: str, dtype: str, lanes: int) -> None:
    """Define ``moonpoly_conv_inputs_<kind>``, after `emit_transform`."""
    _emit_load(functions, kind, dtype, lanes)
    _emit_inputs(functions, kind, dtype)


def _emit_load(functions: Functions, kind: str, dtype: str, lanes: int) -> None:
    """A patch that is partly outside of the input, or float16: copied to ``q``, compact."""

    @functions.compact(
        f"moonpoly_conv_load_patch_{kind}",
        x=f"{dtype}*",
        q=FLOATS,
        row=INT,
        column=INT,
        channels=INT,
        top=INT,
        left=INT,
        h=INT,
        w=INT,
    )
    def _(
        x: Pointer,
        q: Pointer,
        row: Expr,
        column: Expr,
        channels: Expr,
        top: Expr,
        left: Expr,
        h: Expr,
        w: Expr,
    ) -> None:
        whole = let(div(channels, lanes))
        done = let(whole * lanes)

        with loop(WIDE) as i, loop(WIDE) as j:
            to = let((i * WIDE + j) * channels)
            at = let((top + i) * row + (left + j) * column)

            def copy(to: Expr = to, at: Expr = at) -> None:
                with loop(whole) as c:
                    q[vector(to + c * lanes, lanes)] = x.floats(at + c * lanes, lanes)
                with loop(channels - done) as c:
                    q[to + done + c] = x.floats(at + done + c)

            def zeros(to: Expr = to) -> None:
                with loop(channels) as c:
                    q[to + c] = tirx.const(0.0, FLOAT)

            inside = tirx.all(top + i >= 0, top + i < h, left + j >= 0, left + j < w)
            branch(inside, copy, zeros)


def _emit_inputs(functions: Functions, kind: str, dtype: str) -> None:
    """The patches of a block, transformed: element e of patch t at ``v[(e * patches + t) *
    channels]``. ``row`` and ``pixel``: the first of the rows of patches, and of those in a row."""

    @functions.separate(
        f"moonpoly_conv_inputs_{kind}",
        numbers=INTS,
        x=f"{dtype}*",
        v=FLOATS,
        patch=FLOATS,
        channel=INT,
        row=INT,
        pixel=INT,
        rows=INT,
        width=INT,
    )
    def _(
        numbers: Pointer,
        x: Pointer,
        v: Pointer,
        patch: Pointer,
        channel: Expr,
        row: Expr,
        pixel: Expr,
        rows: Expr,
        width: Expr,
    ) -> None:
        conv = Numbers(CONVOLUTION, numbers)
        s = conv.kept("h", "w", "oh", "in_channels", "channels", "top", "left")
        channels, column = s["channels"], s["in_channels"]
        step = let(rows * width * channels)
        in_row = let(s["w"] * column)
        high = let(ceil_div(s["oh"], SIDE))
        with loop(rows) as r:
            image = let(div(row + r, high))
            top = let((row + r - image * high) * SIDE - s["top"])
            start = let(image * s["h"] * in_row + channel)
            inside_rows = tirx.all(top >= 0, top + WIDE <= s["h"])
            with loop(width) as t:
                left = let((pixel + t) * SIDE - s["left"])
                to = let((r * width + t) * channels)

                def loaded(top: Expr = top, left: Expr = left, start: Expr = start) -> None:
                    functions[f"moonpoly_conv_load_patch_{kind}"](
                        x.at(start), patch.at(0), in_row, column, channels, top, left, s["h"],
                        s["w"],
                    )  # fmt: skip

                def copied(to: Expr = to) -> None:
                    loaded()
                    functions["moonpoly_conv_patch"](
                        patch.at(0), v.at(to), WIDE * channels, channels, step, channels
                    )

                def in_place(
                    to: Expr = to, top: Expr = top, left: Expr = left, start: Expr = start
                ) -> None:
                    at = start + top * in_row + left * column
                    functions["moonpoly_conv_patch"](
                        x.at(at), v.at(to), in_row, column, step, channels
                    )

                if dtype == FLOAT:
                    inside = tirx.all(inside_rows, left >= 0, left + WIDE <= s["w"])
                    branch(inside, in_place, copied)
                else:
                    copied()
