"""Random graphs: whatever the pass does with them, they compute what plain TVM computes."""

import math

import numpy as np
import pytest
import tvm
from relax_testing import TARGET, run_pass, tensor
from tvm import relax, tirx
from tvm.relax import op

from relax_passes import pipeline

WIDTHS = (8, 12)  # of the tensors (n, s, width) that a graph is made of
WEIGHTS = {(k, n): tensor(k, n) / 4 for k in WIDTHS for n in WIDTHS}


def scalar(value):
    return relax.const(np.float32(value))


def spelled_out_gelu(rng, x):
    half = scalar(0.5)
    one_plus_erf = [op.erf(op.divide(x, scalar(math.sqrt(2)))), scalar(1)]
    factors = [x, half, op.add(*one_plus_erf[:: rng.choice([-1, 1])])]
    rng.shuffle(factors)
    return op.multiply(op.multiply(factors[0], factors[1]), factors[2])


def step(rng, pool):
    """One more tensor, made from those in `pool`, which have the shape (n, s, width)."""
    x = pool[rng.integers(len(pool))]
    width = int(x.ty.shape.values[2])
    same = [each for each in pool if int(each.ty.shape.values[2]) == width]
    kind = rng.integers(12)
    if kind < 4:
        out = int(rng.choice(WIDTHS))
        if rng.random() < 0.3:
            weight = op.permute_dims(relax.const(np.ascontiguousarray(WEIGHTS[width, out].T)))
        else:
            weight = relax.const(WEIGHTS[width, out])
        return op.matmul(x, weight)
    if kind < 6:
        bias = relax.const(tensor(width) if rng.random() < 0.7 else tensor(1, 1, width))
        return op.add(*(x, bias) if rng.random() < 0.7 else (bias, x))
    if kind < 8:
        return op.add(x, same[rng.integers(len(same))])
    if kind == 8:
        return op.nn.softmax(x, -1)
    if kind == 9:
        return spelled_out_gelu(rng, x)
    if kind == 10:
        return [op.nn.relu, op.nn.gelu, op.nn.silu, op.tanh][rng.integers(4)](x)
    y, z = (same[rng.integers(len(same))] for _ in range(2))
    scores = op.nn.softmax(op.matmul(x, op.permute_dims(y, [0, 2, 1])), -1)
    return op.matmul(scores, z)


def random_graph(rng):
    n, s = (tirx.Var(name, "int64") for name in "ns")
    params = [relax.Var(f"x{w}", relax.TensorType((n, s, w), "float32")) for w in WIDTHS]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            pool = list(params)
            for _ in range(14):
                # Mostly the newest tensors, so that chains come about.
                pool.append(builder.emit(step(rng, pool[-4:])))
            outputs = [builder.emit_output(op.multiply(each, scalar(0.5))) for each in pool[-2:]]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get()


@pytest.mark.parametrize("seed", range(20))
def test_same_as_plain_tvm(seed):
    rng = np.random.default_rng(seed)
    mod = random_graph(rng)
    after, report = run_pass(mod)
    relax.analysis.well_formed(after)
    assert "relax.matmul" not in after.script() and len(report.left) == 0
    results = []
    for passes in (pipeline(TARGET), relax.get_default_pipeline(TARGET)):
        executable = tvm.compile(mod, TARGET, relax_pipeline=passes)
        vm = relax.VirtualMachine(executable, tvm.cpu())
        for batch, rows in [(1, 1), (2, 9), (3, 0)]:
            inputs = [tvm.runtime.tensor(tensor(batch, rows, width)) for width in WIDTHS]
            results.append([each.numpy() for each in vm["main"](*inputs)])
    for ours, plain in zip(results[:3], results[3:], strict=True):
        for got, expected in zip(ours, plain, strict=True):
            scale = max(1.0, float(np.abs(expected).max(initial=0)))
            np.testing.assert_allclose(got / scale, expected / scale, rtol=1e-3, atol=1e-4)
