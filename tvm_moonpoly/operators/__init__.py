"""Operators: planner, loops and micro-kernels put together as native functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.target import Target

from tvm_moonpoly.operators import plain, verify
from tvm_moonpoly.operators.activation import Activation
from tvm_moonpoly.operators.chain import MAX_OPERANDS, MAX_STEPS, Chain, Step
from tvm_moonpoly.operators.conv_constants import (
    CONV2D,
    CONV2D_F16,
    CONV2D_RESIDUAL,
    CONV2D_RESIDUAL_F16,
    ConvActivation,
    ConvSpec,
    pack_conv_weight,
    pad_conv_bias,
)
from tvm_moonpoly.operators.linear import LINEAR, LINEAR_CHAIN, LINEAR_RESIDUAL, PACK
from tvm_moonpoly.operators.matmul import MATMUL, MATMUL_CHAIN
from tvm_moonpoly.operators.operator_library import (
    OperatorLibrary,
    described,
    lanes,
    library,
    supported,
)
from tvm_moonpoly.operators.packing import pack_weight, pad_bias
from tvm_moonpoly.operators.parts import parts_of
from tvm_moonpoly.operators.tensors import ABSENT, COUNT_BIT, MAX_DIMS

__all__ = [
    "CONV2D",
    "CONV2D_F16",
    "CONV2D_RESIDUAL",
    "CONV2D_RESIDUAL_F16",
    "LINEAR",
    "LINEAR_CHAIN",
    "LINEAR_RESIDUAL",
    "MATMUL",
    "MATMUL_CHAIN",
    "MAX_DIMS",
    "MAX_OPERANDS",
    "MAX_STEPS",
    "PACK",
    "PRODUCTS",
    "VERIFY",
    "ZEROS_IF_EMPTY",
    "Activation",
    "Chain",
    "ConvActivation",
    "ConvSpec",
    "OperatorLibrary",
    "Step",
    "described",
    "encode_axes",
    "lanes",
    "library",
    "pack_conv_weight",
    "pack_weight",
    "pad_bias",
    "pad_conv_bias",
    "parts_of",
    "plan_table",
    "supported",
]

#: The packed function of a product by the types of its operands and of its result.
PRODUCTS = {
    ("float32", "float32", "float32"): MATMUL,
    **{(kind.operand, kind.operand, kind.out): kind.function for kind in plain.KINDS},
}

#: Those that compare a result with another one, and that clear the product of empty operands, by
#: the type of the result.
VERIFY = {kind.dtype: kind.verify for kind in verify.KINDS}
ZEROS_IF_EMPTY = {kind.dtype: kind.zeros_if_empty for kind in verify.KINDS}


def encode_axes(axes: Sequence[int | None]) -> int:
    """An axes code: how a product sees a stored tensor.

    Dimension i of the product is dimension ``axes[i]`` of the tensor, or one of size 1 that the
    tensor lacks where that is None. 4 bits a dimension of the product, the first lowest, 15 for
    None, and in bits 32 to 35 how many there are.

    Raises ValueError when there are more than 8, or ``axes`` does not name each of the tensor's
    dimensions once.
    """
    named = sorted(axis for axis in axes if axis is not None)
    if len(axes) > MAX_DIMS or named != list(range(len(named))):
        raise ValueError(
            f"axes: {list(axes)} must name each dimension once, None the absent ones, at most "
            f"{MAX_DIMS} in all"
        )
    code = len(axes) << COUNT_BIT
    for i, axis in enumerate(axes):
        code |= (ABSENT if axis is None else axis) << 4 * i
    return code


def plan_table(n: int, k: int, target: Target) -> np.ndarray:
    """Encoded plans for products of m rows by a packed (k, n) weight, int64, indexed by m."""
    return library(target).plan_table(n, k)
