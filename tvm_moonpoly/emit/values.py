"""Expressions: int64 arithmetic, vectors, and values that are evaluated once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.script import builder as T

Expr = Any
INT = "int64"
FLOAT = "float32"
FLOATS = "float32*"
INTS = "int64*"
BYTE = "uint8"
BYTES = "uint8*"

#: What bounds nothing below: where there is no relu, and of scores that are masked.
MINUS_INFINITY = tirx.const(float("-inf"), FLOAT)

#: Floats in a cache line.
LINE = 16


def as_int(value: Expr) -> Expr:
    """An int64 expression."""
    return tirx.const(value, INT) if isinstance(value, int) else value


def let(value: Expr) -> Expr:
    """Evaluate once and name it."""
    return T.Bind(as_int(value))


def div(a: Expr, b: Expr) -> Expr:
    """Quotient of non-negative integers (one machine division)."""
    return tirx.truncdiv(as_int(a), as_int(b))


def ceil_div(a: Expr, b: Expr) -> Expr:
    """Quotient of non-negative integers, rounded up."""
    return div(as_int(a) + (as_int(b) - 1), b)


def balanced(
    rows: Expr, tallest: Expr, keep: Callable[[Expr], Expr] = let
) -> tuple[Expr, Expr, Expr]:
    """``rows`` in tiles of at most ``tallest``, one row apart: (small, large, tiles).

    ``large`` of the ``tiles`` have ``small + 1`` rows and come first, the others ``small``.
    ``keep`` evaluates once. The twin of `planner.spec.balanced`.
    """
    tiles = keep(ceil_div(rows, tallest))
    small = keep(div(rows, tiles))
    return small, keep(rows - small * tiles), tiles


def minimum(a: Expr, b: Expr) -> Expr:
    return tirx.min(as_int(a), as_int(b))


def maximum(a: Expr, b: Expr) -> Expr:
    return tirx.max(as_int(a), as_int(b))


def select(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    """A branch-free choice: both sides are evaluated."""
    return tirx.Select(condition, as_int(then), as_int(otherwise))


def vector(base: Expr, lanes: int) -> Expr:
    """The index of ``lanes`` consecutive elements, or of one."""
    base = as_int(base)
    return base if lanes == 1 else tirx.Ramp(base, tirx.const(1, INT), lanes)


def vector_type(dtype: str, lanes: int) -> str:
    """The type of ``lanes`` elements, or of one."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def spread(value: Expr, lanes: int) -> Expr:
    """``value`` in all ``lanes`` of a vector, or as it is."""
    return value if lanes == 1 else T.Broadcast(value, lanes)


def item_size(dtype: str) -> int:
    """Bytes of one element."""
    return tvm.DataType(dtype).bits // 8
