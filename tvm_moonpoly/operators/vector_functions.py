"""Functions of vectors that activations are made of, in arithmetic alone.

exp is a polynomial after range reduction by multiples of ln 2 (Cody and Waite), the normal
distribution a power of a polynomial, tanh a quotient of exp(2x) - 1. NaN and infinity pass as in
numpy. All constants of a formula fit the vector registers of AVX2 beside what it computes with.
"""

from __future__ import annotations

import math

from tvm import tirx

from tvm_moonpoly.emit import FLOAT, Expr, cell, spread, vector_type


def constant(value: float, lanes: int) -> Expr:
    """``value`` in all lanes."""
    return spread(tirx.const(value, FLOAT), lanes)


def keep(lanes: int, value: Expr) -> Expr:
    """``value``, evaluated once."""
    return cell(value, "float32", lanes)


def _keep_integer(lanes: int, value: Expr) -> Expr:
    return cell(value, "int32", lanes)


#: Added to a number below 2^22, it leaves the nearest whole number in the lowest bits.
_ROUNDING = 1.5 * 2.0**23

#: (exp(r) - 1) / r for |r| <= ln 2 / 2, lowest power first: the minimax fit of this degree by
#: reweighted linear least squares; its relative error is 1.4e-8.
_EXP = (1.0, 0.49999997, 0.16666542, 0.041667204, 0.008366692, 0.0013882489)


def _reduced(x: Expr, lanes: int) -> tuple[Expr, Expr]:
    """``2^n`` and ``r`` with x = n ln 2 + r: n a whole number, r within ln 2 / 2 of 0.

    x must be within -87 and 89; from 88.4 on the power is infinity. NaN gives r = NaN, and a power
    that may be anything.
    """
    magic = constant(_ROUNDING, lanes)
    shifted = keep(lanes, x * constant(1.0 / math.log(2.0), lanes) + magic)
    n = keep(lanes, shifted - magic)
    # ln 2 in two parts, the first with few bits so that n times it is exact
    r = keep(lanes, x - n * constant(0.693359375, lanes))
    r = keep(lanes, r - n * constant(math.log(2.0) - 0.693359375, lanes))
    return _power(shifted, lanes), r


def _power(shifted: Expr, lanes: int) -> Expr:
    """2^n, given n + `_ROUNDING`."""
    bits = _keep_integer(lanes, tirx.reinterpret(vector_type("int32", lanes), shifted))
    # the shift drops all but n, which is where the exponent of a float is then
    exponent = tirx.shift_left(bits, _integer(23, lanes)) + _integer(127 << 23, lanes)
    return keep(lanes, _as_float(exponent, lanes))


def _polynomial(coefficients: tuple[float, ...], x: Expr, lanes: int) -> Expr:
    total = constant(coefficients[-1], lanes)
    for coefficient in coefficients[-2::-1]:
        total = keep(lanes, total * x + constant(coefficient, lanes))
    return total


def exp(x: Expr, lanes: int) -> Expr:
    """exp(x), to be added to 1: below -80 it is exp(-80), from 88.4 on infinity; NaN is kept."""
    low, high = constant(-80.0, lanes), constant(89.0, lanes)
    # a comparison with NaN is false: NaN stays
    x = keep(lanes, x)
    x = keep(lanes, tirx.Select(x < low, low, x))
    x = keep(lanes, tirx.Select(x > high, high, x))
    power, r = _reduced(x, lanes)
    return keep(lanes, r * _polynomial(_EXP, r, lanes) + constant(1.0, lanes)) * power


#: 2^r for |r| <= 1/2, lowest power first: as `_EXP`; its relative error is 9e-8.
_POWER_OF_TWO = (1.0, 0.693147004, 0.240222424, 0.0555073358, 0.00967151299, 0.00132647273)


def exp_below_zero(x: Expr, lanes: int) -> Expr:
    """exp(x) for x <= 0, or NaN, which is kept; 0 where it is less than 5e-38.

    Its relative error is 2e-7 near 0 and grows by 2e-8 each time the result halves: so it is small
    beside exp(0) everywhere.
    """
    x = keep(lanes, x)
    magic, scale = constant(_ROUNDING, lanes), constant(1.0 / math.log(2.0), lanes)
    shifted = keep(lanes, x * scale + magic)
    n = keep(lanes, shifted - magic)
    r = keep(lanes, x * scale - n)
    value = keep(lanes, _polynomial(_POWER_OF_TWO, r, lanes) * _power(shifted, lanes))
    return tirx.Select(x < constant(-86.0, lanes), constant(0.0, lanes), value)


