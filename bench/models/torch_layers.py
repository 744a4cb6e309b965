"""ONNX operators in torch that are layers of a network, by the same rules as `torch_values`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> torch.Tensor:
    """A linear layer; ``alpha`` and ``beta`` are 1 in all networks."""
    if (alpha, beta, transA) != (1.0, 1.0, 0):
        raise NotImplementedError("Gemm that is no linear layer")
    return functional.linear(a, b if transB else b.t(), c)


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
) -> torch.Tensor:
    return functional.conv2d(
        x, weight, bias, list(strides), symmetric(pads), list(dilations), group
    )


def symmetric(pads: Sequence[int]) -> list[int]:
    """The pads of both ends of each axis, which are equal."""
    half = len(pads) // 2
    if list(pads[:half]) != list(pads[half:]):
        raise NotImplementedError(f"pads {list(pads)} differ at both ends")
    return list(pads[:half])


def batch_norm(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
) -> torch.Tensor:
    return functional.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


def layer_norm(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


def max_pool(
    x: torch.Tensor,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    ceil_mode: int = 0,
) -> torch.Tensor:
    return functional.max_pool2d(
        x, list(kernel_shape), list(strides), symmetric(pads), ceil_mode=bool(ceil_mode)
    )


def average_pool(
    x: torch.Tensor,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> torch.Tensor:
    kernel, step = list(kernel_shape), list(strides)
    counted = bool(count_include_pad)
    return functional.avg_pool2d(x, kernel, step, symmetric(pads), bool(ceil_mode), counted)


def reduced(
    apply: Callable[..., torch.Tensor],
) -> Callable[[torch.Tensor, Sequence[int] | None, Sequence[int], int], torch.Tensor]:
    """A reduction, whose axes are an input or an attribute."""

    def reduce(
        x: torch.Tensor,
        given: Sequence[int] | None = None,
        axes: Sequence[int] = (),
        keepdims: int = 1,
    ) -> torch.Tensor:
        return apply(x, dim=list(given or axes), keepdim=bool(keepdims))

    return reduce


def softmax(x: torch.Tensor, axis: int = -1) -> torch.Tensor:
    """Over the last axis, where all versions of the operator agree."""
    if axis % x.dim() != x.dim() - 1:
        raise NotImplementedError("Softmax of another axis than the last")
    return torch.softmax(x, -1)


def attention(
    query: torch.Tensor,
    turned: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    axis: int,
) -> torch.Tensor:
    """``softmax(query @ turned * scale + mask) @ value``: keys come transposed."""
    if axis % query.dim() != query.dim() - 1:
        raise NotImplementedError("Softmax of another axis than the last")
    key = turned.transpose(-2, -1)
    return functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)


def hard_sigmoid(x: torch.Tensor, alpha: float = 0.2, beta: float = 0.5) -> torch.Tensor:
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


def flatten(x: torch.Tensor, axis: int = 1) -> torch.Tensor:
    return x.reshape([math.prod(x.shape[:axis]), -1])


def global_average(x: torch.Tensor) -> torch.Tensor:
    return x.mean(dim=(2, 3), keepdim=True)
