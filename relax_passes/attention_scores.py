"""What is done to the scores of an attention before their softmax: scales and a mask."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import Call, GenericConst
from tvm.relax import Expr, Var

from .attention_masks import ADD, Masking
from .attention_numbers import DIVIDE, MULTIPLY, WHERE, number, scale_of
from .attention_views import Axes
from .bindings import Bindings
from .match import MATMUL
from .shapes import dims, dtype_of, same_tensor

#: Masks on top of another one.
MOST = 3


@dataclass(frozen=True, eq=False)
class Scores:
    """The product that scores are made from, what scales it and what masks it."""

    product: Var
    scale: float = 1.0
    maskings: tuple[Masking, ...] = ()


def scores_of(expr: Expr, user: Var, bindings: Bindings) -> Scores | None:
    """The product that `expr`, which `user` alone reads, is made from."""
    scale = 1.0
    maskings: list[Masking] = []
    while True:
        only = bindings.only_user(expr) if isinstance(expr, Var) else None
        if only is None or not only.same_as(user):
            return None
        if bindings.block.get(expr) != bindings.block[user]:
            return None
        call = bindings.call(expr, MATMUL, MULTIPLY, DIVIDE, ADD, WHERE)
        if call is None or not bindings.undisturbed(expr, user):
            return None
        if call.op == MATMUL:
            return Scores(expr, scale, tuple(maskings))
        if call.op in (MULTIPLY, DIVIDE):
            inner = next((a for a in call.args if scale_of(call, a) is not None), None)
            if inner is None:
                return None
            scale *= scale_of(call, inner) or 0.0
        else:
            found = _masked(call, bindings)
            # what comes after the mask would scale it as well
            if found is None or scale != 1.0:
                return None
            inner = found[0]
            maskings.append(found[1])
        expr, user = inner, expr


def _masked(call: Call, bindings: Bindings, more: int = MOST) -> tuple[Expr, Masking] | None:
    """What a mask is put on, and the mask; below it, at most `more` others."""
    if call.op == ADD:
        for inner, mask in (call.args, reversed(call.args)):
            ours = isinstance(mask, Var | GenericConst) and dtype_of(mask) == "float32"
            if ours and dims(mask) is not None and _leads_to_product(inner, call, bindings, more):
                return inner, Masking(mask)
        return None
    condition, *choices = call.args
    if dims(condition) is None or not isinstance(condition, Var | GenericConst):
        return None
    for at, inner in enumerate(choices):
        low = number(choices[1 - at])
        if low is not None and _leads_to_product(inner, call, bindings, more):
            return inner, Masking(condition, low, at == 0)
    return None


def _leads_to_product(expr: Expr, call: Call, bindings: Bindings, more: int) -> bool:
    """Whether `expr`, of the shape of `call`, is a product, scaled and masked."""
    if not isinstance(expr, Var) or not same_tensor(expr, call):
        return False
    above = bindings.call(expr, MATMUL, MULTIPLY, DIVIDE, ADD, WHERE)
    if above is None or above.op == MATMUL:
        return above is not None
    if above.op in (ADD, WHERE):
        return more > 0 and _masked(above, bindings, more - 1) is not None
    inner = next((a for a in above.args if scale_of(above, a) is not None), None)
    return inner is not None and _leads_to_product(inner, above, bindings, more)


def mask_axes(ndim: int, axes: Axes) -> Axes:
    """The dimensions of a mask of `ndim` dimensions, aligned right with those of the scores."""
    missing = sum(axis is not None for axis in axes) - ndim
    b, h, s, d = (None if axis is None or axis < missing else axis - missing for axis in axes)
    return b, h, s, d
