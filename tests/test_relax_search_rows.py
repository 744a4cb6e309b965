"""argmax and argmin: as numpy's for random shapes, ties and NaN, and what is none of ours stays."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_testing import TARGET
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import relax as R

from relax_passes import SearchRows, pipeline
from relax_passes.search_rows import search

DIMS = N, H, W = tuple(tirx.Var(name, "int64") for name in "nhw")
TWO_CORES = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
CASES = [
    ("max", -1, False),
    ("max", 1, True),
    ("max", 0, False),
    ("min", 2, True),
    ("min", 1, False),
]


def module_of(kind, axis, keepdims, shape=DIMS, dtype="float32"):
    x = relax.Var("x", relax.TensorType(shape, dtype))
    function = op.argmax if kind == "max" else op.argmin
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(function(x, axis, keepdims))
        builder.emit_func_output(out)
    return builder.get()


def compiled(mod, target=TARGET):
    executable = tvm.compile(mod, target, relax_pipeline=pipeline(target))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return lambda x: main(tvm.runtime.tensor(x)).numpy()


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request):
    return request.param, compiled(module_of(*request.param))


def check(case, x):
    (kind, axis, keepdims), run = case
    function = np.argmax if kind == "max" else np.argmin
    result = run(x)
    if x.shape[axis]:
        expected = function(x, axis, keepdims=keepdims)
    else:  # which numpy refuses
        expected = np.full_like(x.sum(axis, keepdims=keepdims), -1, "int64")
    assert result.dtype == np.int64 and result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)


SIZES = st.one_of(st.integers(0, 5), st.integers(30, 70), st.sampled_from([128, 200]))


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 4), SIZES, SIZES),
    values=st.sampled_from(["random", "ties", "rising", "falling"]),
    seed=st.integers(0, 999),
)
def test_as_numpy(case, shape, values, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape, dtype="float32")
    if values == "ties":
        x = rng.integers(-1, 2, shape).astype("float32") * np.float32(0.0 if seed % 9 == 0 else 1)
    elif x.size and values != "random":
        x = np.sort(x, case[0][1])
        x = x if values == "rising" else np.flip(x, case[0][1]).copy()
    check(case, x)


@pytest.mark.parametrize("seed", range(4))
def test_nan_and_infinity(case, seed):
    """The first NaN, as in numpy, and only in its own row."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 67, 133), dtype="float32")
    for special in (np.nan, np.inf, -np.inf, -np.nan):
        x[rng.random(x.shape) < 0.01] = special
    x[1] = -np.inf if seed % 2 else np.inf
    x[2, :, 0] = np.nan
    check(case, x)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("kind, axis", [("max", 2), ("min", 1)])
def test_other_floats(kind, axis, dtype):
    """Also of elements that only float64 tells apart, and of NaN."""
    case = ((kind, axis, False), compiled(module_of(kind, axis, False, dtype=dtype)))
    for count in (1, 5, 8, 31, 64, 97, 200):
        rng = np.random.default_rng(count)
        x = rng.standard_normal((3, count, count)).astype(dtype)
        if dtype == "float64":
            x = 1 + 1e-12 * x
        x[1][rng.random((count, count)) < 0.01] = np.nan
        x[2, :, 0], x[2, 0] = np.inf, -np.inf
        check(case, x)


@pytest.mark.parametrize("count", [*range(1, 40), 63, 64, 65, 79, 80, 81, 97, 127, 128, 129, 193])
def test_each_place_of_a_row(case_of_rows, count):
    """The best element, and a NaN, at each place of a row of each length."""
    kind, run = case_of_rows
    x = np.random.default_rng(count).standard_normal((2, count, count), dtype="float32")
    x[0][np.diag_indices(count)] = 9.0 if kind == "max" else -9.0
    x[1][np.diag_indices(count)] = np.nan
    check(((kind, 2, False), run), x)


@pytest.fixture(scope="module", params=["max", "min"])
def case_of_rows(request):
    return request.param, compiled(module_of(request.param, 2, False))


def test_large_ones_are_shared():
    for kind, axis in (("max", 2), ("min", 1)):
        case = ((kind, axis, False), compiled(module_of(kind, axis, False), TWO_CORES))
        for shape in [(2, 3, 4), (1, 70, 700), (3, 700, 70), (1, 9, 5000)]:
            check(case, np.random.default_rng(5).standard_normal(shape, dtype="float32"))


def test_vectors_of_one_dimension():
    case = (("max", 0, False), compiled(module_of("max", 0, False, (N,))))
    for size in (1, 63, 64, 65, 1000):
        check(case, np.random.default_rng(size).standard_normal(size, dtype="float32"))


def test_becomes_a_function_of_its_own():
    @R.function
    def before(x: R.Tensor(("n", 24), "float32")):
        with R.dataflow():
            y = R.argmax(x, axis=1)
            R.output(y)
        return y

    after = SearchRows(TARGET)(tvm.IRModule({"main": before}))
    name = after.get_global_var("argmax")
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 24), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            call = relax.call_tir(name, [x], out_ty=relax.TensorType((n,), "int64"))
            out = builder.emit_output(call)
        builder.emit_func_output(out)
    tvm.ir.assert_structural_equal(
        after["main"].without_attr("global_symbol"),
        builder.get()["main"].without_attr("global_symbol"),
        map_free_vars=True,
    )
    expected = search([n, tirx.IntImm("int64", 24)], 1, True)
    tvm.ir.assert_structural_equal(
        after[name].without_attr("global_symbol"), expected, map_free_vars=True
    )


@pytest.mark.parametrize(
    "mod, target",
    [
        (module_of("max", None, False), TARGET),
        (module_of("max", 1, False, dtype="bfloat16"), TARGET),
        (module_of("max", 1, False, dtype="int32"), TARGET),
        (module_of("max", 1, False), tvm.target.Target("nvidia/nvidia-a100")),
    ],
    ids=["all axes", "bfloat16", "integers", "another target"],
)
def test_others_stay(mod, target):
    assert SearchRows(target)(mod).same_as(mod)
