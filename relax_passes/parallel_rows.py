"""Run the rows of a large result on all cores, and those of a small one on one.

Waking the threads costs microseconds. Whether that pays depends on a shape that only the call
knows, so that a function holds both variants.
"""

from __future__ import annotations

from functools import reduce

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, Op
from tvm.tirx import For, IfThenElse, SeqStmt, Stmt

from .renamed import renamed
from .tir_terms import REDUCTION

# Below this much work one core is done before the others are awake, which takes 2 microseconds. The
# unit is what an element of a row takes to be added up; measured by `bench.threshold`.
MIN_WORK = 1 << 16
REDUCED, STORED, TRANSPOSED = 1, 2, 3
# What these functions add to an element.
FUNCTIONS = {
    **{Op.get(f"tirx.{name}"): 16 for name in ("erf", "log", "pow", "sin", "cos")},
    Op.get("tirx.exp"): 4,
    Op.get("tirx.sigmoid"): 6,
    Op.get("tirx.tanh"): 10,
}


def worth_sharing(elements: Expr, each: Expr | int = STORED) -> Expr:
    """Whether `elements` that take `each` units of work are enough for several threads."""
    return elements * each >= MIN_WORK


def is_large(func: tirx.PrimFunc) -> Expr:
    """Whether the loops of `func`, from `schedule_rows`, have two rows and enough iterations."""
    loops, stmt = [], func.body.block.body
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, SeqStmt):  # the innermost loop runs along a row
        loops.pop()
    rows = reduce(lambda a, b: a * b, (loop.extent for loop in loops))
    return tirx.all(rows >= 2, worth_sharing(rows, _work(loops[-1].body)))


def choose(condition: Expr, if_true: tirx.PrimFunc, if_false: tirx.PrimFunc) -> tirx.PrimFunc:
    """One function of two variants that have the same parameters."""
    first, second = if_true.body.block, renamed(if_false.body.block)
    both = s_tir.SBlock(
        [],
        first.reads,
        first.writes,
        first.name_hint,
        IfThenElse(condition, first.body, second.body),
        alloc_buffers=[*first.alloc_buffers, *second.alloc_buffers],
        annotations=first.annotations,
    )
    return if_true.with_body(s_tir.SBlockRealize([], True, both))


def _work(stmt: Stmt) -> Expr:
    if isinstance(stmt, For):
        return stmt.extent * _work(stmt.body)
    if isinstance(stmt, SeqStmt):
        return reduce(lambda a, b: a + b, map(_work, stmt.seq))
    calls: list[Call] = []
    tvm_ffi.structural_walk(stmt, (Call, calls.append))
    reduces = isinstance(stmt, s_tir.SBlockRealize) and any(
        each.iter_type == REDUCTION for each in stmt.block.iter_vars
    )
    functions = sum(FUNCTIONS.get(call.op, 0) for call in calls)
    return tirx.const((REDUCED if reduces else STORED) + functions, "int64")
