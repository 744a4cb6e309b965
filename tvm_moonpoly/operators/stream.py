"""Products of one row, or a few, with a B that changes: B is streamed as it lies in memory.

Packing pays off only over several rows. ``moonpoly_dot`` reads contiguous columns of B, each along
the reduction, for one vector of outputs at a time. ``moonpoly_axpy`` reads contiguous rows of B
and adds their multiples up: in registers where these hold a whole row of outputs, else several
rows at a time to a row of outputs that stays near.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    Expr,
    Functions,
    as_int,
    branch,
    ceil_div,
    div,
    let,
    loop,
    scratch,
    switch,
    vector,
    when,
)
from tvm_moonpoly.operators.packing import shuffle

#: Rows of B that are added to the outputs in one pass over them, and in a second attempt.
_ROWS_TOGETHER = (8, 4)

#: The most vectors of outputs that are kept in registers. The last ones are spilled: that still
#: pays off, since whole rows of B, one after another, are what the caches are best at.
_VECTORS_KEPT = 17

#: Rows of B in a turn where the outputs are kept, and sums of which each takes some, by vectors of
#: outputs: so many that additions need not wait for one another.
_ROWS_IN_TURN = 4
_SUMS_EACH = {1: 4, 2: 4, 3: 4, 4: 2, 5: 2, 6: 2}

#: How columns of B are read: so many at once, and so many vectors of each in a step. Several at
#: once share what is read of A. One after another is the order of memory.
_NEAR, _FAR = (8, 1), (1, 4)

#: Sums over one column that is on its own.
_SUMS_ALONE = 4


def emit(functions: Functions, lanes: int) -> None:
    """Define ``moonpoly_dot``, ``moonpoly_dot_far`` and ``moonpoly_axpy``: ``c = a @ b`` for (m, k)
    by (k, n).

    ``ldb`` is the distance of two columns of b for the first ones, and of two rows for the last.
    ``moonpoly_dot_far`` is for columns that follow one another in memory, beyond the caches.
    """
    _emit_dot(functions, "moonpoly_dot", lanes, *_NEAR)
    _emit_dot(functions, "moonpoly_dot_far", lanes, *_FAR)
    for vectors in range(1, _VECTORS_KEPT + 1):
        _emit_kept(functions, lanes, vectors)
    _emit_many(functions, lanes)
    _emit_few(functions)
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
_ROW = {"a": FLOATS, "b": FLOATS, "ldb": INT, "c": FLOATS, "n": INT, "k": INT}


def _emit_axpy(functions: Functions, lanes: int) -> None:
    @functions.separate("moonpoly_axpy", **_PARAMETERS)
    def _(
        a: Any, lda: Expr, b: Any, ldb: Expr, c: Any, ldc: Expr, m: Expr, n: Expr, k: Expr
    ) -> None:
        vectors = let(ceil_div(n, lanes))
        with loop(m) as i:

            def row(form: str) -> None:
                functions[f"moonpoly_axpy_{form}"](a.at(i * lda), b.at(0), ldb, c.at(i * ldc), n, k)

            def more() -> None:
                kept = range(1, _VECTORS_KEPT + 1)
                branch(
                    vectors > _VECTORS_KEPT,
                    lambda: row("many"),
                    lambda: switch(vectors, kept, lambda count: row(str(count))),
                )

            branch(n < lanes, lambda: row("few"), more)


def _emit_kept(functions: Functions, lanes: int, vectors: int) -> None:
    """A row of outputs that is kept; where it ends within a vector, the last two overlap."""

    @functions.separate(f"moonpoly_axpy_{vectors}", **_ROW)
    def _(a: Any, b: Any, ldb: Expr, c: Any, n: Expr, k: Expr) -> None:
        whole, zero = vector(0, lanes), T.Broadcast(tirx.const(0.0, FLOAT), lanes)
        starts = [as_int(v * lanes) for v in range(vectors - 1)] + [let(n - lanes)]
        sums = [[scratch(lanes) for _ in starts] for _ in range(_SUMS_EACH.get(vectors, 1))]
        for each in (total for totals in sums for total in totals):
            each[whole] = zero

        def add(row: Expr, totals: list[Any]) -> None:
            at = let(row * ldb)
            factor = T.Broadcast(a[row], lanes)
            for total, start in zip(totals, starts, strict=True):
                total[whole] = total[whole] + factor * b[vector(at + start, lanes)]

        turns = let(div(k, _ROWS_IN_TURN))
        with loop(turns) as turn:
            for i in range(_ROWS_IN_TURN):
                add(let(turn * _ROWS_IN_TURN + i), sums[i % len(sums)])
        with loop(k - turns * _ROWS_IN_TURN) as rest:
            add(let(turns * _ROWS_IN_TURN + rest), sums[0])
        for start, *totals in zip(starts, *sums, strict=True):
            c[vector(start, lanes)] = _added([total[whole] for total in totals])


def _emit_many(functions: Functions, lanes: int) -> None:
    """A row of outputs of more than a vector that is added to."""

    @functions.separate("moonpoly_axpy_many", **_ROW)
    def _(a: Any, b: Any, ldb: Expr, c: Any, n: Expr, k: Expr) -> None:
        vectors, last = let(div(n, lanes)), let(n - lanes)
        fresh = _beyond(vectors * lanes - last, lanes)
        zero = T.Broadcast(tirx.const(0.0, FLOAT), lanes)

        def add_rows(first: Expr, rows: int) -> None:
            """``c[j] += sum_i a[first + i] * b[(first + i) * ldb + j]``."""
            factors = [T.Broadcast(let(a[first + i]), lanes) for i in range(rows)]
            starts = [let((first + i) * ldb) for i in range(rows)]

            def added(at: Expr) -> Expr:
                total = c[vector(at, lanes)]
                for factor, start in zip(factors, starts, strict=True):
                    total = total + factor * b[vector(start + at, lanes)]
                return let(total)

            with loop(vectors) as v:
                c[vector(v * lanes, lanes)] = added(v * lanes)
            with when(vectors * lanes < n):
                total = added(last)
                c[vector(last, lanes)] = tirx.Select(fresh, total, c[vector(last, lanes)])

        with loop(vectors) as v:
            c[vector(v * lanes, lanes)] = zero
        c[vector(last, lanes)] = zero
        done = as_int(0)
        for rows in _ROWS_TOGETHER:
            blocks = let(div(k - done, rows))
            with loop(blocks) as block:
                add_rows(let(done + block * rows), rows)
            done = let(done + blocks * rows)
        with loop(k - done) as rest:
            add_rows(let(done + rest), 1)


def _emit_few(functions: Functions) -> None:
    """Less than a vector of outputs."""

    @functions.separate("moonpoly_axpy_few", **_ROW)
    def _(a: Any, b: Any, ldb: Expr, c: Any, n: Expr, k: Expr) -> None:
        with loop(n) as j:
            _sum_of(k, lambda i: a[i] * b[i * ldb + j], lambda total: c.__setitem__(j, total))


def _emit_dot(functions: Functions, name: str, lanes: int, together: int, in_step: int) -> None:
    @functions.separate(name, **_PARAMETERS)
    def _(
        a: Any, lda: Expr, b: Any, ldb: Expr, c: Any, ldc: Expr, m: Expr, n: Expr, k: Expr
    ) -> None:
        whole, zero = vector(0, lanes), T.Broadcast(tirx.const(0.0, FLOAT), lanes)
        vectors = let(div(k, lanes))
        fresh = _beyond(lanes - (k - vectors * lanes), lanes)

        def partial_sums(row: Expr, columns: list[Expr], in_step: int) -> list[Expr]:
            """A vector of partial sums for each of the columns of B that start at ``columns``."""
            sums = [[scratch(lanes) for _ in range(in_step)] for _ in columns]
            for each in (total for totals in sums for total in totals):
                each[whole] = zero

            def step(along: Expr, count: int, keep: Any = lambda values: values) -> None:
                for i in range(count):
                    at = let(along + i * lanes)
                    left = let(keep(a[vector(row + at, lanes)]))
                    for totals, column in zip(sums, columns, strict=True):
                        right = keep(b[vector(column + at, lanes)])
                        totals[i][whole] = totals[i][whole] + left * right

            steps = let(div(vectors, in_step))
            with loop(steps) as index:
                step(index * (in_step * lanes), in_step)
            if in_step > 1:
                with loop(vectors - steps * in_step) as rest:
                    step((steps * in_step + rest) * lanes, 1)
            with when(vectors * lanes < k):
                # what has been added already must not count again, not even if it is NaN
                step(k - lanes, 1, lambda values: tirx.Select(fresh, values, zero))
            return [let(_added([total[whole] for total in totals])) for totals in sums]

        def group(row: Expr, first: Expr, out: Expr) -> None:
            found: list[Expr] = []
            count = min(together, lanes)
            for start in range(0, lanes, count):
                columns = [let((first + start + j) * ldb) for j in range(count)]
                found += partial_sums(row, columns, in_step)
            c[vector(out + first, lanes)] = _sums_across(found)

        def by_groups(row: Expr, out: Expr) -> None:
            groups = let(div(n, lanes))
            with loop(groups) as g:
                group(row, let(g * lanes), out)
            with when(groups * lanes < n):
                group(row, let(n - lanes), out)

        def one_by_one(row: Expr, out: Expr) -> None:
            with loop(n) as j:
                (sums,) = partial_sums(row, [let(j * ldb)], _SUMS_ALONE)
                place = scratch(lanes)
                place[whole] = _sums_across([sums] * lanes)
                c[out + j] = place[0]

        def short(row: Expr, out: Expr) -> None:
            with loop(n) as j:
                _sum_of(
                    k,
                    lambda i: a[row + i] * b[j * ldb + i],
                    lambda total: c.__setitem__(out + j, total),
                )

        with loop(m) as i:
            at = let(i * lda), let(i * ldc)
            branch(
                k < lanes,
                lambda: short(*at),
                lambda: branch(n < lanes, lambda: one_by_one(*at), lambda: by_groups(*at)),
            )


def _sum_of(count: Expr, term: Any, store: Any) -> None:
    total = scratch(1)
    total[0] = tirx.const(0.0, FLOAT)
    with loop(count) as i:
        total[0] = total[0] + term(i)
    store(total[0])


def _added(values: list[Expr]) -> Expr:
    """The sum of some values, of which there is a power of two, in pairs."""
    while len(values) > 1:
        values = [let(x + y) for x, y in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _beyond(first: Expr, lanes: int) -> Expr:
    """For each lane whether it is ``first`` or comes after it."""
    numbers = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)
    return numbers >= T.Broadcast(tirx.Cast("int32", first), lanes)


def _sums_across(rows: list[Expr]) -> Expr:
    """The sum of each of ``lanes`` vectors, as one vector.

    Two vectors become one in each step: half of the lanes of both, plus the other half. One of
    the two only needs a blend, which is cheaper than a shuffle.
    """
    lanes, step = len(rows), len(rows) // 2
    while step:
        own = [j if not j & step else lanes + j for j in range(lanes)]
        other = [j + step if not j & step else lanes + j - step for j in range(lanes)]
        half = len(rows) // 2
        rows = [
            let(shuffle(x, y, own) + shuffle(x, y, other))
            for x, y in zip(rows[:half], rows[half:], strict=True)
        ]
        step //= 2
    return rows[0]
