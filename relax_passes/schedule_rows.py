"""A CPU schedule for memory-bound functions of any shape: fused elementwise chains, softmax,
layer norm, reductions.

TVM's fusion leaves each operator of a fused function a pass of its own over a temporary as large
as the tensor. This schedule merges the elementwise ones, and computes all that a row of the result
needs while that row is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, Op, Var
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IntImm, IterVar

from .tir_terms import IF_THEN_ELSE, REDUCTION, SPATIAL, is_number, variables

WIDTHS = (16, 8)  # elements of float32
# Too dear to be computed again for a second consumer.
EXPENSIVE = {Op.get(f"tirx.{name}") for name in ("exp", "erf", "tanh", "sigmoid", "log")}


def schedule_rows(func: tirx.PrimFunc, parallel: bool = False) -> tirx.PrimFunc | None:
    """`func` rescheduled, or None if it is not memory-bound or not of a form that we know.

    With `parallel`, the rows are shared among threads, and None also means that they cannot be.
    """
    if not isinstance(func.body, s_tir.SBlockRealize) or "tirx.is_scheduled" in func.attrs:
        return None
    if not _is_plain(func.body.block.body):
        return None
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    if not all(_is_memory_bound(sch.get(block)) for block in _blocks(sch)):
        return None
    if any(_reshapes(sch.get(block)) for block in _blocks(sch)):
        return None
    _inline_producers(sch)
    if any(_is_padded_maximum(sch.get(block)) for block in _blocks(sch)):
        return None
    rows = sch.copy()
    if _compute_by_rows(rows, parallel):
        return rows.mod["main"]
    return None if parallel and not _share_elements(sch) else sch.mod["main"]


def _is_plain(body: tirx.Stmt) -> bool:
    """Whether `body` is a sequence of loop nests, each with one assignment inside."""
    if isinstance(body, tirx.SeqStmt):
        return all(_is_plain(child) for child in body.seq)
    if isinstance(body, tirx.For):
        serial = body.kind == tirx.ForKind.SERIAL and not body.annotations
        return serial and not isinstance(body.body, tirx.SeqStmt) and _is_plain(body.body)
    if not isinstance(body, s_tir.SBlockRealize):
        return False
    block = body.block
    return (
        isinstance(block.body, tirx.BufferStore)
        and len(block.writes) == 1
        and not block.alloc_buffers
        and not block.match_buffers
        and all(var.iter_type in (SPATIAL, REDUCTION) for var in block.iter_vars)
    )


def _is_memory_bound(block: s_tir.SBlock) -> bool:
    """Whether a reduction reads as much as it computes: unlike in a matmul, some operand has an
    element for each iteration. A depthwise convolution is none of them, though its input has."""
    moving = {var.var for var in block.iter_vars if not is_number(var.dom.extent, 1)}
    if not _reductions(block):
        return True
    if _is_convolution(block) or all(is_number(var.dom.extent, 1) for var in _reductions(block)):
        return False  # the latter has no loops to be split from their init
    return any(moving <= variables(region.region) for region in block.reads)


def _is_convolution(block: s_tir.SBlock) -> bool:
    """Whether one operand is read by windows, and another one by the places in a window alone."""
    reduced = {var.var for var in _reductions(block)}
    windows, weights = False, False
    for region in block.reads:
        indices = [variables(part.min) for part in region.region]
        is_window = any(each & reduced and each - reduced for each in indices)
        windows = windows or is_window
        weights = weights or (not is_window and bool(set().union(*indices) & reduced))
    return windows and weights


def _reshapes(block: s_tir.SBlock) -> bool:
    """Whether `block` takes its indices apart, as a copy to another shape does: with symbols in
    the divisors, compiling that after rescheduling may take hours."""
    nodes: list[Expr] = []
    tvm_ffi.structural_walk(block.body, (Expr, nodes.append))
    divisions = (each for each in nodes if isinstance(each, tirx.FloorDiv | tirx.FloorMod))
    return any(not isinstance(each.b, IntImm) for each in divisions)


def _is_padded_maximum(block: s_tir.SBlock) -> bool:
    """Whether `block` is a maximum or minimum of what is padded: faster with a padded copy than
    with a branch for each element, but not than with one for a whole vector of columns."""
    if not _reductions(block) or not isinstance(block.body.value, tirx.Max | tirx.Min):
        return False
    conditions: list[Expr] = []

    def visit(call: Call) -> None:
        if call.op == IF_THEN_ELSE:
            conditions.append(call.args[0])

    tvm_ffi.structural_walk(block.body, (Call, visit))
    for_vectors = _is_by_column(block) and not variables(conditions) & _along_memory(block)
    return bool(conditions) and not for_vectors


def _inline_producers(sch: s_tir.Schedule) -> None:
    for block in _blocks(sch):
        producer = sch.get(block)
        consumers = [sch.get(consumer) for consumer in sch.get_consumers(block)]
        if _reductions(producer) or not consumers:
            continue
        if _is_expensive(producer) and (len(consumers) > 1 or _is_reused(producer, consumers[0])):
            continue
        _attempt(sch.compute_inline, block)


def _is_reused(producer: s_tir.SBlock, consumer: s_tir.SBlock) -> bool:
    """Whether one value of `producer` may be read for several iterations of `consumer`."""

    def rank(block: s_tir.SBlock) -> int:
        return sum(not is_number(var.dom.extent, 1) for var in block.iter_vars)

    return rank(producer) < rank(consumer)


def _compute_by_rows(sch: s_tir.Schedule, parallel: bool) -> bool:
    """Compute everything at the loop over the rows of the result; False if that cannot be, or
    would compute something more than once. Leaves `sch` half done in that case."""
    blocks = _blocks(sch)
    results = [block for block in blocks if not sch.get_consumers(block)]
    reductions = [block for block in blocks if _reductions(sch.get(block))]
    if len(results) != 1 or not reductions:
        return False
    (result,) = results
    depth = min(_row_depth(sch.get(block)) for block in reductions)
    if depth > 0:
        row = sch.get_loops(result)[depth - 1]
        for block in reversed(blocks):
            if block is not result and not _attempt(sch.compute_at, block, row):
                return False
    if not all(_uses_all_loops(sch, block) for block in reductions):
        return False
    if parallel and not _share(sch, result, depth):  # before the inits, after which it is refused
        return False
    return all(_attempt(_split_off_init, sch, block) for block in reductions)


def _share_elements(sch: s_tir.Schedule) -> bool:
    """Share a single elementwise loop nest by all but its innermost loop."""
    blocks = _blocks(sch)
    if len(blocks) != 1 or _reductions(sch.get(blocks[0])):
        return False
    return _share(sch, blocks[0], len(sch.get_loops(blocks[0])) - 1)


def _share(sch: s_tir.Schedule, block: SBlockRV, depth: int) -> bool:
    """Run the `depth` outermost loops around `block` in parallel."""
    loops = sch.get_loops(block)[: max(depth, 0)]
    return bool(loops) and _attempt(lambda: sch.parallel(sch.fuse(*loops)))


def _row_depth(block: s_tir.SBlock) -> int:
    """How many leading dims of a reduction's result number its rows."""
    dims = [var for var in block.iter_vars if var.iter_type == SPATIAL]
    while dims and is_number(dims[-1].dom.extent, 1):
        dims.pop()
    return len(dims) - _is_by_column(block)


