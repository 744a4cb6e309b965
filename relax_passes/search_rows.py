"""argmax and argmin in fp32 as loops of vectors, in place of TVM's pair of reductions.

TVM compares element by element, and strides through memory where the axis is not the last one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import Call, Expr, Op
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target
from tvm.tirx import BufferStore, ForKind, IfThenElse, IntImm, SeqStmt, Stmt

from tvm_moonpoly.arguments import target_of

from . import element_count
from .bindings import is_claimed
from .parallel_rows import MIN_ITERATIONS
from .shapes import dims, dtype_of
from .vector_loops import INDEX, for_each, number, ramp

FLOAT, PLACE = "float32", "int32"
LANES, VECTORS, COLUMNS = 16, 4, 32
BLOCK = LANES * VECTORS  # elements of a row that are compared before anything is decided
OPERATORS = {Op.get("relax.argmax"): True, Op.get("relax.argmin"): False}


@tvm.transform.module_pass(opt_level=0, name="SearchRows")
class SearchRows:
    """Replace argmax and argmin of fp32 tensors along one axis, for a CPU.

    As in numpy, the first of equal elements is found, and the first NaN where there is one. An
    empty axis, which numpy refuses, gives -1.
    """

    def __init__(self, target: Target) -> None:
        self.target = target_of(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self.target.kind.name != "llvm":
            return mod
        rewriter = _Rewrite(mod, int(self.target.attrs.get("num-cores", 1)) > 1)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and not is_claimed(func):
                new = rewriter.visit_expr(func)
                if not new.same_as(func):
                    rewriter.builder_.update_func(gv, new)
        return rewriter.builder_.get() if rewriter.found else mod


@mutator
class _Rewrite(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, parallel: bool) -> None:
        super().__init__(mod)
        self.parallel = parallel
        self.found = False

    def visit_call_(self, call: Call) -> relax.Expr:
        call = super().visit_call_(call)
        larger = OPERATORS.get(call.op)
        if larger is None or call.attrs.axis is None:
            return call
        (data,) = call.args
        shape, result = dims(data), dims(call)
        if not shape or result is None or dtype_of(data) != FLOAT or dtype_of(call) != INDEX:
            return call
        axis = int(call.attrs.axis) % len(shape)
        func = search(shape, axis, larger, bool(call.attrs.keepdims), self.parallel)
        self.found = True
        name = self.builder_.add_func(func, "argmax" if larger else "argmin")
        return relax.call_tir(name, [data], out_ty=relax.TensorType(result, INDEX))


def search(
    shape: list[Expr], axis: int, larger: bool, keepdims: bool = False, parallel: bool = False
) -> tirx.PrimFunc:
    """A function of a tensor of `shape`, whose symbols become its own, and of the result."""
    own = [
        each if isinstance(each, IntImm) else tirx.Var(f"n{i}", INDEX)
        for i, each in enumerate(shape)
    ]
    left = [number(1)] if keepdims else []
    source = tirx.decl_buffer(own, FLOAT, "x")
    result = tirx.decl_buffer([*own[:axis], *left, *own[axis + 1 :]], INDEX, "y")
    outer, inner = (element_count.count(part) for part in (own[:axis], own[axis + 1 :]))
    count = own[axis]
    places = _Places(source, result, count, inner, larger)
    found = _rows(places, outer) if axis == len(own) - 1 else _columns(places, outer)
    body = found(ForKind.SERIAL)
    if parallel:
        large = outer * count * inner >= MIN_ITERATIONS
        body = IfThenElse(large, found(ForKind.PARALLEL), body)
    nothing = for_each(outer * inner, lambda i: places.store(i, number(-1)))
    body = IfThenElse(count > 0, body, nothing)
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
    attrs = {"s_tir": True, "tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8}
    return tirx.PrimFunc([source, result], root).with_attr(attrs)


class _Places:
    """The elements of both tensors by their places in memory, and which of two is better."""

    def __init__(self, source: Expr, result: Expr, count: Expr, inner: Expr, larger: bool) -> None:
        self.source, self.result, self.count, self.inner = source, result, count, inner
        self.larger = larger

    def load(self, place: Expr) -> Expr:
        return self.source[_at(self.source, place)]

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
        number = best <= _spread(tirx.const(math.inf, FLOAT), lanes)
        better = tirx.Select(number, if_better, if_not)
        return tirx.Select(self.worse(value, best), if_not, better)


def _rows(places: _Places, outer: Expr) -> Callable[[ForKind], Stmt]:
    """The axis lies along memory: blocks of a row in which nothing is better are passed by."""
    zero = number(0)

    def row(which: Expr) -> Stmt:
        best, found = (tirx.decl_buffer((1,), each, "best") for each in (FLOAT, INDEX))
        first = which * places.count

        def element(i: Expr) -> Stmt:
            value = places.load(first + i)
            better = places.unless_better(value, best[0], found[0], i)
            return SeqStmt(
                [
                    BufferStore(found, better, [zero]),
                    BufferStore(best, places.unless_better(value, best[0], best[0], value), [zero]),
                ]
            )

        def block(c: Expr) -> Stmt:
            start, least = c * BLOCK, tirx.Broadcast(best[0], LANES)
            none, some = (tirx.Broadcast(tirx.const(each, PLACE), LANES) for each in (0, -1))
            marks = []
            for vector in range(VECTORS):
                value = places.load(ramp(first + start + vector * LANES, LANES))
                marks.append(tirx.Select(places.worse(value, least), none, some))
            any_better = tirx.call_llvm_intrin(
                PLACE, "llvm.vector.reduce.or", reduce(lambda a, b: a | b, marks)
            )
            known = best[0] <= tirx.const(math.inf, FLOAT)
            look = for_each(number(BLOCK), lambda i: element(start + i))
            return IfThenElse(
                tirx.all(known, tirx.NE(any_better, tirx.const(0, PLACE))), look, None
            )

        blocks = tirx.floordiv(places.count, number(BLOCK))
        rest = places.count - blocks * BLOCK
        body = [
            BufferStore(best, places.load(first), [zero]),
            BufferStore(found, zero, [zero]),
            for_each(blocks, block),
            for_each(rest, lambda i: element(blocks * BLOCK + i)),
            places.store(which, found[0]),
        ]
        return _with_buffers(SeqStmt(body), best, found)

    return lambda kind: for_each(outer, row, kind)


def _columns(places: _Places, outer: Expr) -> Callable[[ForKind], Stmt]:
    """Neighbours in memory belong to different results: those of 32 columns at a time, the last of
    which may be found again; one by one where there are fewer."""
    count, inner = places.count, places.inner
    chunks = tirx.floordiv(inner + (COLUMNS - 1), number(COLUMNS))

    def many(which: Expr) -> Stmt:
        at = tirx.floormod(which, chunks) * COLUMNS
        start = tirx.min(at, inner - COLUMNS)
        return _found(places, tirx.floordiv(which, chunks), start, COLUMNS, PLACE)

    def one(which: Expr) -> Stmt:
        at, start = tirx.floordiv(which, inner), tirx.floormod(which, inner)
        return _found(places, at, start, 1, INDEX)

    in_vectors = tirx.all(inner >= COLUMNS, count < (1 << 31))
    return lambda kind: IfThenElse(
        in_vectors, for_each(outer * chunks, many, kind), for_each(outer * inner, one, kind)
    )


def _found(places: _Places, which: Expr, start: Expr, lanes: int, dtype: str) -> Stmt:
    """The results of `lanes` columns from `start` on of one plane."""
    best, found = (tirx.decl_buffer((lanes,), each, "best") for each in (FLOAT, dtype))
    whole = ramp(number(0), lanes)
    first = which * places.count * places.inner + start

    def element(k: Expr) -> Stmt:
        value = places.load(ramp(first + k * places.inner, lanes))
        place = _spread(k.astype(dtype), lanes)
        better = places.unless_better(value, best[whole], found[whole], place, lanes)
        larger = places.unless_better(value, best[whole], best[whole], value, lanes)
        return SeqStmt([BufferStore(found, better, [whole]), BufferStore(best, larger, [whole])])

    zero = _spread(tirx.const(0, dtype), lanes)
    result = tirx.Cast(INDEX if lanes == 1 else f"{INDEX}x{lanes}", found[whole])
    body = [
        BufferStore(best, places.load(ramp(first, lanes)), [whole]),
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


def _spread(value: Expr, lanes: int) -> Expr:
    return value if lanes == 1 else tirx.Broadcast(value, lanes)
