"""A CPU schedule for resizing: what depends on the column alone is computed once a call.

In tables, places and weights are computed for one row, not for each. Of the nearest elements, rows
that are the same as those before are copies, and where each element is taken twice, that is a
shuffle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, SeqStmt, Stmt

from .column_tables import Nest, Table, match_columns
from .parallel_rows import STORED, worth_sharing
from .renamed import renamed
from .tir_terms import variables
from .vector_loops import INDEX, for_each, in_vectors, number, ramp

COMPUTED = 16  # what an element takes that is put together of several
WIDTHS = (16, 8)  # elements of the result in a vector: the narrow ones for short rows


def schedule_columns(func: tirx.PrimFunc, parallel: bool = False) -> tirx.PrimFunc | None:
    """`func` with such tables, or None if it has none of them, or is more than one loop nest.

    With `parallel`, the planes of a large result are shared among threads.
    """
    nest = match_columns(func)
    if nest is None:
        return None
    copied = _copied(nest) if _is_copy(nest) else None
    body = _planes(nest, copied, ForKind.SERIAL)
    if parallel and len(nest.axes) > 2:
        total = reduce(lambda a, b: a * b, nest.extents)
        shared = renamed(_planes(nest, copied, ForKind.PARALLEL))
        body = IfThenElse(worth_sharing(total, STORED if copied else COMPUTED), shared, body)
    first: list[Stmt] = [_filled(nest.column, nest.extents[-1], each) for each in nest.tables]
    if copied is not None:
        first += [_filled(nest.axes[-2], nest.extents[-2], copied.rows), *_find_out(nest, copied)]
    own = [] if copied is None else [copied.twice, copied.rows.buffer]
    root = func.body.block
    block = s_tir.SBlock(
        [],
        [],
        [],
        root.name_hint,
        SeqStmt([*first, body]),
        alloc_buffers=[*(each.buffer for each in nest.tables), *own],
        annotations=root.annotations,
    )
    return func.with_body(s_tir.SBlockRealize([], True, block))


@dataclass(frozen=True, eq=False)
class Copied:
    """Of a nest that but copies elements: from which row each row is, and whether each element of
    a row is taken two times."""

    rows: Table
    twice: Var


def _copied(nest: Nest) -> Copied:
    value = nest.value.indices[-2]
    shape = (Analyzer().simplify(tirx.max(nest.extents[-2], number(1))),)
    rows = Table(tirx.decl_buffer(shape, str(value.ty), "row_of"), value)
    return Copied(rows, tirx.decl_buffer((1,), "bool", "twice"))


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


def _find_out(nest: Nest, copied: Copied) -> list[Stmt]:
    """Set `twice`. Of an odd number of columns, the last vector would begin between two that are
    the same."""
    (table,), twice = nest.tables, copied.twice

    def both(i: Expr) -> Stmt:
        same = table.buffer[i] == tirx.floordiv(i, number(2)).astype(str(table.value.ty))
        return BufferStore(twice, tirx.all(twice[0], same), [number(0)])

    yes = BufferStore(twice, tirx.floormod(nest.extents[-1], number(2)) < 1, [number(0)])
    return [yes, for_each(nest.extents[-1], both)]


def _planes(nest: Nest, copied: Copied | None, kind: ForKind) -> Stmt:
    """The nest; its outermost loops, if of another kind than serial, as one."""
    outer = nest.axes[:-2]
    row, column = nest.axes[-2:]
    line = _row(nest, [*outer, row], copied)
    stmt = For(row, number(0), nest.extents[-2], ForKind.SERIAL, line)
    if kind == ForKind.SERIAL:
        for axis, extent in reversed(list(zip(outer, nest.extents, strict=False))):
            stmt = For(axis, number(0), extent, kind, stmt)
        return stmt
    plane, known = tirx.Var("plane", INDEX), {}
    left = plane
    for axis, extent in reversed(list(zip(outer, nest.extents, strict=False))):
        known[axis] = tirx.floormod(left, extent)
        left = tirx.floordiv(left, extent)
    known[outer[0]] = plane if len(outer) == 1 else known[outer[0]]
    stmt = tvm_ffi.structural_map(stmt, (Var, lambda var: known.get(var, var)))
    count = reduce(lambda a, b: a * b, nest.extents[:-2])
    return For(plane, number(0), count, kind, stmt)


def _row(nest: Nest, at: list[Expr], copied: Copied | None) -> Stmt:
    def element(i: Expr) -> Stmt:
        value = tvm_ffi.structural_map(
            nest.value, (Var, lambda var: i if var.same_as(nest.column) else var)
        )
        return BufferStore(nest.store.buffer, value, [*at, i])

    width = nest.extents[-1]
    plain = for_each(width, element)
    if copied is None:
        return plain
    outer, row_of, row = nest.value.indices[:-2], copied.rows.buffer, at[-1]

    def doubled(first: Expr, lanes: int) -> Stmt:
        half = ramp(tirx.floordiv(first, number(2)), lanes // 2)
        taken = [tirx.const(lane // 2, "int32") for lane in range(lanes)]
        vector = nest.value.source[(*outer, row_of[row], half)]
        value = tirx.Shuffle([vector, vector], taken)  # as many lanes are given as are taken
        place = [*at, ramp(first, lanes)]
        return BufferStore(nest.store.buffer, value, place)

    def above(first: Expr, lanes: int) -> Stmt:
        place = ramp(first, lanes)
        value = nest.store.buffer[(*at[:-1], row - 1, place)]
        return BufferStore(nest.store.buffer, value, [*at, place])

    zero = number(0)
    same = in_vectors(zero, width, WIDTHS, above, for_each(width, lambda i: above(i, 1)))
    pairs = in_vectors(zero, width, WIDTHS, doubled, for_each(width, element))
    new = IfThenElse(copied.twice[0], pairs, plain)
    return IfThenElse(tirx.all(row > 0, row_of[row] == row_of[row - 1]), same, new)


def _filled(axis: Var, extent: Expr, table: Table) -> Stmt:
    def entry(i: Expr) -> Stmt:
        value = tvm_ffi.structural_map(
            table.value, (Var, lambda var: i if var.same_as(axis) else var)
        )
        return BufferStore(table.buffer, value, [i])

    return for_each(extent, entry)
