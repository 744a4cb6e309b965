"""Masks that are the triangle of a causal attention, as models compute them, and those that are
not."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relax_testing import module
from tvm import relax
from tvm.relax import op

import tvm_moonpoly
from relax_passes import FuseAttention, Report
from tvm_moonpoly.operators.attention_constants import ATTRIBUTES, Causal

LOWEST = float(np.finfo(np.float32).min)
INF = float("inf")
HEADS, SIZE = 2, 8
B, S, P = (tvm.tirx.Var(name, "int64") for name in "bsp")


def number(value):
    return relax.const(value, "float32")


def positions(emit, size, axis, start=0):
    """start, start + 1, ... along one of two dimensions, the other one of size 1."""
    return emit(op.expand_dims(emit(op.arange(start, size, 1, "int64")), axis=[1 - axis]))


def by_tensors_of_shapes(emit, pad, scores):
    """As PyTorch's exporter writes `arange(past, past + new)`."""
    past = emit(op.reshape(emit(op.shape_to_tensor(relax.ShapeExpr([P]))), relax.ShapeExpr([])))
    rows = emit(op.add(emit(op.arange(0, S, 1, "int64")), past))
    rows = emit(op.reshape(rows, relax.ShapeExpr([S, 1])))
    seen = emit(op.less_equal(positions(emit, P + S, 1), rows))
    return emit(op.where(seen, scores, number(LOWEST)))


def by_choice(emit, pad, scores):
    seen = emit(op.less_equal(positions(emit, P + S, 1), positions(emit, P + S, 0, P)))
    return emit(op.where(seen, scores, number(LOWEST)))


def by_hidden(emit, pad, scores):
    hidden = emit(op.greater(positions(emit, P + S, 1), positions(emit, P + S, 0, P)))
    return emit(op.where(hidden, number(-1e9), scores))


def by_two_triangles(emit, pad, scores):
    """As decoders of Hugging Face: an upper triangle of the lowest number, times a comparison."""
    full = emit(op.full(relax.ShapeExpr([S, P + S]), number(LOWEST), "float32"))
    upper = emit(op.triu(full, 1))
    later = emit(op.greater(positions(emit, P + S, 1), positions(emit, P + S, 0, P)))
    mask = emit(op.multiply(upper, emit(op.astype(later, "float32"))))
    mask = emit(op.expand_dims(mask, axis=[0, 1]))
    mask = emit(op.broadcast_to(mask, relax.ShapeExpr([B, 1, S, P + S])))
    whole = emit(op.strided_slice(mask, [3], [0], [P + S], [1], assume_inbound=True))
    return emit(op.add(scores, whole))


def by_a_lower_triangle(emit, pad, scores):
    """As `scaled_dot_product_attention(is_causal=True)`: on the first keys."""
    lower = emit(op.tril(emit(op.ones(relax.ShapeExpr([S, P + S]), "float32")), 0))
    hidden = emit(op.equal(lower, number(0.0)))
    mask = emit(op.where(hidden, number(-INF), number(0.0)))
    return emit(op.add(scores, mask))


def by_a_count(emit, pad, scores):
    """One minus a triangle of integers, times a large number."""
    full = emit(op.ones(relax.ShapeExpr([1, 1, S, P + S]), "int64"))
    lower = emit(op.astype(emit(op.tril(full, P)), "float32"))
    hidden = emit(op.subtract(number(1.0), lower))
    return emit(op.add(emit(op.multiply(hidden, number(-1e9))), scores))


def with_padding(emit, pad, scores):
    """Two masks: what remains is added."""
    later = emit(op.less(positions(emit, P + S, 0, P), positions(emit, P + S, 1)))
    causal = emit(op.where(later, number(-INF), number(0.0)))
    mask = emit(op.expand_dims(causal, axis=[0, 1]))
    return emit(op.add(emit(op.add(scores, mask)), padding(emit, pad)))


def with_padding_in_the_sum(emit, pad, scores):
    later = emit(op.less(positions(emit, P + S, 0, P), positions(emit, P + S, 1)))
    causal = emit(op.where(later, number(-INF), number(0.0)))
    return emit(op.add(scores, emit(op.add(padding(emit, pad), causal))))


def with_padding_in_the_condition(emit, pad, scores):
    seen = emit(op.less_equal(positions(emit, P + S, 1), positions(emit, P + S, 0, P)))
    kept = emit(op.greater(emit(op.expand_dims(pad, axis=[1, 2])), number(0.5)))
    both = emit(op.logical_and(seen, kept))
    return emit(op.where(both, scores, number(-INF)))


