"""Tensors of what is known by its elements: sizes, and quotients of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Expr

from .errors import Unsupported
from .known import Known
from .symbolic import Quotient, Size, constant, expression


def materialized(builder: relax.BlockBuilder, value: Known) -> Expr:
    """The tensor of what is known by its elements."""
    if value.is_constant:
        return constant(value.constant())
    if np.dtype(value.dtype).kind == "f":
        parts = [_as_quotient(each) for each in value.elements]
        above = _integers(builder, [each.above for each in parts], value.array.shape, value.dtype)
        if all(isinstance(each.below, int) and each.below == 1 for each in parts):
            return above
        below = _integers(builder, [each.below for each in parts], value.array.shape, value.dtype)
        return builder.emit(relax.op.divide(above, below))
    return _integers(builder, value.elements, value.array.shape, value.dtype)


def _integers(
    builder: relax.BlockBuilder, sizes: Sequence[Size], shape: tuple[int, ...], dtype: str
) -> Expr:
    vector = relax.ShapeExpr([expression(size) for size in sizes])
    result = builder.emit(relax.op.shape_to_tensor(vector))
    if len(shape) != 1:
        result = builder.emit(relax.op.reshape(result, shape))
    return result if dtype == "int64" else builder.emit(relax.op.astype(result, dtype))


def _as_quotient(value: Any) -> Quotient:
    if isinstance(value, Quotient):
        return value
    above, below = float(value).as_integer_ratio()
    if max(abs(above), below) >= 2**62:
        raise Unsupported(f"the number {value} beside sizes has no place in 64 bits")
    return Quotient(above, below)
