"""Float reductions along a row with one accumulator a vector lane.

LLVM may not reorder float additions, and so runs a row sum one element after another. Sixteen
partial results, put together at the end, are as exact, and as fast as memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Op, TensorLoad, Var
from tvm.tirx import BufferStore, For, ForKind, SeqStmt, Stmt

from .row_loops import LANES, RowLoop, row_loop
from .tir_terms import IF_THEN_ELSE, REDUCTION, variables

IDENTITY = {tirx.Add: 0.0, tirx.Max: -math.inf, tirx.Min: math.inf}
COMBINE = {tirx.Add: lambda a, b: a + b, tirx.Max: tirx.max, tirx.Min: tirx.min}
# What an element may be made of, so that sixteen of them can be computed at once.
ELEMENTWISE = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select),
    *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.Cast),
    *(tirx.FloatImm, tirx.IntImm, Var, TensorLoad),
    *(tirx.FloorDiv, tirx.FloorMod),  # in the shapes of the tensors, which belong to the expression
)
FUNCTIONS = {Op.get(f"tirx.{name}") for name in ("exp", "fabs", "sqrt", "sigmoid", "erf", "tanh")}


def widen_reductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its fp32 sums, maxima and minima along contiguous rows done in lanes.

    Expects initialisation and update to be apart (`decompose_reduction`).
    """
    return func.with_body(tvm_ffi.structural_map(func.body, (For, _widen)))


def _widen(loop: For) -> Stmt:
    row = row_loop(loop)
    return in_lanes(row) if row is not None and is_wide(row) else loop


def is_wide(row: RowLoop) -> bool:
    """Whether `row` is such a reduction."""
    value = row.store.value
    if row.axis.iter_type != REDUCTION or type(value) not in COMBINE:
        return False
    along = str(value.ty) == "float32" and runs_along(value.b, row.axis.var)
    return along and _accumulates(row.store)


def _accumulates(store: BufferStore) -> bool:
    """Whether `store` is `buffer[...] = combine(buffer[...], element)`."""
    total = store.value.a
    return (
        isinstance(total, TensorLoad)
        and total.source.same_as(store.buffer)
        and tvm_ffi.structural_equal(total.indices, store.indices)
        and store.buffer not in variables(store.value.b)
    )


def runs_along(element: Expr, var: Var) -> bool:
    """Whether `element` for consecutive values of `var` can be computed on vectors: plain
    arithmetic on values that lie next to each other, or are the same for all."""
    varying = False

    def either(call: Call) -> Expr:
        """A condition may be anything that is the same along the loop."""
        nonlocal varying
        if not call.op.same_as(IF_THEN_ELSE):
            return call
        varying = varying or var in variables(call.args[0])
        return call.args[1] + call.args[2]

    nodes: list[Expr] = []
    tvm_ffi.structural_walk(tvm_ffi.structural_map(element, (Call, either)), (Expr, nodes.append))
    return not varying and all(_is_along(node, var) for node in nodes)


def _is_along(node: Expr, var: Var) -> bool:
    if isinstance(node, Call):
        return node.op in FUNCTIONS
    if isinstance(node, TensorLoad) and node.indices:
        *outer, last = node.indices
        outside = var not in variables(outer)
        return outside and (_is_offset(last, var) or var not in variables(last))
    return isinstance(node, (*ELEMENTWISE, Op))


def _is_offset(index: Expr, var: Var) -> bool:
    """Whether `index` is `var`, or `var` and something that stays."""
    if isinstance(index, tirx.Add) and var not in variables(index.a):
        return _is_offset(index.b, var)
    if isinstance(index, tirx.Add | tirx.Sub) and var not in variables(index.b):
        return _is_offset(index.a, var)
    return var.same_as(index)


def in_lanes(row: RowLoop, first: Callable[[Expr], Stmt] | None = None) -> Stmt:
    """The reduction in lanes; before an element at a place is read, `first` of that place."""
    store, chunks = row.store, row.chunks
    combine, number = COMBINE[type(store.value)], row.number
    indices = [row.at(index, number(0)) for index in store.indices]

    def total(value: Expr) -> Stmt:
        return BufferStore(store.buffer, combine(store.buffer[tuple(indices)], value), indices)

    partial = tirx.decl_buffer((number(LANES),), "float32", "partial")

    def add_to(lane: Expr, value: Expr) -> Stmt:
        return BufferStore(partial, combine(partial[lane], value), [lane])

    def step(chunk: Expr) -> Stmt:
        add = row.lanes(lambda lane: add_to(lane, row.at(store.value.b, chunk * LANES + lane)))
        if first is None:
            return add
        return SeqStmt([row.lanes(lambda lane: first(chunk * LANES + lane)), add])

    def fold(width: int) -> Stmt:
        return row.each(
            number(width),
            ForKind.VECTORIZED if width > 1 else ForKind.SERIAL,
            lambda lane: add_to(lane, partial[lane + width]),
        )

    def last(i: Expr) -> Stmt:
        add = total(row.at(store.value.b, chunks * LANES + i))
        return add if first is None else SeqStmt([first(chunks * LANES + i), add])

    identity = tirx.const(IDENTITY[type(store.value)], "float32")
    body = [
        row.lanes(lambda lane: BufferStore(partial, identity, [lane])),
        row.each(chunks, ForKind.SERIAL, step),
        row.each(row.rest, ForKind.SERIAL, last),
        *(fold(LANES >> shift) for shift in range(1, LANES.bit_length())),
        total(partial[number(0)]),
    ]
    return row.replaced(body, [partial])
