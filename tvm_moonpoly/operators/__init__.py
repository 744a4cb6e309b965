"""Operators: planner, loops and micro-kernels put together as native functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.target import Target

from tvm_moonpoly.operators.activation import Activation
from tvm_moonpoly.operators.linear import LINEAR, LINEAR_RESIDUAL
from tvm_moonpoly.operators.matmul import MATMUL
from tvm_moonpoly.operators.operator_library import (
    OperatorLibrary,
    described,
    lanes,
    library,
    supported,
)
from tvm_moonpoly.operators.packing import pack_weight, pad_bias

__all__ = [
    "LINEAR",
    "LINEAR_RESIDUAL",
    "MATMUL",
    "Activation",
    "OperatorLibrary",
    "described",
    "encode_perm",
    "lanes",
    "library",
    "pack_weight",
    "pad_bias",
    "plan_table",
    "supported",
]


def encode_perm(axes: Sequence[int]) -> int:
    """A permutation as the packed functions take it: 4 bits a dimension, the first lowest.

    Raises ValueError when ``axes`` is no permutation of at most 8 dimensions.
    """
    if sorted(axes) != list(range(len(axes))) or len(axes) > 8:
        raise ValueError(f"axes: {list(axes)} is no permutation of at most 8 dimensions")
    return sum(axis << 4 * i for i, axis in enumerate(axes))


def plan_table(n: int, k: int, target: Target) -> np.ndarray:
    """Encoded plans for products of m rows by a packed (k, n) weight, int64, indexed by m."""
    return library(target).plan_table(n, k)
