"""fp32 `exp` and `sigmoid` as arithmetic that LLVM vectorizes, in place of one call of libm an
element.

exp(x) = 2**n * exp(r) with n = round(x / ln 2), |r| <= ln(2) / 2, and exp(r) = 1 + r + r*r * q(r).
The error is at most 1 ulp of exp and 2 of sigmoid, also of denormal results.
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
LN2_PARTS = (LN2_HIGH, LN2 - LN2_HIGH)
MANTISSA_BITS, EXPONENT_BIAS = 23, 127
SIGN_BIT = -(1 << 31)
SCALE = 64  # exp(SMALLEST) * 2**SCALE is normal
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
        return _times_exp(power_of_two(bits), r)

    # From there on, the bits of the power are all zero, and so is the power.
    return split_exponent(at_least(x, -EXPONENT_BIAS * LN2), EXPONENT_BIAS, scaled)


def fast_sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)) for a float32 expression.

    With e = exp(-|x|) it is 1 / (1 + e), or e / (1 + e) where x is negative: nothing overflows. All
    of them are scaled by the same power of two, with which e is normal where the result is not.
    """

    def of(x: Expr) -> Expr:
        negative = tirx.reinterpret("int32", x) < 0

        def quotient(bits: Expr, r: Expr) -> Expr:
            one = f32(2.0**SCALE)

            def divide(e: Expr) -> Expr:
                return tirx.Select(negative, e, one) / (e + one)

            return once(_times_exp(power_of_two(bits), r), divide)

        minus = tirx.reinterpret("int32", x) | tirx.const(SIGN_BIT, "int32")
        bounded = at_least(tirx.reinterpret("float32", minus), SMALLEST)
        return split_exponent(bounded, EXPONENT_BIAS + SCALE, quotient)

    return once(x, of)


def _exp_from_smallest(x: Expr) -> Expr:
    """exp(x) for x <= LARGEST."""

    def scaled(bits: Expr, r: Expr) -> Expr:
        # In two factors, as 2**n alone may overflow, or be denormal, where the result is not. The
        # last bits are n and a bias for each.
        half = bits >> 1
        return _times_exp(power_of_two(half), r) * power_of_two(bits - half)

    return split_exponent(at_least(x, SMALLEST), 2 * EXPONENT_BIAS, scaled)


def split_exponent(
    x: Expr,
    bias: int,
    body: Callable[[Expr, Expr], Expr],
    power: float = 1.0,
    ln2: Sequence[float] = LN2_PARTS,
) -> Expr:
    """`body` of an integer whose last bits are n + bias, and of r, with exp(power * x) =
    2**n * exp(power * r); `power` is one of two, or minus that, and `ln2` the parts of ln 2."""
    rounder = INTEGERS + bias

    def parts(x: Expr) -> Expr:
        return named(fma(x, f32(power / LN2), f32(rounder)), lambda rounded: rest(x, rounded))

    def rest(x: Expr, rounded: Expr) -> Expr:
        # NaN has some bits here, and reaches the result by r.
        bits, n = tirx.reinterpret("int32", rounded), rounded - f32(rounder)
        r = x
        for part in ln2:
            r = fma(n, f32(-part / power), r)
        return named(r, lambda r: body(bits, r))

    return once(x, parts)


def exp_of_rest(r: Expr) -> Expr:
    """exp(r) - 1 for |r| <= ln(2) / 2."""
    return fma(polynomial(TAIL, r), r * r, r)


def _times_exp(power: Expr, r: Expr) -> Expr:
    """power * exp(r) for |r| <= ln(2) / 2, rounded once at the end."""
    return fma(exp_of_rest(r), power, power)


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
