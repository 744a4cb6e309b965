"""Linear layers of one tensor become one, where an attention reads their results in place."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relax_testing import module, tensor
from tvm import relax
from tvm.relax import op

from relax_passes import FuseAttention, MergeProducts
from tvm_moonpoly.operators.attention_constants import ATTRIBUTES

WIDTH = 16


def attention(emit, q, k, v, heads=2):
    """softmax(q @ k.T) @ v of (batch, row, heads * size)."""

    def split(x, axes):
        b, s, n = x.ty.shape.values
        cut = emit(op.reshape(x, relax.ShapeExpr([b, s, heads, int(n) // heads])))
        return emit(op.permute_dims(cut, axes))

    scores = emit(op.matmul(split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1])))
    weights = emit(op.nn.softmax(scores, axis=-1))
    mixed = emit(op.matmul(weights, split(v, [0, 2, 1, 3])))
    turned = emit(op.permute_dims(mixed, [0, 2, 1, 3]))
    b, s, n = q.ty.shape.values
    return emit(op.reshape(turned, relax.ShapeExpr([b, s, n])))


def layer(emit, x, number, bias=True, transposed=False, columns=WIDTH):
    weight = tensor(WIDTH, columns) + number
    if transposed:
        w = emit(op.permute_dims(relax.const(np.ascontiguousarray(weight.T)), [1, 0]))
    else:
        w = relax.const(weight)
    product = emit(op.matmul(x, w))
    return emit(op.add(product, relax.const(tensor(columns) + number))) if bias else product


def built(body, *names):
    b, s = (tvm.tirx.Var(name, "int64") for name in "bs")
    params = [relax.Var(name, relax.TensorType((b, s, WIDTH), "float32")) for name in names]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(out)
    return module(builder.get()["main"])


@pytest.fixture(scope="module")
def merged(target):
    """The bindings after the passes, by operator: products, sums, attention."""

    def run(mod):
        fused = FuseAttention(target)(mod)
        after = MergeProducts()(fused)
        relax.analysis.well_formed(after.without_attr("external_mods"))
        found = {"relax.matmul": [], "relax.add": [], "relax.call_dps_packed": []}
        for block in after["main"].body.blocks:
            for binding in block.bindings:
                if isinstance(binding.value, relax.Call):
                    found.setdefault(binding.value.op.name, []).append(binding.value)
        return after.same_as(fused), found

    return run


def offsets(call):
    numbers = call.args[1].fields[-1].value.numpy()
    return [int(numbers[ATTRIBUTES.index(f"{name}_offset")]) for name in "qkv"]


@pytest.mark.parametrize("transposed", [False, True])
def test_three_become_one(merged, transposed):
    def body(emit, x):
        return attention(emit, *(layer(emit, x, i, transposed=transposed) for i in range(3)))

    same, found = merged(built(body, "x"))
    assert not same
    (product,), (total,), (call,) = (
        found[name] for name in ("relax.matmul", "relax.add", "relax.call_dps_packed")
    )
    weights = [tensor(WIDTH, WIDTH) + i for i in range(3)]
    np.testing.assert_array_equal(product.args[1].value.numpy(), np.concatenate(weights, axis=1))
    bias = np.concatenate([tensor(WIDTH) + i for i in range(3)])
    np.testing.assert_array_equal(total.args[1].value.numpy(), bias)
    assert offsets(call) == [0, WIDTH, 2 * WIDTH]
    assert call.args[1].fields[0].same_as(call.args[1].fields[2])
    assert "relax.permute_dims" not in found


def test_of_another_tensor_stays_on_its_own(merged):
    """Queries of one tensor on keys and values of another one; a bias that is not there is 0."""

    def body(emit, x, y):
        return attention(emit, layer(emit, x, 0), layer(emit, y, 1, bias=False), layer(emit, y, 2))

    same, found = merged(built(body, "x", "y"))
    assert not same
    assert len(found["relax.matmul"]) == 2
    assert offsets(found["relax.call_dps_packed"][0]) == [0, 0, WIDTH]
    (bias,) = [
        call.args[1].value.numpy() for call in found["relax.add"] if call.ty.shape[2] == 2 * WIDTH
    ]
    np.testing.assert_array_equal(bias, [*np.zeros(WIDTH), *(tensor(WIDTH) + 2)])


def _used_elsewhere(emit, x):
    q, k, v = (layer(emit, x, i) for i in range(3))
    attended = attention(emit, q, k, v)
    return emit(op.add(attended, emit(op.add(k, v))))


def _of_two_tensors(emit, x):
    y = emit(op.nn.relu(x))
    z = emit(op.nn.gelu(x))
    return attention(emit, layer(emit, x, 0), layer(emit, y, 1), layer(emit, z, 2))


def _no_layers(emit, x):
    return attention(emit, x, x, x)


def _no_attention(emit, x):
    """Parts of one result would have to be cut."""
    return emit(op.multiply(layer(emit, x, 0), layer(emit, x, 1)))


@pytest.mark.parametrize("body", [_used_elsewhere, _of_two_tensors, _no_layers, _no_attention])
def test_the_rest_stays_as_it_was(merged, body):
    same, _ = merged(built(body, "x"))
    assert same


def test_a_bias_of_another_form_stays(merged):
    def body(emit, x):
        layers = []
        for i in range(3):
            product = emit(op.matmul(x, relax.const(tensor(WIDTH, WIDTH) + i)))
            layers.append(emit(op.add(product, relax.const(tensor(1, WIDTH)[:, :1].copy()))))
        return attention(emit, *layers)

    same, _ = merged(built(body, "x"))
    assert same
