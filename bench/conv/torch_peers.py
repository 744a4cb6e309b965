"""PyTorch's convolutions: in either order of memory, and oneDNN's own layouts.

Importing this module imports torch and puts the calling thread into inference mode for good.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.utils import mkldnn

from bench.conv.layer import FIRST
from bench.conv.operands import Operands, Run
from bench.conv.peers import Peer, Prepare

torch.inference_mode().__enter__()


def contiguous(threads: int) -> Peer:
    """``F.conv2d`` on contiguous NCHW tensors."""
    mode = "F.conv2d, NCHW"
    return Peer("torch_nchw", mode, functional(threads, torch.contiguous_format))


def channels_last(threads: int) -> Peer:
    """``F.conv2d`` on tensors in channels-last memory; a first layer gets its images in NCHW."""
    mode = "F.conv2d, channels last; weight in channels last as well"
    return Peer("torch_nhwc", mode, functional(threads, torch.channels_last))


def functional(threads: int, order: torch.memory_format) -> Prepare:
    """What binds operands to ``F.conv2d`` with all tensors in ``order``."""
    torch.set_num_threads(threads)

    def prepare(operands: Operands) -> tuple[Run, Callable[[object], np.ndarray]]:
        layer, apply = operands.layer, torch.nn.functional.conv2d
        x, padding = padded(operands)
        if layer.group != FIRST:
            x = x.contiguous(memory_format=order)
        weight = torch.from_numpy(operands.weight).contiguous(memory_format=order)
        bias = torch.from_numpy(operands.bias)
        more = (layer.strides, padding, layer.dilation, layer.groups)
        return lambda: apply(x, weight, bias, *more), as_nhwc

    return prepare


def packed(threads: int) -> Peer:
    """oneDNN with its weight packed for it, on tensors in its own layouts.

    The input of an inner layer is what a convolution of oneDNN gave, in whatever layout that is.
    """
    torch.set_num_threads(threads)

    def prepare(operands: Operands) -> tuple[Run, Callable[[object], np.ndarray]]:
        layer = operands.layer
        x, padding = padded(operands)
        module = torch.nn.Conv2d(
            layer.c,
            layer.k,
            layer.kernel,
            layer.strides,
            padding,
            layer.dilation,
            layer.groups,
        )
        module.weight = torch.nn.Parameter(torch.from_numpy(operands.weight), False)
        module.bias = torch.nn.Parameter(torch.from_numpy(operands.bias), False)
        run = mkldnn.to_mkldnn(module.eval())
        inner = x.to_mkldnn()
        if layer.group != FIRST:
            same = torch.nn.Conv2d(layer.c, layer.c, 1)
            same.weight = torch.nn.Parameter(torch.eye(layer.c).reshape(layer.c, layer.c, 1, 1))
            same.bias = torch.nn.Parameter(torch.zeros(layer.c))
            inner = mkldnn.to_mkldnn(same.eval())(inner)
        return lambda: run(inner), lambda result: as_nhwc(result.to_dense())

    mode = "torch.utils.mkldnn, oneDNN's layouts, weight packed"
    return Peer("onednn_packed", mode, prepare)


def padded(operands: Operands) -> tuple[torch.Tensor, tuple[int, int]]:
    """The input, and the padding of both sides that is left; the rest is added beforehand."""
    layer = operands.layer
    x = torch.from_numpy(operands.nchw)
    top, left, bottom, right = layer.padding
    if (top, left) == (bottom, right):
        return x, (top, left)
    return torch.nn.functional.pad(x, (left, right, top, bottom)), (0, 0)


def as_nhwc(result: object) -> np.ndarray:
    """A result as an array (n, oh, ow, k)."""
    assert isinstance(result, torch.Tensor)
    array: np.ndarray = result.detach().permute(0, 2, 3, 1).contiguous().numpy()
    return array
