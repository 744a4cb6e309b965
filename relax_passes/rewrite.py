"""Rewrite the matmuls of one Relax function."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax import Var
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_moonpoly import operators

from .bindings import Bindings, analyze, variables_of
from .epilogue import linear_epilogue, transposed_store
from .match import MATMUL, Linear, Product, classify
from .packing import Packing
from .report import Action, Entry, Report
from .shapes import show


def rewrite_function(
    func: relax.Function, name: str, mod: tvm.IRModule, packing: Packing, report: Report
) -> relax.Function:
    """`func`, called `name` in `mod`, with its dynamic matmuls replaced; itself if it has none."""
    bindings = analyze(func, mod)
    before = dict(bindings.value)
    for var in matmuls(bindings):
        form = classify(var, bindings)
        shapes = show(*before[var].args)
        action: Action = "rewritten"
        if isinstance(form, Linear):
            detail = _rewrite_linear(var, form, bindings, packing)
        elif isinstance(form, Product):
            detail = _rewrite_product(var, form, bindings)
        else:
            action, detail = "left", form.reason
        report.add(Entry(name, "matmul", shapes, action, detail))
    calls = {v: call for v, call in bindings.value.items() if not call.same_as(before[v])}
    return (
        _Rebuild(mod, calls, before.keys() - bindings.value.keys()).visit_expr(func)
        if calls
        else func
    )


def leave_function(func: relax.Function, name: str, reason: str, report: Report) -> None:
    """Report all matmuls of `func` as left for one `reason`."""
    bindings = analyze(func)
    for var in matmuls(bindings):
        shapes = show(*bindings.value[var].args)
        report.add(Entry(name, "matmul", shapes, "left", reason))


def matmuls(bindings: Bindings) -> list[Var]:
    """The variables bound to a matmul, in program order."""
    return [var for var in bindings.value if bindings.call(var, MATMUL) is not None]


def _rewrite_linear(var: Var, form: Linear, bindings: Bindings, packing: Packing) -> str:
    weight = form.weight_array()
    k, n = weight.shape
    epilogue = linear_epilogue(var, n, bindings)
    residual = [] if epilogue.residual is None else [epilogue.residual]
    args = [form.x, packing.weight(weight), packing.bias(epilogue.bias, n), *residual]
    args += [packing.table(n, k), relax.prim_value(int(epilogue.activation))]
    _replace(
        epilogue.last, operators.LINEAR_RESIDUAL if residual else operators.LINEAR, args, bindings
    )
    fused = str(epilogue)
    return f"linear, fused {fused}" if fused else "linear"


def _rewrite_product(var: Var, form: Product, bindings: Bindings) -> str:
    last, out_axes = transposed_store(var, bindings)
    axes = {"a": form.a.axes, "b": form.b.axes, "output": out_axes}
    args = [form.a.stored, form.b.stored]
    args += [relax.prim_value(operators.encode_perm(each)) for each in axes.values()]
    _replace(last, operators.MATMUL, args, bindings)
    folded = [name for name, each in axes.items() if list(each) != sorted(each)]
    return f"product, permute_dims of {', '.join(folded)} folded" if folded else "product"


def _replace(last: Var, function: str, args: list[relax.Expr], bindings: Bindings) -> None:
    """Bind `last` to the packed call, and drop what only its old value needed."""
    old = bindings.value[last]
    bindings.rebind(last, relax.call_dps_packed(function, args, old.ty))
    _drop_operands(old, bindings)


def _drop_operands(value: relax.Expr, bindings: Bindings) -> None:
    for var in variables_of(value):
        below = bindings.value.get(var)
        if bindings.drop_unused(var):
            _drop_operands(below, bindings)


@mutator
class _Rebuild(PyExprMutator):
    """Puts the new calls in place and leaves out the dropped bindings."""

    def __init__(self, mod: tvm.IRModule, calls: dict[Var, Call], dropped: set[Var]) -> None:
        super().__init__(mod)
        self._calls = calls
        self._dropped = dropped

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var in self._calls:
            binding = relax.VarBinding(binding.var, self._calls[binding.var])
        if binding.var not in self._dropped:
            super().visit_var_binding_(binding)
