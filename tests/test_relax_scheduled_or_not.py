"""Results with the schedules and without them, over random shapes; NaN stays in its row."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_testing import TARGET, tensor
from tvm import relax, s_tir, tirx
from tvm.relax import op

from relax_passes import ScheduleMemoryBound, pipeline

N, H, W = (tirx.Var(name, "int64") for name in "nhw")
CHANNELS = 20  # a chunk of 16, and a rest
TWICE = relax.ShapeExpr([H * 2, W * 2])


def resized(method, mode, rounding):
    return lambda x: op.image.resize2d(
        x,
        TWICE,
        layout="NHWC",
        method=method,
        coordinate_transformation_mode=mode,
        rounding_method=rounding,
    )


def norm(x):
    return op.divide(x, op.sqrt(op.sum(op.multiply(x, x), [-1], keepdims=True)))


# Of x with shape (n, h, w, 20); those of the first group work along each row of 20.
BY_ROW = {
    "softmax": lambda x: op.nn.softmax(x, -1),
    "layer norm": lambda x: op.nn.layer_norm(
        x, relax.const(tensor(CHANNELS)), relax.const(tensor(CHANNELS)), axes=[-1]
    ),
    "rms norm": lambda x: op.nn.rms_norm(x, relax.const(tensor(CHANNELS)), axes=[-1]),
    "norm": norm,
    "gelu": op.nn.gelu,
    "gelu by tanh": op.nn.gelu_tanh,
    "silu": op.nn.silu,
    "where": lambda x: op.where(
        op.greater(x, relax.const(0.0, "float32")), op.exp(op.negative(x)), op.exp(x)
    ),
    "hardswish": lambda x: op.multiply(x, op.clip(op.add(x, relax.const(3.0, "float32")), 0, 6)),
    "halves exchanged": lambda x: op.concat(
        [
            op.negative(op.strided_slice(x, [3], [10], [20])),
            op.strided_slice(x, [3], [0], [10]),
        ],
        3,
    ),
}
CASES = {
    **BY_ROW,
    "largest of what a tensor without dims bounds": lambda x: op.max(
        op.minimum(x, op.max(op.abs(x))), [1]
    ),
    "a tensor without dims": lambda x: op.nn.relu(op.negative(op.max(x))),
    "maximum of columns": lambda x: op.max(x, [1]),
    "minimum of columns": lambda x: op.min(x, [1, 2]),
    "mean of columns": lambda x: op.mean(x, [1, 2]),
    "mean of both inner axes": lambda x: op.mean(op.permute_dims(x, [0, 3, 1, 2]), [2, 3]),
    "sum of all": lambda x: op.sum(op.sigmoid(x)),
    "softmax of dynamic rows": lambda x: op.nn.softmax(op.permute_dims(x, [0, 3, 1, 2]), -1),
    "pooled by maximum": lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"),
    "maximum of 16 columns": lambda x: op.max(op.strided_slice(x, [3], [2], [18]), [1]),
    "maximum of padded columns": lambda x: op.max(op.nn.pad(x, [0] * 6 + [2, 2], "constant"), [1]),
    "16 channels pooled by maximum": lambda x: op.nn.max_pool2d(
        op.strided_slice(x, [3], [2], [18]), (3, 3), (2, 2), (1, 1), layout="NHWC"
    ),
    "pooled by mean": lambda x: op.nn.avg_pool2d(x, (2, 2), (1, 1), (1, 1), layout="NHWC"),
    "pooled globally": lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC"),
    "pooled channels first": lambda x: op.nn.max_pool2d(
        op.permute_dims(x, [0, 3, 1, 2]), (3, 3), (2, 2), (1, 1)
    ),
    "globally, channels first": lambda x: op.nn.adaptive_avg_pool2d(
        op.permute_dims(x, [0, 3, 1, 2]), (1, 1)
    ),
    "resized": resized("nearest_neighbor", "asymmetric", "floor"),
    "resized linearly": resized("linear", "half_pixel", ""),
    "every other": lambda x: op.strided_slice(op.exp(x), [3], [1], [20], [2]),
    "narrow": lambda x: op.astype(op.astype(op.nn.relu(x), "float16"), "float32"),
}


def module(form):
    x = relax.Var("x", relax.TensorType((N, H, W, CHANNELS), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(form(x)))
        builder.emit_func_output(out)
    return builder.get()


def runs(form, target, **options):
    executable = tvm.compile(module(form), target, relax_pipeline=pipeline(target, **options))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return lambda x: vm["main"](tvm.runtime.tensor(x)).numpy()


TWO_CORES = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


@pytest.fixture(scope="module", params=CASES)
def both(request):
    form = CASES[request.param]
    off = runs(form, TARGET, schedule_memory_bound=False, vector_math=False)
    return runs(form, TARGET), runs(form, TWO_CORES), off


def check(both, shape):
    one_core, two_cores, off = both
    x = tensor(*shape, CHANNELS)
    expected = off(x)
    if x.size == 0 and expected.size > 0:  # reduced from nothing, which TVM's loops never set
        expected = one_core(x)
    for run in (one_core, two_cores):
        result = run(x)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=10, deadline=None)
@given(st.tuples(st.integers(0, 3), st.integers(1, 21), st.integers(1, 37)))
def test_random_shapes(both, shape):
    check(both, shape)


def test_shapes_at_the_ends(both):
    for shape in [(0, 1, 1), (1, 1, 1), (1, 1, 16), (2, 16, 1), (1, 60, 50)]:
        check(both, shape)


@pytest.mark.parametrize("name", BY_ROW)
def test_nan_and_infinity_stay_in_their_row(name):
    x = tensor(2, 3, 5, CHANNELS)
    clean = x.copy()
    rows = [(0, 1, 3), (1, 2, 4), (1, 0, 0)]
    for row, value in zip(rows, (np.nan, np.inf, -np.inf), strict=True):
        x[(*row, 7)] = value
    run, off = (
        runs(BY_ROW[name], TARGET),
        runs(BY_ROW[name], TARGET, schedule_memory_bound=False, vector_math=False),
    )
    result, untouched = run(x), run(clean)
    np.testing.assert_array_equal(np.isnan(result[0, 1, 3]), np.isnan(off(x)[0, 1, 3]))
    assert np.isnan(result[0, 1, 3]).any()
    for row in rows:
        result[row] = untouched[row] = 0
    np.testing.assert_array_equal(result, untouched)


@pytest.mark.parametrize(
    "name",
    [
        *("maximum of columns", "maximum of 16 columns", "mean of both inner axes", "sum of all"),
        *("pooled by maximum", "16 channels pooled by maximum"),
    ],
)
def test_innermost_loops_are_vectors(name):
    mod = relax.transform.LegalizeOps()(module(CASES[name]))
    mod = relax.transform.FuseTIR()(relax.transform.FuseOps()(mod))
    after = ScheduleMemoryBound(TARGET)(mod)
    kinds = []
    for func in after.functions.values():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, (tirx.For, lambda loop: kinds.append(loop.kind)))
    assert tirx.ForKind.VECTORIZED in kinds


def test_a_condition_that_varies_along_the_loop_stays_scalar():
    mod = relax.transform.LegalizeOps()(module(BY_ROW["halves exchanged"]))
    for func in ScheduleMemoryBound(TARGET)(mod).functions.values():
        if isinstance(func, tirx.PrimFunc):
            assert "T.vectorized(" not in func.script()
            assert isinstance(func.body, s_tir.SBlockRealize)
