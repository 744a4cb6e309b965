"""Loops that find the first best element of rows, or of columns, of a tensor: those of argmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.tirx import BufferStore, ForKind, IfThenElse, SeqStmt, Stmt

from .vector_loops import INDEX, for_each, in_vectors, number, ramp

# Of each type: that in which elements are compared, and that of places beside it.
TYPES = {
    "float16": ("float32", "int32"),
    "float32": ("float32", "int32"),
    "float64": ("float64", "int64"),
}
LANES = {"float32": 16, "float64": 8}
VECTORS = 4  # of a row that are compared before anything is decided


class Places:
    """The elements of both tensors by their places in memory, and which of two is better."""

    def __init__(self, source: Expr, result: Expr, count: Expr, inner: Expr, larger: bool) -> None:
        self.source, self.result, self.count, self.inner = source, result, count, inner
        self.larger = larger
        self.dtype, self.place = TYPES[str(source.dtype)]
        self.infinity = tirx.const(math.inf, self.dtype)

    def load(self, place: Expr, lanes: int = 1) -> Expr:
        """The `lanes` elements from `place` on."""
        value = self.source[_at(self.source, ramp(place, lanes))]
        if str(self.source.dtype) == self.dtype:
            return value
        return tirx.Cast(_vector(self.dtype, lanes), value)

    def store(self, place: Expr, value: Expr) -> Stmt:
        return BufferStore(self.result, value, list(_at(self.result, place)))

    def worse(self, value: Expr, best: Expr) -> Expr:
        """Whether `value` is not better than `best`; not so for NaN."""
        return value <= best if self.larger else value >= best

    def unless_better(
        self, value: Expr, best: Expr, if_not: Expr, if_better: Expr, lanes: int = 1
    ) -> Expr:
        """NaN is better than a number, and nothing is better than NaN. Said without "not", which
        TVM takes for the other comparison."""
        number = best <= _spread(self.infinity, lanes)
        better = tirx.Select(number, if_better, if_not)
        return tirx.Select(self.worse(value, best), if_not, better)


def rows(places: Places, outer: Expr) -> Callable[[ForKind], Stmt]:
    """The axis lies along memory: blocks of a row in which nothing is better are passed by."""
    zero, lanes = number(0), LANES[places.dtype]

    def row(which: Expr) -> Stmt:
        best, found = (tirx.decl_buffer((1,), each, "best") for each in (places.dtype, INDEX))
        first = which * places.count

        def put(value: Expr, place: Expr) -> Stmt:
            stores = [BufferStore(found, place, [zero]), BufferStore(best, value, [zero])]
            return SeqStmt(stores)

        def element(i: Expr) -> Stmt:
            value = places.load(first + i)
            return put(
                places.unless_better(value, best[0], best[0], value),
                places.unless_better(value, best[0], found[0], i),
            )

        def block(start: Expr, size: int) -> Stmt:
            """Those of a block again that overlaps the one before are not better."""
            vectors = [places.load(first + start + at, lanes) for at in range(0, size, lanes)]
            known = best[0] <= places.infinity
            least = tirx.Broadcast(best[0], lanes)
            better = _any_not(places, [places.worse(each, least) for each in vectors])
            infinity = tirx.Broadcast(places.infinity, lanes)
            nan = _any_not(places, [each <= infinity for each in vectors])
            one_by_one = for_each(number(size), lambda i: element(start + i))
            bound = tirx.Var("most", places.dtype)
            at = _first_equal(places, vectors, tirx.Broadcast(bound, lanes))
            at_once = SeqStmt(
                [
                    tirx.Bind(bound, _extreme(places, vectors)),
                    put(bound, start + at.astype(INDEX)),
                ]
            )
            look = IfThenElse(nan, one_by_one, at_once)
            return IfThenElse(tirx.all(known, better), look, None)

        body = [
            BufferStore(best, places.load(first), [zero]),
            BufferStore(found, zero, [zero]),
            in_vectors(
                zero, places.count, (VECTORS * lanes, lanes), block, for_each(places.count, element)
            ),
            places.store(which, found[0]),
        ]
        return _with_buffers(SeqStmt(body), best, found)

    return lambda kind: for_each(outer, row, kind)


def _any_not(places: Places, conditions: list[Expr]) -> Expr:
    """Whether one of `conditions` does not hold in one of its lanes."""
    lanes = LANES[places.dtype]
    no, yes = (tirx.Broadcast(tirx.const(each, places.place), lanes) for each in (0, -1))
    marks = [tirx.Select(condition, no, yes) for condition in conditions]
    either = tirx.call_llvm_intrin(
        places.place, "llvm.vector.reduce.or", reduce(lambda a, b: a | b, marks)
    )
    return tirx.NE(either, tirx.const(0, places.place))


def _extreme(places: Places, vectors: list[Expr]) -> Expr:
    """The best of all lanes of `vectors`, of which none is NaN."""
    best = tirx.Max if places.larger else tirx.Min
    value, lanes = reduce(best, vectors), LANES[places.dtype]
    while lanes > 1:
        lanes //= 2
        halves = [
            tirx.Shuffle([value], [tirx.const(at + i, "int32") for i in range(lanes)])
            for at in (0, lanes)
        ]
        value = best(*halves)
    return value


def _first_equal(places: Places, vectors: list[Expr], wanted: Expr) -> Expr:
    """The place of the first lane in `vectors` that is as the lane of `wanted`."""
    lanes, kind = LANES[places.dtype], places.place
    none = tirx.Broadcast(tirx.const(lanes * len(vectors), kind), lanes)
    found = none
    for at, vector in reversed(list(enumerate(vectors))):
        own = tirx.Ramp(tirx.const(at * lanes, kind), tirx.const(1, kind), lanes)
        found = tirx.Select(tirx.EQ(vector, wanted), own, found)
    return tirx.call_llvm_intrin(kind, "llvm.vector.reduce.smin", found)


def columns(places: Places, outer: Expr) -> Callable[[ForKind], Stmt]:
    """Neighbours in memory belong to different results: those of two vectors of columns at a time,
    the last of which may be found again; one by one where there are fewer."""
    count, inner, wide = places.count, places.inner, 2 * LANES[places.dtype]
    chunks = tirx.floordiv(inner + (wide - 1), number(wide))

    def many(which: Expr) -> Stmt:
        at = tirx.floormod(which, chunks) * wide
        start = tirx.min(at, inner - wide)
        return _found(places, tirx.floordiv(which, chunks), start, wide, places.place)

    def one(which: Expr) -> Stmt:
        at, start = tirx.floordiv(which, inner), tirx.floormod(which, inner)
        return _found(places, at, start, 1, INDEX)

    in_vectors = tirx.all(inner >= wide, count < (1 << 31))
    return lambda kind: IfThenElse(
        in_vectors, for_each(outer * chunks, many, kind), for_each(outer * inner, one, kind)
    )


def _found(places: Places, which: Expr, start: Expr, lanes: int, dtype: str) -> Stmt:
    """The results of `lanes` columns from `start` on of one plane."""
    best, found = (tirx.decl_buffer((lanes,), each, "best") for each in (places.dtype, dtype))
    whole = ramp(number(0), lanes)
    first = which * places.count * places.inner + start

    def element(k: Expr) -> Stmt:
        value = places.load(first + k * places.inner, lanes)
        place = _spread(k.astype(dtype), lanes)
        better = places.unless_better(value, best[whole], found[whole], place, lanes)
        larger = places.unless_better(value, best[whole], best[whole], value, lanes)
        return SeqStmt([BufferStore(found, better, [whole]), BufferStore(best, larger, [whole])])

    zero = _spread(tirx.const(0, dtype), lanes)
    result = found[whole] if dtype == INDEX else tirx.Cast(_vector(INDEX, lanes), found[whole])
    body = [
        BufferStore(best, places.load(first, lanes), [whole]),
        BufferStore(found, zero, [whole]),
        for_each(places.count, element),
        places.store(ramp(which * places.inner + start, lanes), result),
    ]
    return _with_buffers(SeqStmt(body), best, found)


def _with_buffers(body: Stmt, *buffers: Expr) -> Stmt:
    block = s_tir.SBlock([], [], [], "search", body, alloc_buffers=list(buffers))
    return s_tir.SBlockRealize([], True, block)


def _at(buffer: Expr, place: Expr) -> tuple[Expr, ...]:
    """The indices of a place in memory: in the last one, beyond its extent."""
    return (*(number(0) for _ in buffer.shape[1:]), place) if len(buffer.shape) else ()


def _vector(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _spread(value: Expr, lanes: int) -> Expr:
    return value if lanes == 1 else tirx.Broadcast(value, lanes)
