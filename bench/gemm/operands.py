"""The arrays of a case, the same for every candidate. What they must give is in ``reference``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bench.gemm.shapes import Shape

ALIGNMENT = 64


@dataclass(frozen=True)
class Operands:
    """Arrays of one case, each 64-byte aligned, without a batch axis for batch 1.

    ``b`` is (k, n) and ``bt`` the same values as (n, k). A constant weight is there in both orders,
    since a library may store a weight as it likes; of a right operand that is new at each call only
    the order that the shape names exists, its rows ``shape.row_stride`` elements apart. Everything
    else is C-contiguous. All candidates that accept an output array write to ``out``.

    ``bias`` (n,) and ``residual`` (m, n) are there where the epilogue needs them. ``chain`` holds
    the (k, k) weights of a chain, orthogonal ones so that values keep their size; ``b`` is its
    first.
    """

    shape: Shape
    a: np.ndarray
    b: np.ndarray | None
    bt: np.ndarray | None
    out: np.ndarray
    bias: np.ndarray | None = None
    residual: np.ndarray | None = None
    chain: tuple[np.ndarray, ...] = ()

    @property
    def right(self) -> np.ndarray:
        """The right operand as the product reads it, (..., k, n): the array or a transposed view.

        For a constant weight it is the row-major array.
        """
        if self.b is not None:
            return self.b
        assert self.bt is not None
        return np.swapaxes(self.bt, -1, -2)

    @property
    def stored(self) -> np.ndarray:
        """The right operand as it is stored: ``b``, or ``bt`` where there is no ``b``."""
        stored = self.b if self.b is not None else self.bt
        assert stored is not None
        return stored


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


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """An aligned array of standard normal values."""
    made = aligned_empty(shape)
    rng.standard_normal(out=made, dtype=np.float32)
    return made


def make_weight(n: int, k: int, seed: int) -> np.ndarray:
    """An aligned (k, n) weight of standard normal values."""
    return normal(np.random.default_rng(seed), k, n)


def make_chain(k: int, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """``count`` different orthogonal (k, k) weights."""
    rng = np.random.default_rng(seed)
    return tuple(aligned_copy(np.linalg.qr(rng.standard_normal((k, k)))[0]) for _ in range(count))


def make_operands(shape: Shape, seed: int, weight: np.ndarray | None = None) -> Operands:
    """Operands of ``shape`` with normal values; ``weight`` is (k, n), made here unless given."""
    rng = np.random.default_rng(seed)
    lead = (shape.batch,) if shape.batch > 1 else ()
    a = normal(rng, *lead, shape.m, shape.k)
    out = aligned_empty((*lead, shape.m, shape.n))
    bias = normal(rng, shape.n) if shape.epilogue != "none" else None
    residual = normal(rng, shape.m, shape.n) if shape.epilogue == "bias_residual" else None
    if shape.products > 1:
        chain = make_chain(shape.k, shape.products, seed)
        return Operands(shape, a, chain[0], None, out, chain=chain)
    if shape.constant:
        b = make_weight(shape.n, shape.k, seed) if weight is None else weight
        return Operands(shape, a, b, aligned_copy(b.T), out, bias, residual)
    rows = shape.n if shape.transposed else shape.k
    stride = shape.row_stride or shape.row_length
    stored = normal(rng, *lead, rows, stride)[..., : shape.row_length]
    if shape.transposed:
        return Operands(shape, a, None, stored, out, bias, residual)
    return Operands(shape, a, stored, None, out, bias, residual)
