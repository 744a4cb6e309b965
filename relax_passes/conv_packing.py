"""The constants of a convolution in the form that the packed functions read."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import Expr
from tvm.target import Target

from tvm_moonpoly import operators
from tvm_moonpoly.operators.conv_constants import (
    ConvActivation,
    ConvSpec,
    can_transform,
    pack_conv_weight,
    pack_depthwise_weight,
    pad_conv_bias,
)

from .conv_epilogue import ConvEpilogue
from .conv_match import Convolution
from .conv_parameters import packed_bias, packed_weight
from .packing import Packing, digest


def spec_of(conv: Convolution, epilogue: ConvEpilogue, winograd: bool) -> ConvSpec:
    """The attributes of `conv` and its activation; one row high where it is a `conv1d`.

    Winograd's algorithm mixes weights, so that it is not for those that are not finite, nor for
    parameters, which may not be.

    Raises ValueError where the operator library does not take them.
    """
    match = epilogue.activation
    top, left, bottom, right = conv.padding if len(conv.kernel) == 2 else _one_row(conv.padding)
    return ConvSpec(
        kernel=_two(conv.kernel),
        in_channels=conv.in_channels,
        out_channels=conv.out_channels,
        strides=_two(conv.strides),
        padding=(top, left, bottom, right),
        dilation=_two(conv.dilation),
        groups=conv.groups,
        activation=ConvActivation.NONE if match is None else match.activation,
        first=0.0 if match is None else match.first,
        second=0.0 if match is None else match.second,
        direct=not (winograd and conv.is_constant and can_transform(conv.weight_array())),
    )


def _two(sizes: tuple[int, ...]) -> tuple[int, int]:
    """Those of rows and columns."""
    *rows, columns = sizes
    return (rows[0] if rows else 1), columns


def _one_row(padding: tuple[int, ...]) -> tuple[int, int, int, int]:
    left, right = padding
    return 0, left, 0, right


class ConvPacking:
    """Makes the constants for one module; equal ones are made, and kept in the module, once.

    `lanes` are the columns of a panel.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.others = Packing(target)
        self.lanes = operators.lanes(target)

    def weight(self, conv: Convolution, spec: ConvSpec) -> Expr:
        """The weight in panels, or by channel where the convolution is depthwise; a parameter
        packed by operators."""
        if not conv.is_constant:
            return packed_weight(conv, spec, self.lanes)
        weight = np.ascontiguousarray(conv.weight_array()).reshape(
            spec.out_channels, -1, *spec.kernel
        )
        key = ("conv weight", weight.shape, spec.groups, spec.winograd, digest(weight))
        if spec.depthwise:
            return self.others.once(key, lambda: pack_depthwise_weight(weight, self.lanes))
        return self.others.once(key, lambda: pack_conv_weight(weight, spec, self.lanes))

    def bias(self, epilogue: ConvEpilogue, spec: ConvSpec) -> Expr:
        """All that `epilogue` adds to each channel, padded to whole panels."""
        constant = self._bias(epilogue.bias, spec)
        if epilogue.parameter is None:
            return constant
        packed = packed_bias(epilogue.parameter, spec, self.lanes)
        return relax.op.add(packed, constant) if epilogue.biases else packed

    def _bias(self, bias: np.ndarray | None, spec: ConvSpec) -> GenericConst:
        """`bias`, or zeros, padded to whole panels."""
        of = None if bias is None else digest(bias)
        key = ("conv bias", spec.out_channels, spec.groups, spec.depthwise, of)
        if spec.depthwise:
            make = operators.pad_bias
            return self.others.once(key, lambda: make(bias, spec.out_channels, self.lanes))
        return self.others.once(key, lambda: pad_conv_bias(bias, spec, self.lanes))

    def spec(self, spec: ConvSpec) -> GenericConst:
        """`spec` as a vector of int64."""
        return self.others.once(("spec", spec), spec.encode)
