"""The schedule of memory-bound functions: what it makes of them, and that they stay right."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from relax_testing import TARGET, tensor
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import tirx as T
from tvm.sym import Analyzer

from relax_passes import ScheduleMemoryBound, VectorMath, pipeline
from relax_passes.schedule_rows import schedule_rows


def assert_equal(func, expected):
    """Apart from their names."""
    tvm.ir.assert_structural_equal(
        func.without_attr("global_symbol"), expected.without_attr("global_symbol")
    )


@T.prim_func(s_tir=True)
def chain(a: T.handle, b: T.handle):
    T.func_attr({"tirx.noalias": True})
    n = T.int64()
    A = T.match_buffer(a, (n, T.int64(8)))
    B = T.match_buffer(b, (n, T.int64(8)))
    C = T.sblock_alloc_buffer((n, T.int64(8)))
    for i, j in T.grid(n, T.int64(8)):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(n, T.int64(8)):
        with T.sblock("shift"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + T.float32(1)


@T.prim_func(s_tir=True)
def chain_in_one_pass(a: T.handle, b: T.handle):
    T.func_attr({"tirx.noalias": True})
    n = T.int64()
    A = T.match_buffer(a, (n, T.int64(8)))
    B = T.match_buffer(b, (n, T.int64(8)))
    for i, j in T.grid(n, T.int64(8)):
        with T.sblock("shift"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2) + T.float32(1)


def test_elementwise_chain_becomes_one_pass():
    assert_equal(schedule_rows(chain), chain_in_one_pass)


@T.prim_func(s_tir=True)
def column_sums(a: T.handle, b: T.handle):
    m = T.int64()
    n = T.int64()
    A = T.match_buffer(a, (m, n))
    B = T.match_buffer(b, (n,))
    for j, i in T.grid(n, m):
        with T.sblock("sum"):
            vj, vi = T.axis.remap("SR", [j, i])
            with T.init():
                B[vj] = T.float32(0)
            B[vj] = B[vj] + A[vi, vj]


@T.prim_func(s_tir=True)
def column_sums_row_by_row(a: T.handle, b: T.handle):
    m = T.int64()
    n = T.int64()
    A = T.match_buffer(a, (m, n))
    B = T.match_buffer(b, (n,))
    for j in range(n):
        with T.sblock("sum_init"):
            vj = T.axis.spatial(n, j)
            B[vj] = T.float32(0)
    for i, j in T.grid(m, n):
        with T.sblock("sum_update"):
            vj, vi = T.axis.remap("SR", [j, i])
            B[vj] = B[vj] + A[vi, vj]


def test_column_sums_run_along_memory():
    assert_equal(schedule_rows(column_sums), column_sums_row_by_row)


@T.prim_func(s_tir=True)
def matmul(a: T.handle, b: T.handle, c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, n))
    B = T.match_buffer(b, (n, n))
    C = T.match_buffer(c, (n, n))
    for i, j, k in T.grid(n, n, n):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func(s_tir=True)
def parallel(a: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,))
    for i in T.parallel(n):
        with T.sblock("one"):
            v = T.axis.spatial(n, i)
            A[v] = T.float32(1)


@T.prim_func(s_tir=True)
def calls_out(a: T.handle):
    A = T.match_buffer(a, (4,))
    with T.sblock("call"):
        T.reads()
        T.writes(A[0:4])
        T.call_packed("somebody.fills", A.data)


@T.prim_func(s_tir=True)
def two_stores(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,))
    B = T.match_buffer(b, (n,))
    for i in range(n):
        with T.sblock("both"):
            v = T.axis.spatial(n, i)
            A[v] = T.float32(1)
            B[v] = T.float32(2)


@T.prim_func
def no_blocks(A: T.Buffer((4,), "float32")):
    for i in range(4):
        A[i] = T.float32(1)


UNKNOWN = {
    "compute-bound": matmul,
    "already parallel": parallel,
    "calls out": calls_out,
    "two stores": two_stores,
    "no blocks": no_blocks,
    "scheduled by somebody else": chain.with_attr("tirx.is_scheduled", True),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_stays(name):
    func = UNKNOWN[name].with_attr("global_symbol", "f")
    assert schedule_rows(func) is None
    after = ScheduleMemoryBound(TARGET)(tvm.IRModule({"f": func}))
    tvm.ir.assert_structural_equal(after["f"], func)


def test_other_targets_stay():
    mod = tvm.IRModule({"f": chain.with_attr("global_symbol", "f")})
    assert ScheduleMemoryBound(tvm.target.Target("nvidia/nvidia-a100"))(mod).same_as(mod)


def softmax(x, axis):
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
        return e / e.sum(axis, keepdims=True)


def layer_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * GAMMA + BETA


def spelled_layer_norm(x):
    centred = op.subtract(x, op.mean(x, [-1], keepdims=True))
    variance = op.mean(op.multiply(centred, centred), [-1], keepdims=True)
    scaled = op.divide(centred, op.sqrt(op.add(variance, relax.const(np.float32(1e-5)))))
    return op.add(op.multiply(scaled, relax.const(GAMMA)), relax.const(BETA))


GAMMA, BETA = tensor(24), tensor(24) + 1
N, S = tirx.Var("n", "int64"), tirx.Var("s", "int64")

# Of x with shape (n, s, 24), both n and s dynamic.
CASES = {
    "softmax of rows": (lambda x: op.nn.softmax(x, -1), lambda x: softmax(x, -1)),
    "softmax of columns": (lambda x: op.nn.softmax(x, 1), lambda x: softmax(x, 1)),
    "softmax of dynamic rows": (
        lambda x: op.nn.softmax(op.permute_dims(x, [0, 2, 1]), -1),
        lambda x: softmax(x.transpose(0, 2, 1), -1),
    ),
    "layer norm": (
        lambda x: op.nn.layer_norm(x, relax.const(GAMMA), relax.const(BETA), axes=[-1]),
        layer_norm,
    ),
    "layer norm, spelled out": (spelled_layer_norm, layer_norm),
    "sum of all": (lambda x: op.sum(x), lambda x: x.sum()),
    "sum of rows": (lambda x: op.sum(x, [-1]), lambda x: x.sum(-1)),
    "sum of columns": (lambda x: op.sum(x, [0]), lambda x: x.sum(0)),
    "sum of dynamic rows": (
        lambda x: op.sum(op.permute_dims(op.exp(x), [0, 2, 1]), [-1]),
        lambda x: np.exp(x).sum(1),
    ),
    "sum over outer and inner": (lambda x: op.sum(x, [0, 2]), lambda x: x.sum((0, 2))),
    "minimum of rows": (
        lambda x: op.min(op.concat([x, op.ones((N, S, 24), "float32")], 1), [-1]),
        lambda x: np.concatenate([x, np.ones_like(x)], 1).min(-1),
    ),
    "sigmoid": (op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "exp with two consumers": (
        lambda x: op.add(op.exp(x), op.multiply(op.exp(x), relax.const(BETA))),
        lambda x: np.exp(x) + np.exp(x) * BETA,
    ),
    "column mean taken off": (
        lambda x: op.subtract(op.exp(x), op.sum(x, [1], keepdims=True)),
        lambda x: np.exp(x) - x.sum(1, keepdims=True),
    ),
}


def compiled(form, target=TARGET, **options):
    x = relax.Var("x", relax.TensorType((N, S, 24), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(form(x))
        builder.emit_func_output(out)
    passes = pipeline(target, **options)
    vm = relax.VirtualMachine(tvm.compile(builder.get(), target, relax_pipeline=passes), tvm.cpu())
    return lambda value: vm["main"](tvm.runtime.tensor(value)).numpy()


@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name):
    form, reference = CASES[name]
    run = compiled(form)
    for shape in [(1, 1), (2, 15), (3, 16), (1, 17), (2, 33), (5, 129), (0, 3), (2, 0), (1, 2)]:
        x = tensor(*shape, 24)
        expected = reference(x.astype("float64"))
        result = run(x)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


TWO_CORES = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


@pytest.mark.parametrize("name", CASES)
def test_small_and_large_on_two_cores(name):
    form, reference = CASES[name]
    run = compiled(form, TWO_CORES)
    for shape in [(1, 1), (0, 3), (3, 16), (40, 70), (1, 3000), (3000, 1)]:
        x = tensor(*shape, 24)
        expected = reference(x.astype("float64"))
        np.testing.assert_allclose(run(x), expected, rtol=1e-4, atol=1e-4)


def test_only_large_results_wake_the_threads():
    func = chain.with_attr("global_symbol", "f")
    after = ScheduleMemoryBound(TWO_CORES)(tvm.IRModule({"f": func}))["f"]
    branch = after.body.block.body
    assert isinstance(branch, tirx.IfThenElse)
    analyzer = Analyzer()
    for rows, large in [(1, False), (4095, False), (4096, True)]:
        number = tirx.const(rows, "int64")
        condition = tvm_ffi.structural_map(
            branch.condition, (tirx.Var, lambda _var, value=number: value)
        )
        assert bool(analyzer.simplify(condition)) == large
    assert branch.then_case.kind == tirx.ForKind.PARALLEL
    assert branch.else_case.kind == tirx.ForKind.SERIAL


@pytest.mark.parametrize("name", ["softmax of rows", "layer norm", "sum of rows"])
def test_nan_and_infinity_stay_in_their_row(name):
    form, reference = CASES[name]
    x = tensor(2, 5, 24)
    x[0, 1, 3] = np.nan
    x[0, 3, 17] = np.inf
    x[1, 2, 23] = -np.inf
    x[1, 4] = -np.inf
    with np.errstate(invalid="ignore"):
        expected = reference(x.astype("float64"))
    np.testing.assert_allclose(compiled(form)(x), expected, rtol=2e-5, atol=2e-5)


def test_switched_off():
    form, reference = CASES["softmax of rows"]
    x = tensor(2, 5, 24)
    result = compiled(form, schedule_memory_bound=False)(x)
    np.testing.assert_allclose(result, reference(x.astype("float64")), rtol=2e-5, atol=2e-5)


def test_softmax_has_neither_libm_nor_temporaries_of_rows():
    """What is needed of a row is in its result, and a few numbers beside it."""
    x = relax.Var("x", relax.TensorType((N, S, S), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.nn.softmax(x, -1)))
    before = relax.transform.LegalizeOps()(builder.get())
    after = VectorMath(TARGET)(ScheduleMemoryBound(TARGET)(before))
    (func,) = (f for f in after.functions.values() if isinstance(f, tirx.PrimFunc))
    lowered = tvm.transform.Sequential(
        [
            tvm.s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            tvm.s_tir.transform.ConvertBlocksToOpaque(),
            tvm.s_tir.transform.CompactBufferAllocation(),
        ]
    )(tvm.IRModule({"softmax": func}))["softmax"]
    sizes = []

    def visit(block):
        sizes.extend(tuple(buffer.shape) for buffer in block.alloc_buffers)

    tvm_ffi.structural_walk(lowered.body, (tvm.s_tir.SBlock, visit))
    assert sizes and all(isinstance(dim, tirx.IntImm) for size in sizes for dim in size)
    assert "T.exp(" not in func.script() and "T.vectorized(" in func.script()


def test_reshapes_of_symbolic_sizes_stay_as_they_are():
    """Rescheduled, with a dim of 1 that is dropped, they took LLVM minutes to hours."""
    b, m, k = (tvm.tirx.Var(name, "int64") for name in "bmk")
    x = relax.Var("x", relax.TensorType((b, 1, b, m, k), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.reshape(x, (b, b, m, k)))
            z = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(z)
    executable = tvm.compile(builder.get(), TARGET, relax_pipeline=pipeline(TARGET))
    array = np.random.default_rng(1).standard_normal((2, 1, 2, 3, 5), dtype="float32")
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array)).numpy()
    np.testing.assert_array_equal(got, np.maximum(array, 0).reshape(2, 2, 3, 5))
