"""fp32 exp, sigmoid, erf and tanh as arithmetic on vectors, wherever loops of a model use them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Op
from tvm.target import Target

from tvm_moonpoly.arguments import target_of

from .bound_exponents import is_bounded
from .fast_exp import f32, fast_exp, fast_exp_below_zero, fast_sigmoid, fma
from .odd_functions import fast_erf, fast_tanh

FUNCTIONS: dict[Op, Callable[[Expr], Expr]] = {
    Op.get("tirx.exp"): fast_exp,
    Op.get("tirx.sigmoid"): fast_sigmoid,
    Op.get("tirx.erf"): fast_erf,
    Op.get("tirx.tanh"): fast_tanh,
}


@tvm.transform.module_pass(opt_level=0, name="VectorMath")
class VectorMath:
    """Replace the calls of these functions in all PrimFuncs of a module for a CPU.

    With fused multiply-adds, the results are within 1 ulp of the correctly rounded ones for exp, 2
    for sigmoid and tanh, and 4 for erf, also where they are denormal; NaN and infinities pass as in
    numpy. Other targets stay.
    """

    def __init__(self, target: Target) -> None:
        self.target = target_of(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self.target.kind.name != "llvm":
            return mod
        result = mod.clone()
        for gv, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                result.update_func(gv, use_vector_math(func))
        return result


def use_vector_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with each fp32 exp, sigmoid, erf and tanh computed by arithmetic."""

    def replace(call: Call) -> Expr:
        function = FUNCTIONS.get(call.op) if str(call.ty) == "float32" else None
        if function is None:
            return call
        (x,) = call.args
        if function is fast_exp and is_bounded(x):
            # Without the bound itself: it is reached where NaN hid the largest of a row, whose sum
            # then is NaN.
            return fast_exp_below_zero(x.b)
        return function(x)

    body = tvm_ffi.structural_map(func.body, (Call, replace))
    return func.with_body(tvm_ffi.structural_map(body, (tirx.Mul, _without_name_in_product)))


def _without_name_in_product(product: tirx.Mul) -> Expr:
    """The same product in a form whose operands may have names of values in them: TVM's vectorizer
    visits those of a `Mul` twice, and then takes a name for one of two values."""
    if str(product.ty) != "float32" or not _has_name(product):
        return product
    return fma(product.a, product.b, f32(-0.0))  # which LLVM makes a product again


def _has_name(expr: Expr) -> bool:
    found: list[Expr] = []
    tvm_ffi.structural_walk(expr, (tirx.Let, found.append))
    return bool(found)
