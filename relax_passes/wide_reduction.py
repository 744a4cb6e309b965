"""Float reductions along a row with one accumulator a vector lane.

LLVM may not reorder float additions, and so runs a row sum one element after another. Sixteen
partial results, put together at the end, are as exact, and as fast as memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, Op, Range, TensorLoad, TensorRegion, Var
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, SeqStmt, Stmt

LANES = 16  # two AVX2 registers: enough chains to hide some of the latency of an addition
REDUCTION = 2  # IterVar.iter_type
IDENTITY = {tirx.Add: 0.0, tirx.Max: -math.inf, tirx.Min: math.inf}
COMBINE = {tirx.Add: lambda a, b: a + b, tirx.Max: tirx.max, tirx.Min: tirx.min}
# What an element may be made of, so that sixteen of them can be computed at once.
ELEMENTWISE = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select),
    *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.Cast),
    *(tirx.FloatImm, tirx.IntImm, Var, TensorLoad),
    *(tirx.FloorDiv, tirx.FloorMod),  # in the shapes of the tensors, which belong to the expression
)
CONDITIONAL = Op.get("prim.if_then_else")
FUNCTIONS = {Op.get(f"tirx.{name}") for name in ("exp", "fabs", "sqrt", "sigmoid", "erf", "tanh")}


def widen_reductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its fp32 sums, maxima and minima along contiguous rows done in lanes.

    Expects initialisation and update to be apart (`decompose_reduction`).
    """
    return func.with_body(tvm_ffi.structural_map(func.body, (For, _widen)))


def _widen(loop: For) -> Stmt:
    realize = loop.body
    if loop.kind != ForKind.SERIAL or not isinstance(realize, s_tir.SBlockRealize):
        return loop
    block, store = realize.block, realize.block.body
    if not isinstance(store, BufferStore) or type(store.value) not in COMBINE:
        return loop
    if str(store.value.ty) != "float32" or block.init is not None or not _is_zero(loop.min):
        return loop
    values = dict(zip((var.var for var in block.iter_vars), realize.iter_values, strict=True))
    reduced = [var.var for var in block.iter_vars if var.iter_type == REDUCTION]
    along = [var for var, value in values.items() if loop.loop_var in _variables(value)]
    if len(along) != 1 or along[0] not in reduced or not values[along[0]].same_as(loop.loop_var):
        return loop
    if not _accumulates(store) or not runs_along(store.value.b, along[0]):
        return loop
    return _lanes(loop, block, values, along[0])


def _accumulates(store: BufferStore) -> bool:
    """Whether `store` is `buffer[...] = combine(buffer[...], element)`."""
    total = store.value.a
    return (
        isinstance(total, TensorLoad)
        and total.source.same_as(store.buffer)
        and tvm_ffi.structural_equal(total.indices, store.indices)
        and store.buffer not in _variables(store.value.b)
    )


def runs_along(element: Expr, var: Var) -> bool:
    """Whether `element` for consecutive values of `var` can be computed on vectors: plain
    arithmetic on values that lie next to each other, or are the same for all."""
    varying = False

    def either(call: Call) -> Expr:
        """A condition may be anything that is the same along the loop."""
        nonlocal varying
        if not call.op.same_as(CONDITIONAL):
            return call
        varying = varying or var in _variables(call.args[0])
        return call.args[1] + call.args[2]

    nodes: list[Expr] = []
    tvm_ffi.structural_walk(tvm_ffi.structural_map(element, (Call, either)), (Expr, nodes.append))
    return not varying and all(_is_along(node, var) for node in nodes)


def _is_along(node: Expr, var: Var) -> bool:
    if isinstance(node, Call):
        return node.op in FUNCTIONS
    if isinstance(node, TensorLoad) and node.indices:
        *outer, last = node.indices
        outside = var not in _variables(outer)
        return outside and (_is_offset(last, var) or var not in _variables(last))
    return isinstance(node, (*ELEMENTWISE, Op))


def _is_offset(index: Expr, var: Var) -> bool:
    """Whether `index` is `var`, or `var` and something that stays."""
    if isinstance(index, tirx.Add) and var not in _variables(index.a):
        return _is_offset(index.b, var)
    if isinstance(index, tirx.Add | tirx.Sub) and var not in _variables(index.b):
        return _is_offset(index.a, var)
    return var.same_as(index)


def _lanes(loop: For, block: s_tir.SBlock, values: dict[Var, Expr], along: Var) -> Stmt:
    store = block.body
    combine = COMBINE[type(store.value)]
    index_type = str(loop.loop_var.ty)

    def number(value: int) -> Expr:
        return tirx.const(value, index_type)

    def at(expr: Expr, position: Expr) -> Expr:
        known = {**values, along: position}
        return tvm_ffi.structural_map(expr, (Var, lambda var: known.get(var, var)))

    def each(extent: Expr, kind: ForKind, body: Callable[[Expr], Stmt]) -> Stmt:
        var = tirx.Var("i", index_type)
        return For(var, number(0), extent, kind, body(var))

    indices = [at(index, number(0)) for index in store.indices]

    def total(value: Expr) -> Stmt:
        return BufferStore(store.buffer, combine(store.buffer[tuple(indices)], value), indices)

    partial = tirx.decl_buffer((number(LANES),), "float32", "partial")

    def add_to(lane: Expr, value: Expr) -> Stmt:
        return BufferStore(partial, combine(partial[lane], value), [lane])

    def step(chunk: Expr) -> Stmt:
        return each(
            number(LANES),
            ForKind.VECTORIZED,
            lambda lane: add_to(lane, at(store.value.b, chunk * LANES + lane)),
        )

    def fold(width: int) -> Stmt:
        return each(
            number(width),
            ForKind.VECTORIZED if width > 1 else ForKind.SERIAL,
            lambda lane: add_to(lane, partial[lane + width]),
        )

    chunks = Analyzer().simplify(loop.extent // LANES)
    rest = Analyzer().simplify(loop.extent - chunks * LANES)
    identity = tirx.const(IDENTITY[type(store.value)], "float32")
    start = each(
        number(LANES), ForKind.VECTORIZED, lambda lane: BufferStore(partial, identity, [lane])
    )
    body = [
        start,
        each(chunks, ForKind.SERIAL, step),
        each(rest, ForKind.SERIAL, lambda i: total(at(store.value.b, chunks * LANES + i))),
        *(fold(LANES >> shift) for shift in range(1, LANES.bit_length())),
        total(partial[number(0)]),
    ]

    def whole(region: TensorRegion) -> TensorRegion:
        """All that the loop touches: the full dim wherever `along` appears in it."""
        ranges = [
            Range(number(0), extent)
            if along in _variables([each.min, each.extent])
            else Range.from_min_extent(at(each.min, number(0)), at(each.extent, number(0)))
            for each, extent in zip(region.region, region.source.shape, strict=True)
        ]
        return tirx.BufferRegion(region.source, ranges)

    wide = s_tir.SBlock(
        [],
        [whole(region) for region in block.reads],
        [whole(region) for region in block.writes],
        block.name_hint,
        SeqStmt([stmt for stmt in body if not (isinstance(stmt, For) and _is_zero(stmt.extent))]),
        alloc_buffers=[partial],
    )
    return s_tir.SBlockRealize([], True, wide)


def _variables(expressions: object) -> set[Var]:
    found: set[Var] = set()
    tvm_ffi.structural_walk(expressions, (Var, found.add))
    return found


def _is_zero(value: Expr) -> bool:
    return isinstance(value, tirx.IntImm) and value.value == 0
