"""The arrays of a case, the same for every candidate, and what they must give."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.conv.layer import Layer
from bench.gemm.operands import aligned_copy, normal

Run = Callable[[], object]

CHECKED = 48  # outputs whose channels are all compared
WRONG = 1e-4  # largest error relative to the largest output; Winograd's algorithm loses digits


@dataclass(frozen=True)
class Operands:
    """Arrays of one layer, 64-byte aligned: x in both orders, weight (k, c / groups, r, s), bias,
    and the output in both orders for those that write to memory of the caller."""

    layer: Layer
    nchw: np.ndarray
    nhwc: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    out_nchw: np.ndarray
    out_nhwc: np.ndarray

    @functools.cached_property
    def places(self) -> np.ndarray:
        """Numbers of the outputs that are compared, spread over all of them."""
        total = self.layer.n * self.layer.output[0] * self.layer.output[1]
        return np.unique(np.linspace(0, total - 1, CHECKED).astype(int))

    @functools.cached_property
    def expected(self) -> np.ndarray:
        """All channels of `places`, float64 (places, k): worked out once for all candidates."""
        layer = self.layer
        patches = np.stack([patch_at(self, int(place)) for place in self.places])
        weight = self.weight.reshape(layer.groups, layer.k // layer.groups, -1).astype(np.float64)
        groups = patches.reshape(len(patches), layer.groups, -1).swapaxes(0, 1)
        sums = (groups @ weight.swapaxes(1, 2)).swapaxes(0, 1)
        return sums.reshape(len(patches), layer.k) + self.bias


def make_operands(layer: Layer) -> Operands:
    """Operands of normal values; the same ones in every process."""
    rng = np.random.default_rng(zlib.crc32(layer.key.encode()))
    nchw = normal(rng, layer.n, layer.c, layer.h, layer.w)
    weight = normal(rng, layer.k, layer.c // layer.groups, *layer.kernel)
    out = np.zeros((layer.n, layer.k, *layer.output), np.float32)
    return Operands(
        layer,
        nchw,
        aligned_copy(nchw.transpose(0, 2, 3, 1)),
        weight,
        normal(rng, layer.k),
        aligned_copy(out),
        aligned_copy(out.transpose(0, 2, 3, 1)),
    )


def error_in(result: np.ndarray, operands: Operands) -> str | None:
    """What is wrong with ``result`` (n, oh, ow, k), None when nothing is: some outputs, spread over
    all of them, against float64."""
    layer = operands.layer
    expected_shape = (layer.n, *layer.output, layer.k)
    if result.shape != expected_shape:
        return f"shape {result.shape} instead of {expected_shape}"
    found = result.reshape(-1, layer.k)[operands.places].astype(np.float64)
    expected = operands.expected
    error = np.abs(found - expected).max() / np.abs(expected).max()
    return None if error <= WRONG else f"wrong by {error:.2g} of the largest output"


def patch_at(operands: Operands, place: int) -> np.ndarray:
    """The inputs (c, *kernel) of output number ``place``, zeros where they are padding."""
    layer = operands.layer
    image, rest = divmod(place, layer.output[0] * layer.output[1])
    at = divmod(rest, layer.output[1])
    taps = [
        (number * stride - pad) + np.arange(kernel) * dilation
        for number, stride, pad, kernel, dilation in zip(
            at, layer.strides, layer.padding[:2], layer.kernel, layer.dilation, strict=True
        )
    ]
    patch = np.zeros((layer.c, *layer.kernel))
    inside = [(t >= 0) & (t < size) for t, size in zip(taps, (layer.h, layer.w), strict=True)]
    every = np.arange(layer.c)
    kept = np.ix_(every, inside[0].nonzero()[0], inside[1].nonzero()[0])
    patch[kept] = operands.nchw[image][np.ix_(every, taps[0][inside[0]], taps[1][inside[1]])]
    return patch
