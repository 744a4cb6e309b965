"""A CPU schedule for pooling by small windows, with pads: no padded copy, no condition in a loop.

Windows at the edges are code of their own, which holds those of their elements that lie inside.
Along memory, the columns whose windows lie inside go by vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod

from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, SeqStmt, Stmt

from .parallel_rows import STORED, worth_sharing
from .pooling_match import Pooling, Window, match_pooling
from .pooling_parts import (
    Part,
    Parts,
    behind,
    front,
    in_front,
    least_extent,
    middle,
    pooled,
    stored,
)
from .tir_terms import is_number
from .vector_loops import INDEX, for_each, in_vectors, number, ramp

WIDTHS = (8, 4)  # lanes of a vector: the narrow ones for planes of few columns
MOST_PARTS = 16  # of all dimensions but the last one; of others, each element is conditional


def schedule_pooling(func: tirx.PrimFunc, parallel: bool = False) -> tirx.PrimFunc | None:
    """`func` with windows unrolled, or None if it is not a pooling that we know.

    With `parallel`, the planes or rows of a large result are shared among threads.
    """
    found = match_pooling(func)
    if found is None:
        return None
    body = _nest(found, ForKind.SERIAL, lambda at: _row(found, at), 1)
    if parallel and len(found.axes) > 1:
        total = reduce(lambda a, b: a * b, found.extents)
        taps = prod(window.size for window in found.windows if window)
        large = tirx.all(worth_sharing(total, STORED * taps), found.extents[1] > 1)
        shared = _nest(found, ForKind.PARALLEL, lambda at: _row(found, at), 1)
        body = IfThenElse(large, shared, body)
    body = _unless_small(found, body)
    root = func.body.block
    block = s_tir.SBlock([], [], [], root.name_hint, body, annotations=root.annotations)
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _unless_small(found: Pooling, body: Stmt) -> Stmt:
    """`body`, unless windows may reach into the pads on both sides, or a tensor is empty: a bounded
    index would be outside of it."""
    padded = [
        (window, columns)
        for window, columns in zip(found.windows, found.extents, strict=True)
        if window is not None and window.padded
    ]
    if not padded:
        return body
    unknown: Parts = [None] * len(found.axes)
    small = [
        tirx.any(window.extent < least_extent(window), columns < in_front(window))
        for window, columns in padded
    ]
    empty = [window.extent < 1 for window, _ in padded]
    each = _nest(found, ForKind.SERIAL, lambda at: _element(found, at, unknown))
    nothing = _nest(found, ForKind.SERIAL, lambda at: stored(found, at, unknown, found.identity))
    for conditions, instead in ((small, each), (empty, nothing)):
        condition = _simple(reduce(tirx.any, conditions))
        if not is_number(condition, 0):
            body = IfThenElse(condition, instead, body)
    return body


def _nest(
    found: Pooling, kind: ForKind, body: Callable[[list[Expr]], Stmt], inner: int = 0
) -> Stmt:
    """Loops over all dimensions of the result but the last `inner` ones; that over the second one,
    if of another kind than serial, outermost."""
    count = len(found.axes) - inner
    loops = [tirx.Var(axis.name, INDEX) for axis in found.axes[:count]]
    order = list(range(count))
    if kind != ForKind.SERIAL and count > 1:
        order = [1, 0, *order[2:]]
    stmt = body(list(loops))
    for turn, dim in reversed(list(enumerate(order))):
        stmt = For(
            loops[dim], number(0), found.extents[dim], ForKind.SERIAL if turn else kind, stmt
        )
    return stmt


def _row(found: Pooling, at: list[Expr], parts: Parts = ()) -> Stmt:
    """The results at all columns of the row `at`, of which `parts` are chosen: the others here."""
    dim = len(parts)
    if dim == len(at):
        return _line(found, at, parts)
    window = found.windows[dim]
    if window is None or dim in _conditional(found):
        return _row(found, at, (*parts, None))

    def chosen(part: Part) -> Stmt:
        return _row(found, at, (*parts, part))

    place = at[dim]
    stmt = chosen(middle(window))
    if window.after:
        inside = place * window.stride + (window.size - window.before) <= window.extent
        stmt = IfThenElse(inside, stmt, _by_end(window, place, chosen))
    for first, part in enumerate(front(window)):
        stmt = IfThenElse(tirx.EQ(place, number(first)), chosen(part), stmt)
    return stmt


def _conditional(found: Pooling) -> set[int]:
    """Dimensions of which there would be too many parts."""
    count, dims = 1, set()
    for dim, window in reversed(list(enumerate(found.windows[:-1]))):
        parts = 1 + in_front(window) + window.after if window else 1
        if count * parts > MOST_PARTS:
            dims.add(dim)
        else:
            count *= parts
    return dims


def _by_end(window: Window, place: Expr, body: Callable[[Part], Stmt]) -> Stmt:
    """`body` of that part of the windows reaching into the pads behind which `place` belongs to."""
    *others, last = behind(window)
    stmt = body(last)
    inside = window.extent + window.before - place * window.stride
    for part in reversed(others):
        stmt = IfThenElse(inside >= part.taps.stop, body(part), stmt)
    return stmt


def _line(found: Pooling, at: list[Expr], parts: Parts) -> Stmt:
    window, columns = found.windows[-1], found.extents[-1]
    if window is None:
        return _columns(found, at, (*parts, None), number(0), columns)
    edge = front(window)
    room = window.extent - window.size + window.before
    inside = tirx.floordiv(room, number(window.stride)) + 1 if window.after else columns
    end = _simple(tirx.min(inside, columns))

    def element(place: Expr) -> Callable[[Part], Stmt]:
        return lambda part: _element(found, [*at, place], (*parts, part))

    stmts = [element(number(place))(part) for place, part in enumerate(edge)]
    stmts.append(_columns(found, at, (*parts, middle(window)), number(len(edge)), end))
    if window.after:
        left = _simple(columns - end)
        stmts.append(for_each(left, lambda i: _by_end(window, end + i, element(end + i))))
    return SeqStmt(stmts) if len(stmts) > 1 else stmts[0]


def _columns(found: Pooling, at: list[Expr], parts: Parts, first: Expr, end: Expr) -> Stmt:
    """The results in columns from `first` on, whose windows lie inside: in vectors, the last one of
    which may compute again what the one before has, and one by one where there is none."""
    window = found.windows[-1]
    count = _simple(end - first)
    one_by_one = for_each(count, lambda i: _element(found, [*at, first + i], parts))
    if window is not None and window.stride > 2:
        return one_by_one

    def vector(start: Expr, lanes: int) -> Stmt:
        if window is not None and window.stride == 2:
            return _every_second(found, window, at, parts, start, lanes)
        return _lanes(lambda lane: _element(found, [*at, start + lane], parts), lanes)

    return in_vectors(first, end, WIDTHS, vector, one_by_one)


def _every_second(
    found: Pooling, window: Window, at: list[Expr], parts: Parts, start: Expr, lanes: int
) -> Stmt:
    """The results of windows two columns apart. Columns of the window are put together first; of
    two vectors of these, one has the even lanes, and its right neighbour the odd ones."""
    size, start_of = window.size, tirx.Var("start", INDEX)
    stmts: list[Stmt] = [tirx.Bind(start_of, start)]

    def columns(tap: int, past: int) -> Expr:
        """Those of one tap, and its neighbours: `lanes` of them from the one `past` it on."""

        def load(indices: list[Expr]) -> Expr:
            *outer, first = indices
            return found.source[(*outer, ramp(first + past, lanes))]

        only = Part(range(tap, tap + 1))
        total = pooled(found, [*at, start_of], (*parts[:-1], only), load, lanes)
        stmts.append(tirx.Bind(tirx.Var("columns", f"float32x{lanes}"), total))
        return stmts[-1].var

    def taken(halves: list[Expr], lane_of: Callable[[int], int]) -> Expr:
        chosen = [tirx.const(lane_of(lane), "int32") for lane in range(lanes)]
        return tirx.Shuffle(halves, chosen)

    values = []
    for tap in range(0, size - 1, 2):
        halves = [columns(tap, past) for past in (0, lanes)]
        values += [taken(halves, lambda lane: 2 * lane), taken(halves, lambda lane: 2 * lane + 1)]
    if size % 2:  # beyond the last element that is needed may be none
        halves = [columns(size - 1, past) for past in (0, lanes - 1)]
        values.append(taken(halves, lambda lane: 2 * lane + (2 * lane >= lanes)))
    total = reduce(found.combine, values)
    stmts.append(BufferStore(found.result, total, [*at, ramp(start_of, lanes)]))
    if isinstance(found.value, TensorLoad):
        return SeqStmt(stmts)

    def post(lane: Expr) -> Stmt:
        place = [*at, start_of + lane]
        return stored(found, place, parts, found.result[tuple(place)])

    return SeqStmt([*stmts, _lanes(post, lanes)])


def _element(found: Pooling, at: list[Expr], parts: Parts) -> Stmt:
    """The store of the result at `at`."""
    total = pooled(found, at, parts, lambda indices: found.source[tuple(indices)])
    return stored(found, at, parts, total)


def _lanes(body: Callable[[Expr], Stmt], lanes: int) -> Stmt:
    var = tirx.Var("lane", INDEX)
    return For(var, number(0), number(lanes), ForKind.VECTORIZED, body(var))


def _simple(value: Expr) -> Expr:
    return Analyzer().simplify(value)
