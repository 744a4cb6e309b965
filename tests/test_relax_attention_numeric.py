"""Networks with attention give the same results with the passes on and off, for any size."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relax_testing import module, tensor
from test_relax_merge_products import WIDTH, attention, layer
from tvm import relax
from tvm.relax import op

import tvm_moonpoly
from relax_passes import Report

HEADS = 2
SIZES = [(1, 1), (2, 3), (1, 7), (3, 8), (2, 17), (1, 65), (0, 3), (2, 0)]
OPTIONS = {
    "five operators": {"attention": False},
    "attention": {"merge_products": False},
    "attention, merged": {},
}


def compiled(mod, target, **options):
    report = Report()
    pipeline = tvm_moonpoly.pipeline(target, report=report, **options)
    executable = tvm.compile(mod, target, relax_pipeline=pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())

    def run(*arrays):
        return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()

    fused = [entry for entry in report.rewritten if entry.operator == "attention"]
    return run, len(fused)


@pytest.fixture(scope="module")
def encoders(target):
    """x + attention(layers of x) in all ways, and how many operators each has fused."""
    b, s = (tvm.tirx.Var(name, "int64") for name in "bs")
    x = relax.Var("x", relax.TensorType((b, s, WIDTH), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            layers = (layer(builder.emit, x, 0.1 * i) for i in range(3))
            attended = attention(builder.emit, *layers, heads=HEADS)
            out = builder.emit_output(op.add(x, attended))
        builder.emit_func_output(out)
    mod = module(builder.get()["main"])
    return {name: compiled(mod, target, **each) for name, each in OPTIONS.items()}


def expected(x):
    x = x.astype(np.float64)
    parts = []
    for i in range(3):
        y = x @ (tensor(WIDTH, WIDTH) + np.float32(0.1 * i)) + tensor(WIDTH) + np.float32(0.1 * i)
        parts.append(y.reshape(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3))
    q, k, v = parts
    scores = q @ k.swapaxes(2, 3)
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    mixed = weights / weights.sum(-1, keepdims=True) @ v
    return x + mixed.transpose(0, 2, 1, 3).reshape(x.shape)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("size", SIZES)
def test_same_results(encoders, name, size):
    run, fused = encoders[name]
    assert fused == (name != "five operators")
    x = np.random.default_rng(size).standard_normal((*size, WIDTH), np.float32) * 0.3
    np.testing.assert_allclose(run(x), expected(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OPTIONS)
def test_nan_stays_in_its_batch_entry(encoders, name):
    run, _ = encoders[name]
    x = np.random.default_rng(1).standard_normal((3, 9, WIDTH), np.float32) * 0.3
    clean = run(x)
    x[1, 4, 2] = np.nan
    result = run(x)
    assert np.isnan(result[1]).all()
    np.testing.assert_array_equal(result[[0, 2]], clean[[0, 2]])


@pytest.fixture(scope="module")
def decoders(target):
    """Attention of new rows on a cache and themselves, each on what is not later, in both ways."""
    b, s, p = (tvm.tirx.Var(name, "int64") for name in "bsp")
    new = relax.Var("new", relax.TensorType((b, HEADS, s, 8), "float32"))
    past = relax.Var("past", relax.TensorType((b, HEADS, p, 8), "float32"))
    seen = relax.Var("seen", relax.TensorType((s, p + s), "bool"))
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", [new, past, seen]):
        with builder.dataflow():
            keys = emit(op.concat([past, new], axis=2))
            scores = emit(op.matmul(new, emit(op.permute_dims(keys, [0, 1, 3, 2]))))
            scaled = emit(op.multiply(scores, relax.const(0.35, "float32")))
            masked = emit(op.where(seen, scaled, relax.const(float("-inf"), "float32")))
            out = builder.emit_output(op.matmul(emit(op.nn.softmax(masked, axis=-1)), keys))
        builder.emit_func_output(out)
    mod = module(builder.get()["main"])
    return [compiled(mod, target, attention=on)[0] for on in (False, True)]


@pytest.mark.parametrize(("rows", "past"), [(1, 0), (1, 1), (1, 40), (5, 0), (9, 17), (70, 3)])
def test_with_a_cache(decoders, rows, past):
    rng = np.random.default_rng([rows, past])
    new = rng.standard_normal((2, HEADS, rows, 8), np.float32)
    cache = rng.standard_normal((2, HEADS, past, 8), np.float32)
    seen = np.arange(past + rows) <= past + np.arange(rows)[:, None]
    five, one = (run(new, cache, seen) for run in decoders)
    np.testing.assert_allclose(one, five, rtol=1e-5, atol=1e-5)
