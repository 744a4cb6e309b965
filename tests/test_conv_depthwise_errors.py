"""What the packed functions of depthwise convolution refuse, and what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from core_testing import CANARY, tensor, values
from depthwise_testing import NAMES, arguments, square

from tvm_moonpoly import operators
from tvm_moonpoly.planner.conv_numbers import ATTRIBUTES


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


SPEC = replace(square(9, 3), strides=(2, 1))


def call(library, replaced, dtype="float32"):
    """A call that is right but for what is ``replaced``: arrays, shapes, or None."""
    rng = np.random.default_rng(5)
    x, w = values(rng, 2, 7, 5, 9).astype(dtype), values(rng, 9, 1, 3, 3)
    residual = values(rng, 2, 4, 5, 9).astype(dtype)
    given = arguments(x, w, values(rng, 9), SPEC, library.machine.lanes, residual)
    given["out"] = np.full((2, 4, 5, 9), CANARY).astype(dtype)
    out = given["out"]
    for name, value in replaced.items():
        given[name] = np.zeros(value, given[name].dtype) if isinstance(value, tuple) else value
    arrays = [None if value is None else tensor(value) for value in given.values()]
    try:
        library.module[NAMES[dtype, True]](*arrays)
    finally:
        assert (out == CANARY).all() or not replaced


def field(name, value):
    encoded = SPEC.encode()
    encoded[ATTRIBUTES.index(name)] = value
    return {"spec": encoded}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_call_that_is_right(library, dtype):
    call(library, {}, dtype)


@pytest.mark.parametrize(
    "replaced,message",
    [
        ({"x": None}, "^x: must be a tensor, not None"),
        ({"residual": None}, "^residual: must be a tensor, not None"),
        ({"x": np.zeros((2, 7, 5, 9))}, "^x: must be float32"),
        ({"weight": np.zeros((9, 16), np.float16)}, "^weight: must be float32"),
        ({"spec": np.zeros(len(ATTRIBUTES), np.int32)}, "^spec: must be int64"),
        ({"x": (7, 5, 9)}, "^x: must have 4 dimensions, not 3"),
        ({"out": (2, 4, 45)}, "^out: must have 4 dimensions, not 3"),
        ({"weight": (144,)}, "^weight: must have 2 dimensions, not 1"),
        ({"weight": (8, 16)}, "^weight: must have as many rows as the kernel has taps: 8 and 9"),
        ({"weight": (9, 8)}, "^weight: must have the channels of x, padded to whole vectors"),
        ({"bias": (9,)}, "^bias: must have the channels of x, padded to whole vectors"),
        ({"x": (2, 7, 5, 8)}, "^x: its channels must be those of the weight: 8 and 9"),
        ({"x": (2, 0, 5, 9)}, "^x: its height with padding, 2, is less than that of the kernel, 3"),
        ({"x": (2, 7, 0, 9)}, "^x: its width with padding, 2, is less than that of the kernel, 3"),
        (
            {"out": (3, 4, 5, 9)},
            "^out: its images must be those of the convolution: 3 instead of 2",
        ),
        ({"out": (2, 5, 5, 9)}, "^out: its rows must be those of the convolution: 5 instead of 4"),
        (
            {"out": (2, 4, 4, 9)},
            "^out: its columns must be those of the convolution: 4 instead of 5",
        ),
        ({"residual": (2, 4, 5, 8)}, "^residual: its channels must be those .* 8 instead of 9"),
        ({"spec": np.zeros(3, np.int64)}, f"^spec: must have {len(ATTRIBUTES)} numbers, not 3"),
        (field("kernel_w", 0), "^spec: its kernel must be from 1 to 65536: 3 and 0"),
        (field("stride_h", -1), "^spec: its strides must be from 1 to 65536: -1 and 1"),
        (field("dilation_h", 1 << 40), "^spec: its dilation must be from 1 to 65536"),
        (field("bottom", -1), "^spec: its padding must be from 0 to 65536: -1 and 1"),
        (field("groups", 3), "^spec: each channel must be a group of its own.*: 3 groups of 9"),
        (field("out_channels", 18), "^spec: each channel must be a group of its own"),
        (field("activation", 5), "^spec: its activation is no known number: 5"),
        ({"x": np.zeros((2, 7, 5, 10), np.float32)[..., :9]}, "^x: must be compact"),
        ({"out": np.full((2, 4, 6, 9), CANARY)[:, :, :5]}, "^out: rows must be evenly spaced"),
    ],
)
def test_faults(library, replaced, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(library, replaced)
