"""A CPU schedule for resizing: what depends on the column alone is computed once a call.

In tables, places and weights are computed for one row, not for each. Of the nearest elements, rows
that are the same as those before are copies, and where each element is taken twice, that is a
shuffle.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, SeqStmt, Stmt

from .column_tables import Nest, Table, match_columns
from .parallel_rows import MIN_ITERATIONS
from .pooling_match import INDEX
from .renamed import renamed
from .tir_terms import variables

LANES = 16


def schedule_columns(func: tirx.PrimFunc, parallel: bool = False) -> tirx.PrimFunc | None:
    """`func` with such tables, or None if it has none of them, or is more than one loop nest.

    With `parallel`, the planes of a large result are shared among threads.
    """
    nest = match_columns(func)
    if nest is None:
        return None
    twice = tirx.decl_buffer((1,), "bool", "twice") if _is_copy(nest) else None
    body = _planes(nest, twice, ForKind.SERIAL)
    if parallel and len(nest.axes) > 2:
        total = reduce(lambda a, b: a * b, nest.extents)
        shared = renamed(_planes(nest, twice, ForKind.PARALLEL))
        body = IfThenElse(total >= MIN_ITERATIONS, shared, body)
    first: list[Stmt] = [_filled(nest, table) for table in nest.tables]
    if twice is not None:
        first += _find_out(nest, twice)
    root = func.body.block
    block = s_tir.SBlock(
        [],
        [],
        [],
        root.name_hint,
        SeqStmt([*first, body]),
        alloc_buffers=[*(each.buffer for each in nest.tables), *([] if twice is None else [twice])],
        annotations=root.annotations,
    )
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _is_copy(nest: Nest) -> bool:
    """Whether elements are but copied, from a column in a table, and a row of the last but one
    dimension alone."""
    value, (*planes, row, column) = nest.value, nest.axes
    if not isinstance(value, TensorLoad) or len(nest.tables) != 1 or len(value.indices) < 2:
        return False
    *outer, source_row, last = value.indices
    (table,) = nest.tables
    return (
        tvm_ffi.structural_equal(last, table.buffer[column])
        and str(value.ty) == "float32"
        and not variables(source_row) & {*planes, column}
        and not variables(outer) & {row, column}
    )


def _find_out(nest: Nest, twice: Var) -> list[Stmt]:
    """Set `twice` to whether each element of a row is taken two times."""
    (table,) = nest.tables

    def both(i: Expr) -> Stmt:
        same = table.buffer[i] == tirx.floordiv(i, _number(2)).astype(str(table.value.ty))
        return BufferStore(twice, tirx.all(twice[0], same), [_number(0)])

    yes = BufferStore(twice, tirx.const(True, "bool"), [_number(0)])
    return [yes, _each(nest.extents[-1], both)]


def _planes(nest: Nest, twice: Var | None, kind: ForKind) -> Stmt:
    """The nest; its outermost loops, if of another kind than serial, as one."""
    outer = nest.axes[:-2]
    row, column = nest.axes[-2:]
    line = _row(nest, [*outer, row], twice)
    stmt = For(row, _number(0), nest.extents[-2], ForKind.SERIAL, line)
    if kind == ForKind.SERIAL:
        for axis, extent in reversed(list(zip(outer, nest.extents, strict=False))):
            stmt = For(axis, _number(0), extent, kind, stmt)
        return stmt
    plane, known = tirx.Var("plane", INDEX), {}
    left = plane
    for axis, extent in reversed(list(zip(outer, nest.extents, strict=False))):
        known[axis] = tirx.floormod(left, extent)
        left = tirx.floordiv(left, extent)
    known[outer[0]] = plane if len(outer) == 1 else known[outer[0]]
    stmt = tvm_ffi.structural_map(stmt, (Var, lambda var: known.get(var, var)))
    count = reduce(lambda a, b: a * b, nest.extents[:-2])
    return For(plane, _number(0), count, kind, stmt)


def _row(nest: Nest, at: list[Expr], twice: Var | None) -> Stmt:
    def element(i: Expr) -> Stmt:
        value = tvm_ffi.structural_map(
            nest.value, (Var, lambda var: i if var.same_as(nest.column) else var)
        )
        return BufferStore(nest.store.buffer, value, [*at, i])

    width = nest.extents[-1]
    plain = _each(width, element)
    if twice is None:
        return plain
    *outer, source_row, _ = nest.value.indices
    row = at[-1]

    def doubled(chunk: Expr) -> Stmt:
        half = tirx.Ramp(chunk * (LANES // 2), _number(1), LANES // 2)
        lanes = [tirx.const(lane // 2, "int32") for lane in range(LANES)]
        vector = nest.value.source[(*outer, source_row, half)]
        value = tirx.Shuffle([vector, vector], lanes)  # as many lanes are given as are taken
        return BufferStore(
            nest.store.buffer, value, [*at, tirx.Ramp(chunk * LANES, _number(1), LANES)]
        )

    def copied(i: Expr) -> Stmt:
        above = nest.store.buffer[(*at[:-1], row - 1, i)]
        return BufferStore(nest.store.buffer, above, [*at, i])

    before = tvm_ffi.structural_map(
        source_row, (Var, lambda var: row - 1 if var.same_as(row) else var)
    )
    chunks = tirx.floordiv(width, _number(LANES))
    rest = width - chunks * LANES

    def in_vectors(vector: Callable[[Expr], Stmt], single: Callable[[Expr], Stmt]) -> Stmt:
        last = _each(rest, lambda i: single(chunks * LANES + i))
        return SeqStmt([_each(chunks, vector), last])

    same = in_vectors(lambda chunk: copied(tirx.Ramp(chunk * LANES, _number(1), LANES)), copied)
    new = IfThenElse(twice[0], in_vectors(doubled, element), plain)
    return IfThenElse(tirx.all(row > 0, source_row == before), same, new)


def _filled(nest: Nest, table: Table) -> Stmt:
    def entry(i: Expr) -> Stmt:
        value = tvm_ffi.structural_map(
            table.value, (Var, lambda var: i if var.same_as(nest.column) else var)
        )
        return BufferStore(table.buffer, value, [i])

    return _each(nest.extents[-1], entry)


def _each(extent: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
    var = tirx.Var("i", INDEX)
    return For(var, _number(0), extent, ForKind.SERIAL, body(var))


def _number(value: int) -> Expr:
    return tirx.const(value, INDEX)
