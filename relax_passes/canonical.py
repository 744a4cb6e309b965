"""Give each matmul operands that the operator library has a function for.

Two things are settled here, so that no later step meets them: data types (float16 and bfloat16 are
computed in float32 and rounded once, small integers in int32), and shapes that Relax does not
infer (operands known by rank only, batch dimensions of two different symbols), which get symbols
of their own by a `match_cast`.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np
from tvm import relax, tirx
from tvm.ir import Call, GenericConst
from tvm.relax import Expr, Var
from tvm.relax.expr_functor import PyExprMutator, mutator

from .bindings import analyze, is_claimed
from .match import MATMUL, PERMUTE_DIMS, objection
from .shapes import dims, dtype_of, fresh_symbols, known_dims, product_shape

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def accumulator(a: str, b: str, out: str) -> tuple[str, str] | None:
    """The dtypes of operands and of sums that a product of `a` by `b` to `out` is computed in, or
    None where there is no function for it.

    Floats narrower than float32 are added up in float32, as wide ones as the output asks for.
    Integers wrap around, so that a sum modulo 2^32 gives every narrower one.
    """
    if {a, b, out} <= set(INTEGERS):
        if "64" in out:
            return "int64", "int64"
        return ("int8", "int32") if a == b == "int8" else ("int32", "int32")
    if out in FLOATS and {a, b} <= {*FLOATS, *INTEGERS}:
        wide = "float64" if "float64" in (a, b, out) else "float32"
        return wide, wide
    return None


def canonical(func: relax.Function, static: bool, kept: Set[Var]) -> relax.Function:
    """`func` with its matmuls in canonical form; itself where all of them are already.

    Those of static shapes stay as they are unless `static` says otherwise, and those bound to
    the variables `kept` in any case.
    """
    rewriter = _Canonical(static, kept)
    shaped = _with_shapes(func, static)
    new = rewriter.visit_expr(shaped)
    # a constant that was converted leaves its old form behind
    return relax.analysis.remove_all_unused(new) if rewriter.changed else shaped


def _with_shapes(func: relax.Function, static: bool) -> relax.Function:
    """`func` with a shape for each tensor among its parameters that is known by rank only, if a
    matmul has an operand of that kind: so they have one shape wherever they are used."""
    calls = (call for call in analyze(func).value.values() if isinstance(call, Call))
    ours = [call for call in calls if call.op == MATMUL and objection(call, static) is None]
    found = any(dims(arg) is None for call in ours for arg in call.args)
    return _ShapeParameters().visit_expr(func) if found else func


@mutator
class _ShapeParameters(PyExprMutator):
    def __init__(self) -> None:
        super().__init__()
        self._unknown: list[Var] = []

    def visit_function_(self, op: relax.Function) -> relax.Function:
        if is_claimed(op):
            return op
        self._unknown = [each for each in op.params if _is_known_by_rank(each)]
        return super().visit_function_(op)

    def visit_seq_expr_(self, op: relax.SeqExpr) -> relax.SeqExpr:
        if not self._unknown:
            return super().visit_seq_expr_(op)
        unknown, self._unknown = self._unknown, []
        self.builder_._begin_binding_block()
        for each in unknown:
            self.set_var_remap(each, self.builder_.match_cast(each, _fresh_shape(each)))
        block = self.builder_._end_block()
        rest = super().visit_seq_expr_(op)
        return relax.SeqExpr([block, *rest.blocks], rest.body)


def _is_known_by_rank(expr: Expr) -> bool:
    ty = expr.ty
    return (
        isinstance(ty, relax.TensorType)
        and dims(expr) is None
        and ty.ndim > 0
        and dtype_of(expr) != ""
    )


def _fresh_shape(tensor: Expr) -> relax.TensorType:
    """The type of `tensor` with a new symbol for each dimension."""
    return relax.TensorType(fresh_symbols(tensor), dtype_of(tensor))


@mutator
class _Canonical(PyExprMutator):
    def __init__(self, static: bool, kept: Set[Var]) -> None:
        super().__init__()
        self._static = static
        self._kept = kept
        self._keeping = False
        self.changed = False

    def visit_function_(self, op: relax.Function) -> relax.Function:
        return op if is_claimed(op) else super().visit_function_(op)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._keeping = binding.var in self._kept
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if call.op != MATMUL or self._keeping or objection(call, self._static) is not None:
            return call
        out = dtype_of(call)
        a, b = call.args
        found = accumulator(dtype_of(a), dtype_of(b), out)
        if found is None:
            return call
        operand, total = found
        settled = dims(a) is not None and dims(b) is not None and dims(call) is not None
        if settled and dtype_of(a) == dtype_of(b) == operand and out == total:
            return call
        self.changed = True
        a, b = (self._converted(self._with_shape(each), operand) for each in (a, b))
        product = self.builder_.normalize(relax.op.matmul(a, b, out_dtype=total))
        if dims(product) is None:
            shape = list(_result_shape(known_dims(a), known_dims(b)))
            product = self.builder_.emit(product)
            product = self.builder_.match_cast(product, relax.TensorType(shape, total))
        return product if total == out else relax.op.astype(self._bound(product), out)

    def _bound(self, value: Expr) -> Var:
        return value if isinstance(value, Var) else self.builder_.emit(value)

    def _with_shape(self, operand: Expr) -> Expr:
        if dims(operand) is not None:
            return operand
        return self.builder_.match_cast(operand, _fresh_shape(operand))

    def _converted(self, operand: Expr, dtype: str) -> Expr:
        if dtype_of(operand) == dtype:
            return operand
        if isinstance(operand, GenericConst):
            return relax.const(_numpy(operand).astype(dtype), dtype)
        below = self.builder_.lookup_binding(operand)
        transposed = isinstance(below, Call) and below.op == PERMUTE_DIMS
        if transposed and isinstance(below.args[0], GenericConst):  # it stays a constant weight
            constant = self._converted(below.args[0], dtype)
            return self.builder_.emit(relax.op.permute_dims(constant, below.attrs.axes))
        return self.builder_.emit(relax.op.astype(operand, dtype))


def _numpy(constant: GenericConst) -> np.ndarray:
    """The values of a constant, those of bfloat16 as float32."""
    if str(constant.value.dtype) != "bfloat16":
        return constant.value.numpy()
    bits = constant.value.numpy().view(np.uint16).astype(np.uint32)
    return (bits << 16).view(np.float32)


def _result_shape(a: list[Expr], b: list[Expr]) -> Iterator[Expr]:
    """The shape of a product, with a new symbol for each batch dimension that only the call
    tells."""
    for i, dim in enumerate(product_shape(a, b)):
        yield tirx.Var(f"batch_{i}", "int64") if isinstance(dim, tirx.Select) else dim
