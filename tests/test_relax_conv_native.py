"""Networks of convolutions with the native packed functions, beside TVM's own operators."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_conv_testing import TARGET, compiled, constant, run, tensor
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


def test_exported_and_loaded_again(tmp_path):
    mod = network("mobilenet")
    from tvm_moonpoly import pipeline

    path = str(tmp_path / "network.so")
    tvm.compile(mod, TARGET, relax_pipeline=pipeline(TARGET)).export_library(path)
    vm = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    check(mod, vm, tensor(2, 3, 9, 12))
