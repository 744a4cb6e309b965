"""What of the operators after a matmul can be done on its tiles while they are in registers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm.ir import GenericConst, Op
from tvm.relax import Expr, Var

from tvm_moonpoly.operators import Activation

from .activation import match_activation
from .bindings import Bindings
from .match import PERMUTE_DIMS, permutation
from .shapes import dims, is_float32, same_tensor

ADD = Op.get("relax.add")


@dataclass(frozen=True)
class Epilogue:
    """`last = activation(product + bias + residual)`."""

    last: Var
    bias: np.ndarray | None = None
    residual: Var | None = None
    activation: Activation = Activation.NONE

    def __str__(self) -> str:
        names = [name for name in ("bias", "residual") if getattr(self, name) is not None]
        if self.activation != Activation.NONE:
            names.append(self.activation.name.lower())
        return " + ".join(names)


def linear_epilogue(var: Var, features: int, bindings: Bindings) -> Epilogue:
    """The longest epilogue after the linear layer `var` of `features` outputs.

    All operands are then read where the epilogue ends, so that nothing may write before that.
    """
    last = var
    bias: np.ndarray | None = None
    residual: Var | None = None
    while True:
        user = bindings.only_user(last)
        call = bindings.call(user, ADD)
        if user is None or call is None or not same_tensor(call, last):
            break
        if bindings.block[user] != bindings.block[last] or not bindings.undisturbed(var, user):
            break
        other = call.args[1] if last.same_as(call.args[0]) else call.args[0]
        vector = _vector(other, features)
        if vector is not None and bias is None:
            bias = vector
        elif isinstance(other, Var) and same_tensor(other, last) and residual is None:
            residual = other
        else:
            break
        last = user
    match = match_activation(last, bindings)
    if match is None or not bindings.undisturbed(var, match.output):
        return Epilogue(last, bias, residual)
    return Epilogue(match.output, bias, residual, match.activation)


def transposed_store(var: Var, bindings: Bindings) -> tuple[Var, tuple[int, ...]]:
    """The variable that holds the product `var` once a `permute_dims` after it is done by the
    store, and which dim of the product each stored dim is."""
    identity = tuple(range(len(dims(var) or ())))
    user = bindings.only_user(var)
    call = bindings.call(user, PERMUTE_DIMS)
    if user is None or call is None or bindings.block[user] != bindings.block[var]:
        return var, identity
    if not bindings.undisturbed(var, user):
        return var, identity
    axes = permutation(call, len(identity))
    return (user, axes) if axes[-1] == identity[-1] else (var, identity)


def _vector(expr: Expr, features: int) -> np.ndarray | None:
    """The bias, shape (features,), if `expr` is a constant of shape (1, ..., features)."""
    if isinstance(expr, GenericConst) and is_float32(expr):
        array = expr.value.numpy()
        if array.ndim > 0 and array.size == array.shape[-1] == features:
            return array.reshape(features)
    return None