def padding(emit, pad):
    """0 where `pad` (batch, key) is 1, and a low number where it is 0."""
    given = emit(op.expand_dims(pad, axis=[1, 2]))
    return emit(op.multiply(emit(op.subtract(number(1.0), given)), number(LOWEST)))


CAUSAL = {
    "choice": (by_choice, Causal.FROM_LAST, False),
    "tensors of shapes": (by_tensors_of_shapes, Causal.FROM_LAST, False),
    "hidden": (by_hidden, Causal.FROM_LAST, False),
    "two triangles": (by_two_triangles, Causal.FROM_LAST, False),
    "lower triangle": (by_a_lower_triangle, Causal.FROM_FIRST, False),
    "count": (by_a_count, Causal.FROM_LAST, False),
    "padding": (with_padding, Causal.FROM_LAST, True),
    "padding in the sum": (with_padding_in_the_sum, Causal.FROM_LAST, True),
    "padding in the condition": (with_padding_in_the_condition, Causal.FROM_LAST, True),
}


def built(*forms, shape=(B, HEADS, S, SIZE), keys=P + S):
    """The attentions of q on k and v (batch, heads, keys, SIZE), masked in each of the `forms`, and
    pad (batch, keys)."""
    names = {"q": shape, **dict.fromkeys("kv", (B, HEADS, keys, SIZE)), "pad": (B, keys)}
    params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in names.items()]
    # so that each size is one of a parameter
    past = relax.Var("past", relax.TensorType((P, S), "float32"))
    q, k, v, pad = params
    builder = relax.BlockBuilder()
    with builder.function("main", [*params, past]):
        with builder.dataflow():
            outputs = []
            for form in forms:
                turned = builder.emit(op.permute_dims(k, [0, 1, 3, 2]))
                scores = builder.emit(op.matmul(q, turned))
                weights = builder.emit(op.nn.softmax(form(builder.emit, pad, scores), axis=-1))
                outputs.append(builder.emit_output(op.matmul(weights, v)))
        builder.emit_func_output(relax.Tuple(outputs))
    return module(builder.get()["main"])


def fused(target, mod):
    """Of each attention that became one call: which keys are seen, and whether there is a mask."""
    report = Report()
    after = FuseAttention(target, report)(mod)
    relax.analysis.well_formed(after)
    calls = [
        binding.value
        for block in after["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.ir.Call)
        and getattr(binding.value.op, "name", "") == "relax.call_dps_packed"
    ]
    place = ATTRIBUTES.index("causal")
    found = [
        (int(call.args[1].fields[-1].value.numpy()[place]), len(call.args[1].fields) == 5)
        for call in calls
    ]
    return found, after


@pytest.mark.parametrize("name", CAUSAL)
def test_the_triangle_is_found(target, name):
    build, causal, masked = CAUSAL[name]
    found, after = fused(target, built(build))
    assert found == [(causal, masked)]
    # nothing remains of what the triangle was made of
    assert "arange" not in after.script() and "tril" not in after.script()


def test_a_cast_to_the_same_type_is_no_operator(target):
    def weights(emit, q, k, v):
        found = emit(op.nn.softmax(emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))))
        return emit(op.matmul(emit(op.astype(found, "float32")), v))

    params = [relax.Var(n, relax.TensorType((B, HEADS, S, SIZE), "float32")) for n in "qkv"]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        builder.emit_func_output(weights(builder.emit, *params))
    assert fused(target, module(builder.get()["main"]))[0] == [(Causal.NONE, False)]


def beyond(emit, pad, scores):
    """No row sees the key at its own place."""
    seen = emit(op.less(positions(emit, P + S, 1), positions(emit, P + S, 0, P)))
    return emit(op.where(seen, scores, number(-INF)))


def window(emit, pad, scores):
    """And none that are more than 4 before."""
    keys, rows = positions(emit, P + S, 1), positions(emit, P + S, 0, P)
    seen = emit(op.less_equal(keys, rows))
    near = emit(op.greater(emit(op.add(keys, relax.const(4, "int64"))), rows))
    both = emit(op.logical_and(seen, near))
    return emit(op.where(both, scores, number(-INF)))


def faint(emit, pad, scores):
    """Scores that are 10,000 apart are not ruled out."""
    later = emit(op.less(positions(emit, P + S, 0, P), positions(emit, P + S, 1)))
    return emit(op.add(scores, emit(op.where(later, number(-1e4), number(0.0)))))


def finite_with_padding(emit, pad, scores):
    """A row of which all keys that it sees are padding looks at later ones, too."""
    later = emit(op.less(positions(emit, P + S, 0, P), positions(emit, P + S, 1)))
    causal = emit(op.where(later, number(-1e9), number(0.0)))
    return emit(op.add(scores, emit(op.add(padding(emit, pad), causal))))


