"""Values of inputs: ordinary ones, and those that bring faults to light."""

from __future__ import annotations

from enum import Enum

import ml_dtypes
import numpy as np

from bench.fuzz.graph import Input

#: Numbers of the streams of random numbers that constants and inputs are drawn from.
CONSTANT_STREAM, VALUE_STREAM = 3, 4


class Regime(Enum):
    """What the values of one case are like."""

    NORMAL = "normal"
    NAN = "NaN in one row"
    INFINITE = "infinity in one row"
    LARGE = "large"
    ZERO = "zeros"
    WHOLE = "small whole numbers"
    SUBNORMAL = "subnormal"


REGIMES = {
    Regime.NORMAL: 0.7,
    Regime.NAN: 0.08,
    Regime.INFINITE: 0.06,
    Regime.LARGE: 0.05,
    Regime.ZERO: 0.04,
    Regime.WHOLE: 0.05,
    Regime.SUBNORMAL: 0.02,
}


def numpy_dtype(name: str) -> np.dtype:
    """The dtype of that name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def constant(each: Input, seed: int, index: int) -> np.ndarray:
    """The values of a constant of form number ``index``; its shape is static."""
    rng = np.random.default_rng([CONSTANT_STREAM, seed, index, int(each.name[1:])])
    return draw(rng, each, tuple(dim.plus for dim in each.dims), Regime.NORMAL)


def draw(
    rng: np.random.Generator, each: Input, shape: tuple[int, ...], regime: Regime
) -> np.ndarray:
    """Values of ``shape`` for the input ``each``, in its dtype."""
    dtype = numpy_dtype(each.dtype)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind == "i":
        return _integers(rng, shape, dtype, regime)
    if each.divisor:
        signs = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        return np.asarray(signs * rng.uniform(0.5, 2.0, shape)).astype(dtype)
    if regime is Regime.ZERO:
        return np.zeros(shape, dtype)
    if regime is Regime.WHOLE:
        return rng.integers(-3, 4, shape).astype(dtype)
    values = np.asarray(rng.standard_normal(shape))
    if regime is Regime.LARGE:
        values *= {2: 30.0, 4: 1e17, 8: 1e150}[dtype.itemsize]
    if regime is Regime.SUBNORMAL:
        values *= {2: 1e-6, 4: 1e-39, 8: 1e-310}[dtype.itemsize]
    return values.astype(dtype)


def poison(rng: np.random.Generator, array: np.ndarray, regime: Regime) -> None:
    """Put NaN or an infinity into one element of a float ``array``, or into one slice of it."""
    if array.size == 0 or array.dtype.kind == "i" or array.dtype == np.bool_:
        return
    value = np.nan if regime is Regime.NAN else rng.choice([-np.inf, np.inf])
    where: list[int | slice] = [int(rng.integers(size)) for size in array.shape]
    if where and rng.random() < 0.5:
        where[int(rng.integers(len(where)))] = slice(None)
    array[tuple(where)] = value


def _integers(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, regime: Regime
) -> np.ndarray:
    """int8 over its whole range; wider ones so small that no sum of ours overflows int32."""
    if regime is Regime.ZERO:
        return np.zeros(shape, dtype)
    if dtype.itemsize == 1:
        if regime is Regime.LARGE:
            return rng.choice(np.array([-128, 127], np.int8), shape)
        return rng.integers(-128, 128, shape).astype(dtype)
    limit = 100 if dtype.itemsize == 4 else 10_000
    return rng.integers(-limit, limit + 1, shape).astype(dtype)
