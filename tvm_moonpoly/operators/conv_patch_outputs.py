"""The outputs of Winograd's algorithm: ``A' M A``, with all that comes after the products."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    MINUS_INFINITY,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    ceil_div,
    cell,
    div,
    let,
    loop,
    minimum,
    scratch,
    select,
    vector,
    when,
)
from tvm_moonpoly.numbers import Numbers, as_float
from tvm_moonpoly.operators.bounded_activation import ACTIVATE_BOUNDED
from tvm_moonpoly.operators.conv_constants import ConvActivation
from tvm_moonpoly.planner.conv_blocks import SIDE, WIDE
from tvm_moonpoly.planner.conv_numbers import CONVOLUTION


def emit(functions: Functions, kind: str, dtype: str, lanes: int) -> None:
    """Define ``moonpoly_conv_outputs_<kind>``: the outputs of a block's patches in one group of
    panels.

    Element e of patch t is at ``m[(e * patches + t) * columns]``. ``real`` of the ``columns``
    exist. ``found[0]`` becomes 1 where one is not finite.
    """

    def on_stack(values: list[Expr]) -> Expr:
        tile = scratch(SIDE * SIDE * lanes)
        for e, value in enumerate(values):
            tile[vector(e * lanes, lanes)] = value
        return tile.at(0)

    @functions.separate(
        f"moonpoly_conv_outputs_{kind}",
        numbers=INTS,
        m=FLOATS,
        bias=FLOATS,
        residual=f"{dtype}*",
        out=f"{dtype}*",
        row=INT,
        pixel=INT,
        rows=INT,
        width=INT,
        columns=INT,
        real=INT,
        found=INTS,
    )
    def _(
        numbers: Pointer,
        m: Pointer,
        bias: Pointer,
        residual: Pointer,
        out: Pointer,
        row: Expr,
        pixel: Expr,
        rows: Expr,
        width: Expr,
        columns: Expr,
        real: Expr,
        found: Pointer,
    ) -> None:
        conv = Numbers(CONVOLUTION, numbers)
        s = conv.kept("oh", "ow", "out_channels", "residual", "activation")
        first, second = as_float(conv["first"]), as_float(conv["second"])
        relu = s["activation"] == int(ConvActivation.RELU)
        lo = let(tirx.Select(relu, tirx.const(0.0, FLOAT), MINUS_INFINITY))
        step = let(rows * width * columns)
        high = let(ceil_div(s["oh"], SIDE))
        in_row = let(s["ow"] * s["out_channels"])
        active = s["activation"] > int(ConvActivation.RELU)
        # several, as sums wait for one another
        odd = scratch(lanes)
        odd[vector(0, lanes)] = T.Broadcast(tirx.const(0.0, FLOAT), lanes)

        def results(at: Expr, column: Expr) -> list[Expr]:
            """The four outputs of a patch, before a residual."""

            def combined(d: list[Expr]) -> list[Expr]:
                near = cell(d[1] + d[2], FLOAT, lanes), cell(d[1] - d[2], FLOAT, lanes)
                pair = d[0] + near[0], near[1] - d[3]
                return [cell(each, FLOAT, lanes) for each in pair]

            by_columns = []
            for j in range(WIDE):
                given = [m[vector((i * WIDE + j) * step + at, lanes)] for i in range(WIDE)]
                by_columns.append(combined([cell(each, FLOAT, lanes) for each in given]))
            added = cell(bias[vector(column, lanes)], FLOAT, lanes)
            found = []
            for i in range(SIDE):
                pair = combined([each[i] for each in by_columns])
                found += [cell(each + added, FLOAT, lanes) for each in pair]
            total = cell(found[0] + found[1], FLOAT, lanes)
            other = cell(found[2] + found[3], FLOAT, lanes)
            zero = T.Broadcast(tirx.const(0.0, FLOAT), lanes)
            odd[vector(0, lanes)] = odd[vector(0, lanes)] + (total + other) * zero
            return found

        def bounded(value: Expr) -> Expr:
            low = T.Broadcast(lo, lanes)
            value = cell(value, FLOAT, lanes)
            return tirx.Select(value < low, low, value)

        with loop(rows) as r:
            image = let(div(row + r, high))
            top = let((row + r - image * high) * SIDE)
            with loop(width) as t:
                left = let((pixel + t) * SIDE)
                start = let((image * s["oh"] + top) * in_row + left * s["out_channels"])
                inside = tirx.all(top + 1 < s["oh"], left + 1 < s["ow"])
                source = let((r * width + t) * columns)

                def place(i: int, j: int) -> Expr:
                    return i * in_row + j * s["out_channels"]

                def whole(column: Expr, start: Expr = start, source: Expr = source) -> None:
                    values = results(source + column, column)
                    for e, value in enumerate(values):
                        at = vector(start + place(*divmod(e, SIDE)) + column, lanes)
                        out[at] = bounded(value)

                def with_residual(column: Expr, start: Expr = start, source: Expr = source) -> None:
                    values = results(source + column, column)
                    for e, value in enumerate(values):
                        at = vector(start + place(*divmod(e, SIDE)) + column, lanes)
                        out[at] = bounded(value + residual[at])

                def any_other(
                    column: Expr,
                    start: Expr = start,
                    source: Expr = source,
                    top: Expr = top,
                    left: Expr = left,
                ) -> None:
                    functions[f"moonpoly_conv_any_outputs_{kind}"](
                        on_stack(results(source + column, column)),
                        residual.at(start + column),
                        out.at(start + column),
                        in_row,
                        s["out_channels"],
                        minimum(real - column, lanes),
                        minimum(s["oh"] - top, SIDE),
                        minimum(s["ow"] - left, SIDE),
                        s["residual"],
                        s["activation"],
                        first,
                        second,
                    )

                vectors = let(div(columns, lanes))

                def each(body: Any, count: Expr) -> None:
                    with loop(count) as c:
                        body(let(c * lanes))

                def rest(count: Expr, vectors: Expr = vectors) -> None:
                    with loop(vectors - count) as c:
                        any_other(let((count + c) * lanes))

                if dtype == FLOAT:
                    fast = let(select(tirx.all(inside, tirx.Not(active)), div(real, lanes), 0))
                    branch(
                        s["residual"] > 0,
                        lambda: each(with_residual, fast),
                        lambda: each(whole, fast),
                    )
                    rest(fast)
                else:
                    rest(as_int(0))
        for i in range(lanes):
            with when(tirx.isnan(odd[i])):
                found[0] = as_int(1)

    many = {"in_row": INT, "column": INT, "lanes": INT, "rows": INT, "columns": INT}

    @functions.compact(
        f"moonpoly_conv_any_outputs_{kind}",
        tile=FLOATS,
        residual=f"{dtype}*",
        out=f"{dtype}*",
        **many,
        has=INT,
        activation=INT,
        first=FLOAT,
        second=FLOAT,
    )
    def _(tile: Pointer, residual: Pointer, out: Pointer, **given: Any) -> None:
        """Of a vector of outputs of a patch those that exist: ``rows``, ``columns``, ``lanes``."""
        count = let(given["lanes"])

        def inside(body: Any) -> None:
            with loop(given["rows"]) as i, loop(given["columns"]) as j:
                at = let(i * given["in_row"] + j * given["column"])
                own = let((i * SIDE + j) * lanes)
                with loop(count) as c:
                    body(own + c, at + c)

        def add(own: Expr, at: Expr) -> None:
            tile[own] = tile[own] + residual.floats(at)

        def relu(own: Expr, at: Expr) -> None:
            zero = tirx.const(0.0, FLOAT)
            tile[own] = tirx.Select(tile[own] < zero, zero, tile[own])

        def store(own: Expr, at: Expr) -> None:
            out.put_floats(at, tile[own])

        with when(given["has"] > 0):
            inside(add)
        with when(given["activation"] == int(ConvActivation.RELU)):
            inside(relu)
        with when(given["activation"] > int(ConvActivation.RELU)):
            functions[ACTIVATE_BOUNDED](
                tile.at(0), SIDE * lanes, given["rows"], given["columns"] * lanes,
                given["activation"], given["first"], given["second"],
            )  # fmt: skip
        inside(store)
