"""A CPU schedule for pooling by small windows, with pads: no padded copy, no condition in a loop.

Of a window that reaches into the pads, the largest element is that of the window moved to the edge:
an index is bounded instead. In a sum, what lies outside counts as zero. Where windows move along
memory, the columns whose windows lie inside are a loop of their own, which LLVM vectorizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, Range, TensorLoad, Var
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, SeqStmt, Stmt

from .parallel_rows import MIN_ITERATIONS
from .pooling_match import Pooling, Window, match_pooling
from .tir_terms import variables
from .vector_loops import INDEX, for_each, in_vectors, number, ramp

Load = Callable[[list[Expr]], Expr]
WIDTHS = (8, 4)  # lanes of a vector: the narrow ones for planes of few columns


def schedule_pooling(func: tirx.PrimFunc, parallel: bool = False) -> tirx.PrimFunc | None:
    """`func` with windows unrolled, or None if it is not a pooling that we know.

    With `parallel`, the planes or rows of a large result are shared among threads.
    """
    found = match_pooling(func)
    if found is None:
        return None
    body = _loops(found, ForKind.SERIAL)
    if parallel and len(found.axes) > 1:
        total = reduce(lambda a, b: a * b, found.extents)
        large = tirx.all(total >= MIN_ITERATIONS, found.extents[1] > 1)
        body = IfThenElse(large, _loops(found, ForKind.PARALLEL), body)
    empty = [window.extent < 1 for window in found.windows if window and window.padded]
    if empty:  # the bounded index would be outside of what is empty
        nothing = _nest(found, ForKind.SERIAL, lambda at: _store(found, at, found.identity))
        body = IfThenElse(reduce(tirx.any, empty), nothing, body)
    root = func.body.block
    block = s_tir.SBlock([], [], [], root.name_hint, body, annotations=root.annotations)
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _loops(found: Pooling, kind: ForKind) -> Stmt:
    window, columns = found.windows[-1], found.extents[-1]
    if window is None or not window.padded:
        return _nest(found, kind, lambda at: _columns(found, at, number(0), columns), 1)
    first = _simple(tirx.min(number(-(-window.before // window.stride)), columns))
    inside = tirx.floordiv(window.extent - window.size + window.before, number(window.stride)) + 1
    end = _simple(tirx.max(first, tirx.min(inside, columns)))

    def row(at: list[Expr]) -> Stmt:
        return SeqStmt(
            [
                for_each(first, lambda i: _element(found, [*at, i])),
                _columns(found, at, first, end),
                for_each(columns - end, lambda i: _element(found, [*at, end + i])),
            ]
        )

    return _nest(found, kind, row, 1)


def _columns(found: Pooling, at: list[Expr], first: Expr, end: Expr) -> Stmt:
    """The results in columns from `first` on, whose windows lie inside: in vectors, the last one of
    which may compute again what the one before has, and one by one where there is none."""
    window = found.windows[-1]
    count = _simple(end - first)
    one_by_one = for_each(count, lambda i: _element(found, [*at, first + i], inside=True))
    if window is not None and window.stride > 2:
        return one_by_one

    def vector(start: Expr, lanes: int) -> Stmt:
        if window is not None and window.stride == 2:
            return _every_second(found, at, start, lanes)
        return _lanes(lambda lane: _element(found, [*at, start + lane], inside=True), lanes)

    # In a sum with pads, what the conditions of each tap cost is more than narrow vectors save.
    conditional = found.combine is tirx.Add and any(each and each.padded for each in found.windows)
    widths = WIDTHS[:1] if conditional else WIDTHS
    return in_vectors(first, end, widths, vector, one_by_one)


def _every_second(found: Pooling, at: list[Expr], start: Expr, lanes: int) -> Stmt:
    """The results of windows two columns apart: of two vectors of the source, of which the second
    begins at the last element of the first, every second lane."""
    start_of = tirx.Var("start", INDEX)
    taken = [2 * lane + (2 * lane >= lanes) for lane in range(lanes)]

    def load(indices: list[Expr]) -> Expr:
        *outer, first = indices
        halves = [found.source[(*outer, ramp(first + past, lanes))] for past in (0, lanes - 1)]
        return tirx.Shuffle(halves, [tirx.const(lane, "int32") for lane in taken])

    identity = tirx.Broadcast(found.identity, lanes)
    total = _pooled(found, [*at, start_of], True, load, identity)
    stores: list[Stmt] = [
        tirx.Bind(start_of, start),
        BufferStore(found.result, total, [*at, ramp(start_of, lanes)]),
    ]
    if not isinstance(found.value, TensorLoad):

        def post(lane: Expr) -> Stmt:
            place = [*at, start_of + lane]
            return _store(found, place, found.result[tuple(place)], inside=True)

        stores.append(_lanes(post, lanes))
    return SeqStmt(stores)


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


def _element(found: Pooling, at: list[Expr], inside: bool = False) -> Stmt:
    """The store of the result at `at`; if `inside`, the window is, in the last dimension."""
    load: Load = lambda indices: found.source[tuple(indices)]  # noqa: E731
    return _store(found, at, _pooled(found, at, inside, load, found.identity), inside)


def _pooled(found: Pooling, at: list[Expr], inside: bool, load: Load, identity: Expr) -> Expr:
    value = identity
    for offsets in product(*(range(window.size if window else 1) for window in found.windows)):
        indices, conditions = [], []
        for dim, (window, offset) in enumerate(zip(found.windows, offsets, strict=True)):
            if window is None:
                indices.append(at[dim])
                continue
            index = at[dim] * window.stride + (offset - window.before)
            if window.padded and not (inside and dim == len(at) - 1):
                if found.combine is tirx.Add:
                    conditions.append(tirx.all(index >= 0, index < window.extent))
                index = tirx.max(tirx.min(index, window.extent - 1), number(0))
            indices.append(index)
        element = load(indices)
        if conditions:
            within = reduce(tirx.all, conditions)
            if not identity.same_as(found.identity):
                within = tirx.Broadcast(within, int(identity.lanes))
            element = tirx.Select(within, element, identity)
        value = found.combine(value, element)
    return value


def _store(found: Pooling, at: list[Expr], pooled: Expr, inside: bool = False) -> Stmt:
    value = found.value
    for dim, window in enumerate(found.windows):
        last = dim == len(at) - 1
        if window is not None and (not window.padded or (inside and last)):
            value = _where_inside(value, found.axes[dim], window)
    value = tvm_ffi.structural_map(value, (tirx.Div, lambda node: _by_count(node, found.axes[-1])))
    known = dict(zip(found.axes, at, strict=True))
    # The pooled value last: it may hold variables of the same names.
    place = tvm_ffi.structural_map(value, (Var, lambda var: known.get(var, var)))

    def total(load: TensorLoad) -> Expr:
        return pooled if load.source.same_as(found.total) else load

    return BufferStore(found.result, tvm_ffi.structural_map(place, (TensorLoad, total)), at)


def _by_count(quotient: tirx.Div, column: Var) -> Expr:
    """A product with the inverse of a count that is the same along memory."""
    count = quotient.b
    if not isinstance(count, tirx.Cast) or column in variables(count):
        return quotient
    return quotient.a * (tirx.const(1.0, "float32") / count)


def _where_inside(value: Expr, column: Var, window: Window) -> Expr:
    """`value` without those bounds of windows that do not hold for a place whose window lies
    inside: how many elements an average is of is then the same for all of these."""
    slack, past = tirx.Var("slack", INDEX), tirx.Var("past", INDEX)
    analyzer = Analyzer()
    for var in (slack, past):
        analyzer.bind(var, Range(number(0), number(1 << 40)))
    place = past + -(-window.before // window.stride)
    inside = {column: place}
    if isinstance(window.extent, Var):
        inside[window.extent] = place * window.stride + (window.size - window.before) + slack

    def bound(node: tirx.Max | tirx.Min) -> Expr:
        if str(node.ty) != INDEX or column not in variables(node):
            return node
        known = tvm_ffi.structural_map(node.a - node.b, (Var, lambda var: inside.get(var, var)))
        difference = analyzer.const_int_bound(analyzer.simplify(known))
        first, second = node.a, node.b
        if isinstance(node, tirx.Min):
            first, second = second, first
        if difference.min_value >= 0:
            return first
        return second if difference.max_value <= 0 else node

    bounded = tvm_ffi.structural_map(value, [(tirx.Max, bound), (tirx.Min, bound)])
    return tvm_ffi.structural_map(bounded, (tirx.Cast, _simple_cast))


def _simple_cast(cast: tirx.Cast) -> Expr:
    return _simple(cast.value).astype(str(cast.ty))


def _lanes(body: Callable[[Expr], Stmt], lanes: int) -> Stmt:
    var = tirx.Var("lane", INDEX)
    return For(var, number(0), number(lanes), ForKind.VECTORIZED, body(var))


def _simple(value: Expr) -> Expr:
    return Analyzer().simplify(value)