def finite_condition_with_padding(emit, pad, scores):
    seen = emit(op.less_equal(positions(emit, P + S, 1), positions(emit, P + S, 0, P)))
    kept = emit(op.greater(emit(op.expand_dims(pad, axis=[1, 2])), number(0.5)))
    return emit(op.where(emit(op.logical_and(seen, kept)), scores, number(LOWEST)))


def by_keys_alone(emit, pad, scores):
    seen = emit(op.less_equal(positions(emit, P + S, 1), relax.const([[3]], "int64")))
    return emit(op.where(seen, scores, number(-INF)))


def reversed_rows(emit, pad, scores):
    rows = emit(op.subtract(relax.const([[7]], "int64"), positions(emit, P + S, 0, P)))
    seen = emit(op.less_equal(positions(emit, P + S, 1), rows))
    return emit(op.where(seen, scores, number(-INF)))


ORDINARY = {
    each.__name__: each
    for each in (
        beyond,
        window,
        faint,
        finite_with_padding,
        finite_condition_with_padding,
        by_keys_alone,
        reversed_rows,
    )
}


@pytest.mark.parametrize("name", ORDINARY)
def test_no_triangle_is_found(target, name):
    found, _ = fused(target, built(ORDINARY[name]))
    assert found == [(Causal.NONE, True)]


def test_rows_that_may_be_more_than_keys(target):
    """Where the last row is at the last key, the first ones may see none."""

    def last(emit, pad, scores):
        rows = positions(emit, P, 0, P - S)
        return emit(
            op.where(emit(op.less_equal(positions(emit, P, 1), rows)), scores, number(-INF))
        )

    found, _ = fused(target, built(last, keys=P))
    assert found == [(Causal.NONE, True)]


def test_a_replaced_score_was_masked_before(target):
    """The lowest number takes the place of minus infinity: such a row looks at later keys."""

    def replaced(emit, pad, scores):
        later = emit(op.less(positions(emit, P + S, 0, P), positions(emit, P + S, 1)))
        masked = emit(op.add(scores, emit(op.where(later, number(-INF), number(0.0)))))
        kept = emit(op.greater(emit(op.expand_dims(pad, axis=[1, 2])), number(0.5)))
        return emit(op.where(kept, masked, number(LOWEST)))

    assert fused(target, built(replaced))[0] == []


def test_constants(target):
    """A part of a triangle of the largest size, as GPT-2 keeps."""
    triangle = np.tril(np.ones((1, 1, 40, 40), bool))

    def part(emit, pad, scores):
        mask = emit(
            op.strided_slice(
                relax.const(triangle, "bool"), [2, 3], [P, 0], [P + S, P + S], [1, 1],
                assume_inbound=True,
            )
        )  # fmt: skip
        return emit(op.where(mask, scores, number(LOWEST)))

    assert fused(target, built(part))[0] == [(Causal.FROM_LAST, False)]


@pytest.fixture(scope="module")
def both(target):
    """All forms in one function, with the pass and without."""
    forms = [build for build, _, _ in CAUSAL.values()] + list(ORDINARY.values())
    machines = []
    for on in (False, True):
        pipeline = tvm_moonpoly.pipeline(target, attention=on)
        executable = tvm.compile(built(*forms), target, relax_pipeline=pipeline)
        machines.append(relax.VirtualMachine(executable, tvm.cpu()))
    return machines, [*CAUSAL, *ORDINARY]


SIZES = [(1, 1, 0), (2, 1, 9), (1, 7, 0), (2, 5, 3), (1, 33, 8), (1, 70, 1), (0, 3, 2), (2, 0, 4)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("left", [False, True])
def test_same_results(both, size, left):
    """With padding at the end, or at the beginning, so that rows are wholly masked."""
    batch, rows, past = size
    rng = np.random.default_rng([*size, left])
    q = rng.standard_normal((batch, HEADS, rows, SIZE), np.float32)
    k, v = (rng.standard_normal((batch, HEADS, past + rows, SIZE), np.float32) for _ in "kv")
    pad = np.ones((batch, past + rows), np.float32)
    count = min(2, (past + rows) // 2)
    pad[:, slice(0, count) if left else slice(past + rows - count, None)] = 0
    arrays = [q, k, v, pad, np.zeros((past, rows), np.float32)]
    machines, names = both
    plain, ours = (vm["main"](*map(tvm.runtime.tensor, arrays)) for vm in machines)
    for name, one, other in zip(names, plain, ours, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
