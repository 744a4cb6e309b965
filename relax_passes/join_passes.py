"""A row that is computed, and then summed: both in one pass over it, as in softmax.

The exponentials of a softmax are needed twice, for their sum and for the result. Where they are
summed while they are in registers, and stored where the result will be, a row and its result are
passed over three times, and no third row takes part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.tirx import BufferStore, For, SeqStmt, Stmt

from .element_count import provably_equal
from .row_loops import RowLoop, row_loop
from .tir_terms import SPATIAL, variables
from .wide_reduction import in_lanes, is_wide, runs_along


def join_passes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, from `schedule_rows`, with such pairs of innermost loops joined."""
    root = func.body.block
    joins = _Joins(set(root.alloc_buffers), _accesses(root.body))
    body = tvm_ffi.structural_map(root.body, (SeqStmt, joins.join))
    if body.same_as(root.body):
        return func
    block = s_tir.SBlock(
        [],
        root.reads,
        root.writes,
        root.name_hint,
        body,
        alloc_buffers=[each for each in root.alloc_buffers if each not in joins.replaced],
        annotations=root.annotations,
    )
    realize = s_tir.SBlockRealize([], True, block)
    known = joins.replaced
    return func.with_body(tvm_ffi.structural_map(realize, (Var, lambda var: known.get(var, var))))


@dataclass
class _Joins:
    """`temporaries` of a function, and how often each of its tensors is read or written.

    `replaced` collects those in whose place the result itself is used.
    """

    temporaries: set[Var]
    accesses: dict[Var, int]
    replaced: dict[Var, Var] = field(default_factory=dict)

    def join(self, seq: SeqStmt) -> Stmt:
        rows = [row_loop(each) if isinstance(each, For) else None for each in seq.seq]
        for at, row in enumerate(rows):
            if row is None or not self._is_produced(row):
                continue
            then = next((i for i in range(at + 1, len(rows)) if rows[i] is not None), None)
            if then is None:
                continue
            total = rows[then]
            between = {each for stmt in seq.seq[at + 1 : then] for each in variables(stmt)}
            if total is None or not _is_summed(row, total):
                continue
            if between & (variables(row.store) & self.accesses.keys()):
                continue
            self._use_result(row, total, [each for each in rows[then + 1 :] if each is not None])
            rest = [*seq.seq[at + 1 : then], _both(row, total), *seq.seq[then + 1 :]]
            return SeqStmt([*seq.seq[:at], *rest])
        return seq

    def _is_produced(self, row: RowLoop) -> bool:
        store = row.store
        if row.axis.iter_type != SPATIAL or store.buffer not in self.temporaries:
            return False
        *outer, last = store.indices
        along = last.same_as(row.axis.var) and row.axis.var not in variables(outer)
        plain = str(store.value.ty) == "float32" and runs_along(store.value, row.axis.var)
        return along and plain and store.buffer not in variables(store.value)

    def _use_result(self, row: RowLoop, total: RowLoop, later: list[RowLoop]) -> None:
        """Let the temporary be the result, where the latter is made of it at the same place, and
        nothing else asks for either."""
        made, last = row.store.buffer, later[-1] if later else None
        if last is None or last.axis.iter_type != SPATIAL:
            return
        result = last.store.buffer
        uses = sum(_accesses(each.loop).get(made, 0) for each in (row, total, last))
        alone = self.accesses[made] == uses and self.accesses[result] == 1
        same = provably_equal(row.loop.extent, last.loop.extent) and str(result.dtype) == "float32"
        if not alone or not same or result in self.temporaries:
            return
        places = [(row, row.store.indices), *((last, each) for each in _loads(last, made))]
        if all(_same_places(*each, last, last.store.indices) for each in places):
            self.replaced[made] = result


def _is_summed(row: RowLoop, total: RowLoop) -> bool:
    """Whether `total` is a reduction of what `row` makes, each element at its place."""
    if not is_wide(total) or not provably_equal(row.loop.extent, total.loop.extent):
        return False
    loads = _loads(total, row.store.buffer)
    return (
        bool(loads)
        and all(_same_places(total, each, row, row.store.indices) for each in loads)
        and total.store.buffer not in variables(row.store)
    )


def _both(row: RowLoop, total: RowLoop) -> Stmt:
    def made(place: Expr) -> Stmt:
        indices = [row.at(index, place) for index in row.store.indices]
        return BufferStore(row.store.buffer, row.at(row.store.value, place), indices)

    block = in_lanes(total, made).block
    return s_tir.SBlockRealize(
        [],
        True,
        s_tir.SBlock(
            [],
            [*block.reads, *map(row.whole, row.block.reads)],
            [*block.writes, *map(row.whole, row.block.writes)],
            block.name_hint,
            block.body,
            alloc_buffers=block.alloc_buffers,
        ),
    )


def _same_places(row: RowLoop, indices: list[Expr], other: RowLoop, of_other: list[Expr]) -> bool:
    """Whether both are one and the same element in each iteration."""
    place = tirx.Var("place", str(row.loop.loop_var.ty))
    first = [row.at(index, place) for index in indices]
    second = [other.at(index, place) for index in of_other]
    return len(first) == len(second) and tvm_ffi.structural_equal(first, second)


def _loads(row: RowLoop, buffer: Var) -> list[list[Expr]]:
    """The indices by which the value of `row` reads `buffer`, in terms of its block."""
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(row.store.value, (TensorLoad, found.append))
    own = row.store.buffer
    return [list(each.indices) for each in found if each.source.same_as(buffer) and buffer != own]


def _accesses(stmt: Stmt) -> dict[Var, int]:
    """How often the code of `stmt` reads or writes each tensor."""
    found: dict[Var, int] = {}

    def count(buffer: Var) -> None:
        found[buffer] = found.get(buffer, 0) + 1

    def load(each: TensorLoad) -> None:
        count(each.source)

    def store(each: BufferStore) -> None:
        count(each.buffer)

    tvm_ffi.structural_walk(stmt, [(TensorLoad, load), (BufferStore, store)])
    return found
