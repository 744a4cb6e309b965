"""Let a reshape be a view of its operand, also where TVM does not see that it is one."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax import DataflowVar, Expr, Var
from tvm.relax.expr_functor import PyExprMutator, mutator

from .bindings import is_claimed
from .check_reshapes import RESHAPE
from .shape_facts import ShapeFacts, facts
from .shapes import dims, known_dims

REPLACES = "LegalizeOps"


@tvm.transform.module_pass(opt_level=0, name="LegalizeAroundViews")
class LegalizeAroundViews:
    """TVM's `LegalizeOps`, which leaves reshapes that are views as they are.

    TVM makes loops of a reshape and recognises them as those of a view later, unless a division
    is in a shape, as in (n, 8) to (n // 4, 32): then they stay a copy, element by element, with
    divisions by sizes. Here a reshape is a view wherever the number of elements is known to be
    kept: provably, or by a check that comes before it (`CheckReshapes`).

    A reshape whose result leaves its dataflow block is a copy: it may not be one of a parameter.
    So is one of a constant, which is computed when compiling.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        copied = _CopyReshapes(result)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and not is_claimed(func):
                copied.known = facts(func)
                copied.builder_.update_func(gv, copied.visit_expr(func))
        skip = relax.transform.LegalizeOps(skip_ops=[RESHAPE.name])
        return skip(copied.builder_.get())


@mutator
class _CopyReshapes(PyExprMutator):
    """Makes TVM's loops of the reshapes that are no views."""

    known = ShapeFacts()

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if self._is_known(value) and not self._is_view(binding):
            legalize = RESHAPE.get_attr("FLegalize")
            copy = legalize(self.builder_, self.visit_expr(value))
            binding = relax.VarBinding(binding.var, copy)
        super().visit_var_binding_(binding)

    def _is_known(self, value: Expr) -> bool:
        """Whether it is a reshape from dimensions to dimensions that the types tell. TVM leaves
        others to the virtual machine."""
        if not isinstance(value, Call) or value.op != RESHAPE:
            return False
        told = isinstance(value.args[1], relax.ShapeExpr) and dims(value) is not None
        return told and dims(value.args[0]) is not None

    def _is_view(self, binding: relax.VarBinding) -> bool:
        var, data = binding.var, binding.value.args[0]
        if not isinstance(var, DataflowVar) or not isinstance(data, Var):
            return False
        shapes = known_dims(data), known_dims(binding.value)
        return self.known.same_product(*shapes, at=var)
