"""Operands that every candidate shares, and the check of a result against float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bench.gemm.shapes import Shape

ALIGNMENT = 64
UNIT_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Operands:
    """Arrays of one shape, each 64-byte aligned and C-contiguous, without a batch axis for batch 1.

    ``b`` is (k, n) and ``bt`` the same values as (n, k). A constant weight is there in both orders,
    since a library may store a weight as it likes; of a dynamic right operand only the order that
    the shape names exists. All candidates that accept an output array write to ``out``.
    """

    shape: Shape
    a: np.ndarray
    b: np.ndarray | None
    bt: np.ndarray | None
    out: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """The right operand as the product reads it, (..., k, n): the array or a transposed view.

        For a constant weight it is the row-major array.
        """
        if self.b is not None:
            return self.b
        assert self.bt is not None
        return np.swapaxes(self.bt, -1, -2)


def aligned_empty(shape: tuple[int, ...]) -> np.ndarray:
    """An uninitialised C-contiguous float32 array whose first element is 64-byte aligned."""
    size = math.prod(shape) * 4
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(np.float32).reshape(shape)


def aligned_copy(values: np.ndarray) -> np.ndarray:
    """A 64-byte aligned, C-contiguous float32 copy of ``values``."""
    copy = aligned_empty(values.shape)
    copy[...] = values
    return copy


def make_weight(n: int, k: int, seed: int) -> np.ndarray:
    """An aligned (k, n) weight of standard normal values."""
    return aligned_copy(np.random.default_rng(seed).standard_normal((k, n), np.float32))


def make_operands(shape: Shape, seed: int, weight: np.ndarray | None = None) -> Operands:
    """Operands of ``shape`` with normal values; ``weight`` is (k, n), made here unless given."""
    rng = np.random.default_rng(seed)
    lead = (shape.batch,) if shape.dynamic else ()
    a = aligned_copy(rng.standard_normal((*lead, shape.m, shape.k), np.float32))
    out = aligned_empty((*lead, shape.m, shape.n))
    if not shape.dynamic:
        b = make_weight(shape.n, shape.k, seed) if weight is None else weight
        return Operands(shape, a, b, aligned_copy(b.T), out)
    if shape.transposed:
        bt = aligned_copy(rng.standard_normal((*lead, shape.n, shape.k), np.float32))
        return Operands(shape, a, None, bt, out)
    b = aligned_copy(rng.standard_normal((*lead, shape.k, shape.n), np.float32))
    return Operands(shape, a, b, None, out)


@dataclass(frozen=True)
class Reference:
    """The float64 product, and how far each element of a float32 product may be from it."""

    values: np.ndarray
    tolerance: np.ndarray


def reference(operands: Operands) -> Reference:
    """The product in float64 with the statistical error bound of a float32 sum.

    An element may be off by 8 sqrt(k) u (|a| |b|) with u = 2^-24: rounding errors that behave like
    random ones stay below that in any order of summation, and a dropped term of the sum does not.
    """
    right = operands.right
    scale = 8 * math.sqrt(operands.shape.k) * UNIT_ROUNDOFF
    bound = np.matmul(np.abs(operands.a), np.abs(right)).astype(np.float64)
    values = np.matmul(operands.a.astype(np.float64), right.astype(np.float64))
    return Reference(values, scale * bound)


def as_array(value: object, out: np.ndarray) -> np.ndarray:
    """What a candidate's call produced: ``out`` when it returns nothing, else its tensor."""
    if value is None:
        return out
    convert = getattr(value, "numpy", None)
    return np.asarray(convert() if convert is not None else value)


def error_in(got: np.ndarray, expected: Reference) -> str | None:
    """None when ``got`` is right, else what is wrong with it."""
    if got.shape != expected.values.shape:
        return f"result has shape {got.shape}, expected {expected.values.shape}"
    error = np.abs(got - expected.values)
    wrong = ~(error <= expected.tolerance)  # written so that NaN counts as wrong
    if wrong.any():
        return f"{wrong.sum()} of {wrong.size} elements are wrong, largest error {error.max():.3g}"
    return None
