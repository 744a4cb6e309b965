"""fp32 `erf` and `tanh` as arithmetic that LLVM vectorizes, in place of one call of libm each.

Both come from 1 - exp(-v) with v >= 0, whose relative error is small down to v = 0:
tanh(x) = e / (1 - e) with 2e = 1 - exp(-2x), and erf(x) = 1 - exp(-x * q(x)) with a polynomial q.
The error is at most 4 ulp of erf and 2 of tanh. NaN and infinities pass as in numpy: tanh(-inf) is
-1, and erf(nan) is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from .fast_exp import (
    EXPONENT_BIAS,
    LN2,
    SIGN_BIT,
    TAIL,
    at_most,
    f32,
    fma,
    magnitude,
    named,
    once,
    polynomial,
    power_of_two,
    split_exponent,
)

# From there on, the functions are 1 in fp32.
ERF_REACH, TANH_REACH = 3.93, 9.02


def _erf_coefficients(degree: int) -> list[float]:
    """Of q(x) = -log(1 - erf(x)) / x for 0 < x <= ERF_REACH, lowest power first.

    Least squares, weighted by how much an error of q shows in erf: relative to it, by
    (1 - erf(x)) * x / erf(x).
    """
    steps = (np.arange(6000) + 0.5) / 6000
    x = np.concatenate([steps, (1 - np.cos(steps * np.pi)) / 2])  # more of them near the ends
    erf, rest = (np.array([f(ERF_REACH * each) for each in x]) for f in (math.erf, math.erfc))
    weight = rest * x / erf
    powers = x[:, None] ** np.arange(degree + 1)
    quotient = -np.log(rest) / (ERF_REACH * x)
    fit = np.linalg.lstsq(powers * weight[:, None], quotient * weight, rcond=None)[0]
    return (fit / ERF_REACH ** np.arange(degree + 1)).tolist()


ERF = _erf_coefficients(8)


def fast_erf(x: Expr) -> Expr:
    """erf(x) for a float32 expression."""

    def positive(x: Expr) -> Expr:
        exponent = fma(x, polynomial(ERF, x), f32(0.0))
        return named(exponent, lambda v: _one_minus_exp(v, 1, lambda e: e))

    return _odd(x, ERF_REACH, positive)


def fast_tanh(x: Expr) -> Expr:
    """tanh(x) for a float32 expression."""

    def quotient(e: Expr) -> Expr:
        return e / (f32(1.0) - e)

    return _odd(x, TANH_REACH, lambda x: _one_minus_exp(x, 2, quotient))


def _odd(x: Expr, reach: float, positive: Callable[[Expr], Expr]) -> Expr:
    """The odd function that is `positive` for x from 0 to `reach`, and constant beyond."""

    def of(x: Expr) -> Expr:
        # The bound lets NaN through.
        value = once(at_most(magnitude(x), reach), positive)
        # Also of -0: its bit, not a comparison.
        sign = tirx.reinterpret("int32", x) & tirx.const(SIGN_BIT, "int32")
        return tirx.reinterpret("float32", tirx.reinterpret("int32", value) | sign)

    return once(x, of)


def _one_minus_exp(v: Expr, power: int, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of (1 - exp(-power * v)) / power for a name v >= 0 whose exponential is not denormal;
    `power` is 1 or 2."""
    # Of (1 - exp(-power * r)) / power = r + r*r * q(r).
    tail = [-power * value * (-power) ** k for k, value in enumerate(TAIL)]

    def assemble(bits: Expr, r: Expr) -> Expr:
        two_to_n, share = power_of_two(bits), 1.0 / power
        rest = fma(polynomial(tail, r), r * r, r)
        return once(fma(two_to_n, rest, fma(two_to_n, f32(-share), f32(share))), body)

    # ln 2 in one part is off by 2e-9, and that many times n: where n is large, exp(-v) is small.
    return split_exponent(v, EXPONENT_BIAS, assemble, -power, [LN2])
