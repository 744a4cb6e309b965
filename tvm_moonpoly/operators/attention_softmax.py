"""Rows of scores made probabilities, up to the division by their sum."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    MINUS_INFINITY,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    cell,
    div,
    let,
    loop,
    maximum,
    minimum,
    scratch,
    spread,
    vector,
    when,
)
from tvm_moonpoly.operators.packing import shuffle
from tvm_moonpoly.operators.vector_functions import exp_below_zero

SOFTMAX = "moonpoly_attention_softmax"
SCALE_ROWS = "moonpoly_attention_scale_rows"

ZERO = tirx.const(0.0, FLOAT)


def emit(functions: Functions, lanes: int) -> None:
    """Define `SOFTMAX` and `SCALE_ROWS`."""
    _emit_softmax(functions, lanes)
    _emit_scale_rows(functions, lanes)


def _emit_softmax(functions: Functions, lanes: int) -> None:
    """``s = exp(x - max(x))`` for each row of ``x = scale * s + mask``, and ``inverse = 1 / sum``.

    Row i sees the first ``seen + i * step`` of ``limit`` keys; the rest become 0. Rows of s are
    ``lds`` apart, at least ``limit`` rounded up to two vectors. With ``masked`` 0 there is no mask.
    A row that sees no key at all, or whose x are all minus infinity, gives NaN.
    """
    wide = 2 * lanes

    # unrolled, its loops would need more vector registers than there are
    @functions.compact(
        SOFTMAX,
        s=FLOATS,
        lds=INT,
        mask=FLOATS,
        ld_mask=INT,
        inverse=FLOATS,
        scale=FLOAT,
        masked=INT,
        rows=INT,
        seen=INT,
        step=INT,
        limit=INT,
    )
    def _(
        s: Pointer,
        lds: Expr,
        mask: Pointer,
        ld_mask: Expr,
        inverse: Pointer,
        scale: Expr,
        masked: Expr,
        rows: Expr,
        seen: Expr,
        step: Expr,
        limit: Expr,
    ) -> None:
        whole = vector(0, wide)
        most, total = scratch(wide), scratch(wide)
        with loop(rows) as i:
            row, at_mask = let(i * lds), let(i * ld_mask)
            count = let(maximum(minimum(seen + i * step, limit), 0))
            vectors = let(div(count, wide))
            whole_end = let(vectors * wide)
            padded = let(div(count + (wide - 1), wide))

            def x_at(j: Expr, width: int, with_mask: bool) -> Expr:
                """scale * s + mask, stored and returned."""
                value = s[vector(row + j, width)] * spread(scale, width)
                if with_mask:
                    value = value + mask[vector(at_mask + j, width)]
                value = cell(value, FLOAT, width)
                s[vector(row + j, width)] = value
                return value

            def scaled(with_mask: bool) -> None:
                # the last vector is filled up with what changes neither the largest nor the sum
                with loop(count - whole_end) as j:
                    x_at(let(whole_end + j), 1, with_mask)
                with loop(padded * wide - count) as j:
                    s[row + count + j] = MINUS_INFINITY
                most[whole] = T.Broadcast(MINUS_INFINITY, wide)
                with when(vectors < padded):
                    most[whole] = s[vector(row + whole_end, wide)]
                    # a comparison with NaN is false: it must not be where the comparison begins
                    most[whole] = tirx.Select(
                        most[whole] > T.Broadcast(MINUS_INFINITY, wide),
                        most[whole],
                        T.Broadcast(MINUS_INFINITY, wide),
                    )
                with loop(vectors) as v:
                    x = x_at(let(v * wide), wide, with_mask)
                    most[whole] = tirx.Select(x > most[whole], x, most[whole])

            branch(masked > 0, lambda: scaled(True), lambda: scaled(False))
            largest = let(_across(most[whole], wide, lambda a, b: tirx.Select(a > b, a, b)))
            total[whole] = T.Broadcast(ZERO, wide)
            with loop(padded) as v:
                at = vector(row + v * wide, wide)
                value = cell(exp_below_zero(s[at] - T.Broadcast(largest, wide), wide), FLOAT, wide)
                s[at] = value
                total[whole] = total[whole] + value
            sum_of_row = let(_across(total[whole], wide, lambda a, b: a + b))
            inverse[i] = tirx.const(1.0, FLOAT) / sum_of_row
            left = let(maximum(div(limit + (wide - 1), wide) - padded, 0))
            with loop(left) as v:
                s[vector(row + (padded + v) * wide, wide)] = T.Broadcast(ZERO, wide)


def _across(value: Expr, lanes: int, join: object) -> Expr:
    """All lanes of a vector joined in pairs, those of the two halves first."""
    value = cell(value, FLOAT, lanes)
    width = lanes
    while width > 1:
        width //= 2
        halves = [
            cell(shuffle(value, value, list(range(first, first + width))), FLOAT, width)
            for first in (0, width)
        ]
        value = cell(join(*halves), FLOAT, width)  # type: ignore[operator]
    return value


def _emit_scale_rows(functions: Functions, lanes: int) -> None:
    """Each of ``rows`` rows of ``n`` elements times its element of ``factors``; 0 if ``empty``."""

    @functions.separate(SCALE_ROWS, c=FLOATS, ldc=INT, factors=FLOATS, rows=INT, n=INT, empty=INT)
    def _(c: Pointer, ldc: Expr, factors: Pointer, rows: Expr, n: Expr, empty: Expr) -> None:
        with loop(rows) as i:
            factor = let(tirx.Select(empty > 0, ZERO, factors[i]))
            done = as_int(0)
            for width in (lanes, 1):
                first, count = let(i * ldc + done), let(div(n - done, width))
                with loop(count) as j:
                    at = vector(first + j * width, width)
                    c[at] = c[at] * spread(factor, width)
                done = let(done + count * width)
