"""Operators between convolutions compute with the channels last; transposes stay at the borders."""

import numpy as np
import pytest
import tvm
from relax_conv_testing import (
    calls,
    constant,
    converted,
    stand_ins,  # noqa: F401
    tensor,
)
from relax_in_numpy import evaluate
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import relax as R

pytestmark = pytest.mark.usefixtures("stand_ins")

C = 6


def network(body, ndim=4, inputs=1):
    """`body` between two 1x1 convolutions (one without the other after a change of rank)."""
    bb = relax.BlockBuilder()
    sizes = [tirx.Var(name, "int64") for name in "nhw"[: ndim - 1]]
    shape = [sizes[0], C, *sizes[1:]]
    params = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i in range(inputs)]
    conv = op.nn.conv2d if ndim == 4 else op.nn.conv1d
    ones = [1] * (ndim - 2)
    with bb.function("main", params):
        with bb.dataflow():
            given = [bb.emit(conv(x, constant(C, C, *ones, scale=0.4))) for x in params]
            out = body(bb.emit, *given)
            channels = out.ty.shape.values[1] if isinstance(out.ty, relax.TensorType) else None
            if isinstance(channels, tirx.IntImm) and out.ty.ndim == ndim:
                out = bb.emit(conv(out, constant(5, int(channels), *ones)))
            out = bb.emit_output(out)
        bb.emit_func_output(out)
    return bb.get()


def check(body, *, transposes, ndim=4, inputs=1, size=(2, 6, 8), rtol=1e-4):
    mod = network(body, ndim, inputs)
    after = converted(mod)
    n, *spatial = size[: ndim - 1]
    given = [tensor(n, C, *spatial) + i for i in range(inputs)]
    want = evaluate(mod, *given)
    np.testing.assert_allclose(evaluate(after, *given), want, rtol=rtol, atol=1e-5)
    found = calls(after)
    assert found.count("permute_dims") == transposes, after.script()
    return found


SAME_RANK = {
    "relu": lambda e, x: e(op.nn.leakyrelu(x, 0.1)),
    "prelu": lambda e, x: e(op.nn.prelu(x, constant(C), 1)),
    "two elementwise": lambda e, x: e(op.multiply(x, e(op.exp(e(op.negative(x)))))),
    "channel constant": lambda e, x: e(op.maximum(x, constant(C, 1, 1))),
    "mean of each column": lambda e, x: e(op.subtract(x, e(op.mean(x, [0, 1, 2])))),
    "where": lambda e, x: e(op.where(e(op.greater(x, relax.const(0.0))), x, e(op.tanh(x)))),
    "max pool": lambda e, x: e(op.nn.max_pool2d(x, (3, 2), 2, (1, 0, 1, 1))),
    "max pool, ceil": lambda e, x: e(op.nn.max_pool2d(x, 3, 2, 0, 1, True)),
    "average pool": lambda e, x: e(op.nn.avg_pool2d(x, 3, 1, 1, count_include_pad=False)),
    "average pool with pads": lambda e, x: e(op.nn.avg_pool2d(x, 3, 2, 1, count_include_pad=True)),
    "adaptive pool": lambda e, x: e(op.multiply(x, e(op.nn.adaptive_avg_pool2d(x, 1)))),
    "global mean": lambda e, x: e(op.add(x, e(op.mean(x, [2, 3], True)))),
    "mean of rows": lambda e, x: e(op.subtract(x, e(op.mean(x, [-1], True)))),
    "channel max": lambda e, x: e(op.divide(x, e(op.sum(e(op.exp(x)), [1], True)))),
    "softmax over channels": lambda e, x: e(op.nn.softmax(x, 1)),
    "softmax over columns": lambda e, x: e(op.nn.softmax(x, -1)),
    "concat channels": lambda e, x: e(op.concat([x, e(op.tanh(x))], 1)),
    "concat rows": lambda e, x: e(op.concat([x, e(op.tanh(x)), x], -2)),
    "split": lambda e, x: _of_split(e, x, 2),
    "split in unequal parts": lambda e, x: _of_split(e, x, [2]),
    "slice": lambda e, x: e(op.strided_slice(x, [1, 3], [1, 0], [C, 8], [2, 3])),
    "pad": lambda e, x: e(op.nn.pad(x, [0, 0, 0, 1, 1, 2, 0, 3], pad_value=0.5)),
    "resize": lambda e, x: e(
        op.image.resize2d(
            x,
            relax.ShapeExpr([x.ty.shape.values[2] * 2, x.ty.shape.values[3] * 2]),
            method="nearest_neighbor",
        )
    ),
    "there and back": lambda e, x: e(
        op.permute_dims(e(op.tanh(e(op.permute_dims(x, [0, 2, 3, 1])))), [0, 3, 1, 2])
    ),
    "linear over channels": lambda e, x: e(
        op.permute_dims(
            e(op.matmul(e(op.permute_dims(x, [0, 2, 3, 1])), constant(C, 4))), [0, 3, 1, 2]
        )
    ),
    "over flattened pixels": lambda e, x: _flattened(e, x),
}


