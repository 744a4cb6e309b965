"""Whole networks of convolutions: few transposes, all convolutions ours, results as plain TVM's."""

import numpy as np
import pytest
from relax_conv_testing import (
    calls,
    compiled,
    constant,
    converted,
    plain,
    run,
    stand_ins,  # noqa: F401
    tensor,
)
from relax_in_numpy import evaluate
from tvm import relax, tirx
from tvm.relax import op

from relax_passes import Report

pytestmark = pytest.mark.usefixtures("stand_ins")

SIZES = [(1, 11, 8), (2, 7, 13), (3, 16, 16), (0, 9, 9)]


class Builder:
    """Emits the layers of a network in NCHW or NHWC."""

    def __init__(self, layout="NCHW"):
        self.bb = relax.BlockBuilder()
        self.layout = layout
        self.axis = layout.index("C")

    def __call__(self, value):
        return self.bb.emit(value)

    def channels(self, x):
        return int(x.ty.shape.values[self.axis])

    def conv(self, x, out, kernel=3, bias=True, groups=1, **attrs):
        inputs = self.channels(x) // groups
        fan = inputs * kernel * kernel
        weight = constant(out, inputs, kernel, kernel, scale=fan**-0.5)
        y = self(op.nn.conv2d(x, weight, groups=groups, data_layout=self.layout, **attrs))
        return self.bias(y, out) if bias else y

    def bias(self, y, channels):
        shape = [1] * 4
        shape[self.axis] = channels
        return self(op.add(y, constant(*shape)))

    def batch_norm(self, x):
        c = self.channels(x)
        variance = relax.const(np.abs(tensor(c)) + 0.5)
        statistics = constant(c), constant(c, scale=0.5), constant(c, scale=0.1), variance
        normed = self(op.nn.batch_norm(x, *statistics, axis=self.axis, training=False))
        return self(relax.TupleGetItem(normed, 0))

    def pool(self, kind, x, size, **attrs):
        return self(getattr(op.nn, f"{kind}_pool2d")(x, size, layout=self.layout, **attrs))

    def global_mean(self, x):
        axes = [i for i in range(4) if self.layout[i] in "HW"]
        return self(op.mean(x, axes, keepdims=True))


def residual_block(b, x):
    y = b(op.nn.relu(b.batch_norm(b.conv(x, 16, bias=False, padding=1, strides=2))))
    y = b.batch_norm(b.conv(y, 16, bias=False, padding=1))
    short = b.batch_norm(b.conv(x, 16, kernel=1, bias=False, strides=2))
    return b(op.nn.relu(b(op.add(y, short))))


def resnet(b, x):
    y = b(op.nn.relu(b.batch_norm(b.conv(x, 8, kernel=7, bias=False, padding=3, strides=2))))
    y = b.pool("max", y, 3, strides=2, padding=1)
    y = residual_block(b, y)
    y = b.global_mean(y)
    return b(op.reshape(y, (y.ty.shape.values[0], 16)))


def mobilenet(b, x):
    """An inverted residual with relu6, before it a block with hardswish."""
    y = b.batch_norm(b.conv(x, 8, bias=False, strides=2, padding=1))
    ramp = b(op.clip(b(op.add(y, relax.const(3.0))), 0, 6))
    y = b(op.divide(b(op.multiply(y, ramp)), relax.const(6.0)))
    z = b(op.nn.relu6(b.batch_norm(b.conv(y, 24, kernel=1, bias=False))))
    z = b(op.nn.relu6(b.batch_norm(b.conv(z, 24, bias=False, groups=24, padding=1))))
    z = b.batch_norm(b.conv(z, 8, kernel=1, bias=False))
    return b(op.add(z, y))


def inception(b, x):
    x = b(op.nn.relu(b.conv(x, 8, padding=1)))
    one = b(op.nn.relu(b.conv(x, 4, kernel=1)))
    three = b(op.nn.relu(b.conv(b(op.nn.relu(b.conv(x, 4, kernel=1))), 8, padding=1)))
    five = b(op.nn.relu(b.conv(x, 4, kernel=5, padding=2)))
    pooled = b.pool("max", x, 3, strides=1, padding=1)
    pooled = b(op.nn.relu(b.conv(pooled, 4, kernel=1)))
    joined = b(op.concat([one, three, five, pooled], axis=b.axis))
    return b.conv(joined, 6, kernel=1)


