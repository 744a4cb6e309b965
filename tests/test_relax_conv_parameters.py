"""Convolutions whose weights are parameters: packed once, in `main_transform_params`."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relax_conv_testing import TARGET, calls, compiled, convolve, run, tensor
from relax_testing import module
from tvm import relax
from tvm.script import relax as R

from relax_passes import (
    ConvertToChannelsLast,
    NormalizeOperators,
    PolymerizeConvolutions,
    Report,
)
from tvm_moonpoly.operators.conv_constants import ConvSpec


def prepared(vm, *weights):
    return vm["main_transform_params"]([tvm.runtime.tensor(each) for each in weights])


def called(vm, x, params):
    return vm["main"](tvm.runtime.tensor(x), *params).numpy()


def nchw(x, weight, spec):
    """`x` (N, C, H, W) by `weight` (OC, C / groups, KH, KW), float64, in NCHW."""
    kernel = weight.reshape(spec.groups, -1, *weight.shape[1:]).transpose(3, 4, 0, 2, 1)
    return convolve(x.transpose(0, 2, 3, 1), kernel, spec).transpose(0, 3, 1, 2)


@R.function
def network(
    x: R.Tensor(("n", 6, "h", "w"), "float32"),
    a: R.Tensor((20, 6, 3, 3), "float32"),
    b: R.Tensor((20,), "float32"),
    c: R.Tensor((20, 1, 3, 3), "float32"),
    d: R.Tensor((20, 1, 1), "float32"),
    e: R.Tensor((18, 10, 1, 1), "float32"),
    f: R.Tensor((1, 18, 1, 1), "float32"),
):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        first = R.nn.conv2d(x, a, padding=1)
        biased = R.nn.relu(R.add(first, R.reshape(b, (1, 20, 1, 1))))
        deep = R.add(R.nn.conv2d(biased, c, padding=1, groups=20), d)
        added = R.nn.silu(R.add(deep, biased))
        grouped = R.add(R.nn.conv2d(added, e, groups=2), f)
        R.output(grouped)
    return grouped


SHAPES = [(20, 6, 3, 3), (20,), (20, 1, 3, 3), (20, 1, 1), (18, 10, 1, 1), (1, 18, 1, 1)]
WEIGHTS = [0.3 * tensor(*shape) for shape in SHAPES]


def reference(x, a, b, c, d, e, f):
    y = nchw(x, a, ConvSpec((3, 3), 6, 20, padding=(1, 1, 1, 1))) + b.reshape(1, 20, 1, 1)
    y = np.maximum(y, 0)
    z = nchw(y, c, ConvSpec((3, 3), 20, 20, padding=(1, 1, 1, 1), groups=20)) + d + y
    z = z / (1 + np.exp(-z))
    return nchw(z, e, ConvSpec((1, 1), 20, 18, groups=2)) + f


@pytest.mark.parametrize("verify", [False, True])
def test_weights_and_biases_are_packed_by_operators_that_are_lifted(verify):
    report = Report()
    vm = compiled(module(network), report, lift_parameters=True, verify=verify)
    assert [entry.detail for entry in report.rewritten] == [
        "convolution, weight packed by operators, fused bias + relu",
        "depthwise, weight packed by operators, fused bias + residual + silu",
        "convolution, 2 groups, weight packed by operators, fused bias",
    ]
    for scale in (1, 2):  # other weights for the same executable
        weights = [each * np.float32(scale) for each in WEIGHTS]
        params = prepared(vm, *weights)
        packed = sorted(tuple(each.shape) for each in params)
        expected = [(3, 54, 8), (4, 10, 8), (9, 24), (24,), (24,), (32,)]
        assert verify or packed == sorted(expected)
        for shape in [(1, 6, 1, 1), (2, 6, 9, 5), (1, 6, 17, 23)]:
            x = tensor(*shape)
            got = called(vm, x, params)
            np.testing.assert_allclose(got, reference(x, *weights), rtol=1e-4, atol=1e-3)


def test_nothing_is_packed_and_nothing_transposed_on_the_way_at_a_call():
    passes = [
        NormalizeOperators(TARGET, pack_parameters=True),
        ConvertToChannelsLast(TARGET, pack_parameters=True),
        PolymerizeConvolutions(TARGET, pack_parameters=True),
        relax.transform.LiftTransformParams(),
    ]
    with TARGET:
        after = tvm.transform.Sequential(passes)(module(network))
    assert calls(after) == [
        "permute_dims",
        "moonpoly_conv2d_f32",
        "moonpoly_depthwise_residual_f32",
        "moonpoly_conv2d_f32",
        "permute_dims",
    ]


def test_without_lifting_they_are_left_to_tvm():
    report = Report()
    vm = compiled(module(network), report)
    assert [entry.detail for entry in report] == ["the weight is not a constant"] * 3
    x = tensor(1, 6, 5, 4)
    np.testing.assert_allclose(run(vm, x, *WEIGHTS), reference(x, *WEIGHTS), rtol=1e-4, atol=1e-3)


def test_float16_and_one_dimension_and_other_layouts():
    @R.function
    def func(
        x: R.Tensor(("n", "w", 5), "float16"),
        k: R.Tensor((3, 5, 9), "float16"),
        b: R.Tensor((9,), "float16"),
    ):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            y = R.nn.conv1d(x, k, data_layout="NWC", kernel_layout="WIO", padding=[2, 0])
            z = R.add(R.add(y, R.const(0.25, "float16")), b)
            R.output(z)
        return z

    report = Report()
    vm = compiled(module(func), report, lift_parameters=True, verify=True)
    assert [entry.detail for entry in report.rewritten] == [
        "convolution, float16, weight packed by operators, fused bias"
    ]
    x, k, b = (tensor(*s).astype("float16") for s in ((2, 7, 5), (3, 5, 9), (9,)))
    got = called(vm, x, prepared(vm, k, b))
    kernel = k.astype("float64").reshape(1, 3, 1, 5, 9)
    images = x.reshape(2, 1, 7, 5)
    spec = ConvSpec((1, 3), 5, 9, padding=(0, 2, 0, 0))
    expected = convolve(images, kernel, spec)[:, 0] + 0.25 + b.astype("float64")
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)


def test_weights_that_are_not_finite_stay_where_they_are():
    """A parameter is never transformed by Winograd's algorithm, which would spread them."""

    @R.function
    def func(x: R.Tensor(("n", "h", "w", 16), "float32"), k: R.Tensor((16, 3, 3, 16), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            y = R.nn.conv2d(x, k, data_layout="NHWC", kernel_layout="OHWI", padding=1)
            R.output(y)
        return y

    vm = compiled(module(func), lift_parameters=True)
    k = tensor(16, 3, 3, 16)
    k[3, 0, 0, 0] = np.inf  # meets padding alone in the first row and column
    x = np.abs(tensor(1, 6, 6, 16)) + 1
    got = called(vm, x, prepared(vm, k))
    assert np.isfinite(got[..., [c for c in range(16) if c != 3]]).all()
    assert np.isinf(got[:, 1:, 1:, 3]).all()


def test_parameters_that_may_be_written_are_left():
    @R.function(pure=False)
    def func(x: R.Tensor(("n", 3, "h", "w"), "float32"), k: R.Tensor((8, 3, 3, 3), "float32")):
        R.func_attr({"num_input": 1})
        _ = R.call_packed("elsewhere", k, ty_args=R.Tuple([]))
        y = R.nn.conv2d(x, k)
        return y

    report = Report()
    PolymerizeConvolutions(TARGET, report, pack_parameters=True)(module(func))
    assert [entry.detail for entry in report] == ["the weight is not a constant"]
