"""Which attention becomes one call, what it reads in place, and what stays as it was."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relax_testing import module
from tvm import relax
from tvm.relax import op
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import FuseAttention, Report
from tvm_moonpoly.operators.attention_constants import AttentionSpec, Causal, Place

LOWEST = float(np.finfo(np.float32).min)
TURNED = Place((0, 2, 1, 3))


def spec(heads, size, scale, **more):
    return relax.const(AttentionSpec(heads, size, size, scale, **more).encode(), "int64")


@pytest.fixture(scope="module")
def fuse(target):
    """A function that runs the pass on a Relax function: the module after it, and the report."""

    def run(before, static=False):
        report = Report()
        original = module(before)
        relax.analysis.well_formed(original)
        after = FuseAttention(target, report, static=static)(original)
        if after.same_as(original):
            return after, report
        relax.analysis.well_formed(after)
        return after.without_attr("external_mods"), report

    return run


@pytest.fixture(scope="module")
def check(fuse):
    def run(before, expected, static=False):
        after, report = fuse(before, static)
        tvm.ir.assert_structural_equal(after, module(expected))
        return [entry.detail for entry in report]

    return run


def test_between_linear_layers(check):
    """Reshapes and permutes on both sides, scale and mask: as exporters write BERT."""

    @R.function
    def before(
        q: R.Tensor(("b", "s", 24), "float32"),
        k: R.Tensor(("b", "s", 24), "float32"),
        v: R.Tensor(("b", "s", 24), "float32"),
        mask: R.Tensor(("b", 1, 1, "s"), "float32"),
    ):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            q4 = R.reshape(q, R.shape([b, s, 3, 8]))
            k4 = R.reshape(k, R.shape([b, s, 3, 8]))
            v4 = R.reshape(v, R.shape([b, s, 3, 8]))
            qh = R.permute_dims(q4, axes=[0, 2, 1, 3])
            kh = R.permute_dims(k4, axes=[0, 2, 3, 1])
            vh = R.permute_dims(v4, axes=[0, 2, 1, 3])
            scores = R.matmul(qh, kh)
            scaled = R.divide(scores, R.const(4.0, "float32"))
            masked = R.add(mask, scaled)
            weights = R.nn.softmax(masked, axis=-1)
            mixed = R.matmul(weights, vh)
            turned = R.permute_dims(mixed, axes=[0, 2, 1, 3])
            out = R.reshape(turned, R.shape([b, s, 24]))
            R.output(out)
        return out

    columns = Place.columns()
    given = spec(3, 8, 0.25, q=columns, k=columns, v=columns, out=columns)

    @R.function
    def expected(
        q: R.Tensor(("b", "s", 24), "float32"),
        k: R.Tensor(("b", "s", 24), "float32"),
        v: R.Tensor(("b", "s", 24), "float32"),
        mask: R.Tensor(("b", 1, 1, "s"), "float32"),
    ):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            out = R.call_dps_packed(
                "moonpoly_attention_masked_f32",
                (q, k, v, mask, given),
                out_ty=R.Tensor((b, s, 24), "float32"),
            )
            R.output(out)
        return out

    detail = "3 heads of 8, masked, q in place, k in place, v in place"
    assert check(before, expected) == [detail]


def test_parts_of_one_product_and_a_cache(check):
    """Split, and keys that are outputs as well: as exporters write a decoder. The cache is read
    as it is, whose permute is folded."""

    @R.function
    def before(
        qkv: R.Tensor(("b", "s", 48), "float32"), past: R.Tensor(("b", 2, "p", 8), "float32")
    ):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            parts = R.split(qkv, indices_or_sections=3, axis=-1)
            q = parts[0]
            k = parts[1]
            v = parts[2]
            q4 = R.reshape(q, R.shape([b, s, 2, 8]))
            k4 = R.reshape(k, R.shape([b, s, 2, 8]))
            v4 = R.reshape(v, R.shape([b, s, 2, 8]))
            qh = R.permute_dims(q4, axes=[0, 2, 1, 3])
            kh = R.permute_dims(k4, axes=[0, 2, 1, 3])
            vh = R.permute_dims(v4, axes=[0, 2, 1, 3])
            keys = R.concat((past, kh), axis=2)
            kt = R.permute_dims(keys, axes=[0, 1, 3, 2])
            values = R.concat((past, vh), axis=2)
            scores = R.matmul(qh, kt)
            weights = R.nn.softmax(scores, axis=3)
            out = R.matmul(weights, values)
            R.output(keys, out)
        return (keys, out)

    given = spec(2, 8, 1.0, q=Place.columns())

    @R.function
    def expected(
        qkv: R.Tensor(("b", "s", 48), "float32"), past: R.Tensor(("b", 2, "p", 8), "float32")
    ):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            parts = R.split(qkv, indices_or_sections=3, axis=-1)
            k = parts[1]
            v = parts[2]
            k4 = R.reshape(k, R.shape([b, s, 2, 8]))
            v4 = R.reshape(v, R.shape([b, s, 2, 8]))
            kh = R.permute_dims(k4, axes=[0, 2, 1, 3])
            vh = R.permute_dims(v4, axes=[0, 2, 1, 3])
            keys = R.concat((past, kh), axis=2)
            values = R.concat((past, vh), axis=2)
            out = R.call_dps_packed(
                "moonpoly_attention_f32",
                (qkv, keys, values, given),
                out_ty=R.Tensor((b, 2, s, 8), "float32"),
            )
            R.output(keys, out)
        return (keys, out)

    assert check(before, expected) == ["2 heads of 8, q in place"]


def test_parts_taken_by_index_and_scaled_on_both_sides(check):
    """As exporters write a vision transformer; an index comes as a choice that is settled."""

    @R.function
    def before(qkv: R.Tensor(("b", 5, 48), "float32"), n: R.Tensor((), "int64")):
        b = T.int64()
        with R.dataflow():
            cut = R.reshape(qkv, R.shape([b, 5, 3, 2, 8]))
            parts = R.permute_dims(cut, axes=[2, 0, 3, 1, 4])
            negative = R.less(R.const(1, "int64"), R.const(0, "int64"))
            index = R.where(negative, n, R.const(1, "int64"))
            q = R.take(parts, R.const(0, "int64"), axis=0)
            k = R.take(parts, index, axis=0)
            v = R.take(parts, R.const(-1, "int64"), axis=0)
            kt = R.permute_dims(k, axes=[0, 1, 3, 2])
            qs = R.multiply(q, R.const(0.5, "float32"))
            ks = R.multiply(R.const(0.25, "float32"), kt)
            scores = R.matmul(qs, ks)
            weights = R.nn.softmax(scores, axis=-1)
            out = R.matmul(weights, v)
            R.output(out)
        return out

    given = spec(2, 8, 0.125, q=Place.columns(), k=Place.columns(16), v=Place.columns(32))

    @R.function
    def expected(qkv: R.Tensor(("b", 5, 48), "float32"), n: R.Tensor((), "int64")):
        b = T.int64()
        with R.dataflow():
            out = R.call_dps_packed(
                "moonpoly_attention_f32",
                (qkv, qkv, qkv, given),
                out_ty=R.Tensor((b, 2, 5, 8), "float32"),
            )
            R.output(out)
        return out

    assert check(before, expected) == ["2 heads of 8, q in place, k in place, v in place"]


def test_a_mask_by_choice(check):
    """The condition becomes an addend, and one head of keys serves all of the queries."""

    @R.function
    def before(
        q: R.Tensor(("b", 4, "s", 8), "float32"),
        k: R.Tensor(("b", 1, "t", 8), "float32"),
        v: R.Tensor(("b", 1, "t", 8), "float32"),
        seen: R.Tensor(("s", "t"), "bool"),
    ):
        kt = R.permute_dims(k, axes=[0, 1, 3, 2])
        scores = R.matmul(q, kt)
        masked = R.where(seen, scores, R.const(float("-inf"), "float32"))
        weights = R.nn.softmax(masked, axis=-1)
        out = R.matmul(weights, v)
        return out

    given = spec(4, 8, 1.0, kv_heads=1, mask=(None, None, 0, 1))

    @R.function
    def expected(
        q: R.Tensor(("b", 4, "s", 8), "float32"),
        k: R.Tensor(("b", 1, "t", 8), "float32"),
        v: R.Tensor(("b", 1, "t", 8), "float32"),
        seen: R.Tensor(("s", "t"), "bool"),
    ):
        b, s = T.int64(), T.int64()
        mask = R.where(seen, R.const(0.0, "float32"), R.const(float("-inf"), "float32"))
        out = R.call_dps_packed(
            "moonpoly_attention_masked_f32",
            (q, k, v, mask, given),
            out_ty=R.Tensor((b, 4, s, 8), "float32"),
        )
        return out

    assert check(before, expected) == ["4 heads of 8, masked"]


def test_of_three_dimensions(check):
    @R.function
    def before(
        q: R.Tensor(("b", "s", 8), "float32"),
        k: R.Tensor(("b", 8, "t"), "float32"),
        v: R.Tensor(("b", "t", 8), "float32"),
        mask: R.Tensor((1, "s", "t"), "float32"),
    ):
        scores = R.matmul(q, k)
        masked = R.add(scores, mask)
        weights = R.nn.softmax(masked, axis=-1)
        out = R.matmul(weights, v)
        return out

    rows = Place((0, None, 1, 2))
    given = spec(
        1, 8, 1.0, q=rows, k=Place((0, None, 2, 1)), v=rows, out=rows, mask=(0, None, 1, 2)
    )

    @R.function
    def expected(
        q: R.Tensor(("b", "s", 8), "float32"),
        k: R.Tensor(("b", 8, "t"), "float32"),
        v: R.Tensor(("b", "t", 8), "float32"),
        mask: R.Tensor((1, "s", "t"), "float32"),
    ):
        b, s = T.int64(), T.int64()
        out = R.call_dps_packed(
            "moonpoly_attention_masked_f32",
            (q, k, v, mask, given),
            out_ty=R.Tensor((b, s, 8), "float32"),
        )
        return out

    assert check(before, expected) == ["1 head of 8, masked"]


def test_of_matrices_and_of_dimensions_that_are_put_in(check):
    """Two dimensions; and one that a product needs is not read."""

    @R.function
    def before(
        q: R.Tensor(("s", 8), "float32"),
        k: R.Tensor(("t", 8), "float32"),
        v: R.Tensor(("t", 8), "float32"),
    ):
        with R.dataflow():
            kt = R.permute_dims(k, axes=[1, 0])
            scores = R.matmul(q, kt)
            weights = R.nn.softmax(scores, axis=-1)
            one = R.matmul(weights, v)
            q3 = R.expand_dims(one, axis=[0])
            k3 = R.expand_dims(k, axis=[0])
            v3 = R.expand_dims(v, axis=[0])
            kt3 = R.permute_dims(k3, axes=[0, 2, 1])
            scores3 = R.matmul(q3, kt3)
            weights3 = R.nn.softmax(scores3, axis=-1)
            out = R.matmul(weights3, v3)
            R.output(out)
        return out

    rows = Place((None, None, 0, 1))
    first = spec(1, 8, 1.0, q=rows, k=rows, v=rows, out=rows)
    second = spec(1, 8, 1.0, q=rows, k=rows, v=rows, out=Place((0, None, 1, 2)))

    @R.function
    def expected(
        q: R.Tensor(("s", 8), "float32"),
        k: R.Tensor(("t", 8), "float32"),
        v: R.Tensor(("t", 8), "float32"),
    ):
        s = T.int64()
        with R.dataflow():
            one = R.call_dps_packed(
                "moonpoly_attention_f32", (q, k, v, first), out_ty=R.Tensor((s, 8), "float32")
            )
            out = R.call_dps_packed(
                "moonpoly_attention_f32", (one, k, v, second), out_ty=R.Tensor((1, s, 8), "float32")
            )
            R.output(out)
        return out

    assert check(before, expected) == ["1 head of 8"] * 2


@pytest.mark.parametrize(
    ("causal", "number"),
    [(None, Causal.NONE), ("TopLeft", Causal.FROM_FIRST), ("BottomRight", Causal.FROM_LAST)],
)
@pytest.mark.parametrize("scale", [None, 0.5])
def test_the_operator_of_relax(fuse, causal, number, scale):
    given = AttentionSpec(
        2, 16, 16, 0.25 if scale is None else scale, q=TURNED, k=TURNED, v=TURNED, out=TURNED,
        causal=number,
    )  # fmt: skip
    b, s, t = (tvm.tirx.Var(name, "int64") for name in "bst")
    q = relax.Var("q", relax.TensorType((b, s, 2, 16), "float32"))
    k, v = (relax.Var(name, relax.TensorType((b, t, 2, 16), "float32")) for name in "kv")
    builder = relax.BlockBuilder()
    with builder.function("main", [q, k, v]):
        value = op.nn.attention(q, k, v, scale=scale and tvm.tirx.FloatImm("float32", scale),
                                causal_mask=causal)  # fmt: skip
        builder.emit_func_output(builder.emit(value))
    after, report = fuse(builder.get()["main"])
    (call,) = [binding.value for binding in after["main"].body.blocks[0].bindings]
    assert call.args[0].global_symbol == "moonpoly_attention_f32"
    np.testing.assert_array_equal(call.args[1].fields[3].value.numpy(), given.encode())
    assert len(report.rewritten) == 1


def _left(fuse, build, *shapes, dtype="float32", static=False):
    """The reasons why the function that ``build`` makes of q, k.T and v stays as it is."""
    symbols = {name: tvm.tirx.Var(name, "int64") for name in "bsth"}
    params = [
        relax.Var(name, relax.TensorType([symbols.get(d, d) for d in shape], dtype))
        for name, shape in zip("qkvm", shapes, strict=False)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        outputs = build(builder.emit, *params)
        builder.emit_func_output(outputs)
    before = builder.get()["main"]
    after, report = fuse(before, static)
    tvm.ir.assert_structural_equal(after, module(before))
    assert not report.rewritten
    return [entry.detail for entry in report]


Q, K, V = ("b", 2, "s", 8), ("b", 2, 8, "t"), ("b", 2, "t", 8)


def _plain(emit, q, k, v, *_):
    return emit(op.matmul(emit(op.nn.softmax(emit(op.matmul(q, k)), axis=-1)), v))


def _scores_used(emit, q, k, v):
    scores = emit(op.matmul(q, k))
    return relax.Tuple([scores, emit(op.matmul(emit(op.nn.softmax(scores, axis=-1)), v))])


def _weights_used(emit, q, k, v):
    weights = emit(op.nn.softmax(emit(op.matmul(q, k)), axis=-1))
    return relax.Tuple([weights, emit(op.matmul(weights, v))])


def _scaled_after_mask(emit, q, k, v, mask):
    masked = emit(op.add(emit(op.matmul(q, k)), mask))
    scaled = emit(op.multiply(masked, relax.const(2.0, "float32")))
    return emit(op.matmul(emit(op.nn.softmax(scaled, axis=-1)), v))


def _other_axis(emit, q, k, v):
    return emit(op.matmul(emit(op.nn.softmax(emit(op.matmul(q, k)), axis=1)), v))


def _weak_mask(emit, q, k, v, mask):
    """What is replaced counts when all keys of a row are."""
    seen = emit(op.greater(mask, relax.const(0.0, "float32")))
    masked = emit(op.where(seen, emit(op.matmul(q, k)), relax.const(-1e4, "float32")))
    return emit(op.matmul(emit(op.nn.softmax(masked, axis=-1)), v))


def _wide_mask(emit, q, k, v, mask):
    """The mask has more heads than the scores."""
    masked = emit(op.add(emit(op.matmul(q, k)), mask))
    return emit(op.matmul(emit(op.nn.softmax(masked, axis=-1)), v))


LEFT = {
    "scores": (_scores_used, (Q, K, V), "the scores are not a product, scaled and masked"),
    "scaled mask": (
        _scaled_after_mask,
        (Q, K, V, ("b", 1, 1, "t")),
        "the scores are not a product, scaled and masked",
    ),
    "axis": (_other_axis, (Q, K, V), "softmax of another form"),
    "weak mask": (
        _weak_mask,
        (Q, K, V, ("s", "t")),
        "the scores are not a product, scaled and masked",
    ),
    "wide mask": (
        _wide_mask,
        (("b", 1, "s", 8), ("b", 1, 8, "t"), V, ("b", 2, "s", "t")),
        "the scores are not a product, scaled and masked",
    ),
    "one column": (
        _wide_mask,
        (Q, K, V, ("b", 1, "s", 1)),
        "the scores are not a product, scaled and masked",
    ),
    "heads": (
        _plain,
        (("b", "h", "s", 8), ("b", "h", 8, "t"), ("b", "h", "t", 8)),
        "heads or their elements are not known",
    ),
    "more heads of k": (_plain, (("b", 1, "s", 8), K, V), "heads that are repeated"),
    "static": (_plain, ((1, 2, 3, 8), (1, 2, 8, 4), (1, 2, 4, 8)), "static shapes"),
    "five": (
        _plain,
        (("b", 1, 2, "s", 8), ("b", 1, 2, 8, "t"), ("b", 1, 2, "t", 8)),
        "softmax of another form",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_stays_as_it_was(fuse, name):
    build, shapes, reason = LEFT[name]
    assert _left(fuse, build, *shapes) == [reason]


def test_of_other_types_stays(fuse):
    assert _left(fuse, _plain, Q, K, V, dtype="float16") == ["not float32"]


def test_probabilities_that_are_used_stay(fuse):
    assert _left(fuse, _weights_used, Q, K, V) == []


def test_static_shapes_where_they_are_asked_for(fuse):
    shapes = (1, 2, 3, 8), (1, 2, 8, 4), (1, 2, 4, 8)
    params = [
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in zip("qkv", shapes, strict=True)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        builder.emit_func_output(_plain(builder.emit, *params))
    _, report = fuse(builder.get()["main"], static=True)
    assert [entry.detail for entry in report.rewritten] == ["2 heads of 8"]


def test_a_view_ends_where_memory_is_written(fuse):
    """The copy of q that the permute makes is not what q holds later."""

    @R.function(pure=False)
    def before(
        q: R.Tensor(("b", "s", 2, 8), "float32"),
        k: R.Tensor(("b", 2, 8, "t"), "float32"),
        v: R.Tensor(("b", 2, "t", 8), "float32"),
    ):
        qh = R.permute_dims(q, axes=[0, 2, 1, 3])
        _ = R.call_packed("writes", q, ty_args=R.Object)
        scores = R.matmul(qh, k)
        weights = R.nn.softmax(scores, axis=-1)
        out = R.matmul(weights, v)
        return out

    after, _ = fuse(before)
    bindings = {b.var.name: b.value for b in after["main"].body.blocks[0].bindings}
    assert bindings["out"].args[1].fields[0].name == "qh"


def test_other_targets_stay():
    mod = module(_reference())
    after = FuseAttention(tvm.target.Target("c"))(mod)
    assert after.same_as(mod)


def _reference():
    builder = relax.BlockBuilder()
    b = tvm.tirx.Var("b", "int64")
    params = [
        relax.Var(name, relax.TensorType((b, 2, *rest), "float32"))
        for name, rest in (("q", (3, 8)), ("k", (8, 4)), ("v", (4, 8)))
    ]
    with builder.function("main", params):
        builder.emit_func_output(_plain(builder.emit, *params))
    return builder.get()["main"]
