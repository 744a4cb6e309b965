"""Heads of k and v that several heads of q share, and parts by heads, are read in place."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relax_testing import module
from tvm import relax
from tvm.relax import op
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_moonpoly
from relax_passes import FuseAttention, Report
from tvm_moonpoly.operators.attention_constants import AttentionSpec, Place

HEADS, GROUPS, SIZE = 4, 2, 8
EACH = HEADS // GROUPS
B, S, P = (tvm.tirx.Var(name, "int64") for name in "bsp")


def fused(target, mod):
    report = Report()
    after = FuseAttention(target, report)(mod)
    relax.analysis.well_formed(after)
    return after.without_attr("external_mods"), [entry.detail for entry in report.rewritten]


def test_repeated_by_a_broadcast(target):
    """As decoders of Hugging Face write it: with a cache, which is read as it is."""

    @R.function
    def before(
        q: R.Tensor(("b", 4, "s", 8), "float32"),
        k: R.Tensor(("b", 2, "t", 8), "float32"),
        v: R.Tensor(("b", 2, "t", 8), "float32"),
    ):
        b, t = T.int64(), T.int64()
        with R.dataflow():
            k5 = R.expand_dims(k, axis=[2])
            v5 = R.reshape(v, R.shape([b, 2, 1, t, 8]))
            many_k = R.broadcast_to(k5, R.shape([b, 2, 2, t, 8]))
            many_v = R.tile(v5, repeats=[1, 1, 2, 1, 1])
            k4 = R.reshape(many_k, R.shape([b, 4, t, 8]))
            v4 = R.reshape(many_v, R.shape([b, 4, t, 8]))
            kt = R.permute_dims(k4, axes=[0, 1, 3, 2])
            scores = R.matmul(q, kt)
            weights = R.nn.softmax(scores, axis=-1)
            out = R.matmul(weights, v4)
            R.output(out)
        return out

    given = relax.const(AttentionSpec(4, 8, 8, 1.0, 2).encode(), "int64")

    @R.function
    def expected(
        q: R.Tensor(("b", 4, "s", 8), "float32"),
        k: R.Tensor(("b", 2, "t", 8), "float32"),
        v: R.Tensor(("b", 2, "t", 8), "float32"),
    ):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            out = R.call_dps_packed(
                "moonpoly_attention_f32", (q, k, v, given), out_ty=R.Tensor((b, 4, s, 8), "float32")
            )
            R.output(out)
        return out

    after, details = fused(target, module(before))
    tvm.ir.assert_structural_equal(after, module(expected))
    assert details == ["4 heads of 8, 2 of k and v"]


def test_parts_by_heads_of_one_product(target):
    """q, k and v are parts of the heads of one linear layer, cut by a split or by slices."""

    @R.function
    def before(qkv: R.Tensor(("b", "s", 64), "float32")):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            heads = R.reshape(qkv, R.shape([b, s, 8, 8]))
            parts = R.split(heads, indices_or_sections=[4, 6], axis=2)
            q = parts[0]
            k = parts[1]
            v = R.strided_slice(heads, (2,), (6,), (8,), (1,), assume_inbound=False)
            qh = R.permute_dims(q, axes=[0, 2, 1, 3])
            kh = R.permute_dims(k, axes=[0, 2, 1, 3])
            vh = R.permute_dims(v, axes=[0, 2, 1, 3])
            many_k = R.repeat(kh, repeats=2, axis=1)
            many_v = R.repeat(vh, repeats=2, axis=1)
            kt = R.permute_dims(many_k, axes=[0, 1, 3, 2])
            scores = R.matmul(qh, kt)
            weights = R.nn.softmax(scores, axis=-1)
            out = R.matmul(weights, many_v)
            R.output(out)
        return out

    places = {name: Place.columns(at * 8) for name, at in (("q", 0), ("k", 4), ("v", 6))}
    given = relax.const(AttentionSpec(4, 8, 8, 1.0, 2, **places).encode(), "int64")

    @R.function
    def expected(qkv: R.Tensor(("b", "s", 64), "float32")):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            out = R.call_dps_packed(
                "moonpoly_attention_f32",
                (qkv, qkv, qkv, given),
                out_ty=R.Tensor((b, 4, s, 8), "float32"),
            )
            R.output(out)
        return out

    after, details = fused(target, module(before))
    tvm.ir.assert_structural_equal(after, module(expected))
    assert details == ["4 heads of 8, 2 of k and v, q in place, k in place, v in place"]


def by_broadcast(emit, x, keys):
    new = emit(op.expand_dims(x, axis=[2]))
    many = emit(op.broadcast_to(new, relax.ShapeExpr([B, GROUPS, EACH, keys, SIZE])))
    return emit(op.reshape(many, relax.ShapeExpr([B, HEADS, keys, SIZE])))


def by_tile(emit, x, keys):
    new = emit(op.reshape(x, relax.ShapeExpr([B, GROUPS, 1, keys, SIZE])))
    many = emit(op.tile(new, [1, 1, EACH, 1, 1]))
    return emit(op.reshape(many, relax.ShapeExpr([B, HEADS, keys, SIZE])))


def by_repeat(emit, x, keys):
    return emit(op.repeat(x, EACH, 1))


def in_another_order(emit, x, keys):
    """Head 0 and 2 of q share one, which no operator reads in place."""
    return emit(op.tile(x, [1, EACH, 1, 1]))


def of_groups_that_differ(emit, x, keys):
    """A reshape of heads that are none of a broadcast."""
    many = emit(op.concat([x, emit(op.negative(x))], axis=1))
    five = emit(op.reshape(many, relax.ShapeExpr([B, GROUPS, EACH, keys, SIZE])))
    return emit(op.reshape(five, relax.ShapeExpr([B, HEADS, keys, SIZE])))


#: How heads are repeated for k and for v, and how many are read.
FORMS = {
    "broadcast": (by_broadcast, by_broadcast, GROUPS),
    "tile": (by_tile, by_tile, GROUPS),
    "repeat": (by_repeat, by_repeat, GROUPS),
    "mixed": (by_repeat, by_broadcast, GROUPS),
    "another order": (in_another_order, in_another_order, HEADS),
    "one of both": (by_broadcast, in_another_order, HEADS),
    "groups that differ": (of_groups_that_differ, of_groups_that_differ, HEADS),
}


def built(*forms):
    """The attentions of q on k and v with a cache, whose heads are repeated in each of `forms`."""
    shapes = {"q": (B, HEADS, S, SIZE)}
    shapes |= {n: (B, GROUPS, dim, SIZE) for n, dim in (("k", S), ("v", S), ("pk", P), ("pv", P))}
    params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]
    q, k, v, past_k, past_v = params
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", params):
        with builder.dataflow():
            keys = emit(op.concat([past_k, k], axis=2))
            values = emit(op.concat([past_v, v], axis=2))
            outputs = []
            for of_k, of_v, _ in forms:
                many_k, many_v = of_k(emit, keys, P + S), of_v(emit, values, P + S)
                scores = emit(op.matmul(q, emit(op.permute_dims(many_k, [0, 1, 3, 2]))))
                weights = emit(op.nn.softmax(scores, axis=-1))
                outputs.append(builder.emit_output(op.matmul(weights, many_v)))
        builder.emit_func_output(relax.Tuple(outputs))
    return module(builder.get()["main"])


@pytest.mark.parametrize("name", FORMS)
def test_what_is_read(target, name):
    count = FORMS[name][2]
    shared = f", {count} of k and v" if count < HEADS else ""
    assert fused(target, built(FORMS[name]))[1] == [f"{HEADS} heads of {SIZE}{shared}"]


@pytest.fixture(scope="module")
def both(target):
    """All forms in one function, with the pass and without."""
    machines = []
    for on in (False, True):
        pipeline = tvm_moonpoly.pipeline(target, attention=on)
        executable = tvm.compile(built(*FORMS.values()), target, relax_pipeline=pipeline)
        machines.append(relax.VirtualMachine(executable, tvm.cpu()))
    return machines


@pytest.mark.parametrize(
    "size", [(1, 1, 0), (2, 1, 30), (1, 7, 1), (2, 40, 3), (0, 3, 2), (2, 0, 4)]
)
def test_same_results(both, size):
    batch, rows, past = size
    rng = np.random.default_rng(size)
    arrays = [rng.standard_normal((batch, HEADS, rows, SIZE), np.float32)]
    for keys in (rows, rows, past, past):
        arrays.append(rng.standard_normal((batch, GROUPS, keys, SIZE), np.float32))
    plain, ours = (vm["main"](*map(tvm.runtime.tensor, arrays)) for vm in both)
    for name, one, other in zip(FORMS, plain, ours, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
