"""Innermost loops along memory, and what takes the place of one: chunks of 16 elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, Range, TensorRegion, Var
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, IterVar, SeqStmt, Stmt

from .tir_terms import is_number, variables

LANES = 16  # two AVX2 registers: enough chains to hide some of the latency of an addition


@dataclass(frozen=True, eq=False)
class RowLoop:
    """A loop whose body is one store, `axis` of whose block is the loop's variable.

    `values` are those of all axes.
    """

    loop: For
    block: s_tir.SBlock
    values: dict[Var, Expr]
    axis: IterVar

    @property
    def store(self) -> BufferStore:
        return self.block.body

    @property
    def chunks(self) -> Expr:
        """How many whole chunks there are."""
        return Analyzer().simplify(self.loop.extent // LANES)

    @property
    def rest(self) -> Expr:
        """How many elements remain after them."""
        return Analyzer().simplify(self.loop.extent - self.chunks * LANES)

    def number(self, value: int) -> Expr:
        return tirx.const(value, str(self.loop.loop_var.ty))

    def at(self, expr: Expr, position: Expr) -> Expr:
        """`expr`, of the block, in the iteration `position`."""
        known = {**self.values, self.axis.var: position}
        return tvm_ffi.structural_map(expr, (Var, lambda var: known.get(var, var)))

    def each(self, extent: Expr, kind: ForKind, body: Callable[[Expr], Stmt]) -> Stmt:
        """A loop over `extent`."""
        var = tirx.Var("i", str(self.loop.loop_var.ty))
        return For(var, self.number(0), extent, kind, body(var))

    def lanes(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """A loop over the lanes of a vector."""
        return self.each(self.number(LANES), ForKind.VECTORIZED, body)

    def replaced(self, body: Sequence[Stmt], buffers: Sequence[Var] = ()) -> Stmt:
        """The block of the whole loop with `body`, without its empty loops, and own `buffers`."""
        empty = [isinstance(each, For) and is_number(each.extent, 0) for each in body]
        needed = [each for each, skip in zip(body, empty, strict=True) if not skip]
        wide = s_tir.SBlock(
            [],
            [self.whole(region) for region in self.block.reads],
            [self.whole(region) for region in self.block.writes],
            self.block.name_hint,
            SeqStmt(needed) if len(needed) > 1 else needed[0],
            alloc_buffers=list(buffers),
        )
        return s_tir.SBlockRealize([], True, wide)

    def whole(self, region: TensorRegion) -> TensorRegion:
        """All that the loop touches: the full dim wherever the axis appears in it."""
        zero = self.number(0)
        ranges = [
            Range(zero, extent)
            if self.axis.var in variables([part.min, part.extent])
            else Range.from_min_extent(self.at(part.min, zero), self.at(part.extent, zero))
            for part, extent in zip(region.region, region.source.shape, strict=True)
        ]
        return tirx.BufferRegion(region.source, ranges)


def row_loop(loop: For) -> RowLoop | None:
    """`loop`, if it is serial and innermost, and one axis alone of its block moves with it."""
    realize = loop.body
    if loop.kind != ForKind.SERIAL or not isinstance(realize, s_tir.SBlockRealize):
        return None
    block = realize.block
    if not isinstance(block.body, BufferStore) or block.init is not None or block.alloc_buffers:
        return None
    if not is_number(loop.min, 0) or not is_number(realize.predicate, 1):
        return None
    values = dict(zip((var.var for var in block.iter_vars), realize.iter_values, strict=True))
    along = [each for each in block.iter_vars if loop.loop_var in variables(values[each.var])]
    if len(along) != 1 or not values[along[0].var].same_as(loop.loop_var):
        return None
    return RowLoop(loop, block, values, along[0])
