"""Recognise a PrimFunc that pools: the largest, or the sum, of windows of a tensor.

Around the reduction there may be a copy of the tensor with pads, and elementwise work on the
result, such as the division by how many elements there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, Range, TensorLoad, Var
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx import BufferStore, FloatImm, For, ForKind, IntImm, SeqStmt, Stmt

from .tir_terms import IF_THEN_ELSE, REDUCTION, SPATIAL, is_number, variables
from .vector_loops import INDEX

LEAST = tirx.min_value("float32").value  # which TVM takes for minus infinity
MOST_TAPS = 16  # larger windows keep their loops


@dataclass(frozen=True, eq=False)
class Window:
    """One dimension: result[i] takes source[i * stride - before + r] for r from 0 to size - 1."""

    size: int
    stride: int
    before: int
    after: int
    extent: Expr  # of the source

    @property
    def padded(self) -> bool:
        return self.before > 0 or self.after > 0


@dataclass(frozen=True, eq=False)
class Pooling:
    """How a tensor is pooled; `windows` has None for dimensions that stay as they are.

    The result at `axes` is `value`, in which elements of `total` stand for what was pooled there.
    """

    source: Var
    windows: tuple[Window | None, ...]
    combine: type[tirx.Max] | type[tirx.Add]
    identity: FloatImm
    total: Var
    value: Expr
    result: Var
    axes: tuple[Var, ...]
    extents: tuple[Expr, ...]


def match_pooling(func: tirx.PrimFunc) -> Pooling | None:
    if not isinstance(func.body, s_tir.SBlockRealize) or "tirx.is_scheduled" in func.attrs:
        return None
    blocks = plain_blocks(func.body.block.body)
    if blocks is None:
        return None
    reduced = [block for block in blocks if block.init is not None]
    if len(reduced) != 1:
        return None
    (pool,) = reduced
    at = blocks.index(pool)
    pads, posts = blocks[:at], blocks[at + 1 :]
    if len(pads) > 1 or len(posts) > 1:
        return None
    return _matched(pool, pads[0] if pads else None, posts[0] if posts else None)


def plain_blocks(body: Stmt) -> list[s_tir.SBlock] | None:
    """The blocks of a sequence of loop nests whose axes are their loops, each with one store."""
    found = []
    for nest in body.seq if isinstance(body, SeqStmt) else [body]:
        loops, stmt = [], nest
        while isinstance(stmt, For):
            if stmt.kind != ForKind.SERIAL or not is_number(stmt.min, 0):
                return None
            loops.append(stmt.loop_var)
            stmt = stmt.body
        if not isinstance(stmt, s_tir.SBlockRealize) or not is_number(stmt.predicate, 1):
            return None
        block = stmt.block
        same = len(loops) == len(stmt.iter_values) and all(
            value.same_as(loop) for value, loop in zip(stmt.iter_values, loops, strict=True)
        )
        if not same or not isinstance(block.body, BufferStore) or block.alloc_buffers:
            return None
        found.append(block)
    return found


def _matched(
    pool: s_tir.SBlock, pad: s_tir.SBlock | None, post: s_tir.SBlock | None
) -> Pooling | None:
    store, init = pool.body, pool.init
    if type(store.value) not in (tirx.Max, tirx.Add) or str(store.value.ty) != "float32":
        return None
    if not isinstance(init, BufferStore) or not isinstance(init.value, FloatImm):
        return None
    axes = [var for var in pool.iter_vars if var.iter_type == SPATIAL]
    place = [var.var for var in axes]
    total, load = store.value.a, store.value.b
    if not _is_at(total, store.buffer, place) or not _same(store.indices, place):
        return None
    if not isinstance(load, TensorLoad) or len(load.indices) != len(axes):
        return None
    if any(str(var.dom.extent.ty) != INDEX for var in pool.iter_vars):
        return None
    inner = load if pad is None else _padded(load, pad, init.value, type(store.value))
    if inner is None:
        return None
    windows = _windows(pool, load, inner)
    if windows is None:
        return None
    last = pool if post is None else post
    result_axes = tuple(var.var for var in last.iter_vars if var.iter_type == SPATIAL)
    value = total if post is None else post.body.value
    if not _same(last.body.indices, result_axes) or not _reads_only(
        value, store.buffer, result_axes
    ):
        return None
    return Pooling(
        inner.source,
        windows,
        type(store.value),
        init.value,
        store.buffer,
        value,
        last.body.buffer,
        result_axes,
        tuple(var.dom.extent for var in axes),
    )


def _padded(
    load: TensorLoad, pad: s_tir.SBlock, identity: FloatImm, combine: type
) -> TensorLoad | None:
    """What `pad` reads inside, if it copies that into what `load` reads, and around it what changes
    no result: `identity`, or in a maximum the least finite number."""
    axes = [var.var for var in pad.iter_vars]
    value = pad.body.value
    if not pad.body.buffer.same_as(load.source) or not _same(pad.body.indices, axes):
        return None
    if not isinstance(value, Call) or not value.op.same_as(IF_THEN_ELSE):
        return None
    condition, inside, outside = value.args
    neutral = {identity.value, *([LEAST] if combine is tirx.Max else [])}
    if not isinstance(outside, FloatImm) or outside.value not in neutral:
        return None
    if not isinstance(inside, TensorLoad) or len(inside.indices) != len(axes):
        return None
    analyzer, places = Analyzer(), {}
    for axis, index, extent in zip(axes, inside.indices, inside.source.shape, strict=True):
        before = _integer(axis - index)
        if before is None:
            return None
        place = tirx.Var("place", INDEX)
        analyzer.bind(place, Range.from_min_extent(tirx.const(0, INDEX), extent))
        places[axis] = place + before
    within = tvm_ffi.structural_map(condition, (Var, lambda var: places.get(var, var)))
    return inside if analyzer.can_prove(within) else None


def _windows(
    pool: s_tir.SBlock, load: TensorLoad, inner: TensorLoad
) -> tuple[Window | None, ...] | None:
    sizes = {var.var: var.dom.extent for var in pool.iter_vars if var.iter_type == REDUCTION}
    axes = [var.var for var in pool.iter_vars if var.iter_type == SPATIAL]
    windows: list[Window | None] = []
    for dim, (axis, index) in enumerate(zip(axes, load.indices, strict=True)):
        place = None if inner.same_as(load) else inner.indices[dim]
        before = 0 if place is None else _integer(next(iter(variables(place))) - place)
        extent = inner.source.shape[dim]
        after = _integer(load.source.shape[dim] - extent - before)
        if before is None or after is None:
            return None
        reduced = variables(index) & sizes.keys()
        if not reduced:
            if not index.same_as(axis) or before or after:
                return None
            windows.append(None)
            continue
        linear = detect_linear_equation(index, [axis, *reduced])
        if len(reduced) != 1 or len(linear) != 3 or not is_number(linear[1], 1):
            return None
        stride, size = linear[0], sizes.pop(reduced.pop())
        if not is_number(linear[2], 0) or not all(
            isinstance(each, IntImm) and each.value >= 1 for each in (stride, size)
        ):
            return None
        if not (0 <= before < size.value and 0 <= after < size.value):
            return None  # some window would lie outside
        windows.append(Window(size.value, stride.value, before, after, extent))
    if sizes or prod(window.size for window in windows if window) > MOST_TAPS:
        return None
    return tuple(windows)


def _reads_only(value: Expr, buffer: Var, place: Sequence[Expr]) -> bool:
    """Whether `value` reads `buffer` at `place` alone."""
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(value, (TensorLoad, loads.append))
    return all(_same(each.indices, place) for each in loads if each.source.same_as(buffer))


def _is_at(value: Expr, buffer: Var, place: Sequence[Expr]) -> bool:
    is_load = isinstance(value, TensorLoad) and value.source.same_as(buffer)
    return is_load and _same(value.indices, place)


def _same(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    return len(a) == len(b) and all(x.same_as(y) for x, y in zip(a, b, strict=True))


def _integer(value: Expr) -> int | None:
    simple = Analyzer().simplify(value)
    return simple.value if isinstance(simple, IntImm) else None
