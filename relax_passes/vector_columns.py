"""Innermost loops along memory that LLVM leaves scalar, as explicit vectors of any extent.

LLVM vectorizes plain arithmetic by itself, but neither maxima and minima kept in memory nor
values under a condition, even one that is the same along the loop: pooling, maxima of columns.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, Stmt

from .row_loops import LANES, RowLoop, row_loop
from .tir_terms import IF_THEN_ELSE, SPATIAL, variables
from .wide_reduction import runs_along


def vectorize_columns(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with such loops in chunks of 16 elements, and one by one at the end."""
    return func.with_body(tvm_ffi.structural_map(func.body, (For, _vectorized)))


def _vectorized(loop: For) -> Stmt:
    row = row_loop(loop)
    if row is None or row.axis.iter_type != SPATIAL or not row.store.indices:
        return loop
    var, value = row.axis.var, row.store.value
    *outer, last = row.store.indices
    if not last.same_as(var) or var in variables(outer):
        return loop
    if not _is_scalar_to_llvm(value) or not runs_along(value, var):
        return loop
    return row.replaced(element_loops(row, row.number(0), loop.extent, value))


def _is_scalar_to_llvm(value: Expr) -> bool:
    nodes: list[Expr] = []
    tvm_ffi.structural_walk(value, (Expr, nodes.append))
    return any(
        isinstance(node, tirx.Max | tirx.Min | tirx.Select)
        or (isinstance(node, Call) and node.op.same_as(IF_THEN_ELSE))
        for node in nodes
    )


def element_loops(row: RowLoop, first: Expr, end: Expr, value: Expr) -> list[Stmt]:
    """The places from `first` to `end` of a row become `value`, in vectors if LLVM needs them."""
    store, count = row.store, Analyzer().simplify(end - first)

    def element(place: Expr) -> Stmt:
        position = Analyzer().simplify(first + place)
        indices = [row.at(index, position) for index in store.indices]
        return BufferStore(store.buffer, row.at(value, position), indices)

    if not _is_scalar_to_llvm(value) or not runs_along(value, row.axis.var):
        return [row.each(count, ForKind.SERIAL, element)]
    chunks = Analyzer().simplify(count // LANES)
    rest = Analyzer().simplify(count - chunks * LANES)

    def chunk(i: Expr) -> Stmt:
        return row.lanes(lambda lane: element(i * row.number(LANES) + lane))

    return [
        row.each(chunks, ForKind.SERIAL, chunk),
        row.each(rest, ForKind.SERIAL, lambda i: element(chunks * LANES + i)),
    ]
