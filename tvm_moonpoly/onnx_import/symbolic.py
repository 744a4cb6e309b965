"""Arithmetic on sizes: integers, expressions of the model's dimensions, and quotients of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax import Expr
from tvm.sym import Analyzer

from relax_passes.element_count import provably_equal
from relax_passes.shape_facts import tell
from relax_passes.shape_range import Range

Size: TypeAlias = int | Expr

#: Denominators up to this are tried for the fraction that a float stands for (0.33333334: 1/3).
LARGEST_DENOMINATOR = 1000


@dataclass(frozen=True)
class Quotient:
    """A float that is `above / below`, computed from sizes; `below` is positive."""

    above: Size
    below: Size


class Sizes:
    """Simplifies and compares sizes. Variables that `declare` was told of are not negative."""

    def __init__(self) -> None:
        self._analyzer = Analyzer()

    def declare(self, sizes: Iterable[Size], ranges: Mapping[str, Range] | None = None) -> None:
        """Take the variables among `sizes` for sizes of tensors: 0 or more, and within `ranges`."""
        for size in sizes:
            if isinstance(size, tirx.Var):
                tell(self._analyzer, size, (ranges or {}).get(size.name, Range()))

    def simplify(self, size: Size) -> Size:
        """`size` in a simple form: a Python integer where it is known."""
        if isinstance(size, int | np.integer):
            return int(size)
        found = self._analyzer.simplify(size)
        return int(found) if isinstance(found, tirx.IntImm) else found

    def compare(self, a: Size, b: Size) -> bool | None:
        """Whether `a == b`, where that can be told whatever the values of the variables."""
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        if provably_equal(expression(a), expression(b)):
            return True
        if self._analyzer.can_prove(expression(a) != expression(b)):
            return False
        return None

    def less(self, a: Size, b: Size) -> bool | None:
        """Whether `a < b`, where that can be told whatever the values of the variables."""
        if isinstance(a, int) and isinstance(b, int):
            return a < b
        if self._analyzer.can_prove(expression(a) < expression(b)):
            return True
        if self._analyzer.can_prove(expression(a) >= expression(b)):
            return False
        return None

    def smaller(self, a: Size, b: Size) -> Size:
        known = self.less(a, b)
        if known is None:
            return self.simplify(tirx.min(expression(a), expression(b)))
        return a if known else b

    def larger(self, a: Size, b: Size) -> Size:
        known = self.less(a, b)
        if known is None:
            return self.simplify(tirx.max(expression(a), expression(b)))
        return b if known else a

    def divide_down(self, a: Size, b: Size) -> Size:
        """The largest integer that is not above `a / b`."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if self.compare(a, b):
            return 1
        return self.simplify(tirx.floordiv(expression(a), expression(b)))

    def divide_up(self, a: Size, b: Size) -> Size:
        """The smallest integer that is not below `a / b`."""
        return self.divide_down(self.simplify(a + b - 1), b)

    def divide_to_zero(self, a: Size, b: Size) -> Size:
        """ONNX's quotient of integers, which rounds to 0."""
        if isinstance(a, int) and isinstance(b, int):
            return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        if self.less(a, 0) is False and self.less(b, 0) is False:
            return self.divide_down(a, b)
        return self.simplify(tirx.truncdiv(expression(a), expression(b)))

    def product(self, sizes: Iterable[Size]) -> Size:
        result: Size = 1
        for size in sizes:
            result = size if isinstance(result, int) and result == 1 else result * size
        return self.simplify(result)

    def quotient_of_products(self, above: Sequence[Size], below: Sequence[Size]) -> Size:
        """`prod(above) // prod(below)`, equal factors cancelled first."""
        left, over = list(above), []
        for factor in below:
            at = next((i for i, each in enumerate(left) if self.compare(each, factor)), None)
            if at is None:
                over.append(factor)
            else:
                del left[at]
        return (
            self.divide_down(self.product(left), self.product(over))
            if over
            else (self.product(left))
        )


def constant(array: np.ndarray) -> GenericConst:
    """A constant of the array's own type; `relax.const` alone makes int32 of int64."""
    return relax.const(array, array.dtype.name)


def expression(size: Size) -> Expr:
    """`size` as an expression of type int64."""
    return tirx.const(int(size), "int64") if isinstance(size, int | np.integer) else size


def fraction(value: float) -> Fraction:
    """The simplest fraction that a float32 stands for: 5/3 for the one nearest to it."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is no finite number")
    simple = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    same = np.float32(simple.numerator / simple.denominator) == np.float32(value)
    return simple if same else Fraction(value)
