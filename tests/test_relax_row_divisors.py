"""Rows divided by one number: by its inverse where that is exact enough, else by the number."""

import numpy as np
import pytest
import tvm
from relax_testing import TARGET
from tvm import relax
from tvm.relax import op
from tvm.script import tirx as T

from relax_passes import pipeline
from relax_passes.row_divisors import invert_divisors


@T.prim_func(s_tir=True)
def by_sums(a: T.handle, d: T.handle, b: T.handle):
    m = T.int64()
    n = T.int64()
    A = T.match_buffer(a, (m, n))
    D = T.match_buffer(d, (m,))
    B = T.match_buffer(b, (m, n))
    for i, j in T.grid(m, n):
        with T.sblock("divide"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] / D[vi]


@T.prim_func(s_tir=True)
def by_inverses(a: T.handle, d: T.handle, b: T.handle):
    m = T.int64()
    n = T.int64()
    A = T.match_buffer(a, (m, n))
    D = T.match_buffer(d, (m,))
    B = T.match_buffer(b, (m, n))
    for i in range(m):
        if T.fabs(D[i]) >= T.float32(2.0**-126) and T.fabs(D[i]) <= T.float32(2.0**126):
            for j in range(n):
                with T.sblock("divide"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    T.reads(A[vi, vj], D[vi])
                    T.writes(B[vi, vj])
                    B[vi, vj] = A[vi, vj] * (T.float32(1) / D[vi])
        else:
            for j in range(n):
                with T.sblock("divide"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    T.reads(A[vi, vj], D[vi])
                    T.writes(B[vi, vj])
                    B[vi, vj] = A[vi, vj] / D[vi]


def test_two_variants():
    tvm.ir.assert_structural_equal(
        invert_divisors(by_sums).without_attr("global_symbol"),
        by_inverses.without_attr("global_symbol"),
    )


def test_others_stay():
    """A divisor that varies along the row, and a quotient by a row."""
    m, n = (tvm.tirx.Var(name, "int64") for name in "mn")
    x = relax.Var("x", relax.TensorType((m, n), "float32"))
    y = relax.Var("y", relax.TensorType((n,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        builder.emit_func_output(builder.emit(op.divide(x, y)))
    before = relax.transform.LegalizeOps()(builder.get())
    (func,) = (f for f in before.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    tvm.ir.assert_structural_equal(invert_divisors(func), func)


@pytest.fixture(scope="module")
def divide():
    m, n = (tvm.tirx.Var(name, "int64") for name in "mn")
    x = relax.Var("x", relax.TensorType((m, n), "float32"))
    d = relax.Var("d", relax.TensorType((m, 1), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, d]):
        third = op.divide(op.divide(x, d), relax.const(np.float32(3)))
        builder.emit_func_output(builder.emit(third))
    executable = tvm.compile(builder.get(), TARGET, relax_pipeline=pipeline(TARGET))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return lambda *arrays: main(*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize("columns", [0, 1, 7, 16, 37])
def test_divisors_of_every_size(divide, columns):
    tiny, huge = np.float32(1e-42), np.finfo("float32").max
    numbers = [1, -3, 2.0**-126, 2.0**-127, tiny, -tiny, 2.0**126, 2.0**127, huge, -huge]
    d = np.float32([*numbers, 0, -0.0, np.inf, -np.inf, np.nan])[:, None]
    rng = np.random.default_rng(columns)
    scale = np.abs(np.where(np.isfinite(d) & (d != 0), d, 1))
    x = rng.standard_normal((len(d), columns)).astype("float32") * np.minimum(scale, 1e38)
    x = x.astype("float32")
    with np.errstate(all="ignore"):
        expected = x.astype("float64") / d.astype("float64") / 3
    np.testing.assert_allclose(divide(x, d), expected, rtol=4e-7, atol=1e-45)
