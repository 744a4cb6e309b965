"""Weights and biases of convolutions that are parameters, packed by operators of Relax.

They depend on parameters alone, so that `LiftTransformParams` computes them once. What they make is
what `conv_constants` makes of constants, for convolutions without Winograd's algorithm.
"""

from __future__ import annotations

from tvm import relax
from tvm.relax import Expr

from tvm_moonpoly.operators.conv_constants import ConvSpec

from .conv_match import Convolution
from .shapes import dtype_of


def packed_weight(conv: Convolution, spec: ConvSpec, lanes: int) -> Expr:
    """The weight of `conv`, a parameter, as `pack_conv_weight`, or `pack_depthwise_weight`, has
    it."""
    axes = conv.weight_axes
    weight = as_float(conv.weight)
    if axes != tuple(range(len(axes))):
        weight = relax.op.permute_dims(weight, axes)
    if spec.depthwise:
        # (C, KH * KW) turned round
        taps = spec.kernel[0] * spec.kernel[1]
        by_channel = relax.op.reshape(weight, (spec.out_channels, taps))
        return _padded(relax.op.permute_dims(by_channel), 2, spec.out_channels, lanes)
    groups = spec.groups
    outputs, inputs = spec.out_channels // groups, spec.in_channels // groups
    weight = relax.op.reshape(weight, (groups, outputs, inputs, *spec.kernel))
    steps = relax.op.permute_dims(weight, (0, 4, 3, 2, 1))
    steps = relax.op.reshape(steps, (groups, spec.depth, outputs))
    padded = _padded(steps, 3, outputs, lanes)
    panels = -(-outputs // lanes)
    by_panel = relax.op.reshape(padded, (groups, spec.depth, panels, lanes))
    by_panel = relax.op.permute_dims(by_panel, (0, 2, 1, 3))
    return relax.op.reshape(by_panel, (groups * panels, spec.depth, lanes))


def packed_bias(bias: Expr, spec: ConvSpec, lanes: int) -> Expr:
    """`bias`, a parameter of one number a channel, as `pad_conv_bias`, or `pad_bias`, has it."""
    groups = 1 if spec.depthwise else spec.groups
    outputs = spec.out_channels // groups
    by_group = relax.op.reshape(as_float(bias), (groups, outputs))
    padded = groups * -(-outputs // lanes) * lanes
    return relax.op.reshape(_padded(by_group, 2, outputs, lanes), (padded,))


def as_float(expr: Expr) -> Expr:
    """`expr` as float32."""
    return expr if dtype_of(expr) == "float32" else relax.op.astype(expr, "float32")


def _padded(expr: Expr, ndim: int, size: int, lanes: int) -> Expr:
    """`expr`, of `ndim` dimensions, the last one of `size`, with zeros up to whole vectors."""
    missing = -size % lanes
    return relax.op.nn.pad(expr, [0] * (2 * ndim - 1) + [missing]) if missing else expr
