"""The pass SinkReshapes: what works element by element comes before a reshape."""

import numpy as np
import pytest
import tvm
from relax_testing import TARGET, module, tensor
from tvm import relax, tirx
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import PromiseShapes, Range, Report, SinkReshapes, pipeline

WEIGHT, ADDED = tensor(16, 12), tensor(12)
W, BIAS = relax.const(WEIGHT), relax.const(ADDED)


def sunk(func, **dims):
    before = PromiseShapes(dims)(module(func))
    after = SinkReshapes()(before)
    relax.analysis.well_formed(after)
    return after


def left(func, **dims):
    before = PromiseShapes(dims)(module(func))
    return SinkReshapes()(before).same_as(before)


@R.function
def layer(x: R.Tensor(("b", "s", 16), "float32"), r: R.Tensor(("b", "s", 12), "float32")):
    b, s = T.int64(), T.int64()
    with R.dataflow():
        rows = R.reshape(x, (b * s, 16))
        y = R.matmul(rows, W)
        back = R.reshape(y, (b, s, 12))
        biased = R.add(BIAS, back)
        active = R.nn.relu(biased)
        z = R.add(active, r)
        R.output(z)
    return z


def test_bias_activation_and_residual_come_before_the_reshape():
    @R.function
    def expected(x: R.Tensor(("b", "s", 16), "float32"), r: R.Tensor(("b", "s", 12), "float32")):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            rows = R.reshape(x, (b * s, 16))
            y = R.matmul(rows, W)
            biased = R.add(BIAS, y)
            active = R.nn.relu(biased)
            residual = R.reshape(r, (b * s, 12))
            z = R.add(active, residual)
            back = R.reshape(z, (b, s, 12))
            R.output(back)
        return back

    original = module(layer)
    tvm.ir.assert_structural_equal(SinkReshapes()(original), module(expected))
    tvm.ir.assert_structural_equal(original, module(layer))


@pytest.mark.parametrize("without", [[], ["SinkReshapes"]])
def test_all_of_it_is_fused_into_the_product(without):
    report = Report()
    run = pipeline(TARGET, report=report, without=without)
    executable = tvm.compile(module(layer), TARGET, relax_pipeline=run)
    (entry,) = report
    assert ("fused bias + relu + residual" in entry.detail) != bool(without)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for b, s in ((2, 7), (1, 1), (0, 3), (5, 17)):
        x, r = tensor(b, s, 16), tensor(b, s, 12)
        product = x.astype("float64") @ W.value.numpy() + BIAS.value.numpy()
        result = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(r))
        assert np.allclose(result.numpy(), np.maximum(product, 0) + r, atol=1e-5)


def test_two_reshapes_meet():
    @R.function
    def both(x: R.Tensor(("b", 8), "float32"), y: R.Tensor(("b", 8), "float32")):
        b = T.int64()
        with R.dataflow():
            p, q = R.exp(x), R.exp(y)
            u = R.reshape(p, (b, 2, 4))
            v = R.reshape(q, (b, 2, 4))
            z = R.multiply(u, v)
            R.output(z)
        return z

    text = sunk(both)["main"].script()
    assert text.count("R.reshape") == 1 and text.index("R.multiply") < text.index("R.reshape")


