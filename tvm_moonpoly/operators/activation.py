"""Activations of an epilogue: what they compute, and their vector code.

exp is a Taylor polynomial after range reduction by multiples of ln 2 (Cody and Waite), erf a
rational function, tanh a quotient of exp(2x) - 1. NaN and infinity pass as in numpy.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import FLOATS, INT, Expr, Functions, cell, div, let, loop, switch, vector


class Activation(IntEnum):
    """The activation of an epilogue; the packed functions take its number."""

    NONE = 0
    RELU = 1
    GELU = 2
    GELU_TANH = 3
    SILU = 4
    RELU6 = 5
    SIGMOID = 6
    TANH = 7


def reference(activation: Activation, x: np.ndarray) -> np.ndarray:
    """``activation(x)`` in float64."""
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if activation == Activation.RELU:
            return np.where(x < 0, 0.0, x)
        if activation == Activation.GELU:
            return 0.5 * x * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2)))
        if activation == Activation.GELU_TANH:
            return 0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        if activation == Activation.SILU:
            return x / (1.0 + np.exp(-x))
        if activation == Activation.RELU6:
            return np.where(x < 0, 0.0, np.where(x > 6, 6.0, x))
        if activation == Activation.SIGMOID:
            return 1.0 / (1.0 + np.exp(-x))
        if activation == Activation.TANH:
            return np.tanh(x)
    return x


def emit(functions: Functions, lanes: int) -> None:
    """Define ``moonpoly_activate(c, ldc, m, n, activation)``: in place on ``m`` rows of ``n``.

    relu is not among them: the micro-kernels apply it in registers.
    """
    bodies = {
        Activation.GELU: _gelu,
        Activation.GELU_TANH: _gelu_tanh,
        Activation.SILU: _silu,
        Activation.RELU6: _relu6,
        Activation.SIGMOID: _sigmoid,
        Activation.TANH: _tanh,
    }

    @functions.separate("moonpoly_activate", c=FLOATS, ldc=INT, m=INT, n=INT, activation=INT)
    def _(c: Any, ldc: Expr, m: Expr, n: Expr, activation: Expr) -> None:
        def apply(kind: int) -> None:
            body = bodies[Activation(kind)]
            vectors = let(div(n, lanes))
            with loop(m) as i:
                with loop(vectors) as v:
                    at = vector(i * ldc + v * lanes, lanes)
                    c[at] = body(c[at], lanes)
                with loop(n - vectors * lanes) as j:
                    at = i * ldc + vectors * lanes + j
                    c[at] = body(c[at], 1)

        switch(activation, [int(kind) for kind in bodies], apply)


def _constant(value: float, lanes: int) -> Expr:
    scalar = tirx.const(value, "float32")
    return scalar if lanes == 1 else T.Broadcast(scalar, lanes)


def _as_type(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _keep(lanes: int, value: Expr) -> Expr:
    return cell(value, "float32", lanes)


def _keep_integer(lanes: int, value: Expr) -> Expr:
    return cell(value, "int32", lanes)


def _reduced(x: Expr, lanes: int) -> tuple[Expr, Expr]:
    """``n`` and ``r`` with x = n ln 2 + r: n a whole number, r within ln 2 / 2 of 0."""
    n = _keep(lanes, tirx.floor(x * _constant(1.0 / math.log(2.0), lanes) + _constant(0.5, lanes)))
    # ln 2 in two parts, the first with few bits so that n times it is exact
    r = _keep(lanes, x - n * _constant(0.693359375, lanes))
    return n, _keep(lanes, r - n * _constant(math.log(2.0) - 0.693359375, lanes))


def _taylor(r: Expr, first: int, lanes: int) -> Expr:
    """The sum of ``r**i / (first + i)!`` up to the seventh power of exp's series."""
    p = _constant(1.0 / math.factorial(7), lanes)
    for power in range(6, first - 1, -1):
        p = _keep(lanes, p * r + _constant(1.0 / math.factorial(power), lanes))
    return p


def _whole(n: Expr, lanes: int) -> Expr:
    """An exponent as an int32; 0 for NaN, whose conversion would be undefined."""
    # tvm takes `n == n` for true
    number = tirx.Select(n < _constant(1000.0, lanes), n, _constant(0.0, lanes))
    return _keep_integer(lanes, tirx.Cast(_as_type("int32", lanes), number))


def _exp(x: Expr, lanes: int) -> Expr:
    """exp(x) over all floats: 0 and infinity at the ends, NaN kept.

    Results below 2e-35 are 0: products with them would be subnormal, which takes a hundred times
    longer, and no activation can tell them from 0.
    """
    x = _keep(lanes, x)
    low, high = _constant(_SMALLEST, lanes), _constant(89.0, lanes)
    # a comparison with NaN is false: NaN stays
    tiny = x < low
    x = _keep(lanes, tirx.Select(tiny, low, x))
    x = _keep(lanes, tirx.Select(x > high, high, x))
    n, r = _reduced(x, lanes)
    p = _taylor(r, 0, lanes)
    # 2^n in two factors, since n may lie outside the exponents of a float. Where x is NaN, p is
    # NaN then and any factor will do.
    exponent = _whole(n, lanes)
    half = _keep_integer(lanes, tirx.shift_right(exponent, _integer(1, lanes)))
    power = _keep(lanes, p * _power_of_two(half, lanes) * _power_of_two(exponent - half, lanes))
    return tirx.Select(tiny, _constant(0.0, lanes), power)


