"""Two loops that run through memory without a gap as one: planes of NCHW, whole tensors.

A row of 7 or 13 elements has less than a vector, or a rest nearly as long as itself. What is read
by both loops lies together, and can be one long row.
"""

from __future__ import annotations

from functools import reduce

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, Range, TensorLoad, TensorRegion, Var
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, IterVar, Stmt

from .element_count import provably_equal
from .row_loops import RowLoop, row_loop
from .tir_terms import is_number, variables


def fuse_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with such loops fused, from the innermost one outwards.

    The position in the fused loop stands in the last index, beyond the extent of that dim: what
    lies there is the next row. That holds for parameters alone; temporaries are cut to what the
    indices say.
    """
    whole = {param for param in func.params if tirx.is_buffer_var(param) and not param.strides}

    def fuse(loop: For) -> Stmt:
        return _fused(loop, whole) or loop

    return func.with_body(tvm_ffi.structural_map(func.body, (For, fuse)))


def _fused(outer: For, whole: set[Var]) -> For | None:
    if outer.kind != ForKind.SERIAL or not is_number(outer.min, 0) or outer.annotations:
        return None
    row = row_loop(outer.body) if isinstance(outer.body, For) else None
    axis = None if row is None else _moved_by(outer.loop_var, row)
    if row is None or axis is None or axis.iter_type != row.axis.iter_type:
        return None
    counters = [outer.loop_var, outer.extent, axis.var, row.loop.loop_var, row.axis.var]
    if any(str(each.ty) != str(row.loop.extent.ty) for each in counters):
        return None
    extent = Analyzer().simplify(outer.extent * row.loop.extent)
    both = IterVar(
        Range.from_min_extent(row.number(0), extent),
        tirx.Var("v_fused", str(row.axis.var.ty)),
        row.axis.iter_type,
    )
    body = _over(row, axis.var, both.var, whole)
    if body is None:
        return None
    loop_var = tirx.Var("fused", str(row.loop.loop_var.ty))
    axes, values = [], []
    for each, value in zip(row.block.iter_vars, row.values.values(), strict=True):
        if each.same_as(axis):
            axes.append(both)
            values.append(loop_var)
        elif not each.same_as(row.axis):
            axes.append(each)
            values.append(value)
    gone = {axis.var, row.axis.var}
    block = s_tir.SBlock(
        axes,
        [_region(region, gone) for region in row.block.reads],
        [_region(region, gone) for region in row.block.writes],
        row.block.name_hint,
        body,
        annotations=row.block.annotations,
    )
    realize = s_tir.SBlockRealize(values, tirx.const(True, "bool"), block)
    return For(loop_var, row.number(0), extent, ForKind.SERIAL, realize)


def _moved_by(var: Var, row: RowLoop) -> IterVar | None:
    """The one axis whose value is `var`, which is in no other one's."""
    found = [each for each in row.block.iter_vars if var in variables(row.values[each.var])]
    alone = len(found) == 1 and row.values[found[0].var].same_as(var)
    return found[0] if alone else None


def _over(row: RowLoop, outer: Var, both: Var, whole: set[Var]) -> Stmt | None:
    """The store of `row` with the place in both loops; None if anything in it needs one of them
    by itself."""
    inner, known = row.axis.var, True

    def moved(buffer: Var, indices: list[Expr]) -> list[Expr]:
        nonlocal known
        if not variables(indices) & {outer, inner}:
            return indices
        place = _place(buffer, indices, outer, inner, row.loop.extent)
        if place is None or buffer not in whole:
            known = False
            return indices
        zero = row.number(0)
        return [zero if i >= place else each for i, each in enumerate(indices[:-1])] + [both]

    def load(node: TensorLoad) -> Expr:
        indices = list(node.indices)
        new = moved(node.source, indices)
        return node if new is indices else node.source[tuple(new)]

    value = tvm_ffi.structural_map(row.store.value, (TensorLoad, load))
    indices = moved(row.store.buffer, list(row.store.indices))
    if not known or variables([value, *indices]) & {outer, inner}:
        return None
    return BufferStore(row.store.buffer, value, indices)


def _place(buffer: Var, indices: list[Expr], outer: Var, inner: Var, extent: Expr) -> int | None:
    """Which index is `outer`, if the last one is `inner`, those between them are 0, and a step of
    `outer` is `extent` elements."""
    if not indices[-1].same_as(inner) or len(indices) != len(buffer.shape):
        return None
    at = next((i for i, each in enumerate(indices) if each.same_as(outer)), None)
    if at is None or variables(indices[:at]) & {outer, inner}:
        return None
    if not all(is_number(each, 0) for each in indices[at + 1 : -1]):
        return None
    step = reduce(lambda a, b: a * b, buffer.shape[at + 1 :])
    return at if provably_equal(step, extent) else None


def _region(region: TensorRegion, gone: set[Var]) -> TensorRegion:
    """All of the dims in which one of two loops moved."""
    ranges = [
        Range.from_min_extent(tirx.const(0, str(extent.ty)), extent)
        if variables([part.min, part.extent]) & gone
        else part
        for part, extent in zip(region.region, region.source.shape, strict=True)
    ]
    return tirx.BufferRegion(region.source, ranges)
