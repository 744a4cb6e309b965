"""Let an operator whose weight does not fit its operand raise when it is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, Op
from tvm.relax import Expr
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx import IntImm

from tvm_moonpoly.arguments import require

from .bindings import is_claimed
from .functions import with_rewritten
from .run_time_checks import assert_equal, emit_kept
from .shape_facts import ShapeFacts, facts
from .shapes import dims, show

MATMUL = Op.get("relax.matmul")
#: Convolutions, and whether they are transposed: the input channels of their weights are then all
#: of them, else those of a group.
CONVOLUTIONS = {
    **{Op.get(f"relax.nn.conv{n}d"): False for n in (1, 2, 3)},
    **{Op.get(f"relax.nn.conv{n}d_transpose"): True for n in (1, 2, 3)},
}
BATCH_NORM = Op.get("relax.nn.batch_norm")
NORMS = (Op.get("relax.nn.layer_norm"), Op.get("relax.nn.rms_norm"))
WEIGHTED = (*CONVOLUTIONS, BATCH_NORM, *NORMS)


@dataclass(frozen=True, eq=False)
class Pair:
    """The dimension `axis` of the first operand must equal `size`."""

    axis: int
    size: Expr


@tvm.transform.module_pass(opt_level=0, name="CheckOperands")
class CheckOperands:
    """Check at run time that operands have the sizes that follow from those of others, where that
    is not provable: as many channels as the weight of a convolution takes, as many columns as a
    second matrix has rows.

    TVM takes that for granted, and reads beyond an operand that is smaller. After this pass a call
    raises a RuntimeError that names function, operator, shapes and the two numbers. Sizes that
    must be a number are that from there on, for the passes that follow.

    `operators` are those that are checked: by default convolutions and norms with weights.
    Products (`MATMUL`) check by themselves when they are ours.
    """

    def __init__(self, operators: Sequence[Op] = WEIGHTED) -> None:
        known = isinstance(operators, Sequence) and all(isinstance(each, Op) for each in operators)
        require(known, "operators", "a list of Relax operators (tvm.ir.Op)", operators)
        self._operators = tuple(operators)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        def rewrite(func: relax.Function, name: str) -> relax.Function:
            known = facts(func)
            if not self._is_doubtful(func, known):
                return func
            return _InsertChecks(mod, name, known, self._operators).visit_expr(func)

        return with_rewritten(mod, rewrite)

    def _is_doubtful(self, func: relax.Function, known: ShapeFacts) -> bool:
        found = []

        def visit(expr: Expr) -> None:
            if isinstance(expr, Call) and expr.op in self._operators:
                found.extend(_doubts(expr, known))

        relax.analysis.post_order_visit(func, visit)
        return bool(found)


def _doubts(call: Call, known: ShapeFacts) -> list[Pair]:
    """What `call` requires and is not known to hold. A size that is known to be wrong is left to
    TVM, as is an operand of which nothing is known."""
    x = dims(call.args[0])
    if x is None:
        return []
    pairs = [each for each in _required(call) if -len(x) <= each.axis < len(x)]
    return [
        each
        for each in pairs
        if not (isinstance(x[each.axis], IntImm) and isinstance(each.size, IntImm))
        and not known.equal(x[each.axis], each.size)
    ]


def _required(call: Call) -> Iterator[Pair]:
    weight = dims(call.args[1])
    if weight is None:
        return
    attrs = call.attrs
    if call.op in CONVOLUTIONS:
        layout, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
        if len(kernel) == len(weight) and layout.isalpha() and kernel.isalpha():
            size = weight[kernel.index("I")]
            if not CONVOLUTIONS[call.op]:
                size = size * tirx.const(int(attrs.groups), "int64")
            yield Pair(layout.index("C"), size)
    elif call.op == BATCH_NORM:
        yield Pair(int(attrs.axis), weight[0])
    elif call.op in NORMS:
        for axis, size in zip(attrs.axes, weight, strict=False):
            yield Pair(int(axis), size)
    elif call.op == MATMUL:
        yield Pair(-1, weight[-2] if len(weight) > 1 else weight[0])


@mutator
class _InsertChecks(PyExprMutator):
    """Puts a check before each operator of the function called `name` that needs one."""

    def __init__(
        self, mod: tvm.IRModule, name: str, known: ShapeFacts, operators: Sequence[Op]
    ) -> None:
        super().__init__(mod)
        self._name = name
        self._known = known
        self._operators = operators

    def visit_function_(self, func: relax.Function) -> Expr:
        return func if is_claimed(func) else super().visit_function_(func)

    def visit_call_(self, call: Call) -> Expr:
        before = call.ty
        call = super().visit_call_(call)
        if call.op not in self._operators:
            return call
        pairs = _doubts(call, self._known)
        if not pairs:
            return call
        data, sizes = call.args[0], dims(call.args[0])
        assert sizes is not None
        operator = call.op.name.removeprefix("relax.").removeprefix("nn.")
        for pair in pairs:
            text = f"{self._name}: {operator} {show(*call.args[:2])}: operands do not fit;"
            emit_kept(self.builder_, assert_equal(sizes[pair.axis], pair.size, text))
            sizes[pair.axis] = pair.size
        if not isinstance(data, relax.Var):
            return call
        cast = relax.TensorType(sizes, data.ty.dtype, data.ty.vdevice)
        data = self.builder_.match_cast(data, cast)
        changed = self.builder_.normalize(Call(call.op, [data, *call.args[1:]], call.attrs))
        if _tells_less(before) or tvm_ffi.structural_equal(changed.ty, before):
            return changed
        # what follows knows the result by its former sizes
        return self.builder_.match_cast(self.builder_.emit(changed), before)


def _tells_less(ty: relax.Type) -> bool:
    """Whether a result of this type has sizes only now that those of the operands fit."""
    if isinstance(ty, relax.TupleType):
        return any(map(_tells_less, ty.fields))
    return not (isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr))
