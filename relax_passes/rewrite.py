"""Rewrite the matmuls of one Relax function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import Call, Op
from tvm.relax import Var
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_moonpoly.arguments import require_flags

from .bindings import Bindings, analyze, variables_of
from .calls import replacement
from .canonical import canonical
from .match import MATMUL, Left, classify
from .packing import Packing, is_packing
from .report import Entry, Report
from .run_time_checks import emit_kept
from .shapes import show
from .tuned import has_fused_record
from .verify import verified


@dataclass(frozen=True)
class Options:
    """See `PolymerizeDynamicOps` and `PolymerizeConvolutions`."""

    static: bool = False
    pack_parameters: bool = False
    verify: bool = False
    winograd: bool = True

    def __post_init__(self) -> None:
        require_flags(**vars(self))


def rewrite_function(
    func: relax.Function,
    name: str,
    mod: tvm.IRModule,
    packing: Packing,
    options: Options,
    report: Report,
) -> relax.Function:
    """`func`, called `name` in `mod`, with its dynamic matmuls replaced; itself if it has none."""
    tuned = _tuned(analyze(func, mod), packing) if options.static else set()
    func = canonical(func, options.static, tuned)
    bindings = analyze(func, mod, options.pack_parameters)
    tuned = _tuned(bindings, packing) if tuned else tuned
    before = dict(bindings.value)
    for var in matmuls(bindings):
        form = classify(var, bindings, options.static)
        if var in tuned:
            form = Left("tuned: the database has a record")
        shapes = show(*before[var].args)
        if isinstance(form, Left):
            report.add(Entry(name, "matmul", shapes, "left", form.reason))
            continue
        found = replacement(var, form, bindings, packing)
        value = found.value
        if options.verify:
            value = verified(var, before[var], found, packing)
        replace(found.last, value, bindings)
        report.add(Entry(name, "matmul", shapes, "rewritten", found.detail))
    new = {v: call for v, call in bindings.value.items() if not call.same_as(before[v])}
    return (
        Rebuild(mod, new, before.keys() - bindings.value.keys()).visit_expr(func) if new else func
    )


def leave_function(
    func: relax.Function,
    name: str,
    reason: str,
    report: Report,
    operators: Sequence[Op] = (MATMUL,),
) -> None:
    """Report all calls of `operators` in `func`, called `name`, as left for one `reason`."""
    bindings = analyze(func)
    for var in bindings.calls(*operators):
        call = bindings.value[var]
        operator = call.op.name.rpartition(".")[2]
        report.add(Entry(name, operator, show(*call.args), "left", reason))


def matmuls(bindings: Bindings) -> list[Var]:
    """The variables bound to a matmul, in program order."""
    return bindings.calls(MATMUL)


def _tuned(bindings: Bindings, packing: Packing) -> set[Var]:
    """The matmuls that TVM has a tuning record for, alone or fused with operators after them."""
    return {var for var in matmuls(bindings) if has_fused_record(var, bindings, packing.target)}


def replace(last: Var, value: Call, bindings: Bindings) -> None:
    """Bind `last` to the call `value`, and drop what only its old value needed."""
    old = bindings.value[last]
    bindings.rebind(last, value)
    _drop_operands(old, bindings)


def _drop_operands(value: relax.Expr, bindings: Bindings) -> None:
    for var in variables_of(value):
        below = bindings.value.get(var)
        if bindings.drop_unused(var):
            _drop_operands(below, bindings)


@mutator
class Rebuild(PyExprMutator):
    """Puts the new calls in place, each after its `checks`, and leaves out the dropped bindings."""

    def __init__(
        self,
        mod: tvm.IRModule,
        calls: Mapping[Var, relax.Expr],
        dropped: Set[Var],
        checks: Mapping[Var, Sequence[Call]] | None = None,
    ) -> None:
        super().__init__(mod)
        self._calls = calls
        self._dropped = dropped
        self._checks = checks or {}
        self._packed: dict[tuple[Var, int], Var] = {}

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        return self._in_block(super().visit_binding_block_, block)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        return self._in_block(super().visit_dataflow_block_, block)

    def _in_block(
        self, visit: Callable[[relax.BindingBlock], relax.BindingBlock], block: relax.BindingBlock
    ) -> relax.BindingBlock:
        """Visit `block`, whose variables may not be visible after it."""
        outer, self._packed = self._packed, {}
        new = visit(block)
        self._packed = outer
        return new

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        for check in self._checks.get(binding.var, ()):
            emit_kept(self.builder_, check)
        if binding.var in self._calls:
            binding = relax.VarBinding(binding.var, self._calls[binding.var])
        if binding.var not in self._dropped:
            super().visit_var_binding_(binding)

    def visit_tuple_(self, op: relax.Tuple) -> relax.Tuple:
        """Calls among the arguments of a packed call are bound and run in their order, so that
        what checks the operands can come first. A parameter is packed once a block."""
        fields = []
        for each in op.fields:
            field = self.visit_expr(each)
            fields.append(self._bound(field) if _is_operator(field) else field)
        return relax.Tuple(fields)

    def _bound(self, call: Call) -> Var:
        if not is_packing(call):
            return self.builder_.emit(call)
        weight, code = call.args[1].fields
        key = (weight, int(code))
        if key not in self._packed:
            self._packed[key] = self.builder_.emit(call)
        return self._packed[key]


def _is_operator(expr: relax.Expr) -> bool:
    """Whether `expr` is a call of an operator on tensors."""
    is_call = isinstance(expr, Call) and isinstance(expr.op, Op)
    return is_call and expr.op.name.startswith("relax.")
