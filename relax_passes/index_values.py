"""Tensors that are functions of their indices: positions, triangles, and what is made of them.

Models compute the mask of a causal attention from shapes alone, in many ways. What such a tensor
holds at an index is a value of this module; `index_tensors` follows it through the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.relax import Expr
from tvm.tirx import IntImm

from .shape_facts import ShapeFacts


@dataclass(frozen=True, eq=False)
class Affine:
    """The integer ``base`` plus the sum of ``steps[a]`` times the index along dimension a. Along
    dimensions of size 1 and those that a broadcast adds, the step is 0."""

    base: Expr
    steps: tuple[int, ...]

    @property
    def number(self) -> int | None:
        """The number that it is everywhere, if that is known."""
        uniform = isinstance(self.base, IntImm) and not any(self.steps)
        return int(self.base) if uniform else None


@dataclass(frozen=True, eq=False)
class Piecewise:
    """``yes`` where ``at`` is 0 or more, ``no`` elsewhere; ``yes`` everywhere where it is None."""

    yes: np.generic
    no: np.generic
    at: Affine | None = None

    @classmethod
    def uniform(cls, value: np.generic) -> Piecewise:
        """The same everywhere."""
        return cls(value, value)


Indexed = Affine | Piecewise


def int64(value: int) -> IntImm:
    """A number among sizes."""
    return tirx.const(value, "int64")


def of_array(array: np.ndarray) -> Indexed | None:
    """What a constant holds: one number, positions along one dimension, or a triangle."""
    if array.size == 0 or array.dtype.kind not in "biuf":
        return None
    if array.dtype.kind in "iu":
        return _positions(array)
    first = array.reshape(-1)[0]
    return Piecewise.uniform(first) if (array == first).all() else _triangle(array)


def _positions(array: np.ndarray) -> Affine | None:
    along = [axis for axis, dim in enumerate(array.shape) if dim > 1]
    values = array.reshape(-1).astype(np.int64)
    if len(along) > 1:
        uniform = (values == values[0]).all()
        return Affine(int64(int(values[0])), (0,) * array.ndim) if uniform else None
    step = int(values[1] - values[0]) if along else 0
    if not (np.diff(values) == step).all():
        return None
    return Affine(
        int64(int(values[0])), tuple(step if a in along else 0 for a in range(array.ndim))
    )


def _triangle(array: np.ndarray) -> Piecewise | None:
    """One number where the column is at most the row and some more, another one elsewhere."""
    if array.ndim < 2 or any(dim != 1 for dim in array.shape[:-2]):
        return None
    rows, columns = array.shape[-2:]
    matrix = array.reshape(rows, columns)
    lower, upper = matrix[-1, 0], matrix[0, -1]
    more = int((matrix[0] == lower).sum()) - 1
    seen = np.arange(columns) <= np.arange(rows)[:, None] + more
    if not np.array_equal(matrix, np.where(seen, lower, upper)):
        return None
    steps = (*[0] * (array.ndim - 2), int(rows > 1), -int(columns > 1))
    return Piecewise(lower, upper, Affine(int64(more), steps))


def added(a: Affine, b: Affine, sign: int = 1) -> Affine:
    """``a + sign * b``, of the same dimensions."""
    steps = tuple(m + sign * n for m, n in zip(a.steps, b.steps, strict=True))
    return Affine(a.base + int64(sign) * b.base, steps)


def negated(at: Affine) -> Affine:
    """0 or more where `at` is below."""
    return Affine(int64(-1) - at.base, tuple(-step for step in at.steps))


def merged(
    function: Callable[..., Any], operands: Sequence[Piecewise], known: ShapeFacts
) -> Piecewise | None:
    """``function`` of the elements of `operands`, of the same dimensions, if that has two values at
    most, with one border between them."""
    found = operands[0]
    values = [(each.yes, each.no) for each in operands]
    borders = [each.at for each in operands]
    first = next((at for at in borders if at is not None), None)
    if first is None:
        return Piecewise.uniform(_value(function, [yes for yes, _ in values]))
    # all borders in one direction, of which there may be two
    inner = outer = first
    for i, at in enumerate(borders):
        if at is None or at.steps == outer.steps:
            continue
        if at.steps != negated(outer).steps:
            return None
        borders[i], values[i] = negated(at), values[i][::-1]
    for at in borders:
        if at is None or known.equal(at.base, outer.base) or known.equal(at.base, inner.base):
            continue
        if not known.equal(inner.base, outer.base):
            return None
        if known.holds(at.base >= outer.base):
            outer = at
        elif known.holds(at.base <= inner.base):
            inner = at
        else:
            return None
    # inside of both borders, between them, and outside of both
    inside, outside = (_value(function, [value[i] for value in values]) for i in (0, 1))
    between = [
        yes if at is None or known.equal(at.base, outer.base) else no
        for at, (yes, no) in zip(borders, values, strict=True)
    ]
    middle = _value(function, between)
    if known.equal(inner.base, outer.base) or middle == inside:
        found = Piecewise(inside, outside, outer)
    elif middle == outside:
        found = Piecewise(inside, outside, inner)
    else:
        return None
    return Piecewise.uniform(inside) if inside == outside else found


def _value(function: Callable[..., Any], values: Sequence[np.generic]) -> np.generic:
    with np.errstate(all="ignore"):
        value: np.generic = np.asarray(function(*values)).reshape(1)[0]
        return value
