"""Constants that are converted to another type, converted once.

Mixed precision (`relax.transform.ToMixedPrecision`) leaves weights, biases and numbers as constants
of float32, each converted by an operator.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax import Expr, Var
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..bindings import is_claimed
from ..shapes import dtype_of
from .match import ASTYPE

FLOATS = ("float16", "bfloat16", "float32")


def with_converted_constants(func: relax.Function) -> relax.Function:
    """`func` with the results of conversions of float constants in their place; itself where there
    are none."""
    folder = _Folder()
    new = folder.visit_expr(func)
    return new if folder.changed else func


@mutator
class _Folder(PyExprMutator):
    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Var, GenericConst] = {}
        self.changed = False

    def visit_function_(self, op: relax.Function) -> relax.Function:
        return op if is_claimed(op) else super().visit_function_(op)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        found = _converted(binding.value)
        # what leaves its block must be a variable
        if found is None or not isinstance(binding.var, relax.DataflowVar):
            super().visit_var_binding_(binding)
            return
        self._known[binding.var] = found
        self.changed = True

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> Expr:
        return self._known[op] if op in self._known else super().visit_dataflow_var_(op)


def _converted(value: Expr) -> GenericConst | None:
    """The constant that `value` is the conversion of, converted, or None if it is none."""
    if not (isinstance(value, Call) and value.op == ASTYPE):
        return None
    source, dtype = value.args[0], dtype_of(value)
    if not isinstance(source, GenericConst) or {dtype_of(source), dtype} - set(FLOATS):
        return None
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    with np.errstate(over="ignore"):  # to infinity, as the operator does: masks hold such numbers
        return relax.const(source.value.numpy().astype(kind), dtype)
