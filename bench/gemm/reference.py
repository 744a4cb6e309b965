"""What a case must give, in float64, and the check of a float32 result against it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bench.gemm.operands import Operands

UNIT_ROUNDOFF = 2.0**-24
CHUNK_BYTES = 8 << 20  # of float64 values at a time: fresh memory costs more than arithmetic on it


@dataclass(frozen=True)
class Reference:
    """The float64 result, and how far each element of a float32 one may be from it."""

    values: np.ndarray
    tolerance: np.ndarray


def reference(operands: Operands) -> Reference:
    """The result in float64 with the statistical error bound of a float32 sum.

    An element of a product may be off by 8 sqrt(k) u (|a| |b|) with u = 2^-24: rounding errors that
    behave like random ones stay below that in any order of summation, and a dropped term of the sum
    does not. An epilogue adds what its own roundings explain.
    """
    if operands.chain:
        return chain_reference(operands)
    found = product_reference(operands)
    values, tolerance = found.values, found.tolerance
    for added in (operands.bias, operands.residual):
        if added is not None:
            values = values + added
            tolerance = tolerance + 2 * UNIT_ROUNDOFF * np.abs(values)
    if operands.shape.epilogue == "bias_gelu":
        # Its slope is below 1.13; libraries approximate erf to about 1e-6.
        tolerance = 1.13 * tolerance + 2e-6 * (1 + np.abs(values))
        values = gelu(values)
    return Reference(values, tolerance)


def product_reference(operands: Operands) -> Reference:
    """The product alone, some columns of the right operand after the other to bound memory."""
    right, k = operands.right, operands.shape.k
    scale = 8 * math.sqrt(k) * UNIT_ROUNDOFF
    a, size = operands.a.astype(np.float64), np.abs(operands.a)
    values = np.empty(operands.out.shape, np.float64)
    tolerance = np.empty(operands.out.shape, np.float32)
    step = max(1, CHUNK_BYTES // (8 * max(k, operands.shape.m) * operands.shape.batch))
    for start in range(0, operands.shape.n, step):
        columns = (..., slice(start, start + step))
        values[columns] = np.matmul(a, right[columns].astype(np.float64))
        tolerance[columns] = scale * np.matmul(size, np.abs(right[columns]))
    return Reference(values, tolerance)


def chain_reference(operands: Operands) -> Reference:
    """The products one after the other.

    Their weights are orthogonal, so that an error keeps its length from there on: each product
    adds up to 8 sqrt(k) u times the length of its row.
    """
    values = operands.a.astype(np.float64)
    for weight in operands.chain:
        values = values @ weight.astype(np.float64)
    length = np.linalg.norm(operands.a, axis=1, keepdims=True)
    scale = 8 * math.sqrt(operands.shape.k) * UNIT_ROUNDOFF * len(operands.chain)
    return Reference(values, np.broadcast_to(scale * length, values.shape))


def gelu(values: np.ndarray) -> np.ndarray:
    """``x (1 + erf(x / sqrt 2)) / 2`` in float64."""
    erf = np.asarray(np.frompyfunc(math.erf, 1, 1)(values / math.sqrt(2)), np.float64)
    return values * (1 + erf) / 2


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
    wrong, largest = 0, 0.0
    rows = [
        array.reshape(-1, got.shape[-1]) for array in (got, expected.values, expected.tolerance)
    ]
    step = max(1, CHUNK_BYTES // (8 * got.shape[-1]))
    for start in range(0, len(rows[0]), step):
        some, values, tolerance = (array[start : start + step] for array in rows)
        error = np.abs(some - values)
        wrong += int(np.sum(~(error <= tolerance)))  # written so that NaN counts as wrong
        largest = max(largest, float(error.max()))
    if wrong:
        return f"{wrong} of {got.size} elements are wrong, largest error {largest:.3g}"
    return None
