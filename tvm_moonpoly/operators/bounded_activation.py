"""Activations of a convolution: those of `activation`, and those that have bounds or parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    Expr,
    Functions,
    branch,
    spread,
    switch,
)
from tvm_moonpoly.operators import activation as activations
from tvm_moonpoly.operators.activation import Activation, in_place
from tvm_moonpoly.operators.conv_constants import ConvActivation
from tvm_moonpoly.operators.vector_functions import constant, keep

#: The function that applies any activation of a convolution.
ACTIVATE_BOUNDED = "moonpoly_activate_bounded"


def reference(
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
    return activations.reference(Activation(int(activation)), x)


def _clipped(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """Between the bounds, NaN kept."""
    below = np.where(x < low, low, x)
    return np.where(below > high, high, below)


def emit(functions: Functions, lanes: int) -> None:
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
                in_place(bodies[ConvActivation(kind)], c, ldc, m, n, (2 * lanes, 1))

            switch(activation, [int(kind) for kind in bodies], apply)

        branch(
            activation >= int(ConvActivation.CLIP),
            bounded,
            lambda: functions["moonpoly_activate"](c.at(0), ldc, m, n, activation),
        )


def between(x: Expr, low: Expr, high: Expr, lanes: int) -> Expr:
    """min(max(x, low), high), NaN kept."""
    x, low, high = keep(lanes, x), spread(low, lanes), spread(high, lanes)
    x = keep(lanes, tirx.Select(x < low, low, x))
    return tirx.Select(x > high, high, x)


def _unit(x: Expr, lanes: int) -> Expr:
    return between(x, tirx.const(0.0, FLOAT), tirx.const(1.0, FLOAT), lanes)


def hardswish(x: Expr, lanes: int) -> Expr:
    """x * min(max(x / 6 + 0.5, 0), 1)."""
    x = keep(lanes, x)
    return x * _unit(x * constant(1 / 6, lanes) + constant(0.5, lanes), lanes)


def _hardsigmoid(x: Expr, alpha: Expr, beta: Expr, lanes: int) -> Expr:
    """min(max(alpha * x + beta, 0), 1)."""
    return _unit(x * spread(alpha, lanes) + spread(beta, lanes), lanes)
