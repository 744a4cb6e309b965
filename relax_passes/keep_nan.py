"""Maxima and minima of NaN and of infinities that are numpy's and onnxruntime's.

TVM's `max(x, 0)` is `x > 0 ? x : 0`, and 0 for NaN: a ReLU would hide it. With the operands the
other way round, the comparison chooses x, at no cost: x86's `maxps` does just that. Reductions
begin with the least finite number, which then is the maximum of minus infinities.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad
from tvm.target import Target
from tvm.tirx import FloatImm

from tvm_moonpoly.arguments import target_of

FLOATS = ("float16", "float32", "float64")


@tvm.transform.module_pass(opt_level=0, name="KeepNaN")
class KeepNaN:
    """Let NaN through the maxima and minima of elementwise blocks, for a CPU; let those of
    reductions begin with an infinity.

    To be run before functions are scheduled, while each operator is a block of its own. Whether
    maxima of reductions and pooling pass a NaN on depends on its place.
    """

    def __init__(self, target: Target) -> None:
        self.target = target_of(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self.target.kind.name != "llvm":
            return mod
        result = mod.clone()
        for gv, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in (func.attrs or {}):
                result.update_func(gv, keep_nan(func))
        return result


def keep_nan(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with such maxima and minima."""

    def block(found: s_tir.SBlock) -> s_tir.SBlock:
        body, init = found.body, found.init
        if not isinstance(body, tirx.BufferStore):
            return found
        if init is None:
            body = _stored(body, _elementwise(body.value))
        elif isinstance(init, tirx.BufferStore):
            init = _stored(init, _beginning(init.value, body.value))
        if body is found.body and init is found.init:
            return found
        return s_tir.SBlock(
            found.iter_vars,
            found.reads,
            found.writes,
            found.name_hint,
            body,
            init,
            alloc_buffers=found.alloc_buffers,
            match_buffers=found.match_buffers,
            annotations=found.annotations,
        )

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, block)))


def _stored(store: tirx.BufferStore, value: Expr) -> tirx.BufferStore:
    if value.same_as(store.value):
        return store
    return tirx.BufferStore(store.buffer, value, store.indices)


def _beginning(value: Expr, reduced: Expr) -> Expr:
    """The infinity for the least or largest number that a maximum or minimum begins with."""
    dtype = str(value.ty)
    if dtype not in FLOATS or not isinstance(value, FloatImm):
        return value
    for kind, limit in ((tirx.Max, tirx.min_value), (tirx.Min, tirx.max_value)):
        if isinstance(reduced, kind) and value.value == limit(dtype).value:
            return tirx.const(math.copysign(math.inf, value.value), dtype)
    return value


def _elementwise(value: Expr) -> Expr:
    return tvm_ffi.structural_map(value, [(tirx.Max, _passing), (tirx.Min, _passing)])


def _passing(extreme: tirx.Max | tirx.Min) -> Expr:
    """The same with the constant first, or the first operand itself where that is NaN."""
    first, second = extreme.a, extreme.b
    if str(extreme.ty) not in FLOATS or isinstance(first, FloatImm):
        return extreme
    kind = type(extreme)
    if isinstance(second, FloatImm):
        return kind(second, first)
    if not isinstance(first, TensorLoad):  # that one will be written three times
        first, second = second, first
    infinity = tirx.const(math.inf, str(first.ty))
    # TVM takes a comparison of a value with itself for true, of NaN as well.
    return tirx.Select(first <= infinity, kind(first, second), first)
