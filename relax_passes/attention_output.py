"""Where the result of an attention is stored: behind the permute and the reshape that follow it."""

from __future__ import annotations

from tvm.relax import Var
from tvm.tirx import IntImm

from tvm_moonpoly.operators.attention_constants import Place

from .attention_views import RESHAPE, Axes
from .bindings import Bindings
from .match import PERMUTE_DIMS, permutation
from .shapes import dims, known_dims, same_dim


def stored_output(output: Var, axes: Axes, bindings: Bindings) -> tuple[Var, Place]:
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
