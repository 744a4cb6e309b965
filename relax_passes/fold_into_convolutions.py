"""Fold what surrounds a convolution and is linear into its weight, bias and padding."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr, Var
from tvm.target import Target

from tvm_moonpoly.arguments import require_flags, target_of

from . import rewrite
from .bindings import Bindings
from .conv_epilogue import match_conv_epilogue, per_channel
from .conv_functions import rewrite_with_convolutions
from .conv_match import Convolution
from .shapes import same_tensor

ADD, SUBTRACT, MULTIPLY, DIVIDE = (
    Op.get(f"relax.{name}") for name in ("add", "subtract", "multiply", "divide")
)
ARITHMETIC = (ADD, SUBTRACT, MULTIPLY, DIVIDE)
PAD = Op.get("relax.nn.pad")


@tvm.transform.module_pass(opt_level=0, name="FoldIntoConvolutions")
class FoldIntoConvolutions:
    """Fold into the convolutions that are ours: products and sums with one constant a channel
    after and before them, which batch norm is, and a zero `pad` before them.

    What is folded must be the only use of what is before it. A sum before a convolution with
    padding stays, since zeros are padded after it. Weights are computed in float64 and rounded
    once; where one would not be finite, nothing is folded.
    """

    def __init__(self, target: Target, static: bool = False) -> None:
        require_flags(static=static)
        self.target = target_of(target)
        self.static = static

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_with_convolutions(mod, self.target, self.static, partial(_fold, mod))


@dataclass(frozen=True, eq=False)
class Affine:
    """`scale * value + shift`, one number a channel each, float64, of so many `steps`."""

    value: Expr
    scale: np.ndarray
    shift: np.ndarray
    steps: int = 0

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.shift).all())


def _fold(
    mod: tvm.IRModule, func: relax.Function, bindings: Bindings, ours: dict[Var, Convolution]
) -> relax.Function:
    before = set(bindings.value)
    new: dict[Var, Expr] = {}
    # where an epilogue ends, which would otherwise lose its last operator to the next convolution
    ends = {_end(var, conv, bindings) for var, conv in ours.items()}
    for var, conv in ours.items():
        last, value = _folded(var, conv, bindings, ends)
        if value is None:
            continue
        rewrite.replace(last, value, bindings)
        new[last] = value
    if not new:
        return func
    return rewrite.Rebuild(mod, new, before - bindings.value.keys()).visit_expr(func)


def _end(var: Var, conv: Convolution, bindings: Bindings) -> Var:
    last = _result(var, conv, bindings).value
    assert isinstance(last, Var)
    return match_conv_epilogue(last, conv, bindings).last


def _folded(
    var: Var, conv: Convolution, bindings: Bindings, ends: Set[Var]
) -> tuple[Var, Expr | None]:
    """What `var`, or a variable after it, can be bound to with all that can be folded; None in
    the place of the value where there is nothing."""
    source, padding = _source(var, conv, bindings, ends)
    result = _result(var, conv, bindings)
    if (result.scale == 1.0).all() and result.steps < 2 and not source.shift.any():
        result = _identity(var, conv.out_channels)  # no more than a bias
    if result.steps == 0 and source.value.same_as(conv.x):
        return var, None
    last = result.value
    assert isinstance(last, Var)
    weight = conv.weight_array().astype(np.float64)
    with np.errstate(all="ignore"):
        axes = tuple(range(1, weight.ndim))
        shift = (weight * _by_filter(source.shift, conv)).sum(axis=axes)
        shift = (shift * result.scale + result.shift).astype(conv.dtype)
        weight = weight * _by_filter(source.scale, conv)
        weight = (weight * result.scale.reshape(-1, *[1] * len(axes))).astype(conv.dtype)
    if not (np.isfinite(weight).all() and np.isfinite(shift).all()):
        return var, None
    same = (source.scale == 1.0).all() and (result.scale == 1.0).all()
    call = conv.call(source.value, None if same else weight, padding)
    if not shift.any():
        return last, call
    return last, relax.op.add(call, relax.const(conv.by_channel(shift)))


def _by_filter(values: np.ndarray, conv: Convolution) -> np.ndarray:
    """`values`, one an input channel, for each filter of the weight: (OC, C / groups, 1, ...)."""
    filters = conv.out_channels // conv.groups
    rows = np.repeat(values.reshape(conv.groups, -1), filters, axis=0)
    return rows.reshape(*rows.shape, *[1] * len(conv.kernel))


def _identity(value: Expr, channels: int) -> Affine:
    return Affine(value, np.ones(channels), np.zeros(channels))


def _result(var: Var, conv: Convolution, bindings: Bindings) -> Affine:
    """The variable that holds the longest affine function of each channel of the convolution
    `var`, and that function."""
    affine = _identity(var, conv.out_channels)
    while True:
        last = affine.value
        assert isinstance(last, Var)
        user = bindings.only_user(last)
        step = _step(user, last, conv.out_channels, conv.channel_axis, bindings)
        if user is None or step is None or bindings.block[user] != bindings.block[last]:
            return affine
        scale, shift = step
        with np.errstate(all="ignore"):
            longer = Affine(
                user, scale * affine.scale, scale * affine.shift + shift, affine.steps + 1
            )
        if not longer.is_finite:
            return affine
        affine = longer


def _source(
    var: Var, conv: Convolution, bindings: Bindings, ends: Set[Var]
) -> tuple[Affine, tuple[int, ...]]:
    """The operand of the convolution, as an affine function of each channel of what is before
    it, and the padding, with pads by zeros."""
    affine, padding, user = _identity(conv.x, conv.in_channels), conv.padding, var
    while True:
        x = affine.value
        more = _zero_pad(bindings.call(x, PAD), conv)
        call = bindings.call(x, *ARITHMETIC)
        if more is not None:
            below = bindings.value[x].args[0]
            longer = replace(affine, value=below, steps=affine.steps + 1)
            widened = tuple(a + b for a, b in zip(padding, more, strict=True))
        elif call is not None and x not in ends and bindings.only_user(x) is not None:
            below = call.args[1] if isinstance(call.args[0], GenericConst) else call.args[0]
            step = _step(x, below, conv.in_channels, conv.channel_axis, bindings)
            if step is None or (step[1].any() and any(padding)):
                return affine, padding
            scale, shift = step
            with np.errstate(all="ignore"):
                longer = Affine(
                    below,
                    affine.scale * scale,
                    affine.scale * shift + affine.shift,
                    affine.steps + 1,
                )
            widened = padding
        else:
            return affine, padding
        reachable = isinstance(below, Var) and bindings.reaches(below, bindings.block[user])
        if not reachable or not longer.is_finite:
            return affine, padding
        affine, padding = longer, widened


def _step(
    result: Expr | None, operand: Expr, channels: int, axis: int, bindings: Bindings
) -> tuple[np.ndarray, np.ndarray] | None:
    """Scale and shift of what `result` is bound to, if that is one operator on `operand` and a
    constant."""
    call = bindings.call(result, *ARITHMETIC)
    if call is None or not same_tensor(call, operand):
        return None
    is_first = call.args[0].same_as(operand)
    number = per_channel(call.args[1 if is_first else 0], channels, axis, call.ty.ndim)
    if number is None or (call.op == DIVIDE and not is_first):
        return None
    ones, zeros = np.ones(channels), np.zeros(channels)
    with np.errstate(all="ignore"):
        if call.op == ADD:
            return ones, number
        if call.op == MULTIPLY:
            return number, zeros
        if call.op == DIVIDE:
            return 1.0 / number, zeros
    return (ones, -number) if is_first else (-ones, number)


def _zero_pad(call: Call | None, conv: Convolution) -> tuple[int, ...] | None:
    """What the padding of `conv` grows by in the place of the `pad` that `call` is."""
    if call is None or call.attrs.pad_mode != "constant" or float(call.attrs.pad_value) != 0.0:
        return None
    widths = [int(width) for width in call.attrs.pad_width]
    first = 1 if conv.channels_last else 2
    spatial = range(first, first + len(conv.strides))
    others = [axis for axis in range(len(widths) // 2) if axis not in spatial]
    if any(widths[2 * axis + side] for axis in others for side in (0, 1)) or min(widths) < 0:
        return None
    return tuple(widths[2 * axis + side] for side in (0, 1) for axis in spatial)
