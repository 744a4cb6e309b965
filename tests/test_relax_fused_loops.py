"""Loops that run through memory without a gap become one."""

import numpy as np
import pytest
import tvm
from relax_testing import TARGET, tensor
from test_relax_memory_bound import UNKNOWN, assert_equal
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import tirx as T

from relax_passes import pipeline
from relax_passes.fused_loops import fuse_loops

N, H, W = (tirx.Var(name, "int64") for name in "nhw")


@T.prim_func(s_tir=True)
def scaled(a: T.handle, s: T.handle, b: T.handle):
    n = T.int64()
    h = T.int64()
    w = T.int64()
    A = T.match_buffer(a, (n, T.int64(8), h, w))
    S = T.match_buffer(s, (T.int64(8), T.int64(1)))
    B = T.match_buffer(b, (n, T.int64(8), h, w))
    for i, c, y, x in T.grid(n, T.int64(8), h, w):
        with T.sblock("scaled"):
            vi, vc, vy, vx = T.axis.remap("SSSS", [i, c, y, x])
            B[vi, vc, vy, vx] = A[vi, vc, vy, vx] * S[vc, T.int64(0)]


@T.prim_func(s_tir=True)
def scaled_by_planes(a: T.handle, s: T.handle, b: T.handle):
    n = T.int64()
    h = T.int64()
    w = T.int64()
    A = T.match_buffer(a, (n, T.int64(8), h, w))
    S = T.match_buffer(s, (T.int64(8), T.int64(1)))
    B = T.match_buffer(b, (n, T.int64(8), h, w))
    for i, c, p in T.grid(n, T.int64(8), h * w):
        with T.sblock("scaled"):
            vi, vc, vp = T.axis.remap("SSS", [i, c, p])
            T.reads(A[vi, vc, T.int64(0) : h, T.int64(0) : w], S[vc, T.int64(0)])
            T.writes(B[vi, vc, T.int64(0) : h, T.int64(0) : w])
            B[vi, vc, T.int64(0), vp] = A[vi, vc, T.int64(0), vp] * S[vc, T.int64(0)]


def test_planes_become_rows():
    assert_equal(fuse_loops(scaled), scaled_by_planes)


def by_row(operand):
    """Adds to each element of a tensor (n, m) `operand` of its place."""

    @T.prim_func(s_tir=True)
    def func(a: T.handle, c: T.handle, d: T.handle, b: T.handle):
        n = T.int64()
        m = T.int64()
        A = T.match_buffer(a, (n, m))
        C = T.match_buffer(c, (n, T.int64(1)))
        D = T.match_buffer(d, (m, n))
        B = T.match_buffer(b, (n, m))
        for i, j in T.grid(n, m):
            with T.sblock("sum"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] + operand(C, D, vi, vj)

    return func


@T.prim_func(s_tir=True)
def a_part(a: T.handle, b: T.handle):
    n = T.int64()
    m = T.int64()
    A = T.match_buffer(a, (n, m + 1))
    B = T.match_buffer(b, (n, m))
    for i, j in T.grid(n, m):
        with T.sblock("part"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]


@T.prim_func(s_tir=True)
def into_a_temporary(a: T.handle, b: T.handle):
    n = T.int64()
    m = T.int64()
    A = T.match_buffer(a, (n, m))
    B = T.match_buffer(b, (n,))
    C = T.sblock_alloc_buffer((n, m))
    for i, j in T.grid(n, m):
        with T.sblock("copy"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj]
    for i in range(n):
        with T.sblock("first"):
            vi = T.axis.spatial(n, i)
            B[vi] = C[vi, T.int64(0)]


STAY = {
    "a number a row": by_row(lambda c, _d, i, _j: c[i, 0]),
    "transposed": by_row(lambda _c, d, i, j: d[j, i]),
    "the place itself": by_row(lambda _c, _d, i, j: tirx.Select(i < j, 1.0, 2.0)),
    "part of a row": a_part,
    "a temporary": into_a_temporary,
    **UNKNOWN,
}


@pytest.mark.parametrize("name", [name for name in STAY if name != "two stores"])
def test_what_has_gaps_stays(name):
    if STAY[name] is not UNKNOWN["scheduled by somebody else"]:
        assert_equal(fuse_loops(STAY[name]), STAY[name])


def instance_norm(x):
    centred = x - x.mean((2, 3), keepdims=True)
    return centred / np.sqrt((centred**2).mean((2, 3), keepdims=True) + 1e-5) * GAMMA + BETA


GAMMA, BETA = tensor(5, 1, 1), tensor(5, 1, 1) + 1
CASES = {
    "mean": (lambda x: op.mean(x, [2, 3]), lambda x: x.mean((2, 3))),
    "maximum": (
        lambda x: op.max(x, [2, 3], keepdims=True),
        lambda x: x.max((2, 3), keepdims=True),
    ),
    "sum over all but the first": (lambda x: op.sum(x, [1, 2, 3]), lambda x: x.sum((1, 2, 3))),
    "sum over rows of planes": (lambda x: op.sum(x, [2]), lambda x: x.sum(2)),
    "global average": (
        lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1)),
        lambda x: x.mean((2, 3), keepdims=True),
    ),
    "instance norm": (
        lambda x: op.nn.group_norm(
            x,
            relax.const(GAMMA.ravel()),
            relax.const(BETA.ravel()),
            num_groups=5,
            channel_axis=1,
            axes=[2, 3],
        ),
        instance_norm,
    ),
    "channels scaled": (
        lambda x: op.nn.relu(op.add(op.multiply(x, relax.const(GAMMA)), relax.const(BETA))),
        lambda x: np.maximum(x * GAMMA + BETA, 0),
    ),
}
MAXIMA = {"maximum", "channels scaled"}  # TVM's maximum is no place for NaN
TWO_CORES = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


@pytest.mark.parametrize("target", [TARGET, TWO_CORES], ids=["one core", "two cores"])
@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name, target):
    form, reference = CASES[name]
    x = relax.Var("x", relax.TensorType((N, 5, H, W), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(form(x))
        builder.emit_func_output(out)
    executable = tvm.compile(builder.get(), target, relax_pipeline=pipeline(target))
    run = relax.VirtualMachine(executable, tvm.cpu())["main"]
    for shape in [(1, 1, 1), (1, 7, 7), (2, 4, 4), (3, 13, 1), (1, 1, 17), (2, 31, 33), (0, 3, 3)]:
        value = tensor(shape[0], 5, *shape[1:])
        if value.size > 1000 and name not in MAXIMA:
            value[1, 2, 3, 4], value[0, 1, 5, 6] = np.nan, np.inf
        with np.errstate(invalid="ignore"):
            expected = reference(value.astype("float64"))
        result = run(tvm.runtime.tensor(value)).numpy()
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)
