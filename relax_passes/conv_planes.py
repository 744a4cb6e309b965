"""Convolutions that read their input as planes of channels, so that it needs no transpose."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.ir import GenericConst
from tvm.relax import Expr, Var

from tvm_moonpoly.operators.conv_constants import ConvSpec, takes_planes

from .bindings import Bindings
from .conv_epilogue import ConvEpilogue
from .conv_match import CONV2D, Convolution
from .layouts import to_last
from .match import Operand, stored_as


def planes_of(
    var: Var,
    conv: Convolution,
    epilogue: ConvEpilogue,
    spec: ConvSpec,
    bindings: Bindings,
    lanes: int,
) -> Expr | None:
    """The input (N, C, H, W) of `conv`, bound to `var`, where its function can read it: it is one
    of few channels, as an image is, and there is no residual. None where it cannot, and where the
    input has its channels last."""
    fits = conv.op == CONV2D and conv.dtype == "float32" and epilogue.residual is None
    if not fits or conv.in_channels == 1 or not takes_planes(spec, lanes):
        return None
    if not conv.channels_last:
        return conv.x
    return _transposed(conv.x, to_last(4), var, bindings)


def _transposed(expr: Expr, axes: Sequence[int], var: Var, bindings: Bindings) -> Expr | None:
    """What `expr`, an operand of `var`, is made from by a `permute_dims` of those axes."""
    for operand in stored_as(Operand(expr, tuple(range(len(axes)))), var, bindings):
        found = operand.stored
        if (
            operand.axes == tuple(axes)
            and isinstance(found, Var | GenericConst)
            and bindings.reaches(found, bindings.block[var])
        ):
            return found
    return None
