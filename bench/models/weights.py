"""Random weights that keep a network's values near 1 from layer to layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

Shapes = Mapping[str, tuple[int, ...]]


def random_weights(
    shapes: Shapes, seed: int, residual: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Weights by name, float32, the same for the same seed.

    What has several dimensions is scaled by the square root of what one result sums up; vectors
    named ``.weight`` or ``.var`` are scales near 1, others are small. Weights whose names end like
    one of ``residual`` are half as large: their results are added to what was there.
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes.items():
        drawn = rng.standard_normal(shape, np.float32)
        if len(shape) > 1:
            drawn *= 1 / math.sqrt(math.prod(shape[1:]))
        elif name.endswith((".weight", ".var")):
            drawn = np.exp(0.1 * drawn)
        else:
            drawn *= 0.1
        weights[name] = drawn * np.float32(0.5 if name.endswith(residual or ("\n",)) else 1)
    return weights


def linear(name: str, n: int, k: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a linear layer from ``k`` to ``n`` numbers, stored as (N, K)."""
    return {f"{name}.weight": (n, k), f"{name}.bias": (n,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer normalization."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
