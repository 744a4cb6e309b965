"""What native functions know of a convolution, in one vector of int64."""

from __future__ import annotations

from tvm_moonpoly.planner.conv_shapes import PLAN_FIELDS

#: The attributes of a convolution, as in the vector that a packed function is given.
ATTRIBUTES = (
    "kernel_h",
    "kernel_w",
    "stride_h",
    "stride_w",
    "top",
    "left",
    "bottom",
    "right",
    "dilation_h",
    "dilation_w",
    "groups",
    "in_channels",
    "out_channels",
    "activation",
    "first",
    "second",
    "winograd",
    "planes",
)

#: What follows from them and from the operands; of channels, those of a group.
SIZES = (
    "n",
    "h",
    "w",
    "oh",
    "ow",
    "channels",
    "outputs",
    "depth",
    "panels",
    "columns",
    "residual",
    "half",
)

#: All that is known of a convolution while it is planned and computed, as `Numbers`.
CONVOLUTION = (*ATTRIBUTES, *SIZES, *PLAN_FIELDS)