def _integer(value: int, lanes: int) -> Expr:
    return spread(tirx.const(value, "int32"), lanes)


#: The upper tail of the normal distribution at t >= 0 is 1 / (2 q(t)^8): q, lowest power first, by
#: reweighted least squares such that t times the tail is off by 4.8e-8 at most, in fp32 arithmetic
#: by 2e-7.
_TAIL = (
    1.0,
    0.099732495,
    0.0447888014,
    0.00859163159,
    0.000980662447,
    0.000111350898,
    9.75821462e-05,
    -1.67472047e-05,
    2.93249255e-06,
)


def gelu(x: Expr, lanes: int) -> Expr:
    """x times the normal distribution at x, within 4e-7 of it."""
    x = keep(lanes, x)
    t = keep(lanes, tirx.call_llvm_pure_intrin(vector_type("float32", lanes), "llvm.fabs", x))
    power = _polynomial(_TAIL, t, lanes)
    for _ in range(3):
        power = keep(lanes, power * power)
    tail = keep(lanes, constant(0.5, lanes) / power)
    # minus infinity becomes NaN, as in numpy: its tail is 0
    return x * tirx.Select(x < constant(0.0, lanes), tail, constant(1.0, lanes) - tail)


def gelu_tanh(x: Expr, lanes: int) -> Expr:
    """x/2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as x * sigmoid of twice that."""
    x = keep(lanes, x)
    scale = -2.0 * math.sqrt(2.0 / math.pi)
    cubic, linear = constant(scale * 0.044715, lanes), constant(scale, lanes)
    u = x * keep(lanes, keep(lanes, x * x) * cubic + linear)
    return x / (constant(1.0, lanes) + exp(u, lanes))


def silu(x: Expr, lanes: int) -> Expr:
    """x * sigmoid(x)."""
    x = keep(lanes, x)
    return x / (constant(1.0, lanes) + exp(constant(0.0, lanes) - x, lanes))


def relu6(x: Expr, lanes: int) -> Expr:
    """min(max(x, 0), 6), NaN kept."""
    x, zero, six = keep(lanes, x), constant(0.0, lanes), constant(6.0, lanes)
    x = keep(lanes, tirx.Select(x < zero, zero, x))
    return tirx.Select(x > six, six, x)


def sigmoid(x: Expr, lanes: int) -> Expr:
    """1 / (1 + exp(-x))."""
    one = constant(1.0, lanes)
    return one / (one + exp(constant(0.0, lanes) - x, lanes))


def tanh(x: Expr, lanes: int) -> Expr:
    """tanh(x) = t / (t + 2) with t = exp(2 |x|) - 1, and the sign of x.

    t has no cancellation near 0: it is 2^n q + (2^n - 1), q = exp(r) - 1 without its constant term.
    """
    bits = _keep_integer(lanes, tirx.reinterpret(vector_type("int32", lanes), keep(lanes, x)))
    sign = _integer(-(1 << 31), lanes)
    magnitude = keep(lanes, _as_float(tirx.bitwise_and(bits, tirx.bitwise_not(sign)), lanes))
    # 1 from there on; NaN stays
    end = constant(10.0, lanes)
    magnitude = keep(lanes, tirx.Select(magnitude > end, end, magnitude))
    power, r = _reduced(keep(lanes, magnitude + magnitude), lanes)
    q = keep(lanes, r * _polynomial(_EXP, r, lanes))
    t = keep(lanes, power * q + (power - constant(1.0, lanes)))
    result = t / (t + constant(2.0, lanes))
    positive = tirx.reinterpret(vector_type("int32", lanes), result)
    return _as_float(tirx.bitwise_or(positive, tirx.bitwise_and(bits, sign)), lanes)


def _as_float(bits: Expr, lanes: int) -> Expr:
    return tirx.reinterpret(vector_type("float32", lanes), bits)
