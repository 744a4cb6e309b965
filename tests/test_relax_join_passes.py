"""Rows that are computed and summed in one pass, into the result: softmax."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_testing import TARGET
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import tirx as T

from relax_passes import pipeline
from relax_passes.join_passes import join_passes

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


@T.prim_func(s_tir=True)
def apart(a: T.handle, b: T.handle):
    m = T.int64()
    n = T.int64()
    A = T.match_buffer(a, (m, n))
    B = T.match_buffer(b, (m, n))
    E = T.sblock_alloc_buffer((m, n))
    S = T.sblock_alloc_buffer((m,))
    for i in range(m):
        for j in range(n):
            with T.sblock("exp"):
                v, w = T.axis.remap("SS", [i, j])
                E[v, w] = T.exp(A[v, w])
        with T.sblock("init"):
            v = T.axis.spatial(m, i)
            S[v] = T.float32(0)
        for j in range(n):
            with T.sblock("sum"):
                v, w = T.axis.remap("SR", [i, j])
                S[v] = S[v] + E[v, w]
        for j in range(n):
            with T.sblock("scale"):
                v, w = T.axis.remap("SS", [i, j])
                B[v, w] = E[v, w] * S[v]


def test_one_pass_into_the_result():
    after = join_passes(apart)
    assert [each.name for each in after.body.block.alloc_buffers] == ["S"]
    text = after.script()
    for line in (
        "B[i, i_1 * T.int64(16) + i_2] = T.exp(A[i, i_1 * T.int64(16) + i_2])",
        "partial[i_2] = partial[i_2] + B[i, i_1 * T.int64(16) + i_2]",
        "S[i] = S[i] + B[i, n // T.int64(16) * T.int64(16) + i_1]",
        "B[v, w] = B[v, w] * S[v]",
    ):
        assert text.count(line) == 1
    assert text.count("T.exp(") == 2  # in vectors, and the rest


@T.prim_func(s_tir=True)
def used_twice(a: T.handle, b: T.handle, c: T.handle):
    m = T.int64()
    n = T.int64()
    A = T.match_buffer(a, (m, n))
    B = T.match_buffer(b, (m, n))
    C = T.match_buffer(c, (m,))
    E = T.sblock_alloc_buffer((m, n))
    for i in range(m):
        for j in range(n):
            with T.sblock("exp"):
                v, w = T.axis.remap("SS", [i, j])
                E[v, w] = T.exp(A[v, w])
        with T.sblock("init"):
            v = T.axis.spatial(m, i)
            C[v] = T.float32(0)
        for j in range(n):
            with T.sblock("sum"):
                v, w = T.axis.remap("SR", [i, j])
                C[v] = C[v] + E[v, w]
        for j in range(n):
            with T.sblock("turned"):
                v, w = T.axis.remap("SS", [i, j])
                B[v, w] = E[v, n - T.int64(1) - w]


def test_what_is_read_elsewhere_keeps_its_temporary():
    after = join_passes(used_twice)
    (kept,) = after.body.block.alloc_buffers
    assert kept.name == "E"
    assert "partial" in after.script()


@T.prim_func(s_tir=True)
def other_places(a: T.handle, c: T.handle):
    m = T.int64()
    n = T.int64()
    A = T.match_buffer(a, (m, n))
    C = T.match_buffer(c, (m,))
    E = T.sblock_alloc_buffer((m, n))
    for i in range(m):
        for j in range(n):
            with T.sblock("exp"):
                v, w = T.axis.remap("SS", [i, j])
                E[v, w] = T.exp(A[v, w])
        for j in range(n - T.int64(1)):
            with T.sblock("sum"):
                v, w = T.axis.remap("SR", [i, j])
                C[v] = C[v] + E[v, w + T.int64(1)]


def test_sums_of_other_places_stay_apart():
    assert join_passes(other_places).same_as(other_places)


def softmax_of(form):
    x = relax.Var("x", relax.TensorType((N, M), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(form(x)))
    executable = tvm.compile(builder.get(), TARGET, relax_pipeline=pipeline(TARGET))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return lambda x: main(tvm.runtime.tensor(x)).numpy()


def softmax(x):
    with np.errstate(invalid="ignore", over="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
        return e / e.sum(-1, keepdims=True)


FORMS = {
    "softmax": (op.nn.softmax, softmax),
    "of a masked row": (
        lambda x: op.nn.softmax(op.add(op.multiply(x, relax.const(np.float32(3))), x), -1),
        lambda x: softmax(4 * x),
    ),
    "log softmax": (op.nn.log_softmax, lambda x: np.log(softmax(x))),
}


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    made, reference = FORMS[request.param]
    return softmax_of(made), reference


@settings(max_examples=30, derandomize=True, deadline=None)
@given(n=st.integers(0, 5), m=st.integers(0, 90), scale=st.sampled_from([1, 20, 1e30]))
def test_softmax_of_any_row(form, n, m, scale):
    run, reference = form
    x = np.random.default_rng([n, m]).standard_normal((n, m), dtype="float32") * np.float32(scale)
    with np.errstate(divide="ignore"):
        expected = reference(x.astype("float64"))
    finite = np.isfinite(expected)
    result = run(x)
    np.testing.assert_allclose(result[finite], expected[finite], rtol=1e-5, atol=1e-5)


def test_masks_nan_and_infinity(form):
    """An element of minus infinity has exactly no weight."""
    run, reference = form
    x = np.random.default_rng(3).standard_normal((6, 45), dtype="float32")
    x[0, 20:] = -np.inf
    x[1, 7] = np.nan
    x[2, 44] = np.inf
    x[3] = -np.inf
    x[4, 3] = -86.5
    with np.errstate(divide="ignore"):
        expected = reference(x.astype("float64"))
    result = run(x)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert np.all(result[0, 20:] == expected[0, 20:])
