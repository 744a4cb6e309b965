"""Networks of convolutions with the native packed functions, beside TVM's own operators."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_conv_testing import TARGET, compiled, constant, plain, run, tensor
from relax_in_numpy import evaluate
from relax_testing import module
from test_relax_conv_networks import NETWORKS, SIZES, network, shape_of
from tvm import relax
from tvm.script import relax as R

from relax_passes import Report


def check(mod, vm, x, rtol=1e-4, atol=1e-5):
    np.testing.assert_allclose(run(vm, x), evaluate(mod, x), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    mod = network(name)
    vm = compiled(mod)
    for size in SIZES:
        check(mod, vm, tensor(*shape_of("NCHW", NETWORKS[name][1], *size)))


def test_verified():
    mod = network("mobilenet", "NHWC")
    report = Report()
    vm = compiled(mod, report, verify=True)
    assert len(report.rewritten) == NETWORKS["mobilenet"][2]
    for size in SIZES[1:]:
        check(mod, vm, tensor(*shape_of("NHWC", NETWORKS["mobilenet"][1], *size)))


def test_verify_raises_where_the_result_is_wrong():
    """A residual is not there twice: what TVM computes from another weight is told apart."""
    weight = constant(8, 3, 3, 3)

    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        y = R.nn.conv2d(x, weight, padding=1)
        return y

    from relax_passes import conv_rewrite

    mod = module(before)
    original = conv_rewrite.verified_conv

    def of_another_weight(var, call, conv, found, packing):
        other = type(conv)(**{**conv.__dict__, "weight": constant(8, 3, 3, 3, scale=1.001)})
        return original(var, call, other, found, packing)

    conv_rewrite.verified_conv = of_another_weight
    try:
        vm = compiled(mod, verify=True)
    finally:
        conv_rewrite.verified_conv = original
    with pytest.raises(RuntimeError, match="conv2d"):
        run(vm, tensor(1, 3, 4, 5))


def test_one_dimension_and_half_precision():
    weight, deep = constant(8, 4, 5, scale=0.3), constant(8, 1, 3)
    half = relax.const(tensor(8, 4, 3, 3).astype("float16") / 4)
    half_deep = relax.const(tensor(8, 1, 3, 3).astype("float16") / 3)

    @R.function
    def row(x: R.Tensor(("n", 4, "w"), "float32")):
        with R.dataflow():
            y = R.nn.relu(R.nn.conv1d(x, weight, padding=[2, 1], strides=2))
            z = R.nn.conv1d(y, deep, padding=1, groups=8)
            R.output(z)
        return z

    @R.function
    def halves(x: R.Tensor(("n", 4, "h", "w"), "float16")):
        with R.dataflow():
            y = R.nn.silu(R.nn.conv2d(x, half, padding=1))
            z = R.add(R.nn.conv2d(y, half_deep, padding=1, groups=8), y)
            R.output(z)
        return z

    mod = module(row)
    vm = compiled(mod)
    for n, w in ((1, 9), (3, 2), (2, 40)):
        check(mod, vm, tensor(n, 4, w))
    mod = module(halves)
    for options in ({}, {"verify": True}):
        vm = compiled(mod, **options)
        check(mod, vm, tensor(2, 4, 5, 9, dtype="float16"), rtol=2e-2, atol=5e-3)


def test_kernel_larger_than_the_input_raises():
    weight = constant(8, 3, 3, 3)

    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        y = R.nn.conv2d(x, weight, padding=[0, 1, 0, 0])
        return y

    vm = compiled(module(before))
    for shape, text in (
        ((1, 3, 2, 5), "height"),
        ((1, 3, 0, 5), "height"),
        ((1, 3, 5, 0), "width"),
    ):
        with pytest.raises(Exception, match=f"x.*{text}"):
            run(vm, tensor(*shape))
    assert run(vm, tensor(0, 3, 3, 2)).shape == (0, 8, 1, 1)


@st.composite
def convolutions(draw):
    """Attributes of a convolution, its channels, and whether what surrounds it is there."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inputs, outputs = (groups * draw(st.integers(1, 9)) for _ in range(2))
    if draw(st.booleans()):
        groups, outputs = inputs, inputs
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    two = st.tuples(st.integers(1, 3), st.integers(1, 3))
    padding = draw(st.tuples(*[st.integers(0, 3)] * 4))
    surroundings = draw(st.tuples(*[st.booleans()] * 5))
    layout = draw(st.sampled_from(["NCHW", "NHWC"]))
    return groups, inputs, outputs, kernel, draw(two), padding, draw(two), surroundings, layout


