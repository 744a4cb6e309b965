"""How far a computed value may be from the exact one, operator by operator.

A `Value` holds the exact result of all operators so far (in float64 or int64, of the inputs as
they are stored), and a bound of the error of any sensible way to compute it:
|computed - exact| <= error.
With u the unit roundoff of the type that an operator computes in (2^-24 for float32) and eps = 2u:

* A sum of K products is off by at most K u / (1 - K u) times sum |a| |b|, in any order, with or
  without fused multiply-add; K eps of that bounds it for all K below 2^23. Roundings that do not
  conspire stay below L sqrt(K) u of it, but with probability 2 exp(-L^2 / 2) (Higham and Mary, A
  new approach to probabilistic rounding error analysis, 2019). L = 8 makes that 3e-14 an element;
  the smaller of both, `growth`, lets no fault of a long sum hide. Errors of the operands come in
  through |A| + error(A) and |B| + error(B).
* A sum, difference, product or quotient is rounded once: u; eps leaves room for a product with the
  reciprocal of a constant. What is added to a product may have been in the accumulator from the
  start, and then takes part in all of its roundings: 1 + growth(K) eps of that addend.
* An activation passes the error on times its greatest slope, and its own formula is off by
  `ACTIVATION_EPS` eps of 1 + |x|: the fp32 formulas of erf, exp and tanh are good to about that.
* 16-bit results are rounded once, to the nearest: u of the 16-bit type, and half of its smallest
  subnormal. Products of 16-bit operands are summed in float32. Elementwise operators on 16-bit
  values may round at each operator or once at the end: the larger is allowed.
* Results below the smallest normal number may be rounded to a multiple of the smallest subnormal.

``anything`` marks elements of which nothing is asked: a sum whose terms may overflow on the way,
what a comparison with NaN gives, activations at minus infinity where formulas differ (0 or NaN),
sums of two NaN or infinities, which TVM may simplify away, and infinity times what may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from bench.fuzz.values import numpy_dtype


@dataclass(frozen=True)
class Format:
    """A floating-point format: unit roundoff, smallest subnormal, largest number."""

    roundoff: float
    tiny: float
    largest: float

    @property
    def eps(self) -> float:
        return 2 * self.roundoff


FORMATS = {
    "float16": Format(2.0**-11, 2.0**-24, 65504.0),
    "bfloat16": Format(2.0**-8, 2.0**-133, 3.3895e38),
    "float32": Format(2.0**-24, 2.0**-149, 3.4028235e38),
    "float64": Format(2.0**-53, 2.0**-1074, 1.7976931348623157e308),
}
#: In units of eps * (1 + |x|).
ACTIVATION_EPS = 4.0
#: Of the formulas for 16-bit values, which round at each of their operators.
HALF_ACTIVATION_EPS = 6.0


@dataclass(frozen=True)
class Value:
    """See the module. ``terms``: of the sum that this is, as long as only additions came after."""

    exact: np.ndarray
    error: np.ndarray
    anything: np.ndarray
    dtype: str
    terms: int = 0

    @classmethod
    def of(cls, array: np.ndarray, dtype: str) -> Value:
        """An input: exact."""
        wide = np.int64 if dtype.startswith("int") else np.float64
        exact = np.asarray(array.astype(wide))
        return cls(exact, np.zeros(exact.shape), np.zeros(exact.shape, bool), dtype)

    @property
    def is_integer(self) -> bool:
        return self.dtype.startswith("int")

    @property
    def format(self) -> Format:
        return FORMATS[self.dtype]

    @property
    def size(self) -> np.ndarray:
        """The greatest magnitude that the computed value can have."""
        return np.abs(self.exact) + self.error

    def moved(self, move: Callable[[np.ndarray], np.ndarray], terms: int = 0) -> Value:
        """The same values, elsewhere."""
        exact, error, anything = map(move, (self.exact, self.error, self.anything))
        return Value(exact, error, anything, self.dtype, terms)


def whole(exact: np.ndarray, anything: np.ndarray, dtype: str) -> Value:
    """An integer result: exact modulo the range of its type."""
    wrapped = np.asarray(exact.astype(numpy_dtype(dtype)).astype(np.int64))
    return Value(wrapped, np.zeros(wrapped.shape), anything, dtype)


def rounded(
    exact: np.ndarray, error: np.ndarray, anything: np.ndarray, dtype: str, terms: int = 0
) -> Value:
    """A float result of which ``error`` is known so far, as ``dtype`` holds it.

    What may be rounded to infinity is anything: later operators may see infinity or the number.
    """
    kind = FORMATS[dtype]
    exact, error = np.asarray(exact), np.asarray(error)
    finite = np.isfinite(exact)
    if dtype in ("float16", "bfloat16"):
        error = error + kind.roundoff * (np.abs(exact) + error)
    error = np.where(finite, error + kind.tiny, 0.0)
    overflow = finite & ~(np.abs(exact) + error <= kind.largest)
    return Value(exact, error, np.asarray(anything | overflow), dtype, terms)


def growth(terms: int) -> float:
    """The error of a sum of so many terms, in eps of the sum of their magnitudes."""
    return min(terms, 4 * math.sqrt(terms))


def contract(a: Value, b: Value, dtype: str, plain: bool = False) -> Value:
    """``a @ b`` as ``dtype``. ``plain``: accumulated in ``dtype``, as plain TVM does, and of
    unknown value for an empty sum."""
    k = a.exact.shape[-1]
    anything = _touched(a.anything, b.anything)
    if plain and k == 0:
        anything = np.ones_like(anything)
    exact = np.asarray(np.matmul(a.exact, b.exact))
    if dtype.startswith("int"):
        return whole(exact, anything, dtype)
    exact = exact.astype(np.float64)
    size = np.asarray(np.matmul(_finite(a.size), _finite(b.size)))
    kept = np.asarray(np.matmul(_finite(np.abs(a.exact)), _finite(np.abs(b.exact))))
    inner = FORMATS[dtype if plain or dtype == "float64" else "float32"]
    # float64 has no wider type to compare with: the reference has the same error again
    eps = inner.eps * (2 if dtype == "float64" else 1)
    factor = k if plain else growth(k)
    error = np.maximum(size - kept, 0) + factor * eps * size + k * inner.tiny
    # a partial sum may overflow
    anything = anything | ~(2 * size <= inner.largest)
    anything = anything | _touching(~np.isfinite(a.exact), _maybe_zero(b))
    anything = anything | _touching(_maybe_zero(a), ~np.isfinite(b.exact))
    return rounded(exact, error, anything, dtype, terms=k)


def add(x: Value, y: Value, exact: np.ndarray) -> Value:
    """A sum or difference."""
    eps = x.format.eps
    terms = max(x.terms, y.terms)
    error = x.error + y.error + eps * (x.size + y.size)
    # either may have been in the accumulator of the other
    error = error + eps * (growth(x.terms) * y.size + growth(y.terms) * x.size)
    overflow = ~(_finite(x.size) + _finite(y.size) <= x.format.largest)
    # TVM simplifies x + y - y to x
    neither = ~np.isfinite(x.exact) & ~np.isfinite(y.exact)
    return rounded(exact, error, x.anything | y.anything | overflow | neither, x.dtype, terms)


def multiply(x: Value, y: Value) -> Value:
    exact = x.exact * y.exact
    error = x.size * y.size - np.abs(exact)
    error = np.maximum(error, 0) + x.format.eps * x.size * y.size
    anything = x.anything | y.anything | _new_nan(x, y, exact)
    anything = anything | (~np.isfinite(x.exact) & _maybe_zero(y))
    anything = anything | (~np.isfinite(y.exact) & _maybe_zero(x))
    return rounded(exact, error, anything, x.dtype)


def divide(x: Value, y: Value) -> Value:
    """``y`` is exact, and neither 0 nor infinite."""
    exact = x.exact / y.exact
    error = x.error / np.abs(y.exact) + 2 * x.format.eps * x.size / np.abs(y.exact)
    return rounded(exact, error, x.anything | y.anything, x.dtype)


def select(x: Value, y: Value, exact: np.ndarray) -> Value:
    """Maximum or minimum: no rounding; with NaN TVM gives either operand."""
    unordered = np.isnan(x.exact) | np.isnan(y.exact)
    anything = x.anything | y.anything | unordered
    return rounded(exact, np.maximum(x.error, y.error), anything, x.dtype)


def clip(x: Value, low: float, high: float) -> Value:
    """Between two constants: no rounding; NaN becomes either of them or stays."""
    anything = x.anything | np.isnan(x.exact)
    return rounded(np.clip(x.exact, low, high), x.error, anything, x.dtype)


#: Exact function, greatest slope, and whether formulas differ at minus infinity.
ACTIVATIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, bool]] = {
    "gelu": (lambda x: x * special.ndtr(x), 1.13, True),
    "gelu_spelled": (lambda x: x * special.ndtr(x), 1.13, True),
    "gelu_tanh": (
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        1.13,
        True,
    ),
    "silu": (lambda x: x * special.expit(x), 1.1, True),
    "sigmoid": (special.expit, 0.25, False),
    "tanh": (np.tanh, 1.0, False),
}


def activate(x: Value, name: str) -> Value:
    function, slope, differs = ACTIVATIONS[name]
    exact = function(x.exact)
    anything = x.anything
    if differs:
        anything = anything | np.isneginf(x.exact)
        # the cube and the argument of exp may overflow, and a factor of 0 meets infinity
        anything = anything | ~(_finite(x.size) <= np.cbrt(x.format.largest))
    half = x.dtype in ("float16", "bfloat16")
    own = (HALF_ACTIVATION_EPS if half else ACTIVATION_EPS) * x.format.eps
    bounded = name in ("sigmoid", "tanh")
    error = slope * x.error + own * (1.0 if bounded else 1 + np.abs(_finite(x.exact)))
    if bounded:
        error = np.minimum(error, 2.0)
    return rounded(exact, error, anything, x.dtype)


def _finite(array: np.ndarray) -> np.ndarray:
    """0 in place of what is not finite: a NaN or infinity of an input makes no sum overflow."""
    return np.where(np.isfinite(array), array, 0.0)


def _new_nan(x: Value, y: Value, exact: np.ndarray) -> np.ndarray:
    return np.isnan(exact) & ~np.isnan(x.exact) & ~np.isnan(y.exact)


def _maybe_zero(x: Value) -> np.ndarray:
    """What is computed, not exact, and may come out as 0 or with the other sign."""
    return (x.error > 0) & (np.abs(x.exact) <= x.error)


def _touched(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which elements of a product depend on a marked element of an operand."""
    return _touching(a, np.ones_like(b)) | _touching(np.ones_like(a), b)


def _touching(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which elements of a product have a term whose two factors are both marked."""
    if not (a.any() and b.any()):
        return np.zeros(np.matmul(a, b).shape, bool)
    return np.asarray(np.matmul(a.astype(np.float32), b.astype(np.float32)) > 0)