_SMALLEST = -80.0


def _integer(value: int, lanes: int) -> Expr:
    scalar = tirx.const(value, "int32")
    return scalar if lanes == 1 else T.Broadcast(scalar, lanes)


def _power_of_two(n: Expr, lanes: int) -> Expr:
    bits = tirx.shift_left(n + _integer(127, lanes), _integer(23, lanes))
    return _as_float(bits, lanes)


#: erf(z) = z * P(z^2) / Q(z^2) for |z| <= 4, lowest power first: the minimax fit of these degrees
#: by reweighted linear least squares; its error is 2.2e-8, in fp32 arithmetic 2.6e-7.
_ERF_P = (1.12837898, 0.196233528, 0.0534653999, 0.00400297178, 0.000288023801, 1.97491499e-06)
_ERF_Q = (1.0, 0.507238601, 0.116470004, 0.0154430784, 0.00121619174, 3.74808267e-05)
_ERF_END = 4.0


def _gelu(x: Expr, lanes: int) -> Expr:
    """x * (1 + erf(x / sqrt 2)) / 2, within 1e-6 of it; in the far tail that is also the sign."""
    x = _keep(lanes, x)

    def constant(value: float) -> Expr:
        return _constant(value, lanes)

    def polynomial(coefficients: tuple[float, ...], square: Expr) -> Expr:
        total = constant(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = _keep(lanes, total * square + constant(coefficient))
        return total

    z = _keep(lanes, x * constant(math.sqrt(0.5)))
    low, high = constant(-_ERF_END), constant(_ERF_END)
    # comparisons with NaN are false: NaN stays
    inside = _keep(lanes, tirx.Select(z < low, low, z))
    inside = _keep(lanes, tirx.Select(inside > high, high, inside))
    square = _keep(lanes, inside * inside)
    erf = inside * polynomial(_ERF_P, square) / polynomial(_ERF_Q, square)
    half = _keep(lanes, erf * constant(0.5) + constant(0.5))
    # exactly 0 from there on, or minus infinity would come back as itself
    return x * tirx.Select(z < low, constant(0.0), half)


def _gelu_tanh(x: Expr, lanes: int) -> Expr:
    """x/2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as x * sigmoid of twice that."""
    x = _keep(lanes, x)
    scale = -2.0 * math.sqrt(2.0 / math.pi)
    u = _keep(
        lanes,
        x * _constant(scale, lanes) * (_constant(1.0, lanes) + x * x * _constant(0.044715, lanes)),
    )
    return x / (_constant(1.0, lanes) + _exp(u, lanes))


def _silu(x: Expr, lanes: int) -> Expr:
    """x * sigmoid(x)."""
    x = _keep(lanes, x)
    return x / (_constant(1.0, lanes) + _exp(_constant(0.0, lanes) - x, lanes))


def _relu6(x: Expr, lanes: int) -> Expr:
    """min(max(x, 0), 6), NaN kept."""
    x, zero, six = _keep(lanes, x), _constant(0.0, lanes), _constant(6.0, lanes)
    x = _keep(lanes, tirx.Select(x < zero, zero, x))
    return tirx.Select(x > six, six, x)


def _sigmoid(x: Expr, lanes: int) -> Expr:
    """1 / (1 + exp(-x))."""
    one = _constant(1.0, lanes)
    return one / (one + _exp(_constant(0.0, lanes) - x, lanes))


def _tanh(x: Expr, lanes: int) -> Expr:
    """tanh(x) = t / (t + 2) with t = exp(2 |x|) - 1, and the sign of x.

    t has no cancellation near 0: it is 2^n q + (2^n - 1), q = exp(r) - 1 without its constant term.
    """
    bits = _keep_integer(lanes, tirx.reinterpret(_as_type("int32", lanes), _keep(lanes, x)))
    sign = _integer(-(1 << 31), lanes)
    magnitude = _keep(lanes, _as_float(tirx.bitwise_and(bits, tirx.bitwise_not(sign)), lanes))
    # 1 from there on; NaN stays
    end = _constant(10.0, lanes)
    magnitude = _keep(lanes, tirx.Select(magnitude > end, end, magnitude))
    n, r = _reduced(magnitude * _constant(2.0, lanes), lanes)
    q = _keep(lanes, r * _taylor(r, 1, lanes))
    power = _keep(lanes, _power_of_two(_whole(n, lanes), lanes))
    t = _keep(lanes, power * q + (power - _constant(1.0, lanes)))
    result = t / (t + _constant(2.0, lanes))
    positive = tirx.reinterpret(_as_type("int32", lanes), result)
    return _as_float(tirx.bitwise_or(positive, tirx.bitwise_and(bits, sign)), lanes)


def _as_float(bits: Expr, lanes: int) -> Expr:
    return tirx.reinterpret(_as_type("float32", lanes), bits)
