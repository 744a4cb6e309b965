"""The attention of a Relax function: scores, softmax and the product with the values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tvm.ir import GenericConst, Op
from tvm.relax import Expr, Var

from tvm_moonpoly.operators.attention_constants import AttentionSpec, Causal, Place

from .attention_masks import settled
from .attention_output import stored_output
from .attention_scores import mask_axes, scores_of
from .attention_stored import stored_view
from .attention_views import Axes, View, view_of
from .bindings import Bindings
from .index_tensors import IndexTensors
from .match import MATMUL, Left, objection
from .shape_facts import ShapeFacts
from .shapes import dims, dtype_of, is_static, known_dims, same_dim

SOFTMAX = Op.get("relax.nn.softmax")
ASTYPE = Op.get("relax.astype")
ATTENTION = Op.get("relax.nn.attention")
ATTENTION_BIAS = Op.get("relax.nn.attention_bias")

CAUSAL = {None: Causal.NONE, "TopLeft": Causal.FROM_FIRST, "BottomRight": Causal.FROM_LAST}

#: (batch, head, row, element) as dimensions of what is multiplied, by how many it has.
AXES: dict[int, Axes] = {4: (0, 1, 2, 3), 3: (0, None, 1, 2), 2: (None, None, 0, 1)}


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
        if bindings.call(var, SOFTMAX) is None or _output(var, bindings) is not None:
            yield var


def _output(softmax: Var, bindings: Bindings) -> Var | None:
    """The product of the probabilities with the values; a cast in between that changes nothing is
    how models in other precisions are written."""
    weights, user = softmax, bindings.only_user(softmax)
    if bindings.call(user, ASTYPE) is not None and user is not None:
        if dtype_of(user) != dtype_of(softmax):
            return None
        weights, user = user, bindings.only_user(user)
    product = bindings.call(user, MATMUL)
    return user if product is not None and weights.same_as(product.args[0]) else None


def classify_attention(
    var: Var, bindings: Bindings, known: ShapeFacts, static: bool = False
) -> Attention | Left:
    """The attention that `var`, one of `attentions`, is in, or why it is none of ours."""
    if bindings.call(var, SOFTMAX) is None:
        return _operator(var, bindings, static)
    return _from_softmax(var, bindings, known, static)


def _from_softmax(
    var: Var, bindings: Bindings, known: ShapeFacts, static: bool
) -> Attention | Left:
    softmax = bindings.value[var]
    ndim = len(dims(var) or [])
    if int(softmax.attrs.axis) not in (-1, ndim - 1) or ndim not in AXES:
        return Left("softmax of another form")
    scores = scores_of(softmax.args[0], var, bindings)
    output = _output(var, bindings)
    if scores is None or output is None:
        return Left("the scores are not a product, scaled and masked")
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
    last, out = stored_output(output, axes, bindings)
    if not bindings.undisturbed(scores.product, last):
        return Left("memory may be written in between")
    operands = [
        (products[0].args[0], axes, {"scaled": True}),
        (products[0].args[1], turned, {"scaled": True, "by_columns": True, "repeated": True}),
        (products[1].args[1], axes, {"repeated": True}),
    ]
    views = _views(operands, last, bindings)
    if isinstance(views, Left):
        return views
    mask = settled(scores.maskings, scores.product, IndexTensors(bindings, known, last))
    if mask is None:
        return Left("the scores are not a product, scaled and masked")
    return _settled(
        Attention(
            last,
            *views,
            out,
            scores.scale * views[0].scale * views[1].scale,
            mask.addend,
            (0, 1, 2, 3) if mask.addend is None else mask_axes(mask.ndim, axes),
            mask.causal,
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
    if k.heads == v.heads:
        return q, k, v
    # not both of them can be read from before their heads are repeated
    kept = [(expr, axes, {**how, "repeated": False}) for expr, axes, how in operands]
    return Left("heads that are repeated") if kept == operands else _views(kept, last, bindings)


def _settled(found: Attention, heads: View | None) -> Attention | Left:
    """`found`, if its operands have heads and elements that go together."""
    q, k = found.q, found.k
    if q.size != k.size:
        return Left("rows of q and k of different sizes")
    if heads is None or q.heads != heads.heads or q.heads % k.heads:
        return Left("heads that are repeated")
    return found


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
    hows: list[dict[str, bool]] = [
        {"scaled": True},
        {"scaled": True, "by_columns": True, "repeated": True},
        {"repeated": True},
    ]
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
