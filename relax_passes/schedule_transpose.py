"""A CPU schedule for transposes of any shape: blocks of 8 x 8 elements, transposed in registers.

A copy whose result runs along another dimension than its source reads or writes a cache line for
each element. Eight rows of eight elements become eight vectors by loads, the transposed block by
shuffles, and go out as vectors again. What is left over at the ends is copied one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, IntImm, SeqStmt, Stmt

from .parallel_rows import TRANSPOSED, worth_sharing
from .tir_terms import SPATIAL, is_number
from .vector_loops import INDEX, for_each, number, ramp

BLOCK = 8
# Three rounds of shuffles of two vectors: pairs of elements, pairs of pairs, halves.
PAIRS = ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])
PAIRS_OF_PAIRS = ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
HALVES = ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])


@dataclass(frozen=True)
class Transpose:
    """result[..., i, ..., j] = source[..., j, ..., i], with any other dimensions in any order."""

    result: Var
    source: Var
    result_indices: tuple[Expr, ...]
    source_indices: tuple[Expr, ...]
    extents: dict[Var, Expr]
    i: Var  # along the memory of the source
    j: Var  # along the memory of the result


def schedule_transpose(func: tirx.PrimFunc, parallel: bool = False) -> tirx.PrimFunc | None:
    """`func` by blocks, or None if it is not one float32 transpose of its innermost dimension.

    With `parallel`, the rows of a large result are shared among threads.
    """
    found = _matched(func)
    if found is None:
        return None
    serial = _strips(found, ForKind.SERIAL)
    body = serial
    if parallel:
        total = reduce(lambda a, b: a * b, found.extents.values())
        large = tirx.all(worth_sharing(total, TRANSPOSED), found.extents[found.i] > BLOCK)
        body = IfThenElse(large, _strips(found, ForKind.PARALLEL), serial)
    root = func.body.block
    block = s_tir.SBlock([], [], [], root.name_hint, body, annotations=root.annotations)
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _matched(func: tirx.PrimFunc) -> Transpose | None:
    if not isinstance(func.body, s_tir.SBlockRealize) or "tirx.is_scheduled" in func.attrs:
        return None
    root, stmt = func.body.block, func.body.block.body
    if root.alloc_buffers or root.match_buffers:
        return None
    while isinstance(stmt, For) and stmt.kind == ForKind.SERIAL and is_number(stmt.min, 0):
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize) or not isinstance(stmt.block.body, BufferStore):
        return None
    block, store = stmt.block, stmt.block.body
    load = store.value
    if not isinstance(load, TensorLoad) or str(load.ty) != "float32":
        return None
    extents = {var.var: var.dom.extent for var in block.iter_vars}
    if any(str(extent.ty) != INDEX for extent in extents.values()):
        return None
    if any(var.iter_type != SPATIAL for var in block.iter_vars) or not is_number(stmt.predicate, 1):
        return None
    if len(extents) < 2:
        return None
    moving = {var for var, extent in extents.items() if not is_number(extent, 1)}
    for indices in (store.indices, load.indices):
        if {each for each in indices if isinstance(each, Var)} != extents.keys():
            return None
        if len(indices) != len(extents):
            return None
    j, i = store.indices[-1], load.indices[-1]
    if i.same_as(j) or not {i, j} <= moving:
        return None
    if any(isinstance(extents[each], IntImm) and extents[each].value < BLOCK for each in (i, j)):
        return None
    return Transpose(
        store.buffer, load.source, tuple(store.indices), tuple(load.indices), extents, i, j
    )


def _strips(found: Transpose, kind: ForKind) -> Stmt:
    """A loop over strips, eight of i and all of j, and one over each of the other dimensions.

    Of `kind` is that over strips, which is the outermost then. The loops are not fused: indices
    with divisions by symbols take TVM long to simplify.
    """
    rows = found.extents[found.i]
    count = Analyzer().simplify((rows + (BLOCK - 1)) // BLOCK)
    others = {
        var: tirx.Var(var.name, INDEX)
        for var in found.result_indices
        if not var.same_as(found.i) and not var.same_as(found.j)
    }
    strip = tirx.Var("strip", INDEX)
    first = strip * BLOCK
    position: dict[Var, Expr] = dict(others)
    body: Stmt = IfThenElse(
        first + BLOCK <= rows,
        _full_strip(found, position, first),
        for_each(rows - first, lambda i: _scalars(found, {**position, found.i: first + i})),
    )
    loops = [(loop, found.extents[var]) for var, loop in others.items()]
    loops = [(strip, count), *loops] if kind == ForKind.PARALLEL else [*loops, (strip, count)]
    for loop, extent in reversed(loops):
        loop_kind = kind if loop.same_as(strip) else ForKind.SERIAL
        body = For(loop, number(0), extent, loop_kind, body)
    return body


def _full_strip(found: Transpose, position: dict[Var, Expr], first: Expr) -> Stmt:
    columns = found.extents[found.j]
    blocks = Analyzer().simplify(columns // BLOCK)
    left = Analyzer().simplify(columns - blocks * BLOCK)
    body = [for_each(blocks, lambda j: _block(found, position, first, j * BLOCK))]
    if not is_number(left, 0):
        body += [
            for_each(
                left,
                lambda j: for_each(
                    number(BLOCK),
                    lambda i: _copy(
                        found, {**position, found.i: first + i, found.j: blocks * BLOCK + j}
                    ),
                ),
            )
        ]
    return SeqStmt(body) if len(body) > 1 else body[0]


def _scalars(found: Transpose, position: dict[Var, Expr]) -> Stmt:
    return for_each(found.extents[found.j], lambda j: _copy(found, {**position, found.j: j}))


def _block(found: Transpose, position: dict[Var, Expr], i: Expr, j: Expr) -> Stmt:
    along = tirx.Ramp(i, number(1), BLOCK)
    binds: list[Stmt] = []

    def bound(value: Expr) -> Var:
        var = tirx.Var("row", f"float32x{BLOCK}")
        binds.append(tirx.Bind(var, value))
        return var

    rows: list[Expr] = [
        bound(_load(found, {**position, found.i: along, found.j: j + row})) for row in range(BLOCK)
    ]
    for distance, shuffles in ((1, PAIRS), (2, PAIRS_OF_PAIRS), (4, HALVES)):
        following = list(rows)
        for row in (each for each in range(BLOCK) if not each & distance):
            for k, indices in enumerate(shuffles):
                pair = [rows[row], rows[row + distance]]
                following[row + k * distance] = tirx.Shuffle(pair, [_lane(x) for x in indices])
        rows = following
    stores = [
        _store(found, {**position, found.i: i + _column(row), found.j: ramp(j, BLOCK)}, value)
        for row, value in enumerate(rows)
    ]
    return SeqStmt([*binds, *stores])


def _column(row: int) -> int:
    """Which column of the block the rounds leave in `row`: two of its bits are exchanged."""
    return row & 4 | (row & 1) << 1 | (row & 2) >> 1


def _copy(found: Transpose, position: dict[Var, Expr]) -> Stmt:
    return _store(found, position, _load(found, position))


def _load(found: Transpose, position: dict[Var, Expr]) -> Expr:
    return found.source[tuple(position[var] for var in found.source_indices)]


def _store(found: Transpose, position: dict[Var, Expr], value: Expr) -> Stmt:
    return BufferStore(found.result, value, [position[var] for var in found.result_indices])


def _lane(value: int) -> Expr:
    return tirx.const(value, "int32")
