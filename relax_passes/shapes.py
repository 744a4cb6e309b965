"""What the types of a Relax function tell of shapes."""

from __future__ import annotations

import re

from tvm import relax, tirx
from tvm.relax import Expr, Var
from tvm.sym import Analyzer
from tvm.tirx import IntImm


def dims(expr: Expr) -> list[Expr] | None:
    """The dimensions of the tensor `expr`, or None where its type does not tell them."""
    ty = expr.ty
    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        return list(ty.shape.values)
    return None


def known_dims(expr: Expr) -> list[Expr]:
    """The dimensions of the tensor `expr`, whose type must tell them."""
    found = dims(expr)
    if found is None:
        raise ValueError(f"expr: its shape must be known, not {expr.ty}")
    return found


def dtype_of(expr: Expr) -> str:
    """The data type of the tensor `expr`, empty where its type does not tell it."""
    ty = expr.ty
    return str(ty.dtype) if isinstance(ty, relax.TensorType) and ty.dtype is not None else ""


def same_dim(a: Expr, b: Expr) -> bool:
    """Whether both sizes are provably equal."""
    return bool(Analyzer().can_prove_equal(a, b))


def fresh_symbols(expr: Expr) -> list[tirx.Var]:
    """A new symbol, named after `expr`, for each dimension of a tensor or shape known by rank."""
    name = expr.name if isinstance(expr, Var) else "operand"
    return [tirx.Var(f"{name}_{i}", "int64") for i in range(expr.ty.ndim)]


def is_static(shape: list[Expr] | None) -> bool:
    """Whether all sizes are known at compile time."""
    return shape is not None and all(isinstance(dim, IntImm) for dim in shape)


def broadcast_dim(a: Expr, b: Expr) -> Expr:
    """The size of `a` and `b` broadcast as by numpy; a `Select` where only the call tells which of
    them is 1. Whether they do broadcast is left to the call."""
    if same_dim(a, b):
        return a
    for dim, other in ((a, b), (b, a)):
        if isinstance(dim, IntImm):
            return other if dim.value == 1 else dim
    return tirx.Select(a == 1, b, a)


def product_shape(a: list[Expr], b: list[Expr]) -> list[Expr]:
    """The shape of the product of tensors of the shapes `a` and `b`, as of `numpy.matmul`."""
    batch_a, batch_b = a[:-2], b[:-2]
    shared = min(len(batch_a), len(batch_b))
    longer = batch_a if len(batch_a) > shared else batch_b
    pairs = zip(batch_a[len(batch_a) - shared :], batch_b[len(batch_b) - shared :], strict=True)
    batch = longer[: len(longer) - shared] + [broadcast_dim(m, n) for m, n in pairs]
    return batch + ([a[-2]] if len(a) > 1 else []) + ([b[-1]] if len(b) > 1 else [])


def same_tensor(a: Expr, b: Expr) -> bool:
    """Whether both are tensors of one type and provably the same shape: no broadcast between
    them."""
    left, right = dims(a), dims(b)
    if left is None or right is None or len(left) != len(right):
        return False
    equal = all(same_dim(m, n) for m, n in zip(left, right, strict=True))
    return equal and dtype_of(a) == dtype_of(b)


def show(*operands: Expr) -> str:
    """The shapes of `operands` as `(n, 8) x (8, 16)`; `?` where unknown."""
    return " x ".join(show_dims(dims(operand)) for operand in operands)


def show_dims(shape: list[Expr] | None) -> str:
    """`shape` as `(n, 8)`; `?` where unknown."""
    return "?" if shape is None else "(" + ", ".join(show_dim(dim) for dim in shape) + ")"


def show_dim(dim: Expr) -> str:
    """`dim` without the prefixes (`T.max(n, T.int64(8))`) that TVMScript needs and a reader does
    not."""
    return re.sub(r"\bT\.", "", re.sub(r"\bT\.u?int\d+\((-?\d+)\)", r"\1", str(dim)))
