"""Values in float64 with a bound on the error of any evaluation in float32.

A reference written in these says by itself how far a float32 result may be from it: the bound
follows the arithmetic (Higham's running error analysis), whatever the order of a sum and whether
or not products and additions are fused. No tolerance is chosen anywhere.

The bound takes all errors to add up, so that it grows by the sum of a layer's weights from layer
to layer. For a whole model `sampled` runs the same reference several times instead, each operation
off by all that its rounding allows but in random directions (Monte Carlo arithmetic), and takes
the largest distance from the exact values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# Unit roundoffs. exp, erf, tanh and sqrt of a float32 are allowed 2 units in the last place.
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LEAST_NORMAL = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
U = ROUNDOFF["float32"]
FUNCTION = 4 * U
DIVISION = 3 * U  # by way of a rounded reciprocal
RUNS = 16


@dataclass(frozen=True, eq=False)
class Bounded:
    """`|computed in float32 - value| <= error`, elementwise; the two have one shape."""

    value: np.ndarray
    error: np.ndarray

    __array_ufunc__ = None  # an array on the left leaves the operator to us

    @staticmethod
    def exact(array: Operand) -> Bounded:
        """An input, which float32 holds as it is."""
        if isinstance(array, Bounded):
            return array
        value = np.asarray(array, dtype="float64")
        return Bounded(value, np.zeros_like(value))

    def like(self, value: np.ndarray, error: np.ndarray | float) -> Bounded:
        """`value`, which may be off by `error`, as a result of `self`."""
        return Bounded(value, np.broadcast_to(error, value.shape))

    def off(self, error: np.ndarray | float) -> Bounded:
        """The same, off by `error` more."""
        return self.like(self.value, self.error + error)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def largest(self) -> np.ndarray:
        """The largest magnitude that the computed value may have."""
        return np.abs(self.value) + self.error

    def rounded(self, dtype: str = "float32", units: float = 1.0) -> Bounded:
        """After `units` roundings to `dtype`."""
        return self.off(units * ROUNDOFF[dtype] * np.maximum(self.largest, LEAST_NORMAL[dtype]))

    def __add__(self, other: Operand) -> Bounded:
        kind, (x, y) = _common(self, other)
        if isinstance(kind, Sum):
            return kind.plus(y if kind is x else x)
        return kind.like(x.value + y.value, x.error + y.error).rounded()

    def __mul__(self, other: Operand) -> Bounded:
        kind, (x, y) = _common(self, other)
        product = x.value * y.value
        return kind.like(product, x.largest * y.largest - np.abs(product)).rounded()

    def __truediv__(self, other: Operand) -> Bounded:
        kind, (x, y) = _common(self, other)
        quotient = x.value / y.value
        least = np.abs(y.value) - y.error
        assert np.all(least > 0), "a divisor that may be zero has no bound"
        error = (x.error + np.abs(quotient) * y.error) / least
        return kind.like(quotient, error).rounded(units=DIVISION / U)

    def __matmul__(self, other: Operand) -> Bounded:
        kind, (x, y) = _common(self, other)
        largest = np.matmul(x.largest, y.largest)
        inputs = largest - np.matmul(np.abs(x.value), np.abs(y.value))
        value, count = np.matmul(x.value, y.value), x.shape[-1]
        if isinstance(kind, Sample):
            return kind.like(value, np.maximum(inputs, 0)).off(_gamma(count) * largest)
        return Sum.of(value, np.maximum(inputs, 0), count, largest)

    def __sub__(self, other: Operand) -> Bounded:
        return self + -Bounded.exact(other)

    def __radd__(self, other: Operand) -> Bounded:
        return self + other

    def __rsub__(self, other: Operand) -> Bounded:
        return -self + other

    def __rmul__(self, other: Operand) -> Bounded:
        return self * other

    def __rtruediv__(self, other: Operand) -> Bounded:
        return Bounded.exact(other) / self

    def __rmatmul__(self, other: Operand) -> Bounded:
        return Bounded.exact(other) @ self

    def __neg__(self) -> Bounded:
        return self.like(-self.value, self.error)

    def __getitem__(self, index: object) -> Bounded:
        return self.like(self.value[index], self.error[index])

    def reshape(self, *shape: int) -> Bounded:
        return self.like(self.value.reshape(*shape), self.error.reshape(*shape))

    def transpose(self, *axes: int) -> Bounded:
        return self.like(self.value.transpose(*axes), self.error.transpose(*axes))

    def max(self, axis: int) -> Bounded:
        """Large errors of elements far below the maximum do not count."""
        value, above, below = (
            each.max(axis, keepdims=True, initial=-np.inf)
            for each in (self.value, self.value + self.error, self.value - self.error)
        )
        return self.like(value, np.maximum(above - value, value - below))

    def sum(self, axis: int) -> Bounded:
        value, error, largest = (
            each.sum(axis, keepdims=True) for each in (self.value, self.error, self.largest)
        )
        return self.like(value, error).off(_gamma(self.shape[axis]) * largest)

    def mean(self, axis: int) -> Bounded:
        return self.sum(axis) / float(self.shape[axis])


@dataclass(frozen=True, eq=False)
class Sum(Bounded):
    """A sum of `count` products, whose magnitudes sum up to `magnitude`; off by `inputs` without
    any rounding of its own. An addend may be its first term as well as its last, and then takes
    part in all of its roundings."""

    inputs: np.ndarray
    count: int
    magnitude: np.ndarray

    @staticmethod
    def of(value: np.ndarray, inputs: np.ndarray, count: int, magnitude: np.ndarray) -> Sum:
        return Sum(value, inputs + _gamma(count) * magnitude, inputs, count, magnitude)

    def plus(self, other: Bounded) -> Sum:
        values = self.value + other.value, self.inputs + other.error
        return Sum.of(*values, self.count + 1, self.magnitude + other.largest)


@dataclass(frozen=True, eq=False)
class Sample(Bounded):
    """One run: errors are put into the value, each in a direction that `rng` draws; none at all
    without `rng`."""

    rng: np.random.Generator | None

    def like(self, value: np.ndarray, error: np.ndarray | float) -> Bounded:
        if self.rng is not None and np.any(error):
            value = value + error * self.rng.choice([-1.0, 1.0], value.shape)
        return Sample(value, np.zeros_like(value), self.rng)


Operand = Bounded | np.ndarray | float


def _common(*operands: Operand) -> tuple[Bounded, list[Bounded]]:
    """The operand that the result is `like`: a `Sample` if there is one, else a `Sum`; and all of
    them."""
    known = [Bounded.exact(each) for each in operands]
    by_rank = sorted(
        known, key=lambda each: (not isinstance(each, Sample), not isinstance(each, Sum))
    )
    return by_rank[0], known


def _gamma(count: int) -> float:
    """The relative error of a sum of `count` products in any order."""
    return count * U / (1 - count * U)


def sampled(reference: Callable[[Callable[[np.ndarray], Bounded]], Bounded]) -> Bounded:
    """What `reference` returns, given the function to make its inputs with: the exact values, and
    as their error the most that one of `RUNS` runs is off anywhere along the last axis."""

    def result(rng: np.random.Generator | None) -> np.ndarray:
        def start(array: np.ndarray) -> Bounded:
            return Sample(np.asarray(array, "float64"), np.zeros(np.shape(array)), rng)

        return reference(start).value

    exact = result(None)
    runs = [np.abs(result(np.random.default_rng(seed)) - exact) for seed in range(RUNS)]
    spread = np.max(runs, axis=0).max(-1, keepdims=True, initial=0)
    return Bounded(exact, np.broadcast_to(spread, exact.shape))


def concat(parts: Sequence[Operand], axis: int) -> Bounded:
    kind, known = _common(*parts)
    return kind.like(
        np.concatenate([part.value for part in known], axis),
        np.concatenate([part.error for part in known], axis),
    )


def where(condition: np.ndarray, x: Operand, y: Operand) -> Bounded:
    kind, (x, y) = _common(x, y)
    return kind.like(np.where(condition, x.value, y.value), np.where(condition, x.error, y.error))


def maximum(x: Operand, y: Operand) -> Bounded:
    kind, (x, y) = _common(x, y)
    errors = np.broadcast_arrays(x.error, y.error)
    return kind.like(np.maximum(x.value, y.value), np.maximum(*errors))


def relu(x: Bounded) -> Bounded:
    return maximum(x, 0.0)


def exp(x: Bounded) -> Bounded:
    value, above = np.exp(x.value), np.exp(x.value + x.error)
    return x.like(value, above - value).rounded(units=FUNCTION / U)


def sqrt(x: Bounded) -> Bounded:
    assert np.all(x.value > x.error), "the root of what may be negative has no bound"
    value, below = np.sqrt(x.value), np.sqrt(x.value - x.error)
    return x.like(value, value - below).rounded(units=FUNCTION / U)


def tanh(x: Bounded) -> Bounded:
    return x.like(np.tanh(x.value), x.error).off(FUNCTION)


def erf(x: Bounded) -> Bounded:
    value = np.vectorize(math.erf, otypes=["float64"])(x.value)
    return x.like(value, 2 / np.sqrt(np.pi) * x.error).off(FUNCTION)


def constant(value: float) -> Bounded:
    """A number, of which the graph holds the nearest float32."""
    return Bounded.exact(value).rounded()


def sigmoid(x: Bounded) -> Bounded:
    return 1.0 / (1.0 + exp(-x))


def silu(x: Bounded) -> Bounded:
    return x * sigmoid(x)


def gelu(x: Bounded) -> Bounded:
    return 0.5 * x * (1.0 + erf(x * constant(math.sqrt(0.5))))


def gelu_tanh(x: Bounded) -> Bounded:
    cubic = x + constant(0.044715) * (x * x * x)
    return 0.5 * x * (1.0 + tanh(constant(math.sqrt(2 / math.pi)) * cubic))


def softmax(x: Bounded, axis: int = -1) -> Bounded:
    powers = exp(x - x.max(axis))
    return powers / powers.sum(axis)


def layer_norm(x: Bounded, weight: Operand, bias: Operand, epsilon: float) -> Bounded:
    """Over the last axis, the variance as the mean of squares minus the square of the mean: the
    less accurate of the two usual ways."""
    mean = x.mean(-1)
    variance = (x * x).mean(-1) - mean * mean
    return (x - mean) / sqrt(variance + epsilon) * weight + bias


def rms_norm(x: Bounded, weight: Operand, epsilon: float) -> Bounded:
    return x / sqrt((x * x).mean(-1) + epsilon) * weight


def assert_within(actual: np.ndarray, expected: Bounded) -> None:
    """`actual` has the shape of `expected` and each element lies within its bound."""
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    assert np.all(np.isfinite(expected.error)), "the bound is no bound"
    distance = np.abs(actual.astype("float64") - expected.value)
    outside = ~(distance <= expected.error)  # a NaN is outside
    if outside.any():
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        raise AssertionError(
            f"{outside.sum()} of {outside.size} outside of the bound, first at {index}: "
            f"{actual[index]}, expected {expected.value[index]} +- {expected.error[index]:.2g}"
        )
