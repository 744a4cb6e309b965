"""exp(x - largest x) is known to be at most 1, and takes fewer steps."""

import numpy as np
import pytest
import tvm
from relax_testing import TARGET
from test_relax_vector_math import call, elementwise
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import tirx as T

from relax_passes import VectorMath, pipeline
from relax_passes.bound_exponents import BOUND, bound_exponents, is_bounded

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


@T.prim_func(s_tir=True)
def softened(a: T.handle, b: T.handle, c: T.handle):
    m = T.int64()
    n = T.int64()
    A = T.match_buffer(a, (m, n))
    B = T.match_buffer(b, (m, n))
    C = T.match_buffer(c, (m, n))
    L = T.sblock_alloc_buffer((m,))
    for i, j in T.grid(m, n):
        with T.sblock("largest"):
            v, w = T.axis.remap("SR", [i, j])
            with T.init():
                L[v] = T.float32(-1e30)
            L[v] = T.max(L[v], A[v, w])
    for i, j in T.grid(m, n):
        with T.sblock("exp"):
            v, w = T.axis.remap("SS", [i, j])
            B[v, w] = T.exp(A[v, w] - L[v])
    for i, j in T.grid(m, n):
        with T.sblock("others"):
            v, w = T.axis.remap("SS", [i, j])
            C[v, w] = T.exp(B[v, w] - L[v]) + T.exp(L[v] - A[v, w]) + T.exp(A[v, w] - L[w])


@T.prim_func(s_tir=True)
def bounded(a: T.handle, b: T.handle, c: T.handle):
    m = T.int64()
    n = T.int64()
    A = T.match_buffer(a, (m, n))
    B = T.match_buffer(b, (m, n))
    C = T.match_buffer(c, (m, n))
    L = T.sblock_alloc_buffer((m,))
    for i, j in T.grid(m, n):
        with T.sblock("largest"):
            v, w = T.axis.remap("SR", [i, j])
            with T.init():
                L[v] = T.float32(-1e30)
            L[v] = T.max(L[v], A[v, w])
    for i, j in T.grid(m, n):
        with T.sblock("exp"):
            v, w = T.axis.remap("SS", [i, j])
            B[v, w] = T.exp(T.min(T.float32(-0.0), A[v, w] - L[v]))
    for i, j in T.grid(m, n):
        with T.sblock("others"):
            v, w = T.axis.remap("SS", [i, j])
            C[v, w] = T.exp(B[v, w] - L[v]) + T.exp(L[v] - A[v, w]) + T.exp(A[v, w] - L[w])


def test_the_elements_of_the_maximum_alone():
    tvm.ir.assert_structural_equal(
        bound_exponents(softened).without_attr("global_symbol"),
        bounded.without_attr("global_symbol"),
    )


@pytest.mark.parametrize("function", [op.nn.softmax, op.nn.log_softmax])
@pytest.mark.parametrize("axis", [0, -1])
def test_softmax_is_found(function, axis):
    x = relax.Var("x", relax.TensorType((N, M), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(function(x, axis)))
    legal = relax.transform.LegalizeOps()(builder.get())
    (func,) = (each for each in legal.functions.values() if isinstance(each, tirx.PrimFunc))
    assert not bound_exponents(func).same_as(func)


def test_rows_in_which_nan_hides_the_largest_are_nan():
    x = relax.Var("x", relax.TensorType((N, M), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.nn.softmax(x, -1)))
    executable = tvm.compile(builder.get(), TARGET, relax_pipeline=pipeline(TARGET))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    for columns in (5, 40, 100):
        rows = np.zeros((columns, columns), "float32")
        rows[:, 0], rows[1:][np.diag_indices(columns - 1)] = 500.0, np.nan
        result = main(tvm.runtime.tensor(rows)).numpy()
        np.testing.assert_array_equal(np.isnan(result).all(1), np.arange(columns) > 0)
        np.testing.assert_array_equal(result[0], np.arange(columns) == 0)


def test_what_a_model_bounds_itself_is_not_meant():
    x = tirx.Var("x", "float32")
    assert is_bounded(tirx.Min(BOUND, x))
    assert not is_bounded(tirx.Min(T.float32(0), x)) and not is_bounded(x)


def test_exponential_below_zero():
    mod = tvm.IRModule({"each": elementwise(lambda x: tirx.exp(tirx.Min(BOUND, x)))})
    executable = tvm.compile(VectorMath(TARGET)(mod), TARGET)
    x = np.concatenate([np.linspace(-87.3, 0, 300_001), -np.logspace(-30, 0, 1001)])
    x = x.astype("float32")
    expected = np.exp(x.astype("float64")).astype("float32")
    error = np.abs(call(executable, x).astype("float64") - expected) / np.spacing(expected)
    assert error.max() <= 2
    special = np.float32([np.nan, -np.inf, -1e30, -89, 0, -0.0])
    np.testing.assert_array_equal(call(executable, special), np.float32([np.nan, 0, 0, 0, 1, 1]))
    between = np.linspace(-89, -87, 1001, dtype="float32")  # where results are denormal
    assert np.abs(call(executable, between) - np.exp(between.astype("float64"))).max() < 1.2e-38