@settings(max_examples=6)
@given(convolutions(), st.lists(st.tuples(*[st.integers(0, 17)] * 3), min_size=3, max_size=3))
def test_random_convolutions(convolution, sizes):
    groups, inputs, outputs, kernel, strides, padding, dilation, surroundings, layout = convolution
    op, axis = relax.op, layout.index("C")
    bb = relax.BlockBuilder()
    n, h, w = (tvm.tirx.Var(name, "int64") for name in "nhw")
    x = relax.Var("x", relax.TensorType(shape_of(layout, inputs, n, h, w), "float32"))
    scaled, biased, twice, active, pooled = surroundings
    of_inputs, of_outputs = [1] * 4, [1] * 4
    of_inputs[axis], of_outputs[axis] = inputs, outputs
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(op.multiply(x, constant(*of_inputs))) if scaled else x
            weight = constant(outputs, inputs // groups, *kernel)
            y = bb.emit(
                op.nn.conv2d(
                    y, weight, strides, padding, dilation, groups=groups, data_layout=layout
                )
            )
            y = bb.emit(op.add(y, constant(*of_outputs))) if biased else y
            z = bb.emit(op.nn.silu(y)) if active else y
            z = bb.emit(op.add(z, y)) if twice else z
            z = bb.emit(op.nn.avg_pool2d(z, 2, layout=layout)) if pooled else z
            out = bb.emit_output(z)
        bb.emit_func_output(out)
    mod = bb.get()
    vm = compiled(mod)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    least = [
        max(0, r + pooled * s - padding[i] - padding[i + 2])
        for i, (r, s) in enumerate(zip(reach, strides, strict=True))
    ]
    for size in sizes:
        shape = shape_of(layout, inputs, size[0] % 3, size[1] + least[0], size[2] + least[1])
        check(mod, vm, tensor(*shape), rtol=1e-3, atol=1e-4)


def test_a_network_that_ends_in_a_linear_layer():
    weight, last = constant(16, 3, 3, 3, scale=0.2), constant(16, 10)

    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            y = R.nn.relu(R.nn.conv2d(x, weight, padding=1, strides=2))
            z = R.matmul(R.mean(y, axis=[2, 3]), last)
            R.output(z)
        return z

    mod = module(before)
    report = Report()
    vm = compiled(mod, report)
    assert [entry.operator for entry in report.rewritten] == ["conv2d", "matmul"]
    check(mod, vm, tensor(2, 3, 9, 6))


def test_depthwise_convolutions_and_pools_of_one_place_are_not_rescheduled():
    """As `verify` and weights that are parameters leave them; on two cores, with an epilogue."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    weight, other = constant(1, 21, 2, 2), constant(16, 1, 1, 3)

    @R.function
    def before(
        x: R.Tensor(("n", "h", "w", 21), "float32"), z: R.Tensor(("n", 16, "h", "w"), "float32")
    ):
        layouts = R.nn.conv2d(
            x,
            weight,
            strides=[3, 1],
            padding=[1, 2, 3, 3],
            dilation=2,
            groups=21,
            data_layout="NHWC",
            kernel_layout="IOHW",
        )
        rows = R.nn.conv2d(z, other, strides=[2, 3], padding=[0, 3, 1, 0], groups=16)
        y = (
            R.clip(R.add(layouts, R.multiply(layouts, R.const(0.5))), -0.5, 0.75),
            R.nn.silu(rows),
            R.nn.silu(R.nn.max_pool2d(z, [1, 1], strides=[2, 2])),
        )
        return y

    mod = module(before)
    vm = compiled(mod, target=target, convolutions=False)
    x, z = tensor(2, 7, 9, 21), tensor(2, 16, 7, 9)
    for result, expected in zip(run(vm, x, z), run(plain(mod), x, z), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_constants_that_convolutions_share():
    """One weight and one bias of 16, in the panels that each of the convolutions needs."""
    weight, deep, grouped = constant(16, 16, 3, 3), constant(16, 1, 3, 3), constant(16, 2, 3, 3)
    bias = constant(1, 16, 1, 1)

    @R.function
    def before(x: R.Tensor(("n", 16, "h", "w"), "float32")):
        winograd = R.add(R.nn.conv2d(x, weight, padding=1), bias)
        strided = R.add(R.nn.conv2d(x, weight, strides=2, padding=1), bias)
        depthwise = R.add(R.nn.conv2d(x, deep, padding=1, groups=16), bias)
        both = R.concat([depthwise, winograd], axis=1)
        groups = R.add(R.nn.conv2d(both, grouped, padding=1, groups=16), bias)
        y = (winograd, strided, groups)
        return y

    mod = module(before)
    report = Report()
    vm = compiled(mod, report)
    assert len(report.rewritten) == 4
    x = tensor(2, 16, 7, 9)
    for result, expected in zip(run(vm, x), evaluate(mod, x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_weights_that_are_not_finite():
    values = tensor(16, 16, 3, 3)
    for at, value in ((0, np.inf), (1, np.nan), (2, -np.inf)):
        values[at + 3, at, at, 2 - at] = value
    weight = relax.const(values)

    @R.function
    def before(x: R.Tensor(("n", 16, "h", "w"), "float32")):
        y = R.nn.conv2d(x, weight, padding=1)
        return y

    x = np.abs(tensor(1, 16, 5, 6)) + np.float32(1)
    result, expected = run(compiled(module(before)), x), run(plain(module(before)), x)
    assert np.isinf(expected[:, 3:6]).any() and np.isfinite(expected[:, 6:]).all()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_exported_and_loaded_again(tmp_path):
    mod = network("mobilenet")
    from tvm_moonpoly import pipeline

    path = str(tmp_path / "network.so")
    tvm.compile(mod, TARGET, relax_pipeline=pipeline(TARGET)).export_library(path)
    vm = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    check(mod, vm, tensor(2, 3, 9, 12))


def three_by_three(weight, strides=1):
    @R.function
    def main(x: R.Tensor(("n", 16, "h", "w"), "float32")):
        y = R.nn.conv2d(x, weight, padding=1, strides=strides)
        return y

    return module(main)


def test_weights_that_are_not_finite_stay_where_they_are():
    array = tensor(16, 16, 3, 3)
    array[3, 2, 0, 1] = np.inf
    mod = three_by_three(relax.const(array))
    x = tensor(1, 16, 6, 7)
    found, expected = run(compiled(mod), x), evaluate(mod, x)
    assert np.isfinite(found[:, :3]).all()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))


def test_without_winograd_a_huge_number_stays_in_its_windows():
    mod = three_by_three(constant(16, 16, 3, 3))
    x = tensor(1, 16, 8, 8)
    x[0, 0, 3, 3] = 1e9
    check(mod, compiled(mod, winograd=False), x, rtol=1e-4, atol=1e-4)


def test_one_weight_with_and_without_strides():
    weight = constant(16, 16, 3, 3, scale=0.1)

    @R.function
    def main(x: R.Tensor(("n", 16, "h", "w"), "float32")):
        with R.dataflow():
            y = R.nn.conv2d(x, weight, padding=1)
            z = R.nn.conv2d(y, weight, padding=1, strides=2)
            R.output(z)
        return z

    mod = module(main)
    check(mod, compiled(mod), tensor(1, 16, 9, 10))
