"""How far up the operand of an attention can be read in place."""

from __future__ import annotations

from tvm.ir import GenericConst
from tvm.relax import Var
from tvm.tirx import IntImm

from .attention_moves import above
from .attention_views import View
from .bindings import Bindings
from .shapes import dims, known_dims, same_dim


def stored_view(
    view: View,
    reader: Var,
    bindings: Bindings,
    by_columns: bool = False,
    scaled: bool = False,
    repeated: bool = False,
) -> View | None:
    """`view` from as far up as `reader` can read it in place.

    Its elements must be adjacent, or with `by_columns` its rows. `scaled`: products with a number
    may be passed, and are in `scale`. `repeated`: heads may be repeated, and are then fewer.
    """
    best = None
    while True:
        if _is_readable(view, reader, bindings, by_columns):
            best = view
        source = above(view, bindings, scaled, repeated)
        stored = view.stored
        if source is None or (isinstance(stored, Var) and not bindings.undisturbed(stored, reader)):
            return best
        view = source


def _is_readable(view: View, reader: Var, bindings: Bindings, by_columns: bool) -> bool:
    stored = view.stored
    if (
        view.fixed
        or view.first
        or view.same is not None
        or not isinstance(stored, Var | GenericConst)
        or dims(stored) is None
    ):
        return False
    last, h = len(known_dims(stored)) - 1, view.axes[1]
    if h is not None and not same_dim(known_dims(stored)[h], IntImm("int64", view.heads)):
        return False
    adjacent = view.axes[3] == last or (by_columns and view.axes[2] == last and not view.merged)
    return adjacent and bindings.reaches(stored, bindings.block[reader])
