"""Products of one row, or a few, with a B that changes: B is streamed as it lies in memory.

Packing pays off only over several rows. ``moonpoly_dot`` reads contiguous columns of B, each along
the reduction, for one vector of outputs at a time. ``moonpoly_axpy`` reads contiguous rows of B,
several at a time, and adds their multiples to a row of outputs that stays near.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import FLOAT, FLOATS, INT, Expr, Functions, div, let, loop, scratch, vector
from tvm_moonpoly.operators.packing import transpose

#: Rows of B that are added to the outputs in one pass over them.
_ROWS_TOGETHER = 8


def emit(functions: Functions, lanes: int) -> None:
    """Define ``moonpoly_dot`` and ``moonpoly_axpy``: ``c = a @ b`` for (m, k) by (k, n).

    ``ldb`` is the distance of two columns of b for the first, and of two rows for the second.
    """
    _emit_dot(functions, lanes)
    _emit_axpy(functions, lanes)


_PARAMETERS = {
    "a": FLOATS,
    "lda": INT,
    "b": FLOATS,
    "ldb": INT,
    "c": FLOATS,
    "ldc": INT,
    "m": INT,
    "n": INT,
    "k": INT,
}


def _emit_axpy(functions: Functions, lanes: int) -> None:
    @functions.separate("moonpoly_axpy", **_PARAMETERS)
    def _(
        a: Any, lda: Expr, b: Any, ldb: Expr, c: Any, ldc: Expr, m: Expr, n: Expr, k: Expr
    ) -> None:
        vectors = let(div(n, lanes))
        blocks = let(div(k, _ROWS_TOGETHER))
        zero = tirx.const(0.0, FLOAT)

        def add_rows(a_at: Expr, b_at: Expr, out: Expr, rows: int) -> None:
            """``c[out + j] += sum_i a[a_at + i] * b[b_at + i * ldb + j]``."""
            factors = [let(a[a_at + i]) for i in range(rows)]
            starts = [let(b_at + i * ldb) for i in range(rows)]
            with loop(vectors) as v:
                total = c[vector(out + v * lanes, lanes)]
                for factor, start in zip(factors, starts, strict=True):
                    row = b[vector(start + v * lanes, lanes)]
                    total = total + T.Broadcast(factor, lanes) * row
                c[vector(out + v * lanes, lanes)] = total
            with loop(n - vectors * lanes) as rest:
                j = let(vectors * lanes + rest)
                total = c[out + j]
                for factor, start in zip(factors, starts, strict=True):
                    total = total + factor * b[start + j]
                c[out + j] = total

        with loop(m) as i:
            out, row = let(i * ldc), let(i * lda)
            with loop(vectors) as v:
                c[vector(out + v * lanes, lanes)] = T.Broadcast(zero, lanes)
            with loop(n - vectors * lanes) as rest:
                c[out + vectors * lanes + rest] = zero
            with loop(blocks) as block:
                first = let(block * _ROWS_TOGETHER)
                add_rows(row + first, let(first * ldb), out, _ROWS_TOGETHER)
            with loop(k - blocks * _ROWS_TOGETHER) as rest:
                first = let(blocks * _ROWS_TOGETHER + rest)
                add_rows(row + first, let(first * ldb), out, 1)


def _emit_dot(functions: Functions, lanes: int) -> None:
    @functions.separate("moonpoly_dot", **_PARAMETERS)
    def _(
        a: Any, lda: Expr, b: Any, ldb: Expr, c: Any, ldc: Expr, m: Expr, n: Expr, k: Expr
    ) -> None:
        steps = let(div(k, lanes))
        groups = let(div(n, lanes))
        zero = T.Broadcast(tirx.const(0.0, FLOAT), lanes)

        def partial_sums(row: Expr, columns: list[Expr]) -> list[Expr]:
            """A vector of partial sums for each of the columns of B that start at ``columns``."""
            whole = vector(0, lanes)
            sums = [scratch(lanes) for _ in columns]
            for total in sums:
                total[whole] = zero
            with loop(steps) as step:
                along = step * lanes
                left = let(a[vector(row + along, lanes)])
                for total, column in zip(sums, columns, strict=True):
                    total[whole] = total[whole] + left * b[vector(column + along, lanes)]
            return [let(total[whole]) for total in sums]

        def add_rest(total: Any, index: int, row: Expr, column: Expr) -> None:
            with loop(k - steps * lanes) as rest:
                at = let(steps * lanes + rest)
                total[index] = total[index] + a[row + at] * b[column + at]

        with loop(m) as i:
            row = let(i * lda)
            with loop(groups) as g:
                columns = [let((g * lanes + j) * ldb) for j in range(lanes)]
                turned = transpose(partial_sums(row, columns))
                total = scratch(lanes)
                total[vector(0, lanes)] = sum(turned[1:], turned[0])
                for j, column in enumerate(columns):
                    add_rest(total, j, row, column)
                c[vector(i * ldc + g * lanes, lanes)] = total[vector(0, lanes)]
            with loop(n - groups * lanes) as j:
                column = let((groups * lanes + j) * ldb)
                (sums,) = partial_sums(row, [column])
                spread, total = scratch(lanes), scratch(1)
                spread[vector(0, lanes)] = sums
                total[0] = tirx.const(0.0, FLOAT)
                for lane in range(lanes):
                    total[0] = total[0] + spread[lane]
                add_rest(total, 0, row, column)
                c[i * ldc + groups * lanes + j] = total[0]
