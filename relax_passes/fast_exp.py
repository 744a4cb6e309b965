"""fp32 `exp` as arithmetic that LLVM vectorizes, in place of one call of libm an element.

exp(x) = 2**n * exp(r) with n = round(x / ln 2), |r| <= ln(2) / 2, and exp(r) = 1 + r + r*r * q(r).
The error is below 1 ulp (2 where a multiply and an add are not fused), also of denormal results.
NaN and infinities pass as in numpy: exp(nan) = nan, exp(inf) = inf, exp(-inf) = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Op

EXP, SIGMOID = Op.get("tirx.exp"), Op.get("tirx.sigmoid")

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


def use_fast_exp(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with each fp32 `exp` and `sigmoid` computed by arithmetic."""

    def replace(call: Call) -> Expr:
        if str(call.ty) != "float32":
            return call
        if call.op == EXP:
            return fast_exp(call.args[0])
        if call.op == SIGMOID:
            return 1.0 / (1.0 + fast_exp(0.0 - call.args[0]))
        return call

    return func.with_body(tvm_ffi.structural_map(func.body, (Call, replace)))


def fast_exp(x: Expr) -> Expr:
    """exp(x) for a float32 expression."""
    # A comparison with NaN is false, so that the next two steps let it through ...
    below = _f32(LARGEST)
    return _named(x, lambda v: _named(tirx.Select(v > below, below, v), _exp_from_below))


def _exp_from_below(x: Expr) -> Expr:
    above = _f32(SMALLEST)
    return _named(tirx.Select(x < above, above, x), _exp_in_range)


def _exp_in_range(x: Expr) -> Expr:
    n = tirx.floor(x * _f32(1.0 / math.log(2.0)) + _f32(0.5))
    return _named(n, lambda n: _named(x - n * _f32(LN2_HIGH), lambda high: _assemble(high, n)))


def _assemble(high: Expr, n: Expr) -> Expr:
    def exp_of_rest(r: Expr) -> Expr:
        tail = _f32(TAIL[-1])
        for coefficient in reversed(TAIL[:-1]):
            tail = tail * r + _f32(coefficient)
        return tail * (r * r) + r + _f32(1.0)

    # ... but the conversion of NaN to an integer is undefined, and so it gets a number.
    number = tirx.Select(n > _f32(-200.0), n, _f32(-200.0)).astype("int32")

    def scale(number: Expr) -> Expr:
        # In two factors, as 2**n alone may overflow, or be denormal, where the result is not.
        half = number >> 1
        fraction = _named(high - n * _f32(LN2_LOW), exp_of_rest)
        return fraction * _power_of_two(half) * _power_of_two(number - half)

    return _named(number, scale)


def _power_of_two(exponent: Expr) -> Expr:
    bits = (exponent + EXPONENT_BIAS) << MANTISSA_BITS
    return tirx.reinterpret("float32", bits)


def _f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def _named(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of a name for `value`, which is then computed once."""
    var = tirx.Var("t", str(value.ty))
    return tirx.Let(var, value, body(var))
