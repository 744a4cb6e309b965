"""Small tensors whose elements are known as sizes while the model is imported.

Graphs compute shapes with ordinary operators: `Reshape(x, Concat(Gather(Shape(x), 0), [-1]))`.
Here such tensors are arrays of integers and expressions of the model's dimensions, so that what
takes them as a shape gets a shape. An operator that is not in `shape_operators`, or whose result
cannot be told, is computed at run time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Expr

from .symbolic import Quotient

#: Larger tensors hold data, not shapes.
MOST_ELEMENTS = 256


@dataclass(frozen=True)
class Known:
    """A tensor by its elements: an array of Python numbers, expressions and `Quotient`s."""

    array: np.ndarray
    dtype: str

    @classmethod
    def of(cls, elements: Any, dtype: str = "int64") -> Known:
        """From a list, or an array of any type."""
        if isinstance(elements, np.ndarray):
            filled = np.empty(elements.shape, object)
            for at in np.ndindex(elements.shape):
                each = elements[at]
                filled[at] = each.item() if isinstance(each, np.generic) else each
            return cls(filled, dtype)
        listed = np.empty(len(elements), object)
        for position, element in enumerate(elements):
            listed[position] = element
        return cls(listed, dtype)

    @property
    def elements(self) -> list[Any]:
        return list(self.array.ravel())

    @property
    def is_constant(self) -> bool:
        return not any(isinstance(each, Expr | Quotient) for each in self.elements)

    def constant(self) -> np.ndarray:
        return self.array.astype(self.dtype)
