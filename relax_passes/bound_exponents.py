"""Tell where an exponent is at most 0: a softmax subtracts the largest element of a row.

An exponential that can neither overflow nor, beside exp(0), be missed where it is denormal takes
three quarters of the steps (`fast_exp_below_zero`). The bound is told by `min(-0, x)`, which
changes no value, and is what `VectorMath` looks for: a model's own bound is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, Op, TensorLoad, Var
from tvm.tirx import BufferStore, FloatImm

from .element_count import provably_equal
from .tir_terms import REDUCTION, is_number

EXP = Op.get("tirx.exp")
BOUND = tirx.const(-0.0, "float32")


def bound_exponents(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, whose operators are blocks of their own still, with `exp(x - largest x)` bounded."""
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, blocks.append))
    stores = [block.body for block in blocks if isinstance(block.body, BufferStore)]
    written = [store.buffer for store in stores]
    maxima = [found for block in blocks if (found := _maximum(block)) is not None]
    known = {each.result: each for each in maxima if written.count(each.result) == 1}
    if not known:
        return func

    def bounded(call: Call) -> Expr:
        if call.op != EXP or str(call.ty) != "float32" or not isinstance(call.args[0], tirx.Sub):
            return call
        element, largest = call.args[0].a, call.args[0].b
        if not isinstance(element, TensorLoad) or not isinstance(largest, TensorLoad):
            return call
        maximum = known.get(largest.source)
        if maximum is None or not maximum.covers(element, list(largest.indices)):
            return call
        return tirx.exp(tirx.Min(BOUND, call.args[0]))

    return func.with_body(tvm_ffi.structural_map(func.body, (Call, bounded)))


def is_bounded(x: Expr) -> bool:
    """Whether `x` is an exponent that was given its bound here."""
    if not isinstance(x, tirx.Min) or not isinstance(x.a, FloatImm):
        return False
    return x.a.value == 0 and math.copysign(1, x.a.value) < 0


@dataclass(frozen=True, eq=False)
class _Maximum:
    """`result[axes]` is the largest `element` over all values of the variables `reduced`."""

    result: Var
    axes: list[Expr]
    element: TensorLoad
    reduced: dict[Var, Expr]  # and their extents

    def covers(self, other: TensorLoad, at: list[Expr]) -> bool:
        """Whether `other` is one of the elements of which that at `at` is the largest."""
        if not other.source.same_as(self.element.source):
            return False
        known = dict(zip(self.axes, at, strict=True))
        for dim, index in enumerate(self.element.indices):
            if index in self.reduced:
                if not provably_equal(self.reduced[index], other.source.shape[dim]):
                    return False
                continue
            own = tvm_ffi.structural_map(index, (Var, lambda var: known.get(var, var)))
            if not tvm_ffi.structural_equal(own, other.indices[dim]):
                return False
        return True


def _maximum(block: s_tir.SBlock) -> _Maximum | None:
    store = block.body
    if block.init is None or not isinstance(store, BufferStore):
        return None
    value = store.value
    if not isinstance(value, tirx.Max) or not isinstance(value.b, TensorLoad):
        return None
    reduced = {
        each.var: each.dom.extent
        for each in block.iter_vars
        if each.iter_type == REDUCTION and is_number(each.dom.min, 0)
    }
    axes = list(store.indices)
    own = isinstance(value.a, TensorLoad) and value.a.source.same_as(store.buffer)
    if not own or not all(isinstance(each, Var) and each not in reduced for each in axes):
        return None
    return _Maximum(store.buffer, axes, value.b, reduced)