def _is_by_column(block: s_tir.SBlock) -> bool:
    """Whether neighbours in memory belong to different results, as in a sum over rows."""
    reduced = {var.var for var in _reductions(block)}
    innermost = _along_memory(block)
    return bool(innermost) and not innermost & reduced


def _along_memory(block: s_tir.SBlock) -> set[Var]:
    """The variables of the last index of the largest operand."""
    everything = max(block.reads, key=lambda region: len(variables(region.region)))
    return variables(everything.region[-1:])


def _uses_all_loops(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether no loop around `block` repeats it."""
    around = map(sch.get, sch.get_loops(block))
    loops = {loop.loop_var for loop in around if not is_number(loop.extent, 1)}
    return loops <= variables(_iter_values(sch, block))


def _iter_values(sch: s_tir.Schedule, block: SBlockRV) -> list[Expr]:
    """What the variables of `block` are bound to, in terms of the loops around it."""
    target, found = sch.get(block), []

    def visit(realize: s_tir.SBlockRealize) -> None:
        if realize.block.same_as(target):
            found.extend(realize.iter_values)

    tvm_ffi.structural_walk(sch.mod["main"].body, (s_tir.SBlockRealize, visit))
    return found


def _reduction_loops(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """How many of the innermost loops around `block` are those of its reduction: a dimension of one
    element need not have any."""
    values = zip(sch.get(block).iter_vars, _iter_values(sch, block), strict=True)
    reduced = variables([value for var, value in values if var.iter_type == REDUCTION])
    loops = [sch.get(loop).loop_var for loop in sch.get_loops(block)]
    return len(loops) - min(at for at, loop in enumerate(loops) if loop in reduced)


def _split_off_init(sch: s_tir.Schedule, block: SBlockRV) -> None:
    reduced = _reduction_loops(sch, block)
    if not _is_by_column(sch.get(block)):
        sch.decompose_reduction(block, sch.get_loops(block)[-reduced])
        return
    width = _width(sch, block)
    if width > 1:
        _by_vectors(sch, block, width)
        return
    # The sums of a whole row at a time: the innermost loop then runs along memory.
    sch.decompose_reduction(block, sch.get_loops(block)[-reduced - 1])
    loops = sch.get_loops(block)
    sch.reorder(*loops[-reduced:], loops[-reduced - 1])


def _width(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """How many columns a maximum or minimum over rows is to be computed at a time; 1 for sums,
    whose loops LLVM vectorizes by itself."""
    extent = sch.get(sch.get_loops(block)[-_reduction_loops(sch, block) - 1]).extent
    if not isinstance(sch.get(block).body.value, tirx.Max | tirx.Min):
        return 1
    known = isinstance(extent, IntImm)
    return next((width for width in WIDTHS if known and int(extent) % width == 0), 1)


def _by_vectors(sch: s_tir.Schedule, block: SBlockRV, width: int) -> None:
    """Reduce `width` columns at a time, in registers."""
    loops = sch.get_loops(block)
    reduced = loops[-_reduction_loops(sch, block) :]
    outer, vector = sch.split(loops[-len(reduced) - 1], [None, width])
    sch.reorder(outer, *reduced, vector)
    sch.vectorize(vector)  # before the init is apart, after which it is refused
    init = sch.decompose_reduction(block, reduced[0])
    sch.vectorize(sch.get_loops(init)[-1])


def _blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def _reductions(block: s_tir.SBlock) -> list[IterVar]:
    return [var for var in block.iter_vars if var.iter_type == REDUCTION]


def _attempt(step: Callable[..., None], *args: object) -> bool:
    """Try one step; a schedule refuses those that would change the meaning."""
    try:
        step(*args)
    except s_tir.ScheduleError:
        return False
    return True


def _is_expensive(block: s_tir.SBlock) -> bool:
    operators = []
    tvm_ffi.structural_walk(block.body, (Call, lambda call: operators.append(call.op)))
    return any(op in EXPENSIVE for op in operators)
