"""How operators compute with the channels as the last dimension in the place of the second.

A rule takes a call and what is known of its operands. It returns the `Twin` of the call's result, a
plain value of the result, or None: then the operator stays as it is, on operands as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax import Expr, Var
from tvm.tirx import IntImm

from .layouts import permuted_shape, to_first, to_last, transposed
from .match import permutation
from .shapes import dims, known_dims, same_dim


@dataclass(frozen=True, eq=False)
class Twin:
    """A value with its channels last."""

    value: Expr


class Operands(Protocol):
    """The operands of the program, in both layouts."""

    def is_twin_known(self, expr: Expr) -> bool: ...

    def twin(self, expr: Expr) -> Expr: ...

    def plain(self, expr: Expr) -> Expr: ...

    def bound(self, expr: Expr) -> Expr: ...


Rule = Callable[[Call, Operands], Twin | Expr | None]


def unary(call: Call, operands: Operands) -> Twin | None:
    """An elementwise operator on its first operand; the others are no tensors."""
    x, *others = call.args
    if not operands.is_twin_known(x):
        return None
    return Twin(Call(call.op, [operands.twin(x), *others], call.attrs, call.ty_args))


def broadcast(call: Call, operands: Operands) -> Twin | None:
    """An elementwise operator on tensors that are broadcast to the rank of the result."""
    ndim = call.ty.ndim
    if any(dims(arg) is None for arg in call.args):
        return None
    if not any(arg.ty.ndim == ndim and operands.is_twin_known(arg) for arg in call.args):
        return None
    args = [_expanded(arg, ndim, operands) for arg in call.args]
    return Twin(Call(call.op, args, call.attrs, call.ty_args))


def _expanded(expr: Expr, ndim: int, operands: Operands) -> Expr:
    """The twin of `expr` after broadcasting gave it `ndim` dimensions."""
    shape = known_dims(expr)
    if all(isinstance(dim, IntImm) and dim.value == 1 for dim in shape):
        return expr if isinstance(expr, GenericConst) else operands.plain(expr)
    if len(shape) == ndim:
        return operands.twin(expr)
    full = [1] * (ndim - len(shape)) + shape
    last = to_last(ndim)
    if isinstance(expr, GenericConst):
        values = expr.value.numpy().reshape([int(dim) for dim in full]).transpose(last)
        return relax.const(values.copy(), str(expr.value.dtype))
    whole = operands.bound(relax.op.reshape(operands.plain(expr), full))
    return operands.bound(transposed(whole, last))


def concat(call: Call, operands: Operands) -> Twin | None:
    tensors = call.args[0]
    fields = list(tensors.fields) if isinstance(tensors, relax.Tuple) else []
    if not any(operands.is_twin_known(each) for each in fields):
        return None
    if any(dims(each) is None for each in fields) or call.attrs.axis is None:
        return None
    axis = _axis(call.attrs.axis, call.ty.ndim)
    return Twin(relax.op.concat([operands.twin(each) for each in fields], axis))


def pool(make: Callable[..., Expr], first: str, last: str) -> Rule:
    """Pooling by windows; `first` and `last` are the layouts."""

    def rule(call: Call, operands: Operands) -> Twin | None:
        attrs = call.attrs
        if not _is_twin_of(call, first, operands):
            return None
        twin = make(
            operands.twin(call.args[0]),
            attrs.pool_size,
            attrs.strides,
            attrs.padding,
            attrs.dilation,
            attrs.ceil_mode,
            attrs.count_include_pad,
            last,
        )
        return Twin(twin)

    return rule


def adaptive_pool(make: Callable[..., Expr], first: str, last: str) -> Rule:
    """Pooling to a given size."""

    def rule(call: Call, operands: Operands) -> Twin | None:
        if not _is_twin_of(call, first, operands):
            return None
        return Twin(make(operands.twin(call.args[0]), call.attrs.output_size, last))

    return rule


def resize(call: Call, operands: Operands) -> Twin | None:
    attrs = call.attrs
    if not operands.is_twin_known(call.args[0]) or attrs.layout != "NCHW":
        return None
    x, size = call.args
    twin = relax.op.image.resize2d(
        operands.twin(x),
        size if isinstance(size, relax.ShapeExpr) else operands.plain(size),
        roi=list(attrs.roi),
        layout="NHWC",
        method=attrs.method,
        coordinate_transformation_mode=attrs.coordinate_transformation_mode,
        rounding_method=attrs.rounding_method,
        cubic_alpha=attrs.cubic_alpha,
        cubic_exclude=attrs.cubic_exclude,
        extrapolation_value=attrs.extrapolation_value,
        out_dtype=attrs.out_dtype,
    )
    return Twin(twin)


def reduction(make: Callable[..., Expr]) -> Rule:
    """A reduction over some of the axes."""

    def rule(call: Call, operands: Operands) -> Twin | Expr | None:
        (x,) = call.args
        if not operands.is_twin_known(x) or call.attrs.axis is None:
            return None
        ndim = x.ty.ndim
        reduced = {int(axis) % ndim for axis in call.attrs.axis}
        axes = sorted(_axis(axis, ndim) for axis in reduced)
        twin = make(operands.twin(x), axes, bool(call.attrs.keepdims))
        if call.attrs.keepdims:
            return Twin(twin)
        # what is left of (0, 2, 3, 1): in order, or with the channels last, or neither
        left = [axis for axis in to_last(ndim) if axis not in reduced]
        if left == sorted(left):
            return twin
        return Twin(twin) if left[0] == 0 else None

    return rule


def softmax(make: Callable[..., Expr]) -> Rule:
    def rule(call: Call, operands: Operands) -> Twin | None:
        (x,) = call.args
        if not operands.is_twin_known(x):
            return None
        return Twin(make(operands.twin(x), _axis(call.attrs.axis, x.ty.ndim)))

    return rule


def prelu(call: Call, operands: Operands) -> Twin | None:
    x, slope = call.args
    if not operands.is_twin_known(x):
        return None
    axis = _axis(call.attrs.axis, x.ty.ndim)
    return Twin(relax.op.nn.prelu(operands.twin(x), operands.plain(slope), axis))


def pad(call: Call, operands: Operands) -> Twin | None:
    (x,) = call.args
    if not operands.is_twin_known(x):
        return None
    widths = [int(width) for width in call.attrs.pad_width]
    moved = [widths[2 * axis + side] for axis in to_last(x.ty.ndim) for side in (0, 1)]
    value = float(call.attrs.pad_value)
    return Twin(relax.op.nn.pad(operands.twin(x), moved, call.attrs.pad_mode, value))


def strided_slice(call: Call, operands: Operands) -> Twin | None:
    x, axes, *bounds = call.args
    if not operands.is_twin_known(x) or not isinstance(axes, relax.Tuple):
        return None
    if not all(isinstance(axis, IntImm) for axis in axes.fields):
        return None
    moved = [_axis(axis, x.ty.ndim) for axis in axes.fields]
    if not all(isinstance(each, relax.Tuple) for each in bounds):
        return None
    twin = relax.op.strided_slice(
        operands.twin(x),
        moved,
        *(list(each.fields) for each in bounds),
        assume_inbound=bool(call.attrs.assume_inbound),
    )
    return Twin(twin)


def split(call: Call, operands: Operands) -> Twin | None:
    """A tuple of twins."""
    (x,) = call.args
    if not operands.is_twin_known(x):
        return None
    parts = call.attrs.indices_or_sections
    parts = int(parts) if isinstance(parts, int | IntImm) else list(parts)
    return Twin(relax.op.split(operands.twin(x), parts, _axis(call.attrs.axis, x.ty.ndim)))


def reshape(call: Call, operands: Operands) -> Twin | None:
    """One that leaves the first two dimensions alone: what follows them is contiguous both ways."""
    x = call.args[0]
    if not operands.is_twin_known(x) or call.ty.ndim < 3:
        return None
    before, after = known_dims(x), known_dims(call)
    if not all(same_dim(a, b) for a, b in zip(before[:2], after[:2], strict=True)):
        return None
    moved = relax.ShapeExpr(permuted_shape(call, to_last(call.ty.ndim)))
    return Twin(relax.op.reshape(operands.twin(x), moved))


def permute_dims(call: Call, operands: Operands) -> Twin | Expr | None:
    """A transpose to channels last is the twin; one from them has its operand as its twin."""
    x = call.args[0]
    ndim = call.ty.ndim
    axes = permutation(call, ndim)
    if not operands.is_twin_known(x):
        back = ndim > 2 and axes == to_first(ndim) and isinstance(x, Var)
        return Twin(operands.plain(x)) if back else None
    stored = to_first(ndim)  # where each dimension of the program is in the twin
    composed = [stored[axis] for axis in axes]
    twin = operands.twin(x)
    if composed == list(range(ndim)):
        return twin
    if axes[:2] == (0, 1):
        return Twin(relax.op.permute_dims(twin, [composed[axis] for axis in to_last(ndim)]))
    return relax.op.permute_dims(twin, composed)


def broadcast_to(call: Call, operands: Operands) -> Twin | None:
    x = call.args[0]
    if not operands.is_twin_known(x) or x.ty.ndim != call.ty.ndim:
        return None
    moved = relax.ShapeExpr(permuted_shape(call, to_last(call.ty.ndim)))
    return Twin(relax.op.broadcast_to(operands.twin(x), moved))


def _axis(axis: Expr | int, ndim: int) -> int:
    """Where an axis of the program is in the twin."""
    return to_first(ndim)[int(axis) % ndim]


def _is_twin_of(call: Call, layout: str, operands: Operands) -> bool:
    """Whether `call` is in the given layout on both sides, of an operand with a twin."""
    attrs = call.attrs
    same = attrs.layout == layout and attrs.out_layout in ("", layout)
    return same and operands.is_twin_known(call.args[0])
