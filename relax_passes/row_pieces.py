"""Rows put together of pieces, as in a concatenation or with pads: a loop for each piece.

A condition on the place in a row keeps LLVM from vectors. Between the places where one of them
changes, all of them are known.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Var
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx import For, Stmt

from .row_loops import RowLoop, row_loop
from .tir_terms import IF_THEN_ELSE, SPATIAL, is_number, variables
from .vector_columns import element_loops

MOST_PIECES = 8
LESS, GREATER = (tirx.LT, tirx.LE), (tirx.GT, tirx.GE)
Piece = tuple[Expr, Expr, Expr]  # the first place, the one after the last, and the value


def split_pieces(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with such innermost loops split."""
    return func.with_body(tvm_ffi.structural_map(func.body, (For, _split)))


def _split(loop: For) -> Stmt:
    row = row_loop(loop)
    if row is None or row.axis.iter_type != SPATIAL or not row.store.indices:
        return loop
    if not row.store.indices[-1].same_as(row.axis.var):
        return loop
    todo: list[Piece] = [(row.number(0), loop.extent, row.store.value)]
    pieces: list[Piece] = []
    while todo:
        piece = todo.pop()
        condition = _condition(row.axis.var, piece[2])
        if condition is None:
            pieces.insert(0, piece)
        elif len(todo) + len(pieces) >= MOST_PIECES:
            return loop
        else:
            todo.extend(_parts(row, piece, condition))
    if len(pieces) == 1 and pieces[0][2].same_as(row.store.value):
        return loop
    return row.replaced([each for piece in pieces for each in element_loops(row, *piece)])


def _condition(axis: Var, value: Expr) -> Expr | None:
    """A comparison of `axis` with what stays along the row, by which values are chosen."""
    choices: list[Expr] = []

    def conditional(call: Call) -> None:
        if call.op.same_as(IF_THEN_ELSE):
            choices.append(call.args[0])

    def select(node: tirx.Select) -> None:
        choices.append(node.condition)

    tvm_ffi.structural_walk(value, [(Call, conditional), (tirx.Select, select)])
    comparisons: list[Expr] = []
    for choice in choices:
        tvm_ffi.structural_walk(choice, [(kind, comparisons.append) for kind in LESS + GREATER])
    found = (each for each in comparisons if _change(axis, each) is not None)
    return next(found, None)


def _change(axis: Var, comparison: Expr) -> tuple[Expr, bool] | None:
    """From which place on `comparison` has another value, and the one before that."""
    if axis not in variables(comparison) or str(comparison.a.ty) != str(axis.ty):
        return None
    linear = detect_linear_equation(comparison.a - comparison.b, [axis])
    if len(linear) != 2 or not (is_number(linear[0], 1) or is_number(linear[0], -1)):
        return None
    # place + rest < 0, or rest - place < 0, or the same with another comparison
    rising, rest = is_number(linear[0], 1), linear[1]
    place = -rest if rising else rest
    holds_below = rising == isinstance(comparison, LESS)
    strict = isinstance(comparison, tirx.LT | tirx.GT)
    return Analyzer().simplify(place if strict == holds_below else place + 1), holds_below


def _parts(row: RowLoop, piece: Piece, condition: Expr) -> list[Piece]:
    first, end, value = piece
    change = _change(row.axis.var, condition)
    assert change is not None
    place, holds_below = change
    bounded = tirx.max(first, tirx.min(row.at(place, row.number(0)), end))
    middle = Analyzer().simplify(bounded)
    parts = [
        (first, middle, _where(value, condition, holds_below)),
        (middle, end, _where(value, condition, not holds_below)),
    ]
    return [part for part in parts if not is_number(Analyzer().simplify(part[1] - part[0]), 0)]


def _where(value: Expr, condition: Expr, holds: bool) -> Expr:
    """`value` where it is known whether `condition` holds."""
    known = {True: tirx.const(True, "bool"), False: tirx.const(False, "bool")}

    def fact(node: Expr) -> Expr:
        return known[holds] if tvm_ffi.structural_equal(node, condition) else node

    def both(node: tirx.And) -> Expr:
        for one, other in ((node.a, node.b), (node.b, node.a)):
            if isinstance(one, tirx.IntImm):
                return other if one.value else one
        return node

    def conditional(call: Call) -> Expr:
        if call.op.same_as(IF_THEN_ELSE) and isinstance(call.args[0], tirx.IntImm):
            return call.args[1] if call.args[0].value else call.args[2]
        return call

    def select(node: tirx.Select) -> Expr:
        if isinstance(node.condition, tirx.IntImm):
            return node.true_value if node.condition.value else node.false_value
        return node

    for step in (
        (type(condition), fact),
        (tirx.And, both),
        (Call, conditional),
        (tirx.Select, select),
    ):
        value = tvm_ffi.structural_map(value, step)
    return value
