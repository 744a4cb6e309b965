"""Where the operands of an attention lie: the stored tensor behind permutes, slices and reshapes.

A tensor of heads is mostly a part of the result of a linear layer, cut and turned by operators that
only move. The packed function reads such a part in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tvm.ir import Call, GenericConst, Op, TupleGetItem
from tvm.relax import Expr, Var
from tvm.tirx import IntImm

from tvm_moonpoly.operators.attention_constants import Place

from .bindings import Bindings
from .match import PERMUTE_DIMS, permutation
from .shapes import dims, known_dims, same_dim, same_tensor

RESHAPE = Op.get("relax.reshape")
TAKE, SQUEEZE, SPLIT = (Op.get(f"relax.{name}") for name in ("take", "squeeze", "split"))
MULTIPLY, DIVIDE = Op.get("relax.multiply"), Op.get("relax.divide")
EXPAND_DIMS = Op.get("relax.expand_dims")
WHERE, LESS = Op.get("relax.where"), Op.get("relax.less")

#: (batch, head, row, element) as dimensions of a tensor; None: of size 1 and not there.
Axes = tuple[int | None, int | None, int | None, int | None]


@dataclass(frozen=True, eq=False)
class View:
    """``scale`` times a part of the tensor `stored`, as (batch, head, row, element).

    ``heads`` of ``size`` elements. Of the dimensions in `fixed` it is one index. Where the heads
    are `merged` they lie side by side in the dimension of the elements, of which ``offset`` come
    before the first one.
    """

    stored: Expr
    axes: Axes
    heads: int
    size: int
    merged: bool = False
    offset: int = 0
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


def stored_view(
    view: View, reader: Var, bindings: Bindings, by_columns: bool = False, scaled: bool = False
) -> View | None:
    """`view` from as far up as `reader` can read it in place.

    Its elements must be adjacent, or with `by_columns` its rows. `scaled`: products with a number
    may be passed, and are in `scale`.
    """
    best = None
    while True:
        if _is_readable(view, reader, bindings, by_columns):
            best = view
        above = _above(view, bindings, scaled)
        stored = view.stored
        if above is None or (isinstance(stored, Var) and not bindings.undisturbed(stored, reader)):
            return best
        view = above


def _is_readable(view: View, reader: Var, bindings: Bindings, by_columns: bool) -> bool:
    stored = view.stored
    if view.fixed or not isinstance(stored, Var | GenericConst) or dims(stored) is None:
        return False
    last = len(known_dims(stored)) - 1
    adjacent = view.axes[3] == last or (by_columns and view.axes[2] == last and not view.merged)
    return adjacent and bindings.reaches(stored, bindings.block[reader])


def _above(view: View, bindings: Bindings, scaled: bool) -> View | None:
    """The same part of what the tensor is made from, by one operator that only moves."""
    if not isinstance(view.stored, Var):
        return None
    value = bindings.cast.get(view.stored, bindings.value.get(view.stored))
    if isinstance(value, Var):
        return replace(view, stored=value) if _same_rank(view.stored, value) else None
    if isinstance(value, TupleGetItem):
        return _split(view, value, bindings)
    if not isinstance(value, Call):
        return None
    if value.op in (MULTIPLY, DIVIDE):
        return _scaled(view, value) if scaled else None
    if value.op == PERMUTE_DIMS:
        axes = permutation(value, len(known_dims(view.stored)))
        return _renamed(view, value.args[0], dict(enumerate(axes)))
    if value.op in (TAKE, SQUEEZE):
        return _indexed(view, value, bindings)
    if value.op == EXPAND_DIMS:
        return _without_new(view, value)
    return _reshaped(view, value.args[0]) if value.op == RESHAPE else None


def _same_rank(a: Expr, b: Expr) -> bool:
    left, right = dims(a), dims(b)
    return left is not None and right is not None and len(left) == len(right)


def _renamed(view: View, stored: Expr, names: Mapping[int, int]) -> View:
    """`view` as a part of `stored`, where the dimensions have the names `names`."""
    b, h, s, d = (None if axis is None else names[axis] for axis in view.axes)
    fixed = {names[axis]: index for axis, index in view.fixed.items()}
    return replace(view, stored=stored, axes=(b, h, s, d), fixed=fixed)


def scale_of(call: Call, tensor: Expr) -> float | None:
    """The number that the product or quotient `call` scales its operand `tensor` by."""
    a, b = call.args
    other = b if tensor.same_as(a) else a
    if call.op == DIVIDE and not tensor.same_as(a):
        return None
    value = number(other)
    if value is None or not same_tensor(call, tensor):
        return None
    if call.op == MULTIPLY:
        return value
    return 1.0 / value if value else None


def number(expr: Expr) -> float | None:
    """The number that a constant holds, if it is one."""
    if not isinstance(expr, GenericConst) or str(expr.value.dtype) != "float32":
        return None
    values = expr.value.numpy()
    return float(values.reshape(())) if values.size == 1 else None


def _scaled(view: View, call: Call) -> View | None:
    for operand in call.args:
        factor = scale_of(call, operand)
        if factor is not None and isinstance(operand, Var):
            return replace(view, stored=operand, scale=view.scale * factor)
    return None


def _indexed(view: View, call: Call, bindings: Bindings) -> View | None:
    """One index of a dimension, or the only one."""
    source = call.args[0]
    shape = dims(source)
    if shape is None or len(shape) != len(known_dims(view.stored)) + 1:
        return None
    if call.op == SQUEEZE:
        axes = [] if call.attrs.axis is None else [int(a) for a in call.attrs.axis]
        index: int | None = 0
    else:
        axes = [] if call.attrs.axis is None else [int(call.attrs.axis)]
        index = whole_number(call.args[1], bindings)
    if len(axes) != 1 or index is None:
        return None
    at = axes[0] % len(shape)
    if index < 0:
        if not isinstance(shape[at], IntImm):
            return None
        index += int(shape[at])
    names = {axis: axis + (axis >= at) for axis in range(len(shape) - 1)}
    renamed = _renamed(view, source, names)
    return replace(renamed, fixed={**renamed.fixed, at: index})


def _without_new(view: View, call: Call) -> View | None:
    """Without the dimensions of size 1 that `call` puts in."""
    ndim = len(known_dims(view.stored))
    new = {int(axis) % ndim for axis in call.attrs.axis}
    if dims(call.args[0]) is None or not new.isdisjoint((view.axes[2], view.axes[3])):
        return None
    kept = [axis for axis in range(ndim) if axis not in new]
    names = {axis: at for at, axis in enumerate(kept)}
    b, h, s, d = (names.get(axis) if axis is not None else None for axis in view.axes)
    fixed = {names[axis]: index for axis, index in view.fixed.items() if axis in names}
    return replace(view, stored=call.args[0], axes=(b, h, s, d), fixed=fixed)


def whole_number(expr: Expr, bindings: Bindings) -> int | None:
    """The integer without dimensions that `expr` is, where it is known: importers write an index
    as a choice between itself and, below 0, its sum with the size."""
    if isinstance(expr, GenericConst):
        values = expr.value.numpy()
        return int(values) if values.ndim == 0 and values.dtype.kind in "iub" else None
    call = bindings.call(expr, WHERE, LESS)
    if call is None:
        return None
    if call.op == LESS:
        left, right = (whole_number(arg, bindings) for arg in call.args)
        return None if left is None or right is None else int(left < right)
    condition = whole_number(call.args[0], bindings)
    if condition is None:
        return None
    return whole_number(call.args[1 if condition else 2], bindings)


def _split(view: View, item: TupleGetItem, bindings: Bindings) -> View | None:
    """One of the parts that a dimension is cut into."""
    call = bindings.call(item.tuple_value, SPLIT)
    if call is None:
        return None
    source = call.args[0]
    shape = dims(source)
    if shape is None:
        return None
    axis = int(call.attrs.axis) % len(shape)
    first = _first_of(call.attrs.indices_or_sections, int(item.index), shape[axis])
    if first is None:
        return None
    if axis in view.fixed:
        fixed = {**view.fixed, axis: view.fixed[axis] + first}
        return replace(view, stored=source, fixed=fixed)
    if axis == view.axes[3]:
        return replace(view, stored=source, offset=view.offset + first)
    return None


def _first_of(cuts: object, part: int, size: Expr) -> int | None:
    """Where a part of a dimension of `size` begins: cut at indices, or into so many parts."""
    if isinstance(cuts, IntImm | int):
        if not isinstance(size, IntImm):
            return None
        return part * -(-int(size) // int(cuts))
    starts = [0, *(int(cut) for cut in cuts)]  # type: ignore[attr-defined]
    return starts[part]


def _reshaped(view: View, source: Expr) -> View | None:
    """The last dimension of `source`, cut into heads, elements and what is fixed."""
    shape, new = dims(source), known_dims(view.stored)
    if shape is None or view.merged:
        return None
    p = len(shape) - 1
    leading = len(new) > p >= 0 and all(map(same_dim, shape[:p], new[:p]))
    if not leading or not all(isinstance(dim, IntImm) for dim in (*new[p:], shape[p])):
        return None
    b, h, s, d = view.axes
    if d is None or d < p or (h is not None and h < p):
        return None
    if any(axis is not None and axis >= p for axis in (b, s)):
        return None
    sizes = [int(dim) for dim in new] if p == 0 else [0] * p + [int(dim) for dim in new[p:]]
    steps = {axis: math.prod(sizes[axis + 1 :]) for axis in range(p, len(new))}
    known = {h, d, *view.fixed}
    if any(axis not in known and sizes[axis] != 1 for axis in steps):
        return None
    if steps[d] != 1 or (h is not None and view.heads > 1 and steps[h] != view.size):
        return None
    offset = view.offset + sum(i * steps[axis] for axis, i in view.fixed.items() if axis >= p)
    fixed = {axis: index for axis, index in view.fixed.items() if axis < p}
    return replace(
        view, stored=source, axes=(b, None, s, p), merged=True, offset=offset, fixed=fixed
    )
