"""Loops over elements that lie side by side, one by one or in vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.sym import Analyzer
from tvm.tirx import For, ForKind, IfThenElse, SeqStmt, Stmt

INDEX = "int64"


def number(value: int) -> Expr:
    """A constant of the type of indices."""
    return tirx.const(value, INDEX)


def ramp(first: Expr, lanes: int) -> Expr:
    """The indices of a vector of ``lanes`` elements, or of one element."""
    return first if lanes == 1 else tirx.Ramp(first, number(1), lanes)


def for_each(extent: Expr, body: Callable[[Expr], Stmt], kind: ForKind = ForKind.SERIAL) -> Stmt:
    """``for i in range(extent): body(i)``."""
    var = tirx.Var("i", INDEX)
    return For(var, number(0), extent, kind, body(var))


def in_vectors(
    first: Expr,
    end: Expr,
    widths: Sequence[int],
    vector: Callable[[Expr, int], Stmt],
    one_by_one: Stmt,
) -> Stmt:
    """All from ``first`` to ``end`` in vectors of the first of ``widths``, the largest first, that
    fits, ``vector`` of the first element and the lanes of each. The last may overlap the one
    before. Where none fits, ``one_by_one``.
    """
    simple = Analyzer().simplify
    count = simple(end - first)

    def vectors(lanes: int) -> Stmt:
        whole = simple(tirx.floordiv(count, number(lanes)))
        rest = tirx.floormod(count, number(lanes)) > 0
        last = IfThenElse(rest, vector(end - lanes, lanes), None)
        return SeqStmt([for_each(whole, lambda i: vector(first + i * lanes, lanes)), last])

    chosen = one_by_one
    for lanes in reversed(widths):
        chosen = IfThenElse(count >= lanes, vectors(lanes), chosen)
    return chosen