@R.function
def divided(x: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    with R.dataflow():
        p = R.exp(x)
        q = R.reshape(p, (n // 4, 32))
        z = R.negative(q)
        R.output(z)
    return z


def test_what_is_known_of_sizes_decides():
    assert left(divided) and left(divided, n=Range(0, 64, 2))
    assert not left(divided, n=Range(0, 64, 4))


@R.function
def of_a_parameter(x: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    with R.dataflow():
        q = R.reshape(x, (n * 8,))
        z = R.negative(q)
        R.output(z)
    return z


@R.function
def gelu_by_tanh(x: R.Tensor(("b", "s", 16), "float32")):
    b, s = T.int64(), T.int64()
    with R.dataflow():
        rows = R.reshape(x, (b * s, 16))
        y = R.add(R.matmul(rows, W), BIAS)
        h = R.reshape(y, (b, s, 12))
        cube = R.multiply(R.power(h, R.const(3.0)), R.const(0.044715))
        inner = R.multiply(R.add(h, cube), R.const(0.7978845608028654))
        outer = R.add(R.tanh(inner), R.const(1.0))
        z = R.multiply(R.multiply(h, R.const(0.5)), outer)
        R.output(z)
    return z


def test_an_activation_that_is_spelled_out_becomes_part_of_the_product():
    report = Report()
    executable = tvm.compile(
        module(gelu_by_tanh), TARGET, relax_pipeline=pipeline(TARGET, report=report)
    )
    assert [entry.detail for entry in report] == ["linear, fused bias + gelu_tanh"]
    vm = relax.VirtualMachine(executable, tvm.cpu())
    for b, s in [(2, 3), (1, 1), (0, 4), (3, 17)]:
        x = tensor(b, s, 16)
        h = x.astype("float64") @ WEIGHT + ADDED
        expected = h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        result = vm["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@R.function
def used_as_a_whole(x: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    with R.dataflow():
        p = R.exp(x)
        q = R.reshape(p, (n * 8,))
        total = R.sum(q)
        z = R.add(q, total)
        R.output(z)
    return z


@R.function
def other_last_dimension(x: R.Tensor(("n", 8), "float32"), v: R.Tensor((4,), "float32")):
    n = T.int64()
    with R.dataflow():
        p = R.exp(x)
        q = R.reshape(p, (n, 2, 4))
        z = R.add(q, v)
        R.output(z)
    return z


@R.function
def made_larger(x: R.Tensor(("n", 1), "float32"), v: R.Tensor((4,), "float32")):
    n = T.int64()
    with R.dataflow():
        p = R.exp(x)
        q = R.reshape(p, (n, 1, 1))
        z = R.add(q, v)
        R.output(z)
    return z


@R.function
def a_result(x: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    with R.dataflow():
        p = R.exp(x)
        q = R.reshape(p, (n * 8,))
        z = R.negative(q)
        R.output(q, z)
    return q, z


@pytest.mark.parametrize(
    "func",
    [of_a_parameter, used_as_a_whole, other_last_dimension, made_larger, a_result],
    ids=["parameter", "whole", "dimension", "larger", "result"],
)
def test_what_is_left(func):
    assert left(func)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 4), (4,), (1, 3, 4), ("n", 3, 4)])
def test_second_operands(shape):
    """Those that broadcast are taken where they meet the same dimensions on both sides."""
    n = tirx.Var("n", "int64")
    sizes = [n if size == "n" else size for size in shape]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([n * 3, 4], "float32"))
    v = relax.Var("v", relax.TensorType(sizes, "float32"))
    m = relax.Var("m", relax.ShapeType([n]))
    with builder.function("main", [x, v, m]):
        with builder.dataflow():
            p = builder.emit(relax.op.exp(x))
            q = builder.emit(relax.op.reshape(p, [n, 3, 4]))
            z = builder.emit_output(relax.op.subtract(v, q))
        builder.emit_func_output(z)
    before = builder.get()
    after = SinkReshapes()(before)
    taken = shape != (1, 3, 4)
    assert after.same_as(before) != taken
    if taken:
        text = after["main"].script()
        assert text.index("R.subtract") < text.rindex("R.reshape")
    compiled = [
        relax.VirtualMachine(
            tvm.compile(mod, TARGET, relax_pipeline=relax.get_pipeline("default")), tvm.cpu()
        )
        for mod in (before, after)
    ]
    for count in (0, 1, 5):
        operands = tensor(count * 3, 4), tensor(*(count if s == "n" else s for s in shape))
        arguments = [*map(tvm.runtime.tensor, operands), tvm_shape(count)]
        a, b = (machine["main"](*arguments).numpy() for machine in compiled)
        assert np.array_equal(a, b)


def tvm_shape(count):
    import tvm_ffi

    return tvm_ffi.Shape([count])
