"""Activations of an epilogue: what they compute, and their vector code.

exp is a Taylor polynomial after range reduction by multiples of ln 2 (Cody and Waite), erf a
rational function. NaN and infinity pass as in numpy.
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
    return x


def emit(functions: Functions, lanes: int) -> None:
    """Define ``moonpoly_activate(c, ldc, m, n, activation)``: in place on ``m`` rows of ``n``.

    relu is not among them: the micro-kernels apply it in registers.
    """
    bodies = {
        Activation.GELU: _gelu,
        Activation.GELU_TANH: _gelu_tanh,
        Activation.SILU: _silu,
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


def _exp(x: Expr, lanes: int) -> Expr:
    """exp(x) over all floats: 0 and infinity at the ends, NaN kept.

    Results below 2e-35 are 0: products with them would be subnormal, which takes a hundred times
    longer, and no activation can tell them from 0.
    """

    def constant(value: float) -> Expr:
        return _constant(value, lanes)

    x = _keep(lanes, x)
    low, high = constant(_SMALLEST), constant(89.0)
    # a comparison with NaN is false: NaN stays
    tiny = x < low
    x = _keep(lanes, tirx.Select(tiny, low, x))
    x = _keep(lanes, tirx.Select(x > high, high, x))
    n = _keep(lanes, tirx.floor(x * constant(1.0 / math.log(2.0)) + constant(0.5)))
    # ln 2 in two parts, the first with few bits so that n times it is exact
    r = _keep(lanes, x - n * constant(0.693359375))
    r = _keep(lanes, r - n * constant(math.log(2.0) - 0.693359375))
    p = constant(1.0 / math.factorial(7))
    for power in range(6, -1, -1):
        p = _keep(lanes, p * r + constant(1.0 / math.factorial(power)))
    # 2^n in two factors, since n may lie outside the exponents of a float. NaN has no integer;
    # p is NaN then and any factor will do, but the conversion must not be undefined.
    exponent = _keep_integer(
        lanes, tirx.Cast(_as_type("int32", lanes), tirx.Select(n == n, n, constant(0.0)))
    )
    half = _keep_integer(lanes, tirx.shift_right(exponent, _integer(1, lanes)))
    power = _keep(lanes, p * _power_of_two(half, lanes) * _power_of_two(exponent - half, lanes))
    return tirx.Select(tiny, constant(0.0), power)


_SMALLEST = -80.0


def _integer(value: int, lanes: int) -> Expr:
    scalar = tirx.const(value, "int32")
    return scalar if lanes == 1 else T.Broadcast(scalar, lanes)


def _power_of_two(n: Expr, lanes: int) -> Expr:
    bits = tirx.shift_left(n + _integer(127, lanes), _integer(23, lanes))
    return tirx.reinterpret(_as_type("float32", lanes), bits)


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
