"""What the tests of depthwise convolution share: calls on numpy arrays, and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from core_testing import CANARY_NUMBER, EPS, check_close, tensor

from tvm_moonpoly.operators import bounded_activation
from tvm_moonpoly.operators.conv_constants import (
    DEPTHWISE,
    DEPTHWISE_F16,
    DEPTHWISE_RESIDUAL,
    DEPTHWISE_RESIDUAL_F16,
    ConvActivation,
    ConvSpec,
    pack_depthwise_weight,
)
from tvm_moonpoly.operators.packing import pad_bias

NAMES = {
    ("float32", False): DEPTHWISE,
    ("float32", True): DEPTHWISE_RESIDUAL,
    ("float16", False): DEPTHWISE_F16,
    ("float16", True): DEPTHWISE_RESIDUAL_F16,
}


def square(channels: int, kernel: int = 3, stride: int = 1, **attributes: Any) -> ConvSpec:
    """A kernel as networks have it: of odd size, with half of it as padding."""
    return ConvSpec(
        kernel=(kernel, kernel),
        in_channels=channels,
        out_channels=channels,
        groups=channels,
        **{"strides": (stride, stride), "padding": (kernel // 2,) * 4, **attributes},
    )


def arguments(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    spec: ConvSpec,
    lanes: int,
    residual: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of a call, by their names, without the output."""
    constants = pack_depthwise_weight(w, lanes), pad_bias(bias, spec.in_channels, lanes)
    given = dict(zip(("x", "weight", "bias"), (x, *constants), strict=True))
    added = {} if residual is None else {"residual": residual}
    return {**given, **added, "spec": spec.encode()}


def depthwise(
    module: Any,
    lanes: int,
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    spec: ConvSpec,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """Call the packed function for the types of the arrays."""
    out = np.full((x.shape[0], *spec.output_size(*x.shape[1:3]), x.shape[3]), CANARY_NUMBER)
    out = out.astype(x.dtype)
    given = arguments(x, w, bias, spec, lanes, residual)
    name = NAMES[str(x.dtype), residual is not None]
    module[name](*map(tensor, given.values()), tensor(out))
    return out


def sums(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, spec: ConvSpec
) -> tuple[np.ndarray, np.ndarray]:
    """``conv(x) + bias`` in float64, and the sum of the sizes of all that was added."""
    n, h, width, channels = x.shape
    top, left, bottom, right = spec.padding
    oh, ow = spec.output_size(h, width)
    padded = np.zeros((n, h + top + bottom, width + left + right, channels))
    padded[:, top : top + h, left : left + width] = x
    total = np.zeros((n, oh, ow, channels))
    size = np.zeros_like(total)
    for i in range(spec.kernel[0]):
        for j in range(spec.kernel[1]):
            rows = i * spec.dilation[0] + np.arange(oh) * spec.strides[0]
            columns = j * spec.dilation[1] + np.arange(ow) * spec.strides[1]
            product = padded[:, rows[:, None], columns] * w[:, 0, i, j].astype(np.float64)
            total += product
            size += np.abs(product)
    if bias is not None:
        total, size = total + bias.astype(np.float64), size + np.abs(bias)
    return total, size


def check_depthwise(
    result: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    spec: ConvSpec,
    residual: np.ndarray | None = None,
) -> None:
    """``result`` is ``act(conv(x) + bias + residual)`` within the bound of its arithmetic."""
    before, size = sums(x, w, bias, spec)
    if residual is not None:
        before, size = before + residual, size + np.abs(residual.astype(np.float64))
    # slopes of the activations are below 1.2, or alpha; their own formulas are good to about 1e-6
    slope = max(1.2, abs(spec.first)) if spec.activation != ConvActivation.NONE else 1.0
    bound = (spec.depth + 3) * EPS * slope * size
    if spec.activation > ConvActivation.RELU:
        bound = bound + 1e-6 * (1 + np.abs(before))
    expected = bounded_activation.reference(spec.activation, before, spec.first, spec.second)
    if result.dtype == np.float16:
        bound = bound + np.abs(expected) * 2.0**-11 + 2.0**-25
    check_close(result, expected, bound)
