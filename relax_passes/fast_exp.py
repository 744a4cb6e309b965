"""fp32 `exp` and `sigmoid` as arithmetic that LLVM vectorizes, in place of one call of libm an
element.

exp(x) = 2**n * exp(r) with n = round(x / ln 2), |r| <= ln(2) / 2, and exp(r) = 1 + r + r*r * q(r).
The error is below 2 ulp, also of denormal results.
NaN and infinities pass as in numpy: exp(nan) = nan, exp(inf) = inf, exp(-inf) = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import tirx
from tvm.ir import Expr

# Beyond these the result is infinite, or rounds to zero, whatever x is.
LARGEST, SMALLEST = 89.0, -105.0
LN2 = math.log(2.0)
# ln 2 in two parts: n times the first one is exact, since its last 9 bits are zero.
LN2_HIGH = 0.693359375
MANTISSA_BITS, EXPONENT_BIAS = 23, 127
# Floats from there to twice that are integers: a sum that lies among them is rounded to one, which
# stands in its last bits.
INTEGERS = 1.5 * 2**MANTISSA_BITS


def _tail_coefficients(degree: int) -> list[float]:
    """Of q(r) = (exp(r) - 1 - r) / r**2, lowest power first, for |r| <= ln(2) / 2."""

    def tail(r: np.ndarray) -> np.ndarray:
        return np.sum([r**k / math.factorial(k + 2) for k in range(20)], axis=0)

    fit = np.polynomial.Chebyshev.interpolate(tail, degree, domain=[-LN2 / 2, LN2 / 2])
    return [float(value) for value in fit.convert(kind=np.polynomial.Polynomial).coef]


TAIL = _tail_coefficients(4)


def fast_exp(x: Expr) -> Expr:
    """exp(x) for a float32 expression."""
    return _exp_from_smallest(at_most(x, LARGEST))


def fast_exp_below_zero(x: Expr) -> Expr:
    """exp(x) for a float32 expression of at most 0, or NaN; 0 where it is less than 2**-126.5."""

    def scaled(bits: Expr, r: Expr) -> Expr:
        return (exp_of_rest(r) + f32(1.0)) * power_of_two(bits)

    # From there on, the bits of the power are all zero, and so is the power.
    return split_exponent(at_least(x, -EXPONENT_BIAS * LN2), EXPONENT_BIAS, scaled)


def fast_sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)) for a float32 expression, also where exp(-x) overflows.

    With exp(-x) = e * 2**half * 2**rest it is 2**-rest / (2**-rest + e * 2**half), of which no part
    overflows or is denormal.
    """

    def quotient(bits: Expr, r: Expr) -> Expr:
        half = bits >> 1
        # The last bits of both are a power and its bias: the other one's sign is turned.
        other = power_of_two((half - bits) + 2 * EXPONENT_BIAS)
        whole = fma(exp_of_rest(r) + f32(1.0), power_of_two(half), other)
        return other / whole

    bounded = at_least(at_most(x, -SMALLEST), SMALLEST)
    return split_exponent(f32(0.0) - bounded, 2 * EXPONENT_BIAS, quotient)


def _exp_from_smallest(x: Expr) -> Expr:
    """exp(x) for x <= LARGEST."""

    def scaled(bits: Expr, r: Expr) -> Expr:
        # In two factors, as 2**n alone may overflow, or be denormal, where the result is not. The
        # last bits are n and a bias for each.
        half = bits >> 1
        return (exp_of_rest(r) + f32(1.0)) * power_of_two(half) * power_of_two(bits - half)

    return split_exponent(at_least(x, SMALLEST), 2 * EXPONENT_BIAS, scaled)


def split_exponent(x: Expr, bias: int, body: Callable[[Expr, Expr], Expr]) -> Expr:
    """`body` of an integer whose last bits are n + bias, and of r, with exp(x) = 2**n * exp(r)."""
    rounder = INTEGERS + bias

    def parts(x: Expr) -> Expr:
        return named(fma(x, f32(1.0 / LN2), f32(rounder)), lambda rounded: rest(x, rounded))

    def rest(x: Expr, rounded: Expr) -> Expr:
        # NaN has some bits here, and reaches the result by r.
        bits, n = tirx.reinterpret("int32", rounded), rounded - f32(rounder)
        high = fma(n, f32(-LN2_HIGH), x)
        return named(fma(n, f32(-(LN2 - LN2_HIGH)), high), lambda r: body(bits, r))

    return once(x, parts)


def exp_of_rest(r: Expr) -> Expr:
    """exp(r) - 1 for |r| <= ln(2) / 2."""
    return fma(polynomial(TAIL, r), r * r, r)


def power_of_two(biased: Expr) -> Expr:
    """2.0**n for an integer whose last bits are n + EXPONENT_BIAS, whatever is before them."""
    return tirx.reinterpret("float32", biased << MANTISSA_BITS)


def polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """The polynomial of x with `coefficients`, lowest power first.

    Horner's scheme for the even powers and for the odd ones: in one row, each step waits for the
    one before; in a tree, there are more of them.
    """
    even, odd = (_horner(coefficients[first::2], x * x) for first in (0, 1))
    return fma(odd, x, even)


def _horner(coefficients: Sequence[float], x: Expr) -> Expr:
    *others, value = map(f32, coefficients)
    for coefficient in reversed(others):
        value = fma(value, x, coefficient)
    return value


def f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c, in one step where the target can."""
    return _llvm("fmuladd", a, b, c)


def at_most(x: Expr, most: float) -> Expr:
    """The lesser of both; NaN for NaN, as the second operand is taken where none is less."""
    return tirx.Min(f32(most), x)


def at_least(x: Expr, least: float) -> Expr:
    """The greater of both; NaN for NaN."""
    return tirx.Max(f32(least), x)


def magnitude(x: Expr) -> Expr:
    return _llvm("fabs", x)


def _llvm(name: str, *args: Expr) -> Expr:
    return tirx.call_llvm_intrin("float32", f"llvm.{name}", *args)


def named(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of a name for a float32 `value`, which is then computed once.

    That holds for a value that TVM takes for impure, as it does loads and LLVM's intrinsics. Others
    it puts back into the place of their names: they should be small, and of few names.
    """
    var = tirx.Var("t", "float32")
    return tirx.Let(var, value, body(var))


def once(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of a name for any float32 `value`, which is computed once."""
    return named(fma(value, f32(1.0), f32(-0.0)), body)  # LLVM makes it the value itself again
