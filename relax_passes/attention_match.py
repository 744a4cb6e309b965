"""The attention of a Relax function: scores, softmax and the product with the values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tvm import relax
from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr, Var
from tvm.tirx import IntImm

from tvm_moonpoly.operators.attention_constants import AttentionSpec, Causal, Place

from .attention_views import (
    DIVIDE,
    MULTIPLY,
    RESHAPE,
    WHERE,
    Axes,
    View,
    number,
    scale_of,
    stored_view,
    view_of,
)
from .bindings import Bindings
from .match import MATMUL, PERMUTE_DIMS, Left, objection, permutation
from .shapes import dims, dtype_of, is_static, known_dims, same_dim, same_tensor

SOFTMAX = Op.get("relax.nn.softmax")
ADD = Op.get("relax.add")
ATTENTION = Op.get("relax.nn.attention")
ATTENTION_BIAS = Op.get("relax.nn.attention_bias")

CAUSAL = {None: Causal.NONE, "TopLeft": Causal.FROM_FIRST, "BottomRight": Causal.FROM_LAST}

#: (batch, head, row, element) as dimensions of what is multiplied, by how many it has.
AXES: dict[int, Axes] = {4: (0, 1, 2, 3), 3: (0, None, 1, 2), 2: (None, None, 0, 1)}

#: From here on, what a score is before it is replaced, or added to, makes no difference.
LOWEST = -1e30


@dataclass(frozen=True, eq=False)
class Attention:
    """``softmax(scale * q @ k.T + mask) @ v``, to be bound to `last` and stored as `out` says."""

    last: Var
    q: View
    k: View
    v: View
    out: Place
    scale: float
    mask: Expr | None = None
    mask_axes: Axes = (0, 1, 2, 3)
    causal: Causal = Causal.NONE

    @property
    def spec(self) -> AttentionSpec:
        """As the packed functions take it."""
        return AttentionSpec(
            self.q.heads,
            self.q.size,
            self.v.size,
            self.scale,
            self.k.heads,
            self.causal,
            self.q.place,
            self.k.place,
            self.v.place,
            self.out,
            self.mask_axes,
        )


def attentions(bindings: Bindings) -> Iterator[Var]:
    """What may be an attention: the softmax whose result is multiplied, TVM's own operators."""
    for var in bindings.calls(SOFTMAX, ATTENTION, ATTENTION_BIAS):
        if bindings.call(var, SOFTMAX) is None:
            yield var
        else:
            product = bindings.call(bindings.only_user(var), MATMUL)
            if product is not None and var.same_as(product.args[0]):
                yield var


def classify_attention(var: Var, bindings: Bindings, static: bool = False) -> Attention | Left:
    """The attention that `var`, one of `attentions`, is in, or why it is none of ours."""
    if bindings.call(var, SOFTMAX) is None:
        return _operator(var, bindings, static)
    return _from_softmax(var, bindings, static)


@dataclass(frozen=True, eq=False)
class _Scores:
    product: Var
    scale: float = 1.0
    mask: Expr | None = None


def _from_softmax(var: Var, bindings: Bindings, static: bool) -> Attention | Left:
    softmax = bindings.value[var]
    ndim = len(dims(var) or [])
    if int(softmax.attrs.axis) not in (-1, ndim - 1) or ndim not in AXES:
        return Left("softmax of another form")
    scores = _scores(softmax.args[0], var, bindings)
    if scores is None:
        return Left("the scores are not a product, scaled and masked")
    output = bindings.only_user(var)
    assert output is not None
    products = [bindings.value[each] for each in (scores.product, output)]
    for call in products:
        reason = objection(call, True)
        if reason is not None:
            return Left(reason)
        if {dtype_of(arg) for arg in (*call.args, call)} != {"float32"}:
            return Left("not float32")
        if any(len(dims(arg) or []) != ndim for arg in (*call.args, call)):
            return Left("operands of another rank")
    if not static and all(is_static(dims(arg)) for call in products for arg in call.args):
        return Left("static shapes")
    axes = AXES[ndim]
    b, h, s, d = axes
    turned = b, h, d, s
    last, out = _stored_output(output, axes, bindings)
    if not bindings.undisturbed(scores.product, last):
        return Left("memory may be written in between")
    operands = [
        (products[0].args[0], axes, {"scaled": True}),
        (products[0].args[1], turned, {"scaled": True, "by_columns": True}),
        (products[1].args[1], axes, {}),
    ]
    views = _views(operands, last, bindings)
    if isinstance(views, Left):
        return views
    mask = scores.mask
    return _settled(
        Attention(
            last,
            *views,
            out,
            scores.scale * views[0].scale * views[1].scale,
            mask,
            _mask_axes(mask, axes),
        ),
        heads=view_of(output, axes),
    )


def _views(
    operands: list[tuple[Expr, Axes, dict[str, bool]]], last: Var, bindings: Bindings
) -> tuple[View, View, View] | Left:
    found = []
    for expr, axes, how in operands:
        view = view_of(expr, axes)
        if view is None:
            return Left("heads or their elements are not known")
        stored = stored_view(view, last, bindings, **how)
        if stored is None:
            return Left("an operand that is not stored")
        found.append(stored)
    q, k, v = found
    return q, k, v


def _settled(found: Attention, heads: View | None) -> Attention | Left:
    """`found`, if its operands have heads and elements that go together."""
    q, k, v = found.q, found.k, found.v
    if q.size != k.size:
        return Left("rows of q and k of different sizes")
    if heads is None or q.heads != heads.heads or k.heads != v.heads:
        return Left("heads that are repeated")
    if k.heads not in (1, q.heads):
        return Left("heads that are repeated")
    return found


