"""Arithmetic on the elements of tensors that hold sizes.

An element is a Python number, an expression of sizes, or, as a float computed from sizes, a
`Quotient`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm.relax import Expr

from .symbolic import Quotient, Size, Sizes, fraction


class Unknown(Exception):
    """Raised where a result cannot be told."""


def _quotient(value: Any) -> Quotient:
    if isinstance(value, Quotient):
        return value
    if isinstance(value, float):
        try:
            found = fraction(value)
        except ValueError as error:
            raise Unknown from error
        return Quotient(found.numerator, found.denominator)
    return Quotient(value, 1)


def _reduced(sizes: Sizes, above: Size, below: Size) -> Any:
    above, below = sizes.simplify(above), sizes.simplify(below)
    if isinstance(above, int) and isinstance(below, int):
        if below == 0:
            raise Unknown
        return above / below
    if sizes.compare(above, below):
        return 1.0
    return Quotient(above, below)


def add(sizes: Sizes, a: Any, b: Any, sign: int = 1) -> Any:
    if isinstance(a, Quotient) or isinstance(b, Quotient):
        x, y = _quotient(a), _quotient(b)
        return _reduced(sizes, x.above * y.below + y.above * x.below * sign, x.below * y.below)
    if isinstance(a, float) or isinstance(b, float):
        return a + sign * b
    return sizes.simplify(a + b if sign > 0 else a - b)


def multiply(sizes: Sizes, a: Any, b: Any) -> Any:
    if isinstance(a, Quotient) or isinstance(b, Quotient):
        x, y = _quotient(a), _quotient(b)
        if sizes.compare(x.below, y.above):
            return _reduced(sizes, x.above, y.below)
        if sizes.compare(x.above, y.below):
            return _reduced(sizes, y.above, x.below)
        return _reduced(sizes, x.above * y.above, x.below * y.below)
    if isinstance(a, float) or isinstance(b, float):
        return a * b
    return sizes.simplify(a * b)


def divide(sizes: Sizes, a: Any, b: Any) -> Any:
    if isinstance(a, int | Expr) and isinstance(b, int | Expr):
        if isinstance(b, int) and b == 0:
            raise Unknown
        return sizes.divide_to_zero(a, b)
    if isinstance(a, float) and isinstance(b, float):
        if b == 0:
            raise Unknown
        return a / b
    y = _quotient(b)
    if isinstance(y.above, int) and y.above <= 0:
        raise Unknown
    return multiply(sizes, _quotient(a), Quotient(y.below, y.above))


def floor(sizes: Sizes, value: Any) -> Any:
    """As a float again: a quotient by 1."""
    if isinstance(value, float):
        return float(math.floor(value))
    return Quotient(sizes.divide_down(value.above, value.below), 1)


def ceil(sizes: Sizes, value: Any) -> Any:
    if isinstance(value, float):
        return float(math.ceil(value))
    return Quotient(sizes.divide_up(value.above, value.below), 1)


def equal(sizes: Sizes, a: Any, b: Any) -> bool:
    if not isinstance(a, int | Expr) or not isinstance(b, int | Expr):
        if isinstance(a, float) and isinstance(b, float):
            return a == b
        raise Unknown
    return _told(sizes.compare(a, b))


def less(sizes: Sizes, a: Any, b: Any) -> bool:
    if not isinstance(a, int | Expr) or not isinstance(b, int | Expr):
        if isinstance(a, float) and isinstance(b, float):
            return a < b
        raise Unknown
    return _told(sizes.less(a, b))


def _told(value: bool | None) -> bool:
    if value is None:
        raise Unknown
    return value


def modulo(sizes: Sizes, a: Any, b: Any) -> Any:
    if not isinstance(a, int | Expr) or not isinstance(b, int) or b <= 0:
        raise Unknown
    return a % b if isinstance(a, int) else sizes.simplify(a - sizes.divide_down(a, b) * b)


def extreme(larger: bool) -> Callable[[Sizes, Any, Any], Any]:
    def extreme(sizes: Sizes, a: Any, b: Any) -> Any:
        if isinstance(a, int | Expr) and isinstance(b, int | Expr):
            return sizes.larger(a, b) if larger else sizes.smaller(a, b)
        if isinstance(a, float) and isinstance(b, float):
            return max(a, b) if larger else min(a, b)
        raise Unknown

    return extreme


def negative(sizes: Sizes, value: Any) -> Any:
    if isinstance(value, Quotient):
        raise Unknown
    return -value if isinstance(value, int | float) else sizes.simplify(0 - value)
