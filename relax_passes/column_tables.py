"""Recognise a loop nest in which places or weights of the columns are computed for each element.

That is what resizing does along memory: divisions, roundings and bounds, as dear as the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, TensorLoad, Var
from tvm.sym import Analyzer
from tvm.tirx import BufferStore

from .pooling_match import plain_blocks
from .tir_terms import SPATIAL, variables
from .vector_loops import INDEX

MOST_TABLES = 8
TYPES = ("int32", "int64", "float32")
BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.FloorDiv, tirx.FloorMod)
COMPARISON = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or)
ROUNDINGS = {f(tirx.Var("x", "float32")).op for f in (tirx.floor, tirx.ceil, tirx.round)}


@dataclass(frozen=True, eq=False)
class Table:
    """`value`, which depends on the column alone, for each column."""

    buffer: Var
    value: Expr


@dataclass(frozen=True, eq=False)
class Nest:
    """The store of one loop nest, and how `value` in it is put together of `tables`."""

    store: BufferStore
    axes: tuple[Var, ...]
    extents: tuple[Expr, ...]
    tables: tuple[Table, ...]
    value: Expr

    @property
    def column(self) -> Var:
        return self.axes[-1]


def match_columns(func: tirx.PrimFunc) -> Nest | None:
    if not isinstance(func.body, s_tir.SBlockRealize) or "tirx.is_scheduled" in func.attrs:
        return None
    blocks = plain_blocks(func.body.block.body)
    if blocks is None or len(blocks) != 1 or func.body.block.alloc_buffers:
        return None
    (block,) = blocks
    axes = tuple(each.var for each in block.iter_vars)
    plain = all(
        each.iter_type == SPATIAL and str(each.dom.extent.ty) == INDEX for each in block.iter_vars
    )
    if not plain or block.init is not None or len(axes) < 2:
        return None
    store = block.body
    same = [index.same_as(axis) for index, axis in zip(store.indices, axes, strict=False)]
    if len(store.indices) != len(axes) or not all(same):
        return None
    found: list[Expr] = []
    for each in _of_column(store.value, axes[-1], set(axes)):
        if not any(tvm_ffi.structural_equal(each, other) for other in found):
            found.append(each)
    if not 0 < len(found) <= MOST_TABLES:
        return None
    extents = tuple(each.dom.extent for each in block.iter_vars)
    shape = (Analyzer().simplify(tirx.max(extents[-1], tirx.const(1, INDEX))),)
    tables = tuple(
        Table(tirx.decl_buffer(shape, str(each.ty), f"column_{i}"), each)
        for i, each in enumerate(found)
    )
    value = store.value
    for table in sorted(tables, key=lambda each: _size(each.value), reverse=True):
        value = _with(value, table, axes[-1])
    return Nest(store, axes, extents, tables, value)


def _of_column(value: Expr, column: Var, axes: set[Var]) -> Iterator[Expr]:
    """The largest parts of `value` that depend on `column` alone, and in which something is
    rounded, as where an index is made of a place between elements."""
    if column not in variables(value):
        return
    nodes: list[Expr] = []
    tvm_ffi.structural_walk(value, (Expr, nodes.append))
    alone = not any(isinstance(node, TensorLoad) for node in nodes)
    if alone and not (variables(value) & axes - {column}) and str(value.ty) in TYPES:
        if any(isinstance(node, Call) and node.op in ROUNDINGS for node in nodes):
            yield value
        return
    for part in _parts(value):
        yield from _of_column(part, column, axes)


def _parts(value: Expr) -> list[Expr]:
    if isinstance(value, BINARY + COMPARISON):
        return [value.a, value.b]
    if isinstance(value, tirx.Cast):
        return [value.value]
    if isinstance(value, tirx.Select):
        return [value.condition, value.true_value, value.false_value]
    if isinstance(value, Call):
        return list(value.args)
    return list(value.indices) if isinstance(value, TensorLoad) else []


def _with(value: Expr, table: Table, column: Var) -> Expr:
    def replace(node: Expr) -> Expr:
        return table.buffer[column] if tvm_ffi.structural_equal(node, table.value) else node

    return tvm_ffi.structural_map(value, (type(table.value), replace))


def _size(value: Expr) -> int:
    nodes: list[Expr] = []
    tvm_ffi.structural_walk(value, (Expr, nodes.append))
    return len(nodes)
