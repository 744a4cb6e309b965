"""exp, sigmoid, erf and tanh as arithmetic: the error over all floats, and that it is vectors."""

import math
import re

import numpy as np
import pytest
import tvm
from relax_testing import TARGET
from tvm import s_tir, tirx
from tvm.script import tirx as T

from relax_passes import VectorMath


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


# The function, its value in float64, and by how many ulp the result may be off.
FUNCTIONS = {
    "exp": (tirx.exp, np.exp, 1),
    "sigmoid": (tirx.sigmoid, sigmoid, 2),
    "erf": (tirx.erf, np.vectorize(math.erf, otypes=[float]), 4),
    "tanh": (tirx.tanh, np.tanh, 2),
}


def elementwise(function):
    @T.prim_func(s_tir=True)
    def func(a: T.handle, b: T.handle):
        T.func_attr({"tirx.noalias": True})
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in range(n):
            with T.sblock("each"):
                v = T.axis.spatial(n, i)
                B[v] = function(A[v])

    return func.with_attr("global_symbol", "each")


def compiled(function):
    return tvm.compile(VectorMath(TARGET)(tvm.IRModule({"each": elementwise(function)})), TARGET)


def call(executable, x):
    y = tvm.runtime.tensor(np.empty_like(x))
    executable(tvm.runtime.tensor(x), y)
    return y.numpy()


@pytest.fixture(scope="module", params=FUNCTIONS)
def case(request):
    function, reference, ulps = FUNCTIONS[request.param]
    return compiled(function), reference, ulps


def rounded(reference, x):
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return reference(x.astype("float64")).astype("float32")


def test_over_all_exponents(case):
    executable, reference, most = case
    mantissas = np.linspace(0, 2**23 - 1, 1021, dtype="uint32")
    exponents = np.arange(255, dtype="uint32") << 23
    positive = (exponents[:, None] | mantissas).ravel().view("float32")
    near = [
        np.linspace(-104, 89, 400_001, dtype="float32"),  # where exp is finite, and not 0
        np.linspace(-10, 10, 200_001, dtype="float32"),
    ]
    x = np.concatenate([positive, -positive, *near])
    expected, result = rounded(reference, x), call(executable, x)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite])
    unit = np.spacing(np.abs(expected[finite])).astype("float64")
    error = np.abs(result[finite].astype("float64") - expected[finite]) / unit
    assert error.max() <= most, (error.max(), x[finite][error.argmax()])


def test_special_values(case):
    executable, reference, _ = case
    x = np.float32([np.nan, -np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38])
    expected, result = rounded(reference, x), call(executable, x)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(np.signbit(result[2:]), np.signbit(expected[2:]))


def test_within_one(case):
    """No result of a function that is bounded by 1 is beyond it."""
    executable, reference, _ = case
    if reference is not np.exp:
        x = np.linspace(-20, 20, 1_000_001, dtype="float32")
        assert np.abs(call(executable, x)).max() == 1


def test_vectors_and_no_calls(case):
    executable, *_ = case
    text = executable.mod.inspect_source("asm")
    assert re.search(r"\bv(fmadd|fnmadd)\w+ps\s.*%ymm", text)
    calls = re.findall(r"\bcallq?\s+(\S+)", text) + re.findall(r"\b(?:exp|erf|tanh)f?@\S*", text)
    assert not [each for each in calls if re.search("exp|erf|tanh", each)]


def test_of_one_another():
    executable = compiled(lambda x: tirx.exp(tirx.tanh(tirx.erf(x) * T.float32(2))))
    x = np.linspace(-3, 3, 1001, dtype="float32")
    exact = np.exp(np.tanh(2 * np.vectorize(math.erf)(x.astype("float64"))))
    np.testing.assert_allclose(call(executable, x), exact, rtol=2e-6)


def test_others_stay():
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((4,), "float64"), B: T.Buffer((4,), "float64")):
        for i in range(4):
            with T.sblock("each"):
                v = T.axis.spatial(4, i)
                B[v] = T.exp(A[v])

    mod = tvm.IRModule({"f": func.with_attr("global_symbol", "f")})
    tvm.ir.assert_structural_equal(VectorMath(TARGET)(mod), mod)
    mod = tvm.IRModule({"f": elementwise(tirx.exp)})
    assert VectorMath(tvm.target.Target("nvidia/nvidia-a100"))(mod).same_as(mod)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_in_products_of_vectorized_loops(function):
    """As in a gate, or in elu, below a bound: `relu(x * sigmoid(x) * 2)`."""
    make, reference, _ = FUNCTIONS[function]

    def gate(x):
        two = tirx.const(2.0, "float32")
        return tirx.max(two * (x * make(x)), tirx.const(0.0, "float32"))

    schedule = s_tir.Schedule(elementwise(gate))
    (loop,) = schedule.get_loops(schedule.get_sblock("each"))
    _, lanes = schedule.split(loop, [None, 16])
    schedule.vectorize(lanes)
    func = schedule.mod["main"].with_attr("global_symbol", "each")
    executable = tvm.compile(VectorMath(TARGET)(tvm.IRModule({"each": func})), TARGET)
    x = np.linspace(-4, 4, 37, dtype="float32")
    expected = np.maximum(2 * x * reference(x.astype("float64")), 0)
    np.testing.assert_allclose(call(executable, x), expected, rtol=1e-6)
