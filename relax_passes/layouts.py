"""Tensors with their channels as the second dimension, and as the last one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import Expr

from .shapes import known_dims, same_dim


def to_last(ndim: int) -> tuple[int, ...]:
    """The axes that move the channels from second to last: (0, 2, 3, 1) for 4 dimensions."""
    return (0, *range(2, ndim), 1)


def to_first(ndim: int) -> tuple[int, ...]:
    """Those that move them back: (0, 3, 1, 2)."""
    return (0, ndim - 1, *range(1, ndim - 1))


def permuted_shape(expr: Expr, axes: Sequence[int]) -> list[Expr]:
    """The shape of `permute_dims(expr, axes)`."""
    shape = known_dims(expr)
    return [shape[axis] for axis in axes]


def transposed(expr: Expr, axes: Sequence[int]) -> Expr:
    """`expr` with the given order of its axes: of a constant, a constant; a reshape, which costs
    nothing, where all that moves has size 1."""
    if isinstance(expr, GenericConst):
        values = np.ascontiguousarray(expr.value.numpy().transpose(axes))
        return relax.const(values, str(expr.value.dtype))
    shape = known_dims(expr)
    large = [axis for axis in axes if not same_dim(shape[axis], 1)]
    if large == sorted(large):
        return relax.op.reshape(expr, relax.ShapeExpr(permuted_shape(expr, axes)))
    return relax.op.permute_dims(expr, list(axes))
