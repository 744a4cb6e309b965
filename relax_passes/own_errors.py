"""Errors of the checks at the call say what is wrong, and nothing of how that was found out."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, PrimType, StringImm, Var
from tvm.relax import Expr
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_moonpoly import operators
from tvm_moonpoly.arguments import target_of
from tvm_moonpoly.operators.check import CHECK

from .bindings import Bindings, analyze, is_claimed
from .functions import attach_library, with_rewritten
from .run_time_checks import ASSERT_EQUAL

#: The pass that this one follows: checks are calls of the virtual machine only after it.
FOLLOWS = "VMShapeLower"

#: What TVM says of a parameter that does not have the type that the function tells.
PARAMETER = re.compile(
    r"ErrorContext\(fn=(?P<function>.*), loc=param\[\d+\], param=(?P<name>.*), "
    r'annotation=R\.Tensor\((?P<shape>\(.*\)), dtype="(?P<dtype>\w+)"\)\) $',
    re.DOTALL,
)


@tvm.transform.module_pass(opt_level=0, name="OwnErrors")
class OwnErrors:
    """Let the checks that passes and the importer of ONNX put into a function (`assert_equal`) be
    calls of the operator library, whose error is their text and the two numbers alone; and let
    those that TVM makes of parameters name function, parameter and shape in one sentence.

    To be run after `VMShapeLower`. Where the target has no operator library, the errors of checks
    stay those of TVM, around the same text.
    """

    def __init__(self, target: Target) -> None:
        self.target = target_of(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        kind = str(self.target.kind.name)
        ours = kind == "llvm" and operators.supported(self.target) is None
        made = [0]

        def rewrite(func: relax.Function, _name: str) -> relax.Function:
            bindings = analyze(func, mod)
            rewriter = _Rewrite(mod, bindings, _checks(bindings) if ours else {})
            made[0] += len(rewriter.checks)
            return rewriter.visit_expr(func)

        new = with_rewritten(mod, rewrite)
        return attach_library(new, self.target) if made[0] else new


def _checks(bindings: Bindings) -> dict[Var, Expr]:
    """The variables that are bound to our checks, by the number that each is about: the only one
    of a shape."""
    found = {}
    for var, value in bindings.value.items():
        if not _is_check(value):
            continue
        shape = value.args[0]
        known = bindings.value.get(shape) if isinstance(shape, Var) else shape
        number = _only_number(known)
        if number is not None:
            found[var] = number
    return found


def _is_check(value: Expr) -> bool:
    if not _calls(value, "vm.builtin.match_shape") or len(value.args) != 6:
        return False
    _, heap, size, code, _, text = value.args
    told = [int(each) if isinstance(each, tvm.tirx.IntImm) else None for each in (heap, size, code)]
    return told == [0, 1, ASSERT_EQUAL] and isinstance(text, StringImm)


def _only_number(shape: Expr | None) -> Expr | None:
    """The size of a shape of one, as a number: a constant, or a call that makes it."""
    if isinstance(shape, relax.ShapeExpr) and len(shape.values) == 1:
        return shape.values[0] if isinstance(shape.values[0], tvm.tirx.IntImm) else None
    if shape is None or not _calls(shape, "vm.builtin.make_shape") or len(shape.args) != 4:
        return None
    heap, _, code, register = shape.args
    function = relax.ExternFunc("vm.builtin.make_prim_value")
    return Call(function, [heap, code, register], ty_args=[PrimType("int64")])


def _calls(value: Expr, name: str) -> bool:
    """Whether `value` is a call of the packed function `name`."""
    named = isinstance(value, Call) and isinstance(value.op, relax.ExternFunc)
    return named and str(value.op.global_symbol) == name


def sentence(text: str) -> str:
    """What is said of a parameter, in place of TVM's `text`; of anything else, `text`."""
    found = PARAMETER.match(text)
    if found is None:
        return text
    return "{function}: the input {name} must be {dtype} of the shape {shape};".format(
        **found.groupdict()
    )


@mutator
class _Rewrite(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, bindings: Bindings, checks: Mapping[Var, Expr]) -> None:
        super().__init__(mod)
        self.checks = checks
        self._dropped = {
            shape
            for shape in (bindings.value[var].args[0] for var in checks)
            if isinstance(shape, Var) and bindings.only_user(shape) in checks
        }

    def visit_function_(self, op: relax.Function) -> relax.Function:
        return op if is_claimed(op) else super().visit_function_(op)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var in self._dropped:
            return
        number = self.checks.get(binding.var)
        if number is not None:
            value = binding.value
            text = np.frombuffer(str(value.args[5].value).encode(), np.uint8)
            made = self.builder_.emit(number) if isinstance(number, Call) else number
            arguments = [relax.const(text, "uint8"), made, value.args[4]]
            checked = Call(relax.ExternFunc(CHECK), arguments, ty_args=[relax.TupleType([])])
            binding = relax.VarBinding(binding.var, checked)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        said = [each.value for each in call.args if isinstance(each, StringImm)]
        if all(sentence(text) == text for text in said):
            return call
        arguments = [
            StringImm(sentence(each.value)) if isinstance(each, StringImm) else each
            for each in call.args
        ]
        return Call(call.op, arguments, call.attrs, call.ty_args)
