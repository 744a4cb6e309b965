"""Products of few rows with a B whose columns are contiguous: dot products, nothing packed.

Packing pays off only over several rows. With one or two, each column of B is read once, along the
reduction, and one vector of outputs is computed at a time.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import FLOAT, FLOATS, INT, Expr, Functions, div, let, loop, scratch, vector
from tvm_moonpoly.operators.packing import transpose


def emit(functions: Functions, lanes: int) -> None:
    """Define ``moonpoly_dot``: ``c[i, j] = sum_k a[i, k] * b[j, k]`` for (m, k) by (n, k)."""

    @functions.private(
        "moonpoly_dot",
        a=FLOATS,
        lda=INT,
        b=FLOATS,
        ldb=INT,
        c=FLOATS,
        ldc=INT,
        m=INT,
        n=INT,
        k=INT,
    )
    def _(
        a: Any, lda: Expr, b: Any, ldb: Expr, c: Any, ldc: Expr, m: Expr, n: Expr, k: Expr
    ) -> None:
        steps = let(div(k, lanes))
        groups = let(div(n, lanes))
        zero = T.Broadcast(tirx.const(0.0, FLOAT), lanes)

        def partial_sums(row: Expr, columns: list[Expr]) -> list[Expr]:
            """A vector of partial sums for each of the columns of B that start at ``columns``."""
            sums = scratch(len(columns) * lanes)
            for j in range(len(columns)):
                sums[vector(j * lanes, lanes)] = zero
            with loop(steps) as step:
                along = step * lanes
                left = let(a[vector(row + along, lanes)])
                for j, column in enumerate(columns):
                    at = vector(j * lanes, lanes)
                    sums[at] = sums[at] + left * b[vector(column + along, lanes)]
            return [let(sums[vector(j * lanes, lanes)]) for j in range(len(columns))]

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
