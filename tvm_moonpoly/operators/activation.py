"""Activations of an epilogue: what they compute, and their vector code.

exp is a polynomial after range reduction by multiples of ln 2 (Cody and Waite), the normal
distribution a power of a polynomial, tanh a quotient of exp(2x) - 1. NaN and infinity pass as in
numpy. All constants of a formula fit the vector registers of AVX2 beside what it computes with.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numpy as np
from tvm import tirx

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    Expr,
    Functions,
    as_int,
    branch,
    cell,
    div,
    let,
    loop,
    spread,
    switch,
    vector,
    vector_type,
)
from tvm_moonpoly.operators.conv_constants import ConvActivation

#: The function that applies any activation of a convolution.
ACTIVATE_BOUNDED = "moonpoly_activate_bounded"


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

    relu is not among them: the micro-kernels apply it in registers. The others are long chains of
    operations: two vectors at a time wait less for each of them.
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
            with loop(m) as i:
                done = as_int(0)
                for width in (2 * lanes, lanes, 1):
                    first, count = let(i * ldc + done), let(div(n - done, width))
                    with loop(count) as v:
                        at = vector(first + v * width, width)
                        c[at] = body(c[at], width)
                    done = let(done + count * width)

        switch(activation, [int(kind) for kind in bodies], apply)


def reference_bounded(
    activation: ConvActivation, x: np.ndarray, first: float = 0.0, second: float = 0.0
) -> np.ndarray:
    """The activation of a convolution, with its parameters, in float64."""
    x = np.asarray(x, dtype=np.float64)
    if activation == ConvActivation.CLIP:
        return _clipped(x, first, second)
    with np.errstate(invalid="ignore"):
        if activation == ConvActivation.HARDSWISH:
            return x * _clipped(x / 6 + 0.5, 0, 1)
        if activation == ConvActivation.HARDSIGMOID:
            return _clipped(first * x + second, 0, 1)
    return reference(Activation(int(activation)), x)


def _clipped(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """Between the bounds, NaN kept."""
    below = np.where(x < low, low, x)
    return np.where(below > high, high, below)


def emit_bounded(functions: Functions, lanes: int) -> None:
    """Define ``moonpoly_activate_bounded(c, ldc, m, n, activation, first, second)``: any
    `ConvActivation`, in place on ``m`` rows of ``n``. NONE and RELU are left to the caller."""

    @functions.separate(
        ACTIVATE_BOUNDED,
        c=FLOATS,
        ldc=INT,
        m=INT,
        n=INT,
        activation=INT,
        first=FLOAT,
        second=FLOAT,
    )
    def _(c: Any, ldc: Expr, m: Expr, n: Expr, activation: Expr, first: Expr, second: Expr) -> None:
        bodies = {
            ConvActivation.CLIP: lambda x, width: between(x, first, second, width),
            ConvActivation.HARDSWISH: hardswish,
            ConvActivation.HARDSIGMOID: lambda x, width: _hardsigmoid(x, first, second, width),
        }

        def bounded() -> None:
            def apply(kind: int) -> None:
                body = bodies[ConvActivation(kind)]
                with loop(m) as i:
                    done = as_int(0)
                    for width in (2 * lanes, 1):
                        start, count = let(i * ldc + done), let(div(n - done, width))
                        with loop(count) as v:
                            at = vector(start + v * width, width)
                            c[at] = body(c[at], width)
                        done = let(done + count * width)

            switch(activation, [int(kind) for kind in bodies], apply)

        branch(
            activation >= int(ConvActivation.CLIP),
            bounded,
            lambda: functions["moonpoly_activate"](c.at(0), ldc, m, n, activation),
        )


def between(x: Expr, low: Expr, high: Expr, lanes: int) -> Expr:
    """min(max(x, low), high), NaN kept."""
    x, low, high = _keep(lanes, x), spread(low, lanes), spread(high, lanes)
    x = _keep(lanes, tirx.Select(x < low, low, x))
    return tirx.Select(x > high, high, x)


def _unit(x: Expr, lanes: int) -> Expr:
    return between(x, tirx.const(0.0, FLOAT), tirx.const(1.0, FLOAT), lanes)


def hardswish(x: Expr, lanes: int) -> Expr:
    """x * min(max(x / 6 + 0.5, 0), 1)."""
    x = _keep(lanes, x)
    return x * _unit(x * _constant(1 / 6, lanes) + _constant(0.5, lanes), lanes)


def _hardsigmoid(x: Expr, alpha: Expr, beta: Expr, lanes: int) -> Expr:
    """min(max(alpha * x + beta, 0), 1)."""
    return _unit(x * spread(alpha, lanes) + spread(beta, lanes), lanes)


def _constant(value: float, lanes: int) -> Expr:
    return spread(tirx.const(value, FLOAT), lanes)


def _keep(lanes: int, value: Expr) -> Expr:
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
    magic = _constant(_ROUNDING, lanes)
    shifted = _keep(lanes, x * _constant(1.0 / math.log(2.0), lanes) + magic)
    n = _keep(lanes, shifted - magic)
    # ln 2 in two parts, the first with few bits so that n times it is exact
    r = _keep(lanes, x - n * _constant(0.693359375, lanes))
    r = _keep(lanes, r - n * _constant(math.log(2.0) - 0.693359375, lanes))
    bits = _keep_integer(lanes, tirx.reinterpret(vector_type("int32", lanes), shifted))
    # the shift drops all but n, which is where the exponent of a float is then
    exponent = tirx.shift_left(bits, _integer(23, lanes)) + _integer(127 << 23, lanes)
    return _keep(lanes, _as_float(exponent, lanes)), r


def _polynomial(coefficients: tuple[float, ...], x: Expr, lanes: int) -> Expr:
    total = _constant(coefficients[-1], lanes)
    for coefficient in coefficients[-2::-1]:
        total = _keep(lanes, total * x + _constant(coefficient, lanes))
    return total


def _exp(x: Expr, lanes: int) -> Expr:
    """exp(x), to be added to 1: below -80 it is exp(-80), from 88.4 on infinity; NaN is kept."""
    low, high = _constant(-80.0, lanes), _constant(89.0, lanes)
    # a comparison with NaN is false: NaN stays
    x = _keep(lanes, x)
    x = _keep(lanes, tirx.Select(x < low, low, x))
    x = _keep(lanes, tirx.Select(x > high, high, x))
    power, r = _reduced(x, lanes)
    return _keep(lanes, r * _polynomial(_EXP, r, lanes) + _constant(1.0, lanes)) * power


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


def _gelu(x: Expr, lanes: int) -> Expr:
    """x times the normal distribution at x, within 4e-7 of it."""
    x = _keep(lanes, x)
    t = _keep(lanes, tirx.call_llvm_pure_intrin(vector_type("float32", lanes), "llvm.fabs", x))
    power = _polynomial(_TAIL, t, lanes)
    for _ in range(3):
        power = _keep(lanes, power * power)
    tail = _keep(lanes, _constant(0.5, lanes) / power)
    # minus infinity becomes NaN, as in numpy: its tail is 0
    return x * tirx.Select(x < _constant(0.0, lanes), tail, _constant(1.0, lanes) - tail)


def _gelu_tanh(x: Expr, lanes: int) -> Expr:
    """x/2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as x * sigmoid of twice that."""
    x = _keep(lanes, x)
    scale = -2.0 * math.sqrt(2.0 / math.pi)
    cubic, linear = _constant(scale * 0.044715, lanes), _constant(scale, lanes)
    u = x * _keep(lanes, _keep(lanes, x * x) * cubic + linear)
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
    bits = _keep_integer(lanes, tirx.reinterpret(vector_type("int32", lanes), _keep(lanes, x)))
    sign = _integer(-(1 << 31), lanes)
    magnitude = _keep(lanes, _as_float(tirx.bitwise_and(bits, tirx.bitwise_not(sign)), lanes))
    # 1 from there on; NaN stays
    end = _constant(10.0, lanes)
    magnitude = _keep(lanes, tirx.Select(magnitude > end, end, magnitude))
    power, r = _reduced(_keep(lanes, magnitude + magnitude), lanes)
    q = _keep(lanes, r * _polynomial(_EXP, r, lanes))
    t = _keep(lanes, power * q + (power - _constant(1.0, lanes)))
    result = t / (t + _constant(2.0, lanes))
    positive = tirx.reinterpret(vector_type("int32", lanes), result)
    return _as_float(tirx.bitwise_or(positive, tirx.bitwise_and(bits, sign)), lanes)


def _as_float(bits: Expr, lanes: int) -> Expr:
    return tirx.reinterpret(vector_type("float32", lanes), bits)
