"""Layer norms that a graph spells out become one function each, as one operator would.

TVM's fusion ends at each reduction: a norm of two means is three functions, each of which passes
over the tensor. In one function, a row stays in the cache between them.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr
from tvm.relax.dpl import DFPattern, is_op, wildcard
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_moonpoly.arguments import target_of

from .bindings import is_claimed

POWER = Op.get("relax.power")


@tvm.transform.module_pass(opt_level=0, name="JoinNorms")
class JoinNorms:
    """Group `(x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + eps)` along the last dimension, and
    the scale and shift after it, for `LegalizeOps` and `FuseTIR`; for a CPU. To be run before
    them. A power of two is a product from then on."""

    def __init__(self, target: Target) -> None:
        self.target = target_of(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self.target.kind.name != "llvm":
            return mod
        squared = mod.clone()
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and not is_claimed(func):
                squared.update_func(gv, _Squares().visit_expr(func))
        patterns = [
            (f"moonpoly.norm{at}", pattern, means, _are_of_rows)
            for at, (pattern, means) in enumerate(_patterns())
        ]
        return relax.transform.FuseOpsByPattern(patterns, bind_constants=False)(squared)


def _patterns() -> list[tuple[DFPattern, dict[str, DFPattern]]]:
    """The longest first; the two means of each."""
    x = wildcard()
    mean = is_op("relax.mean")(x)
    deviation = is_op("relax.subtract")(x, mean)
    spread = is_op("relax.mean")(is_op("relax.multiply")(deviation, deviation))
    variance = is_op("relax.add")(spread, wildcard())
    norm = is_op("relax.divide")(deviation, is_op("relax.sqrt")(variance))
    scaled = is_op("relax.multiply")(norm, wildcard())
    shifted = is_op("relax.add")(scaled, wildcard())
    return [(each, {"mean": mean, "spread": spread}) for each in (shifted, scaled, norm)]


def _are_of_rows(context: Any) -> bool:
    """Whether both means are of the last dimension, which stays."""
    for name in ("mean", "spread"):
        call = context.annotated_expr[name]
        rank = call.args[0].ty.ndim
        axes = [] if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]
        if axes not in ([-1], [rank - 1]) or not call.attrs.keepdims:
            return False
    return True


@mutator
class _Squares(PyExprMutator):
    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if call.op != POWER or not isinstance(call.args[1], GenericConst):
            return call
        exponent = call.args[1].value.numpy()
        if exponent.size != 1 or exponent.item() != 2 or exponent.ndim > call.args[0].ty.ndim:
            return call
        return relax.op.multiply(call.args[0], call.args[0])
