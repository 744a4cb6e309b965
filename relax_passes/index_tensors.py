"""What a tensor holds at its indices, followed through the operators that made it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr, Var
from tvm.tirx import IntImm

from .bindings import Bindings
from .index_values import Affine, Indexed, Piecewise, added, int64, merged, negated, of_array
from .shape_facts import ShapeFacts
from .shapes import dims, dtype_of, same_dim

#: The largest constant that is looked into.
MOST = 1 << 24

#: The longest chain of operators that is followed.
DEEPEST = 64

_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "where": np.where,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_not": np.bitwise_not,
    "negative": np.negative,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}

#: Comparisons of positions: left minus right by the sign, and by how much more it must be than -1.
_COMPARED = {"less": (-1, -1), "less_equal": (-1, 0), "greater": (1, -1), "greater_equal": (1, 0)}

_FILLED = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}


@dataclass(frozen=True, eq=False)
class IndexTensors:
    """The tensors of one function whose elements follow from their indices, as `reader` sees
    them."""

    bindings: Bindings
    known: ShapeFacts
    reader: Var
    found: dict[Var, Indexed | None] = field(default_factory=dict)

    def of(self, expr: Expr, depth: int = 0) -> Indexed | None:
        """What `expr` holds; None where that does not follow from sizes."""
        if isinstance(expr, GenericConst):
            count = math.prod(int(dim) for dim in expr.value.shape)
            return of_array(expr.value.numpy()) if count <= MOST else None
        if not isinstance(expr, Var) or depth > DEEPEST:
            return None
        if expr not in self.found:
            self.found[expr] = self._bound(expr, depth + 1)
        return self.found[expr]

    def _bound(self, expr: Var, depth: int) -> Indexed | None:
        value = self.bindings.cast.get(expr, self.bindings.value.get(expr))
        if value is None or dims(expr) is None or not self.bindings.undisturbed(expr, self.reader):
            return None
        if isinstance(value, Var):
            same = len(dims(value) or []) == len(dims(expr) or [])
            return self.of(value, depth) if same else None
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return None
        return self._made(expr, value, value.op.name.removeprefix("relax."), depth)

    def _made(self, var: Var, call: Call, name: str, depth: int) -> Indexed | None:
        shape = dims(var) or []
        if name == "arange":
            start, _, step = call.args
            ours = isinstance(step, IntImm) and dtype_of(var) in ("int32", "int64")
            return _spread(Affine(start, (int(step),)), shape) if ours else None
        if name == "shape_to_tensor":
            sizes = call.args[0]
            if isinstance(sizes, relax.ShapeExpr) and len(sizes.values) == 1:
                return Affine(sizes.values[0], (0,))
            return None
        if name in _FILLED:
            return _filled(np.dtype(dtype_of(var)).type(_FILLED[name]), len(shape))
        if name in ("full", "full_like"):
            return self._moved(call.args[1], var, depth)
        if name in ("reshape", "expand_dims", "squeeze", "broadcast_to"):
            return self._moved(call.args[0], var, depth)
        if name == "astype":
            return _converted(self._moved(call.args[0], var, depth), dtype_of(var))
        if name == "strided_slice":
            return self._sliced(var, call, depth)
        if name in ("tril", "triu"):
            return self._triangle(var, call, name, depth)
        return self._elementwise(var, call, name, depth) if name in _ELEMENTWISE else None

    def _moved(self, source: Expr, var: Var, depth: int) -> Indexed | None:
        """`source` as `var`, whose dimensions are its own, others of size 1, and those that a
        broadcast adds."""
        found, old, new = self.of(source, depth), dims(source), dims(var)
        if found is None or old is None or new is None:
            return None
        if isinstance(found, Piecewise) and found.at is None:
            return found
        axes = _same_axes(old, new)
        if axes is None:
            return None

        def moved(at: Affine) -> Affine:
            steps = [0] * len(new)
            for axis, place in axes.items():
                steps[place] = at.steps[axis]
            return Affine(at.base, tuple(steps))

        if isinstance(found, Affine):
            return moved(found)
        return replace(found, at=None if found.at is None else moved(found.at))

    def _sliced(self, var: Var, call: Call, depth: int) -> Indexed | None:
        found = self.of(call.args[0], depth)
        if found is None or (isinstance(found, Piecewise) and found.at is None):
            return found
        axes, begins, _, *strides = (list(arg.fields) for arg in call.args[1:])
        inbound = bool(call.attrs.assume_inbound)
        if any(not isinstance(s, IntImm) or int(s) != 1 for each in strides for s in each):
            return None
        if not all(self.known.holds(b >= 0) for b in begins):
            return None
        if not inbound and any(not isinstance(b, IntImm) or int(b) for b in begins):
            return None
        at = found if isinstance(found, Affine) else found.at
        assert at is not None
        base = at.base
        for axis, begin in zip(axes, begins, strict=True):
            base = base + int64(at.steps[int(axis)]) * begin
        new = _spread(Affine(base, at.steps), dims(var) or [])
        return new if isinstance(found, Affine) else replace(found, at=new)

    def _triangle(self, var: Var, call: Call, name: str, depth: int) -> Indexed | None:
        found = self.of(call.args[0], depth)
        more, shape = call.args[1], dims(var) or []
        if isinstance(found, Affine) and found.number is not None:
            found = Piecewise.uniform(np.dtype(dtype_of(var)).type(found.number))
        if not isinstance(found, Piecewise) or len(shape) < 2:
            return None
        steps = (0,) * (len(shape) - 2) + (1, -1)
        # of ``tril``, or of what ``triu`` cuts off
        border = _spread(Affine(more if name == "tril" else more - int64(1), steps), shape)
        keeps = (True, False) if name == "tril" else (False, True)
        kept = Piecewise(np.bool_(keeps[0]), np.bool_(keeps[1]), border)
        zero = Piecewise.uniform(found.yes.dtype.type(0))
        return merged(np.where, [kept, found, zero], self.known)

    def _elementwise(self, var: Var, call: Call, name: str, depth: int) -> Indexed | None:
        operands = [self._moved(arg, var, depth) for arg in call.args]
        given = [each for each in operands if each is not None]
        if len(given) < len(operands):
            return None
        positions = [each for each in given if isinstance(each, Affine)]
        if len(positions) == len(given) == 2:
            left, right = positions
            if name in ("add", "subtract"):
                return added(left, right, 1 if name == "add" else -1)
            if name in _COMPARED:
                sign, more = _COMPARED[name]
                at = added(left, right, -1)
                at = at if sign > 0 else Affine(int64(0) - at.base, negated(at).steps)
                return Piecewise(np.bool_(True), np.bool_(False), Affine(at.base + more, at.steps))
        dtypes = [np.dtype(dtype_of(arg)) for arg in call.args]
        uniform = [_as_piecewise(each, dtype) for each, dtype in zip(given, dtypes, strict=True)]
        pieces = [each for each in uniform if each is not None]
        if len(pieces) < len(given):
            return None
        return merged(_ELEMENTWISE[name], pieces, self.known)


def _filled(value: np.generic, ndim: int) -> Indexed:
    if value.dtype.kind in "iu":
        return Affine(int64(int(value)), (0,) * ndim)
    return Piecewise.uniform(value)


def _as_piecewise(value: Indexed, dtype: np.dtype) -> Piecewise | None:
    if isinstance(value, Piecewise):
        return value
    return None if value.number is None else Piecewise.uniform(dtype.type(value.number))


def _converted(value: Indexed | None, dtype: str) -> Indexed | None:
    try:
        to = np.dtype(dtype)
    except TypeError:
        return None
    if isinstance(value, Affine):
        if dtype in ("int32", "int64"):
            return value
        found = _as_piecewise(value, np.dtype("int64"))
    else:
        found = value
    if found is None:
        return None
    return replace(found, yes=found.yes.astype(to), no=found.no.astype(to))


def _spread(value: Affine, shape: list[Expr]) -> Affine:
    """`value` without steps along dimensions of size 1."""
    sizes = zip(value.steps, shape, strict=True)
    steps = (0 if isinstance(dim, IntImm) and int(dim) == 1 else step for step, dim in sizes)
    return Affine(value.base, tuple(steps))


def _same_axes(old: list[Expr], new: list[Expr]) -> dict[int, int] | None:
    """Which dimension of `new` each one of `old` is, but those of size 1: in the same order, first
    by dimensions of size 1 put in or left out, then as a broadcast aligns them."""
    kept = [axis for axis, dim in enumerate(old) if not _is_one(dim)]
    places = [axis for axis, dim in enumerate(new) if not _is_one(dim)]
    pairs = list(zip(kept, places, strict=False))
    if len(kept) == len(places) and all(same_dim(old[a], new[b]) for a, b in pairs):
        return dict(pairs)
    missing = len(new) - len(old)
    aligned = {axis: axis + missing for axis in kept}
    if missing >= 0 and all(same_dim(old[a], new[b]) for a, b in aligned.items()):
        return aligned
    return None


def _is_one(dim: Expr) -> bool:
    return isinstance(dim, IntImm) and int(dim) == 1