def _scores(expr: Expr, user: Var, bindings: Bindings) -> _Scores | None:
    """The product that `expr`, which `user` alone reads, is made from."""
    scale, mask = 1.0, None
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
            return _Scores(expr, scale, mask)
        if call.op in (MULTIPLY, DIVIDE):
            inner = next((a for a in call.args if scale_of(call, a) is not None), None)
            if inner is None:
                return None
            scale *= scale_of(call, inner) or 0.0
        else:
            # what comes after the mask would scale it as well
            if mask is not None or scale != 1.0:
                return None
            found = _masked(call, bindings)
            if found is None:
                return None
            inner, mask = found
        expr, user = inner, expr


def _masked(call: Call, bindings: Bindings) -> tuple[Expr, Expr] | None:
    """What a mask is put on, and the mask as an addend."""
    keys = known_dims(call)[-1]
    if call.op == ADD:
        for inner, mask in (call.args, reversed(call.args)):
            shape = dims(mask)
            if not isinstance(mask, Var | GenericConst) or dtype_of(mask) != "float32":
                continue
            if not shape or not same_dim(shape[-1], keys):
                continue
            if _leads_to_product(inner, call, bindings):
                return inner, mask
        return None
    condition, *choices = call.args
    shape = dims(condition)
    if not shape or not same_dim(shape[-1], keys):
        return None
    for at, inner in enumerate(choices):
        low = number(choices[1 - at])
        if low is None or low > LOWEST or not _leads_to_product(inner, call, bindings):
            continue
        zero, least = relax.const(0.0, "float32"), relax.const(low, "float32")
        return inner, relax.op.where(condition, *((zero, least) if at == 0 else (least, zero)))
    return None


def _leads_to_product(expr: Expr, call: Call, bindings: Bindings) -> bool:
    if not isinstance(expr, Var) or not same_tensor(expr, call):
        return False
    above = bindings.call(expr, MATMUL, MULTIPLY, DIVIDE)
    while above is not None and above.op != MATMUL:
        inner = next((a for a in above.args if scale_of(above, a) is not None), None)
        above = bindings.call(inner, MATMUL, MULTIPLY, DIVIDE)
    return above is not None


def _mask_axes(mask: Expr | None, axes: Axes) -> Axes:
    """The dimensions of a mask, aligned right with those of the scores."""
    if mask is None:
        return 0, 1, 2, 3
    ndim = mask.ty.ndim if isinstance(mask.ty, relax.TensorType) else -1
    if isinstance(mask, Call):  # not yet normalized: a choice has the shape of its condition
        ndim = len(known_dims(mask.args[0]))
    missing = sum(axis is not None for axis in axes) - ndim
    b, h, s, d = (None if axis is None or axis < missing else axis - missing for axis in axes)
    return b, h, s, d


def _stored_output(output: Var, axes: Axes, bindings: Bindings) -> tuple[Var, Place]:
    """The variable that holds the output once a permute and a reshape after it are done by the
    store, and where the dimensions are there."""
    last, place = output, Place(axes)
    user = _next(last, bindings)
    call = bindings.call(user, PERMUTE_DIMS)
    if call is not None and user is not None:
        turned = permutation(call, len(known_dims(output)))
        b, h, s, d = (None if axis is None else turned.index(axis) for axis in axes)
        if d == len(turned) - 1:
            last, place = user, Place((b, h, s, d))
            user = _next(last, bindings)
            call = bindings.call(user, RESHAPE)
    if user is None or call is None or call.op != RESHAPE or place.axes != (0, 2, 1, 3):
        return last, place
    old, new = known_dims(last), dims(user)
    if new is None or len(new) != 3 or not all(map(same_dim, new[:2], old[:2])):
        return last, place
    if not all(isinstance(dim, IntImm) for dim in (*old[2:], new[2])):
        return last, place
    return user, Place.columns()


def _next(var: Var, bindings: Bindings) -> Var | None:
    user = bindings.only_user(var)
    if user is None or bindings.block[user] != bindings.block[var]:
        return None
    return user if bindings.undisturbed(var, user) else None


def _operator(var: Var, bindings: Bindings, static: bool) -> Attention | Left:
    """TVM's own operator, whose tensors are (batch, row, head, element)."""
    call = bindings.value[var]
    shapes = [dims(arg) for arg in call.args]
    if any(shape is None for shape in shapes):
        return Left("no shape known")
    if {dtype_of(arg) for arg in (*call.args, call)} != {"float32"}:
        return Left("not float32")
    if not static and all(map(is_static, shapes)):
        return Left("static shapes")
    causal = call.attrs.causal_mask
    causal = None if causal is None else str(causal)
    if call.attrs.window_size is not None or causal not in CAUSAL:
        return Left("a sliding window")
    if not all(isinstance(arg, Var | GenericConst) for arg in call.args):
        return Left("operand not bound to a variable")
    axes: Axes = (0, 2, 1, 3)
    hows: list[dict[str, bool]] = [{"scaled": True}, {"scaled": True, "by_columns": True}, {}]
    operands = [(arg, axes, how) for arg, how in zip(call.args, hows, strict=False)]
    views = _views(operands, var, bindings)
    if isinstance(views, Left):
        return views
    mask = call.args[3] if len(call.args) > 3 else None
    if mask is not None and not same_dim(known_dims(mask)[-1], known_dims(call.args[1])[1]):
        return Left("a bias with one column for all keys")
    given = call.attrs.scale
    scale = 1 / math.sqrt(views[0].size) if given is None else float(given.value)
    scale *= views[0].scale * views[1].scale
    found = Attention(var, *views, Place(axes), scale, mask, causal=CAUSAL[causal])
    return _settled(found, heads=view_of(call.args[0], axes))
