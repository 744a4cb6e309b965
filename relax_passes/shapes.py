"""What the types of a Relax function tell of shapes."""

from __future__ import annotations

import re

from tvm import relax
from tvm.relax import Expr
from tvm.sym import Analyzer


def dims(expr: Expr) -> list[Expr] | None:
    """The dimensions of the tensor `expr`, or None where its type does not tell them."""
    ty = expr.ty
    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        return list(ty.shape.values)
    return None


def is_float32(expr: Expr) -> bool:
    """Whether `expr` is a tensor known to hold float32."""
    ty = expr.ty
    return isinstance(ty, relax.TensorType) and ty.dtype is not None and str(ty.dtype) == "float32"


def same_tensor(a: Expr, b: Expr) -> bool:
    """Whether both are float32 tensors of provably the same shape: no broadcast between them."""
    left, right = dims(a), dims(b)
    if left is None or right is None or len(left) != len(right):
        return False
    analyzer = Analyzer()
    equal = all(analyzer.can_prove_equal(m, n) for m, n in zip(left, right, strict=True))
    return equal and is_float32(a) and is_float32(b)


def show(*operands: Expr) -> str:
    """The shapes of `operands` as `(n, 8) x (8, 16)`; `?` where unknown."""
    return " x ".join(_show_one(dims(operand)) for operand in operands)


def _show_one(shape: list[Expr] | None) -> str:
    return "?" if shape is None else "(" + ", ".join(_show_dim(dim) for dim in shape) + ")"


def _show_dim(dim: Expr) -> str:
    """Without the prefixes (`T.max(n, T.int64(8))`) that TVMScript needs and a reader does not."""
    return re.sub(r"\bT\.", "", re.sub(r"\bT\.u?int\d+\((-?\d+)\)", r"\1", str(dim)))
