"""Innermost loops along memory that LLVM leaves scalar, as explicit vectors of any extent.

LLVM vectorizes plain arithmetic by itself, but neither maxima and minima kept in memory nor
values under a condition, even one that is the same along the loop: pooling, maxima of columns.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, Op, Range, TensorRegion, Var
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, SeqStmt, Stmt

from .wide_reduction import runs_along

LANES = 16
SPATIAL = 0  # IterVar.iter_type
CONDITIONAL = Op.get("prim.if_then_else")


def vectorize_columns(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with such loops in chunks of 16 elements, and one by one at the end."""
    return func.with_body(tvm_ffi.structural_map(func.body, (For, _vectorized)))


def _vectorized(loop: For) -> Stmt:
    realize = loop.body
    if loop.kind != ForKind.SERIAL or not isinstance(realize, s_tir.SBlockRealize):
        return loop
    block, store = realize.block, realize.block.body
    if not isinstance(store, BufferStore) or block.init is not None or block.alloc_buffers:
        return loop
    if not store.indices:
        return loop
    if not _is_number(loop.min, 0) or not _is_number(realize.predicate, 1):
        return loop
    values = dict(zip((var.var for var in block.iter_vars), realize.iter_values, strict=True))
    along = [each for each in block.iter_vars if loop.loop_var in _variables(values[each.var])]
    if len(along) != 1 or along[0].iter_type != SPATIAL:
        return loop
    var = along[0].var
    *outer, last = store.indices
    if not values[var].same_as(loop.loop_var) or not last.same_as(var) or var in _variables(outer):
        return loop
    if not _is_scalar_to_llvm(store.value) or not runs_along(store.value, var):
        return loop
    return _chunks(loop, block, values, var)


def _is_scalar_to_llvm(value: Expr) -> bool:
    nodes: list[Expr] = []
    tvm_ffi.structural_walk(value, (Expr, nodes.append))
    return any(
        isinstance(node, tirx.Max | tirx.Min)
        or (isinstance(node, Call) and node.op.same_as(CONDITIONAL))
        for node in nodes
    )


def _chunks(loop: For, block: s_tir.SBlock, values: dict[Var, Expr], along: Var) -> Stmt:
    store, index_type = block.body, str(loop.loop_var.ty)

    def number(value: int) -> Expr:
        return tirx.const(value, index_type)

    def at(expr: Expr, position: Expr) -> Expr:
        known = {**values, along: position}
        return tvm_ffi.structural_map(expr, (Var, lambda var: known.get(var, var)))

    def element(position: Expr) -> Stmt:
        indices = [at(index, position) for index in store.indices]
        return BufferStore(store.buffer, at(store.value, position), indices)

    def each(extent: Expr, kind: ForKind, body: Callable[[Expr], Stmt]) -> Stmt:
        var = tirx.Var("i", index_type)
        return For(var, number(0), extent, kind, body(var))

    def chunk(i: Expr) -> Stmt:
        return each(
            number(LANES), ForKind.VECTORIZED, lambda lane: element(i * number(LANES) + lane)
        )

    def whole(region: TensorRegion) -> TensorRegion:
        ranges = [
            Range(number(0), extent)
            if along in _variables([part.min, part.extent])
            else Range.from_min_extent(at(part.min, number(0)), at(part.extent, number(0)))
            for part, extent in zip(region.region, region.source.shape, strict=True)
        ]
        return tirx.BufferRegion(region.source, ranges)

    chunks = Analyzer().simplify(loop.extent // LANES)
    rest = Analyzer().simplify(loop.extent - chunks * LANES)
    loops = [
        each(chunks, ForKind.SERIAL, chunk),
        each(rest, ForKind.SERIAL, lambda i: element(chunks * LANES + i)),
    ]
    needed = [each for each in loops if not _is_number(each.extent, 0)]
    wide = s_tir.SBlock(
        [],
        [whole(region) for region in block.reads],
        [whole(region) for region in block.writes],
        block.name_hint,
        SeqStmt(needed) if len(needed) > 1 else needed[0],
    )
    return s_tir.SBlockRealize([], True, wide)


def _variables(expressions: object) -> set[Var]:
    found: set[Var] = set()
    tvm_ffi.structural_walk(expressions, (Var, found.add))
    return found


def _is_number(value: Expr, expected: int) -> bool:
    return isinstance(value, tirx.IntImm) and value.value == expected
