"""A view of a tensor as one of what the tensor is made from, by an operator that only moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tvm import relax
from tvm.ir import Call, Op, TupleGetItem
from tvm.relax import Expr, Var
from tvm.tirx import IntImm

from .attention_numbers import DIVIDE, MULTIPLY, scale_of, whole_number
from .attention_repeats import is_repeating, unrepeated, with_groups
from .attention_views import RESHAPE, View
from .bindings import Bindings
from .match import PERMUTE_DIMS, permutation
from .shapes import dims, known_dims, same_dim

TAKE, SQUEEZE, SPLIT = (Op.get(f"relax.{name}") for name in ("take", "squeeze", "split"))
EXPAND_DIMS, STRIDED_SLICE = Op.get("relax.expand_dims"), Op.get("relax.strided_slice")


def above(view: View, bindings: Bindings, scaled: bool, repeated: bool) -> View | None:
    """The same part of what the tensor is made from, by one operator that only moves; or, if
    `scaled`, multiplies by a number, or if `repeated`, repeats heads."""
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
        ndim = len(known_dims(view.stored))
        return _without_new(view, value.args[0], {int(a) % ndim for a in value.attrs.axis})
    if value.op == STRIDED_SLICE:
        return _sliced(view, value)
    if repeated and is_repeating(value):
        return unrepeated(view, value)
    if value.op != RESHAPE:
        return None
    source = value.args[0]
    grouped = with_groups(view, source) if repeated and view.same is None else None
    return grouped or _reshaped(view, source) or _without_ones(view, source)


def _same_rank(a: Expr, b: Expr) -> bool:
    left, right = dims(a), dims(b)
    return left is not None and right is not None and len(left) == len(right)


def _renamed(view: View, stored: Expr, names: Mapping[int, int]) -> View:
    """`view` as a part of `stored`, where the dimensions have the names `names`."""
    b, h, s, d = (None if axis is None else names[axis] for axis in view.axes)
    fixed = {names[axis]: index for axis, index in view.fixed.items()}
    same = None if view.same is None else names[view.same]
    return replace(view, stored=stored, axes=(b, h, s, d), fixed=fixed, same=same)


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


def _without_new(view: View, source: Expr, new: set[int]) -> View | None:
    """`view` of `source`, without the dimensions `new` of size 1 that are put in."""
    ndim = len(known_dims(view.stored))
    if dims(source) is None or not new.isdisjoint((view.axes[2], view.axes[3], view.same)):
        return None
    kept = [axis for axis in range(ndim) if axis not in new]
    names = {axis: at for at, axis in enumerate(kept)}
    b, h, s, d = (names.get(axis) if axis is not None else None for axis in view.axes)
    fixed = {names[axis]: index for axis, index in view.fixed.items() if axis in names}
    same = None if view.same is None else names[view.same]
    return replace(view, stored=source, axes=(b, h, s, d), fixed=fixed, same=same)


def _without_ones(view: View, source: Expr) -> View | None:
    """`view` of a reshape of `source` that only puts in dimensions of size 1."""
    old, new = dims(source), known_dims(view.stored)
    if old is None or len(new) <= len(old):
        return None
    ones = {axis for axis, dim in enumerate(new) if isinstance(dim, IntImm) and int(dim) == 1}
    # those that are an index of the view, where there is a choice
    put_in = sorted(ones, key=lambda axis: axis not in view.fixed)[: len(new) - len(old)]
    kept = [dim for axis, dim in enumerate(new) if axis not in put_in]
    if len(kept) != len(old) or not all(map(same_dim, kept, old)):
        return None
    return _without_new(view, source, set(put_in))


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
    return None if first is None else _part(view, source, axis, first)


def _part(view: View, source: Expr, axis: int, first: int) -> View | None:
    """`view` of a part of `source` that begins at the index `first` of the dimension `axis`."""
    if axis in view.fixed:
        fixed = {**view.fixed, axis: view.fixed[axis] + first}
        return replace(view, stored=source, fixed=fixed)
    if axis == view.axes[3]:
        return replace(view, stored=source, offset=view.offset + first)
    if axis == view.axes[1] and view.same is None:
        return replace(view, stored=source, first=view.first + first)
    return None


def _sliced(view: View, call: Call) -> View | None:
    """A part of one dimension, element by element."""
    source, *given = call.args
    shape = dims(source)
    numbers = [[each for each in arg.fields] for arg in given if isinstance(arg, relax.Tuple)]
    if shape is None or len(numbers) < 3 or len(numbers) != len(given):
        return None
    if any(len(each) != 1 or not isinstance(each[0], IntImm) for each in numbers):
        return None
    at, begin, _, *step = (int(each[0]) for each in numbers)
    axis = at % len(shape)
    if step not in ([], [1]) or not isinstance(shape[axis], IntImm):
        return None
    size = int(shape[axis])
    first = max(begin + size, 0) if begin < 0 else min(begin, size)
    return _part(view, source, axis, first)


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
    if any(axis is not None and axis >= p for axis in (b, s, view.same)):
        return None
    sizes = [int(dim) for dim in new] if p == 0 else [0] * p + [int(dim) for dim in new[p:]]
    steps = {axis: math.prod(sizes[axis + 1 :]) for axis in range(p, len(new))}
    known = {h, d, *view.fixed}
    if any(axis not in known and sizes[axis] != 1 for axis in steps):
        return None
    many = view.heads > 1 or view.first > 0
    if steps[d] != 1 or (h is not None and many and steps[h] != view.size):
        return None
    offset = (
        view.offset
        + view.first * view.size
        + sum(i * steps[axis] for axis, i in view.fixed.items() if axis >= p)
    )
    fixed = {axis: index for axis, index in view.fixed.items() if axis < p}
    return replace(
        view, stored=source, axes=(b, None, s, p), merged=True, offset=offset, first=0, fixed=fixed
    )
