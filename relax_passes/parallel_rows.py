"""Run the rows of a large result on all cores, and those of a small one on one.

Waking the threads costs microseconds. Whether that pays depends on a shape that only the call
knows, so that a function holds both variants.
"""

from __future__ import annotations

from functools import reduce

from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.tirx import For, IfThenElse, SeqStmt, Stmt

from .renamed import renamed

# With fewer iterations than this, one core is done before the others are awake.
MIN_ITERATIONS = 1 << 15


def is_large(func: tirx.PrimFunc) -> Expr:
    """Whether the loops of `func`, from `schedule_rows`, have two rows and enough iterations."""
    loops, stmt = [], func.body.block.body
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, SeqStmt):  # the innermost loop runs along a row
        loops.pop()
    rows = reduce(lambda a, b: a * b, (loop.extent for loop in loops))
    return tirx.all(rows >= 2, rows * _iterations(loops[-1].body) >= MIN_ITERATIONS)


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


def _iterations(stmt: Stmt) -> Expr:
    if isinstance(stmt, For):
        return stmt.extent * _iterations(stmt.body)
    if isinstance(stmt, SeqStmt):
        return reduce(lambda a, b: a + b, map(_iterations, stmt.seq))
    return tirx.const(1, "int64")
