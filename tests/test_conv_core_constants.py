"""What a convolution is at compile time, and its activations as native code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from core_testing import EPS, tensor, values
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

from tvm_moonpoly import native, operators
from tvm_moonpoly.emit import FLOAT, INT, Functions
from tvm_moonpoly.operators import activation as activations
from tvm_moonpoly.operators import bounded_activation, errors, tensors
from tvm_moonpoly.operators.conv_constants import (
    ConvActivation,
    ConvSpec,
    pack_conv_weight,
    pack_depthwise_weight,
    pad_conv_bias,
)
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner.conv_numbers import ATTRIBUTES

#: activations with parameters, and those with which they are tried
PARAMETERS = {
    ConvActivation.CLIP: ((0.0, 6.0), (-1.5, 2.25), (0.5, 0.5), (-np.inf, np.inf)),
    ConvActivation.HARDSIGMOID: ((1 / 6, 0.5), (0.2, 0.5)),
}


@given(
    kernel=st.tuples(st.integers(1, 11), st.integers(1, 11)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(*[st.integers(0, 5)] * 4),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 4),
    activation=st.sampled_from(ConvActivation),
    planes=st.booleans(),
)
def test_spec_is_its_encoding(kernel, strides, padding, dilation, groups, activation, planes):
    spec = ConvSpec(
        kernel, 3 * groups, 5 * groups, strides, padding, dilation, groups, activation, -0.1, 0.7
    )
    spec = replace(spec, planes=planes)
    encoded = spec.encode()
    assert encoded.dtype == np.int64 and encoded.shape == (len(ATTRIBUTES),)
    assert ConvSpec.decode(encoded) == spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": (0, 3)}, "kernel: 2 numbers from 1"),
        ({"kernel": (3,)}, "kernel: 2 numbers"),
        ({"strides": (1, 0)}, "strides: 2 numbers from 1"),
        ({"padding": (1, 1, 1, -1)}, "padding: 4 numbers from 0"),
        ({"dilation": (1, 0)}, "dilation: "),
        ({"groups": 3}, "groups: 3 must divide the in_channels, 8"),
        ({"groups": 8}, "groups: 8 must divide the out_channels, 12"),
        ({"in_channels": 0}, "in_channels: must be from 1"),
        ({"activation": ConvActivation.CLIP, "first": 1.0}, "first: clip from 1.0 to 0.0"),
        ({"activation": ConvActivation.HARDSIGMOID, "first": np.inf}, "first: must be finite"),
    ],
)
def test_spec_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        ConvSpec(**{"kernel": (3, 3), "in_channels": 8, "out_channels": 12, **change})


def test_output_size():
    spec = ConvSpec((3, 5), 1, 1, (2, 3), (1, 0, 0, 2), (2, 1))
    assert spec.output_size(7, 9) == ((7 + 1 - 5) // 2 + 1, (9 + 2 - 5) // 3 + 1)
    assert spec.output_size(4, 3) == (1, 1)
    with pytest.raises(ValueError, match="x: its height with padding, 4, .* kernel, 5"):
        spec.output_size(3, 9)
    with pytest.raises(ValueError, match="x: its width with padding, 4, .* kernel, 5"):
        spec.output_size(4, 2)


def test_packed_weight_holds_each_step_of_each_group():
    spec, lanes = ConvSpec((2, 3), 8, 20, groups=2), 8
    w = np.arange(20 * 4 * 2 * 3, dtype=np.float32).reshape(20, 4, 2, 3) + 1
    packed = pack_conv_weight(w, spec, lanes)
    assert packed.shape == (4, 24, 8)
    for o, c, kh, kw in np.ndindex(w.shape):
        group, column = divmod(o, 10)
        panel = 2 * group + column // lanes
        assert packed[panel, (kw * 2 + kh) * 4 + c, column % lanes] == w[o, c, kh, kw]
    assert (packed[1::2, :, 2:] == 0).all()


def test_bias_is_padded_in_each_group():
    spec = ConvSpec((1, 1), 4, 6, groups=2)
    bias = np.arange(1, 7, dtype=np.float32)
    np.testing.assert_array_equal(pad_conv_bias(bias, spec, 4), [1, 2, 3, 0, 4, 5, 6, 0])
    np.testing.assert_array_equal(pad_conv_bias(None, spec, 4), np.zeros(8))


def test_depthwise_weight():
    w = np.arange(10 * 3 * 2, dtype=np.float32).reshape(10, 1, 3, 2) + 1
    packed = pack_depthwise_weight(w, 8)
    assert packed.shape == (6, 16)
    for c, _, kh, kw in np.ndindex(w.shape):
        assert packed[kh * 2 + kw, c] == w[c, 0, kh, kw]
    assert (packed[:, 10:] == 0).all()


def test_wrong_constants_are_refused():
    spec = ConvSpec((1, 1), 4, 6)
    with pytest.raises(ValueError, match=r"w: float32 of shape \(6, 4, 1, 1\)"):
        pack_conv_weight(np.zeros((6, 4, 1), np.float32), spec, 8)
    with pytest.raises(ValueError, match=r"w: float32 .* not float64"):
        pack_conv_weight(np.zeros((6, 4, 1, 1)), spec, 8)
    with pytest.raises(ValueError, match=r"bias: float32 of shape \(6,\)"):
        pad_conv_bias(np.zeros(4, np.float32), spec, 8)
    with pytest.raises(ValueError, match="w: 4 dimensions"):
        pack_depthwise_weight(np.zeros((4, 3, 3), np.float32), 8)
    with pytest.raises(ValueError, match=r"w: float32 of shape \(4, 1, 3, 3\)"):
        pack_depthwise_weight(np.zeros((4, 2, 3, 3), np.float32), 8)
    transformed = ConvSpec((3, 3), 16, 16)
    for value in (np.nan, -np.inf, 2e38):
        weight = np.full((16, 16, 3, 3), value, np.float32)
        with pytest.raises(ValueError, match=r"w: not finite .*direct=True"):
            pack_conv_weight(weight, transformed, 8)
        assert pack_conv_weight(weight, replace(transformed, direct=True), 8).size == weight.size


@pytest.fixture(scope="module")
def activate(target):
    """``activate(c, m, activation, first, second)`` on the rows of a matrix."""
    machine, _, _ = operators.described(target)
    functions = Functions()
    errors.emit(functions)
    tensors.emit(functions)
    activations.emit(functions, machine.lanes)
    bounded_activation.emit(functions, machine.lanes)

    @functions.public("activate", c="handle", n=INT, activation=INT, first="int64", second="int64")
    def _(c: Any, n: Any, activation: Any, first: Any, second: Any) -> None:
        t = Tensor(c, "c")
        floats = (tirx.reinterpret(FLOAT, each.astype("int32")) for each in (first, second))
        functions[bounded_activation.ACTIVATE_BOUNDED](
            t.data.at(0), t.shape[1], t.shape[0], n, activation, *floats
        )

    built = native.build(functions.module(), target, functions.marks)

    def call(c: np.ndarray, n: int, activation: ConvActivation, first: float, second: float):
        bits = np.array([first, second], np.float32).view(np.int32)
        built["activate"](tensor(c), n, int(activation), *map(int, bits))

    return call


@pytest.mark.parametrize("activation", [a for a in ConvActivation if a > ConvActivation.RELU])
def test_activations(activate, activation):
    rng = np.random.default_rng(3)
    special = [0.0, -0.0, 3.0, -3.0, 6.0, 1e-45, 1e30, -1e30, np.inf, -np.inf, np.nan]
    for first, second in PARAMETERS.get(activation, ((0.0, 0.0),)):
        for n in (1, 7, 8, 16, 37):
            c = 4 * values(rng, 5, n + 3)
            c.flat[: len(special)] = special
            before = c.copy()
            activate(c, n, activation, first, second)
            np.testing.assert_array_equal(c[:, n:], before[:, n:])
            expected = bounded_activation.reference(activation, before[:, :n], first, second)
            np.testing.assert_allclose(c[:, :n], expected, rtol=16 * EPS, atol=16 * EPS)
