"""Activations of an epilogue: what they compute, and the function that applies them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from tvm_moonpoly.emit import (
    FLOATS,
    INT,
    Expr,
    Functions,
    Pointer,
    as_int,
    div,
    let,
    loop,
    switch,
    vector,
)
from tvm_moonpoly.operators.vector_functions import gelu, gelu_tanh, relu6, sigmoid, silu, tanh


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
        Activation.GELU: gelu,
        Activation.GELU_TANH: gelu_tanh,
        Activation.SILU: silu,
        Activation.RELU6: relu6,
        Activation.SIGMOID: sigmoid,
        Activation.TANH: tanh,
    }

    @functions.separate("moonpoly_activate", c=FLOATS, ldc=INT, m=INT, n=INT, activation=INT)
    def _(c: Any, ldc: Expr, m: Expr, n: Expr, activation: Expr) -> None:
        def apply(kind: int) -> None:
            in_place(bodies[Activation(kind)], c, ldc, m, n, (2 * lanes, lanes, 1))

        switch(activation, [int(kind) for kind in bodies], apply)


def in_place(
    body: Callable[[Expr, int], Expr],
    c: Pointer,
    ldc: Expr,
    m: Expr,
    n: Expr,
    widths: Sequence[int],
) -> None:
    """Emit ``c = body(c)`` for ``m`` rows of ``n``, so many at a time: each of ``widths`` as often
    as it goes, the last one 1. ``body`` is given values and how many they are."""
    with loop(m) as i:
        done = as_int(0)
        for width in widths:
            first, count = let(i * ldc + done), let(div(n - done, width))
            with loop(count) as v:
                at = vector(first + v * width, width)
                c[at] = body(c[at], width)
            done = let(done + count * width)