def _of_split(emit, x, parts):
    both = emit(op.split(x, parts, 1))
    items = [emit(relax.TupleGetItem(both, i)) for i in (1, 0)]
    return emit(op.concat([emit(op.tanh(items[0])), items[1]], 1))


def _flattened(emit, x):
    n, c, h, w = x.ty.shape.values
    rows = emit(op.permute_dims(emit(op.reshape(x, (n, c, h * w))), [0, 2, 1]))
    rows = emit(op.matmul(rows, constant(C, C)))
    return emit(op.reshape(emit(op.permute_dims(rows, [0, 2, 1])), (n, c, h, w)))


@pytest.mark.parametrize("name", SAME_RANK)
def test_nothing_is_transposed_between(name):
    check(SAME_RANK[name], transposes=2)


ENDS = {
    # what the network ends with, and transposes in all
    "classifier": (lambda e, x: e(op.mean(x, [2, 3])), 1),
    "pooled, then flattened": (
        lambda e, x: e(op.squeeze(e(op.nn.adaptive_avg_pool2d(x, 1)), [2, 3])), 1
    ),
    "sequence of columns": (lambda e, x: e(op.permute_dims(e(op.mean(x, [2])), [0, 2, 1])), 1),
    "sequence of channels": (lambda e, x: e(op.max(x, [1])), 1),
    "mean over images": (lambda e, x: e(op.mean(x, [0])), 2),
    "pixels, transposed": (lambda e, x: e(op.permute_dims(x, [0, 3, 2, 1])), 2),
    "all flattened": (lambda e, x: _all_flattened(e, x), 2),
}  # fmt: skip


def _all_flattened(emit, x):
    n, c, h, w = x.ty.shape.values
    return emit(op.reshape(x, (n, c * h * w)))


@pytest.mark.parametrize("name", ENDS)
def test_ends(name):
    body, transposes = ENDS[name]
    mod = network(body)
    given = tensor(2, C, 4, 5)
    after = converted(mod)
    np.testing.assert_allclose(evaluate(after, given), evaluate(mod, given), rtol=1e-4, atol=1e-5)
    assert calls(after).count("permute_dims") == transposes


def test_two_inputs_and_a_residual_of_both():
    found = check(lambda e, x, y: e(op.add(x, e(op.tanh(y)))), transposes=3, inputs=2)
    assert found.count("add") == 0


def test_one_dimension():
    found = check(lambda e, x: e(op.nn.leakyrelu(x, 0.1)), transposes=2, ndim=3)
    assert found.count("moonpoly_conv2d_f32") == 2
    check(lambda e, x: e(op.nn.max_pool1d(x, 2, 2)), transposes=2, ndim=3)


def test_an_operator_without_a_rule_gets_its_own_layout():
    check(lambda e, x: e(op.cumsum(x, axis=1)), transposes=4)


def test_results_that_are_returned_are_transposed_once():
    def body(emit, x):
        y = emit(op.tanh(x))
        return emit(relax.Tuple([y, emit(op.negative(y)), y]))

    mod = network(body)
    after = converted(mod)
    given = tensor(2, C, 4, 5)
    for ours, want in zip(evaluate(after, given), evaluate(mod, given), strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-5)
    assert calls(after).count("permute_dims") == 3


def test_one_channel_is_no_transpose():
    bb = relax.BlockBuilder()
    n, h, w = (tirx.Var(name, "int64") for name in "nhw")
    x = relax.Var("x", relax.TensorType((n, 1, h, w), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(op.nn.conv2d(x, constant(1, 1, 3, 3), padding=1))
        bb.emit_func_output(out)
    assert "permute_dims" not in calls(converted(bb.get()))


def test_branches_keep_their_own():
    weight = constant(C, C, 1, 1)

    @R.function
    def main(x: R.Tensor(("n", C, "h", "w"), "float32"), c: R.Tensor((), "bool")):
        y = R.nn.conv2d(x, weight)
        if c:  # noqa: SIM108
            z = R.nn.conv2d(y, weight)
        else:
            z = R.tanh(y)
        r = R.nn.conv2d(z, weight)
        return r

    mod = tvm.IRModule({"main": main.with_attr("global_symbol", "main")})
    after = converted(mod)
    assert calls(after).count("moonpoly_conv2d_f32") == 3


def test_a_function_that_writes_in_place_keeps_its_layout():
    weight = constant(C, C, 1, 1)

    @R.function(pure=False)
    def main(x: R.Tensor(("n", C, "h", "w"), "float32")):
        y = R.nn.conv2d(x, weight)
        _w = R.call_packed("write", x, ty_args=(R.Tuple(),))
        z = R.nn.conv2d(x, weight)
        return (y, z)

    mod = tvm.IRModule({"main": main.with_attr("global_symbol", "main")})
    found = calls(converted(mod))
    assert found.count("permute_dims") == 4 and found.count("moonpoly_conv2d_f32") == 2