def squeeze_and_excite(b, x):
    y = b(op.nn.silu(b.conv(x, 16, padding=1)))
    s = b(op.nn.relu(b.conv(b.global_mean(y), 4, kernel=1)))
    s = b.conv(s, 16, kernel=1)
    gate = b(op.clip(b(op.add(b(op.multiply(relax.const(0.2), s)), relax.const(0.5))), 0, 1))
    return b.conv(b(op.multiply(y, gate)), 8, kernel=1)


def chain(b, x):
    """Sizes such as ((h - 1) // 2 + 1 - 3) // 2 + 1, and a channel wise scale before."""
    for out, kernel, attrs in [
        (8, 3, dict(strides=2, padding=1)),
        (8, 3, dict(strides=[2, 1], padding=[1, 0, 2, 1])),
        (8, 2, dict(dilation=[1, 2], padding=1)),
        (12, 3, dict(groups=2, padding=1)),
    ]:
        if out == 12:
            y = x
        x = b(op.nn.gelu(b.conv(x, out, kernel=kernel, **attrs)))
    size = relax.ShapeExpr([y.ty.shape.values[i] * 2 for i in range(4) if b.layout[i] in "HW"])
    large = b(op.image.resize2d(x, size, layout=b.layout, method="nearest_neighbor"))
    return b.conv(large, 4, kernel=1)


NETWORKS = {
    # name: function, inputs channels, convolutions, transposes of a model in NCHW
    "resnet": (resnet, 3, 4, 0),
    "mobilenet": (mobilenet, 3, 4, 1),
    "inception": (inception, 3, 7, 1),
    "squeeze_and_excite": (squeeze_and_excite, 4, 4, 1),
    "chain": (chain, 4, 5, 1),
}


def network(name, layout="NCHW"):
    function, channels, *_ = NETWORKS[name]
    b = Builder(layout)
    n, h, w = (tirx.Var(each, "int64") for each in "nhw")
    sizes = dict(zip("NHWC", (n, h, w, channels), strict=True))
    x = relax.Var("x", relax.TensorType([sizes[each] for each in layout], "float32"))
    with b.bb.function("main", [x]):
        with b.bb.dataflow():
            out = b.bb.emit_output(function(b, x))
        b.bb.emit_func_output(out)
    return b.bb.get()


def shape_of(layout, channels, n, h, w):
    return [dict(zip("NHWC", (n, h, w, channels), strict=True))[each] for each in layout]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", NETWORKS)
def test_structure(name, layout):
    _, _, count, transposes = NETWORKS[name]
    report = Report()
    found = calls(converted(network(name, layout), report))
    assert len(report.rewritten) == count and not report.left
    assert sum("moonpoly" in each for each in found) == count
    assert not any("conv2d" in each or "batch_norm" in each for each in found if "moon" not in each)
    assert found.count("permute_dims") == (transposes if layout == "NCHW" else 0)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", NETWORKS)
def test_results(name, layout):
    mod = network(name, layout)
    ours = compiled(mod, winograd=False)
    for size in SIZES:
        x = tensor(*shape_of(layout, NETWORKS[name][1], *size))
        np.testing.assert_allclose(run(ours, x), evaluate(mod, x), rtol=1e-4, atol=1e-5)


def test_results_of_plain_tvm():
    mod = network("mobilenet")
    expected, ours = plain(mod), compiled(mod, winograd=False)
    for size in SIZES:
        x = tensor(*shape_of("NCHW", 3, *size))
        np.testing.assert_allclose(
            run(ours, x), run(expected, x), rtol=1e-4, atol=1e-5, strict=True
        )


@pytest.mark.parametrize("off", ["fold_into_convolutions", "channels_last"])
def test_results_with_a_pass_switched_off(off):
    mod = network("squeeze_and_excite")
    ours = compiled(mod, winograd=False, **{off: False})
    x = tensor(2, 4, 7, 9)
    np.testing.assert_allclose(run(ours, x), evaluate(mod, x), rtol=1e-4, atol=1e-5)


def test_all_switched_off():
    report = Report()
    compiled(network("resnet", "NHWC"), report, convolutions=False)
    assert not len(report)
