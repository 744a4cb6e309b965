"""fp32 `exp` and `sigmoid` as arithmetic that LLVM vectorizes, in place of one call of libm an
element.

exp(x) = 2**n * exp(r) with n = round(x / ln 2), |r| <= ln(2) / 2, and exp(r) = 1 + r + r*r * q(r).
The error is below 1 ulp (2 where a multiply and an add are not fused), also of denormal results.
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
# ln 2 in two parts: n times the first one is exact, since its last 9 bits are zero.
LN2_HIGH = 0.693359375
LN2_LOW = math.log(2.0) - LN2_HIGH
MANTISSA_BITS, EXPONENT_BIAS = 23, 127


def _tail_coefficients(degree: int) -> list[float]:
    """Of q(r) = (exp(r) - 1 - r) / r**2, lowest power first, for |r| <= ln(2) / 2."""

    def tail(r: np.ndarray) -> np.ndarray:
        return np.sum([r**k / math.factorial(k + 2) for k in range(20)], axis=0)

    half = math.log(2.0) / 2
    fit = np.polynomial.Chebyshev.interpolate(tail, degree, domain=[-half, half])
    return [float(value) for value in fit.convert(kind=np.polynomial.Polynomial).coef]


TAIL = _tail_coefficients(5)


def fast_exp(x: Expr) -> Expr:
    """exp(x) for a float32 expression."""

    def scale(number: Expr, r: Expr) -> Expr:
        # In two factors, as 2**n alone may overflow, or be denormal, where the result is not.
        half = number >> 1
        return (exp_of_rest(r) + f32(1.0)) * power_of_two(half) * power_of_two(number - half)

    # Both bounds let NaN through.
    bounded = _llvm("maximum", minimum(x, LARGEST), f32(SMALLEST))
    return named(bounded, lambda x: split_exponent(x, scale))


def fast_sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)) for a float32 expression, also where exp(-x) overflows."""

    def quotient(e: Expr, x: Expr) -> Expr:
        return tirx.Select(x < f32(0.0), e, f32(1.0)) / (f32(1.0) + e)

    return named(x, lambda x: named(fast_exp(f32(0.0) - magnitude(x)), lambda e: quotient(e, x)))


def split_exponent(x: Expr, body: Callable[[Expr, Expr], Expr]) -> Expr:
    """`body` of an integer n and of r with exp(x) = 2**n * exp(r), of a name `x`."""

    def rest(n: Expr) -> Expr:
        # The conversion of NaN to an integer is undefined, and so it gets a number.
        number = tirx.Select(n > f32(-200.0), n, f32(-200.0)).astype("int32")
        high = fma(n, f32(-LN2_HIGH), x)
        return named(fma(n, f32(-LN2_LOW), high), lambda r: body(number, r))

    return named(_llvm("floor", fma(x, f32(1.0 / math.log(2.0)), f32(0.5))), rest)


def exp_of_rest(r: Expr) -> Expr:
    """exp(r) - 1 for |r| <= ln(2) / 2."""
    return polynomial(TAIL, r) * (r * r) + r


def power_of_two(exponent: Expr) -> Expr:
    """2.0**exponent for an integer expression from -126 to 127."""
    bits = (exponent + EXPONENT_BIAS) << MANTISSA_BITS
    return tirx.reinterpret("float32", bits)


def polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """The polynomial of x with `coefficients`, lowest power first.

    By pairs, pairs of pairs, and so on (Estrin): Horner's scheme waits for each of its steps.
    """
    terms, power = [f32(coefficient) for coefficient in coefficients], x
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        rest = terms[len(terms) // 2 * 2 :]
        terms = [high * power + low for low, high in pairs] + rest
        power = power * power
    return terms[0]


def f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c, in one step where the target can."""
    return _llvm("fmuladd", a, b, c)


def minimum(x: Expr, most: float) -> Expr:
    """The lesser of both; NaN for NaN."""
    return _llvm("minimum", x, f32(most))


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
