"""What a convolution is at compile time: its attributes, and its weight and bias as panels.

All in numpy. A packed function gets the attributes as one int64 vector, see `ConvSpec.encode`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from tvm_moonpoly.operators.packing import pack_weight, pad_bias
from tvm_moonpoly.planner.conv import at_offsets
from tvm_moonpoly.planner.conv_blocks import PATCH
from tvm_moonpoly.planner.conv_numbers import ATTRIBUTES
from tvm_moonpoly.planner.conv_shapes import Convolution

CONV2D = "moonpoly_conv2d_f32"
CONV2D_RESIDUAL = "moonpoly_conv2d_residual_f32"
CONV2D_F16 = "moonpoly_conv2d_f16"
CONV2D_RESIDUAL_F16 = "moonpoly_conv2d_residual_f16"
CONVOLUTIONS = (CONV2D, CONV2D_RESIDUAL, CONV2D_F16, CONV2D_RESIDUAL_F16)

DEPTHWISE = "moonpoly_depthwise_f32"
DEPTHWISE_RESIDUAL = "moonpoly_depthwise_residual_f32"
DEPTHWISE_F16 = "moonpoly_depthwise_f16"
DEPTHWISE_RESIDUAL_F16 = "moonpoly_depthwise_residual_f16"
DEPTHWISE_CONVOLUTIONS = (DEPTHWISE, DEPTHWISE_RESIDUAL, DEPTHWISE_F16, DEPTHWISE_RESIDUAL_F16)


class ConvActivation(IntEnum):
    """The activation of a convolution; numbers below 8 are those of `activation.Activation`.

    CLIP: ``min(max(x, low), high)``. HARDSIGMOID: ``min(max(alpha * x + beta, 0), 1)``.
    HARDSWISH: ``x * min(max(x / 6 + 0.5, 0), 1)``.
    """

    NONE = 0
    RELU = 1
    GELU = 2
    GELU_TANH = 3
    SILU = 4
    SIGMOID = 6
    TANH = 7
    CLIP = 8
    HARDSWISH = 9
    HARDSIGMOID = 10


#: With fewer channels, transforms cost more than products saved.
WINOGRAD_CHANNELS = 16

#: The transform of a row of three weights.
_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])

#: The largest size of a kernel, stride, padding or dilation, and of the channels: products of them
#: stay far below what an int64 holds.
MOST, MOST_CHANNELS = 1 << 16, 1 << 24


@dataclass(frozen=True)
class ConvSpec:
    """The attributes of a convolution of (N, H, W, in_channels) to (N, OH, OW, out_channels).

    ``padding`` is (top, left, bottom, right). ``first`` and ``second`` are the parameters of the
    activation: low and high of CLIP, alpha and beta of HARDSIGMOID. ``direct``: never by Winograd's
    algorithm. ``planes``: the input is (N, in_channels, H, W), which only some may be, see
    `takes_planes`.

    Raises ValueError, which names the attribute, where one is out of its range.
    """

    kernel: tuple[int, int]
    in_channels: int
    out_channels: int
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    activation: ConvActivation = ConvActivation.NONE
    first: float = 0.0
    second: float = 0.0
    direct: bool = False
    planes: bool = False

    def __post_init__(self) -> None:
        for name, count, least in (
            ("kernel", 2, 1),
            ("strides", 2, 1),
            ("padding", 4, 0),
            ("dilation", 2, 1),
        ):
            given = tuple(getattr(self, name))
            if len(given) != count or not all(least <= int(value) <= MOST for value in given):
                raise ValueError(
                    f"{name}: {count} numbers from {least} to {MOST} are needed, not {given}"
                )
            object.__setattr__(self, name, tuple(map(int, given)))
        for name in ("in_channels", "out_channels", "groups"):
            value = int(getattr(self, name))
            if not 1 <= value <= MOST_CHANNELS:
                raise ValueError(f"{name}: must be from 1 to {MOST_CHANNELS}, not {value}")
            object.__setattr__(self, name, value)
        for name in ("in_channels", "out_channels"):
            value = getattr(self, name)
            if value % self.groups:
                raise ValueError(f"groups: {self.groups} must divide the {name}, {value}")
        object.__setattr__(self, "activation", ConvActivation(self.activation))
        for name in ("first", "second"):
            object.__setattr__(self, name, float(np.float32(getattr(self, name))))
        if self.activation == ConvActivation.CLIP and not self.first <= self.second:
            raise ValueError(f"first: clip from {self.first} to {self.second} has no numbers")
        if self.activation == ConvActivation.HARDSIGMOID and not (
            math.isfinite(self.first) and math.isfinite(self.second)
        ):
            raise ValueError(f"first: must be finite, as second: {self.first}, {self.second}")

    @property
    def depth(self) -> int:
        """Products that an output is the sum of."""
        return self.kernel[0] * self.kernel[1] * self.in_channels // self.groups

    @property
    def winograd(self) -> bool:
        """Whether it is computed by Winograd's algorithm F(2x2, 3x3), with 4/9 of the products.

        Its sums are of numbers of a whole 4x4 patch of the input: an output may be off by a few
        units in the last place of the largest of them.
        """
        square = self.kernel == (3, 3) and self.strides == self.dilation == (1, 1)
        fewest = min(self.in_channels, self.out_channels) // self.groups
        return square and not self.direct and fewest >= WINOGRAD_CHANNELS

    @property
    def depthwise(self) -> bool:
        """Whether each channel is a group of its own, with one output."""
        return self.groups == self.in_channels == self.out_channels

    def output_size(self, h: int, w: int) -> tuple[int, int]:
        """(OH, OW) of an input of (h, w).

        Raises ValueError when the kernel is larger than the padded input.
        """
        sizes = []
        for axis, size in enumerate((h, w)):
            padded = size + self.padding[axis] + self.padding[axis + 2]
            reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1
            if size < 0 or padded < reach:
                side = ("height", "width")[axis]
                raise ValueError(
                    f"x: its {side} with padding, {padded}, is less than that of the kernel, "
                    f"{reach}"
                )
            sizes.append((padded - reach) // self.strides[axis] + 1)
        return sizes[0], sizes[1]

    def encode(self) -> np.ndarray:
        """`ATTRIBUTES` as int64, in their order; floats as the bits of a float32."""
        parameters = np.array([self.first, self.second], np.float32).view(np.int32)
        numbers = [
            *self.kernel,
            *self.strides,
            *self.padding,
            *self.dilation,
            self.groups,
            self.in_channels,
            self.out_channels,
            int(self.activation),
            *map(int, parameters),
            int(self.winograd),
            int(self.planes),
        ]
        return np.array(numbers, np.int64)

    @classmethod
    def decode(cls, encoded: np.ndarray) -> ConvSpec:
        """Inverse of `encode`; raises ValueError when it is no such vector."""
        if encoded.shape != (len(ATTRIBUTES),):
            raise ValueError(f"spec: {len(ATTRIBUTES)} numbers are needed, not {encoded.shape}")
        v = [int(value) for value in encoded]
        first, second = np.array(v[14:16], np.int32).view(np.float32)
        spec = cls(
            kernel=(v[0], v[1]),
            strides=(v[2], v[3]),
            padding=(v[4], v[5], v[6], v[7]),
            dilation=(v[8], v[9]),
            groups=v[10],
            in_channels=v[11],
            out_channels=v[12],
            activation=ConvActivation(v[13]),
            first=float(first),
            second=float(second),
            planes=bool(v[17]),
        )
        return spec if spec.winograd == bool(v[16]) else replace(spec, direct=True)


def takes_planes(spec: ConvSpec, lanes: int) -> bool:
    """Whether the input of ``spec``, float32 and without a residual, may be planes of channels."""
    sizes = Convolution(
        n=1,
        oh=1,
        ow=1,
        channels=spec.in_channels // spec.groups,
        outputs=spec.out_channels // spec.groups,
        groups=spec.groups,
        kernel=spec.kernel,
        strides=spec.strides,
        dilation=spec.dilation,
    )
    return at_offsets(sizes, lanes)


def can_transform(w: np.ndarray) -> bool:
    """Whether the weights of `w` and what Winograd's algorithm makes of them are finite: of others
    a convolution must be ``direct``."""
    # each row of the transform, once for rows and once for columns, makes at most 1.5 times as much
    return w.size == 0 or 1.5**2 * float(np.abs(w).max()) < float(np.finfo(np.float32).max)


def pack_conv_weight(w: np.ndarray, spec: ConvSpec, lanes: int) -> np.ndarray:
    """``w`` (OC, C / groups, KH, KW) as panels, those of one group after those of another:
    (groups * ceil(OC / groups / lanes), KW * KH * C / groups, lanes) float32.

    Steps of the reduction are in the order (kw, kh, c). For Winograd's algorithm the weights are
    those of a transformed patch, 4 x 4 * C / groups steps in the order (row, column, c).

    Raises ValueError when ``w`` is not a float32 weight of ``spec``, or not one that can be
    transformed where that is needed, see `can_transform`.
    """
    inputs, outputs = spec.in_channels // spec.groups, spec.out_channels // spec.groups
    _require_weight(w, (spec.out_channels, inputs, *spec.kernel))
    grouped = w.reshape(spec.groups, outputs, inputs, *spec.kernel)
    if spec.winograd:
        if not can_transform(w):
            raise ValueError("w: not finite once it is transformed; use ConvSpec(direct=True)")
        patches = np.einsum("ih,jw,gochw->gijco", _G, _G, grouped.astype(np.float64))
        steps = patches.astype(np.float32).reshape(spec.groups, PATCH * inputs, outputs)
    else:
        steps = grouped.transpose(0, 4, 3, 2, 1).reshape(spec.groups, spec.depth, outputs)
    return np.concatenate([pack_weight(each, lanes) for each in steps])


def pad_conv_bias(bias: np.ndarray | None, spec: ConvSpec, lanes: int) -> np.ndarray:
    """``bias`` (OC,) float32, each group padded with zeros to whole panels; zeros when None.

    Raises ValueError when ``bias`` is not a float32 vector of the output channels.
    """
    outputs = spec.out_channels // spec.groups
    if bias is not None and (bias.shape != (spec.out_channels,) or bias.dtype != np.float32):
        raise ValueError(
            f"bias: float32 of shape ({spec.out_channels},) is needed, not {bias.dtype} "
            f"{bias.shape}"
        )
    parts = [None] * spec.groups if bias is None else np.split(bias, spec.groups)
    return np.concatenate([pad_bias(part, outputs, lanes) for part in parts])


def pack_depthwise_weight(w: np.ndarray, lanes: int) -> np.ndarray:
    """``w`` (C, 1, KH, KW) float32 as (KH * KW, ceil(C / lanes) * lanes), padded with zeros.

    Its bias is that of `packing.pad_bias`. Raises ValueError when ``w`` is no such weight.
    """
    if w.ndim != 4:
        raise ValueError(f"w: 4 dimensions are needed, not {w.ndim}")
    channels, _, height, width = w.shape
    _require_weight(w, (channels, 1, height, width))
    padded = np.zeros((height * width, -(-channels // lanes) * lanes), np.float32)
    padded[:, :channels] = w.reshape(channels, height * width).T
    return padded


def _require_weight(w: np.ndarray, shape: tuple[int, ...]) -> None:
    if w.shape != shape or w.dtype != np.float32:
        raise ValueError(f"w: float32 of shape {shape} is needed, not {w.dtype} {w.shape}")
