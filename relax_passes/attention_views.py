"""Where the operands of an attention lie: the stored tensor behind permutes, slices and reshapes.

A tensor of heads is mostly a part of the result of a linear layer, cut and turned by operators that
only move. The packed function reads such a part in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm.ir import Op
from tvm.relax import Expr
from tvm.tirx import IntImm

from tvm_moonpoly.operators.attention_constants import Place

from .shapes import dims

RESHAPE = Op.get("relax.reshape")

#: (batch, head, row, element) as dimensions of a tensor; None: of size 1 and not there.
Axes = tuple[int | None, int | None, int | None, int | None]


@dataclass(frozen=True, eq=False)
class View:
    """``scale`` times a part of the tensor `stored`, as (batch, head, row, element).

    ``heads`` of ``size`` elements. Of the dimensions in `fixed` it is one index. Where the heads
    are `merged` they lie side by side in the dimension of the elements, of which ``offset`` come
    before the first one; where they are not, ``first`` other heads do. Along the dimension `same`
    it is yet to be shown that each index holds the same.
    """

    stored: Expr
    axes: Axes
    heads: int
    size: int
    merged: bool = False
    offset: int = 0
    first: int = 0
    same: int | None = None
    scale: float = 1.0
    fixed: Mapping[int, int] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """As the packed functions take it."""
        return Place(self.axes, self.merged, self.offset)


def view_of(expr: Expr, axes: Axes) -> View | None:
    """All of `expr`; None where heads and elements are not known numbers."""
    shape = dims(expr)
    if shape is None:
        return None
    sizes = [None if axis is None else shape[axis] for axis in axes]
    heads, size = (_number(sizes[i]) for i in (1, 3))
    return None if not heads or not size else View(expr, axes, heads, size)


def _number(dim: Expr | None) -> int | None:
    return 1 if dim is None else int(dim) if isinstance(dim, IntImm) else None
