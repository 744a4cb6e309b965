"""Heads of k and v that are repeated for several of q: the operator reads one for all of them."""

from __future__ import annotations

from dataclasses import replace

from tvm.ir import Call, Op
from tvm.relax import Expr
from tvm.tirx import IntImm

from .attention_views import View
from .shapes import dims, known_dims, same_dim

BROADCAST_TO, REPEAT, TILE = (
    Op.get(f"relax.{name}") for name in ("broadcast_to", "repeat", "tile")
)


def with_groups(view: View, source: Expr) -> View | None:
    """`view` of a reshape of `source`, in which a dimension of groups is followed by one of the
    heads of each, that is to be shown to hold the same head again and again."""
    old, new = dims(source), known_dims(view.stored)
    h = view.axes[1]
    if h is None or old is None or len(old) != len(new) + 1 or view.first or view.merged:
        return None
    groups, each = old[h], old[h + 1]
    known = isinstance(groups, IntImm) and isinstance(each, IntImm)
    if not known or int(groups) * int(each) != view.heads or not same_dim(new[h], groups * each):
        return None
    if not all(map(same_dim, old[:h] + old[h + 2 :], new[:h] + new[h + 1 :])):
        return None
    b, _, s, d = (None if axis is None else axis + (axis > h) for axis in view.axes)
    fixed = {axis + (axis > h): index for axis, index in view.fixed.items()}
    return replace(
        view, stored=source, axes=(b, h, s, d), heads=int(groups), fixed=fixed, same=h + 1
    )


def unrepeated(view: View, call: Call) -> View | None:
    """`view` as one of what the operator `call` repeats along the heads, or along the dimension
    that is to be shown to hold the same."""
    source = call.args[0]
    old, new = dims(source), known_dims(view.stored)
    if old is None or len(old) != len(new) or view.merged or view.first:
        return None
    along = [axis for axis, (a, b) in enumerate(zip(old, new, strict=True)) if not same_dim(a, b)]
    if len(along) != 1 or not isinstance(old[along[0]], IntImm):
        return None
    axis, count = along[0], int(old[along[0]])
    if axis == view.same and count == 1:
        return replace(view, stored=source, fixed={**view.fixed, axis: 0}, same=None)
    # one head again and again, or each head so many times before the next one
    in_order = count == 1 or call.op == REPEAT
    if axis != view.axes[1] or not in_order or view.same is not None or not count:
        return None
    return replace(view, stored=source, heads=count)


def is_repeating(call: Call) -> bool:
    """Whether `call` may repeat heads."""
    return call.op in (BROADCAST_TO, REPEAT, TILE)
