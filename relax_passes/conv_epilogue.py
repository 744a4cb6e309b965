"""Find what follows a convolution and can be done by its store: bias, residual, activation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from tvm.ir import GenericConst, Op
from tvm.relax import Expr, Var

from .bindings import Bindings
from .conv_activation import ConvMatch, match_conv_activation
from .conv_match import Convolution
from .shapes import dims, same_dim, same_tensor

ADD, SUBTRACT = Op.get("relax.add"), Op.get("relax.subtract")


@dataclass(frozen=True, eq=False)
class ConvEpilogue:
    """`last = activation(convolution + biases + parameter + residual)`; `biases` have one value a
    channel, and so has `parameter`, which is made from parameters."""

    last: Var
    biases: tuple[np.ndarray, ...] = field(default=())
    parameter: Var | None = None
    residual: Var | None = None
    activation: ConvMatch | None = None

    @property
    def bias(self) -> np.ndarray | None:
        """The sum of all biases, float32."""
        if not self.biases:
            return None
        return np.asarray(np.sum(self.biases, axis=0, dtype=np.float64), np.float32)

    def __str__(self) -> str:
        parts = ["bias"] * (bool(self.biases) or self.parameter is not None)
        parts += ["residual"] * (self.residual is not None)
        if self.activation is not None:
            parts.append(self.activation.activation.name.lower())
        return " + ".join(parts)


def match_conv_epilogue(var: Var, conv: Convolution, bindings: Bindings) -> ConvEpilogue:
    """The longest epilogue of the convolution `conv`, which `var` is bound to.

    Its operands are read where it ends, so that nothing may write before that.
    """
    epilogue = ConvEpilogue(var)
    while True:
        longer = _with_operand(epilogue, conv, bindings)
        if longer is None or not bindings.undisturbed(var, longer.last):
            break
        epilogue = longer
    match = match_conv_activation(epilogue.last, bindings)
    if match is not None and bindings.undisturbed(var, match.output):
        return replace(epilogue, last=match.output, activation=match)
    return epilogue


def _with_operand(
    epilogue: ConvEpilogue, conv: Convolution, bindings: Bindings
) -> ConvEpilogue | None:
    """`epilogue` and the addition after it, if that is of a bias or a residual."""
    last = epilogue.last
    user = bindings.only_user(last)
    call = bindings.call(user, ADD, SUBTRACT)
    if user is None or call is None or bindings.block[user] != bindings.block[last]:
        return None
    if not same_tensor(call, last):
        return None
    a, b = call.args
    if call.op == SUBTRACT and not a.same_as(last):
        return None
    other = b if a.same_as(last) else a
    bias = per_channel(other, conv.out_channels, conv.channel_axis, last.ty.ndim)
    if bias is not None:
        sign = -1.0 if call.op == SUBTRACT else 1.0
        return replace(epilogue, last=user, biases=(*epilogue.biases, sign * bias))
    if call.op == SUBTRACT:
        return None
    shape = (conv.out_channels, conv.channel_axis, last.ty.ndim)
    if epilogue.parameter is None and bindings.is_parameter(other) and _has_each(other, *shape):
        return replace(epilogue, last=user, parameter=other)
    if epilogue.residual is not None:
        return None
    if isinstance(other, Var) and same_tensor(other, last):
        return replace(epilogue, last=user, residual=other)
    return None


def per_channel(expr: Expr, channels: int, axis: int, ndim: int) -> np.ndarray | None:
    """The values, one for each of `channels`, that the constant `expr` gives in an elementwise
    operator with a tensor of `ndim` dimensions that has them on `axis`; None if it is not one value
    a channel."""
    shape = dims(expr)
    if not isinstance(expr, GenericConst) or shape is None or len(shape) > ndim:
        return None
    values = expr.value.numpy().astype(np.float64)
    if values.size == 1:
        return np.full(channels, values.reshape(()))
    return values.ravel() if _has_each(expr, channels, axis, ndim) else None


def _has_each(expr: Expr, channels: int, axis: int, ndim: int) -> bool:
    """Whether `expr` has one value for each of `channels`: see `per_channel`."""
    shape = dims(expr)
    if shape is None or len(shape) > ndim:
        return False
    sizes = [1] * ndim
    sizes[axis] = channels
    full = [1] * (ndim - len(shape)) + list(shape)
    return all(same_dim(dim, size) for dim, size in zip(full, sizes, strict=True))
