"""Maxima and minima of NaN and of infinities are those of numpy and onnxruntime."""

import numpy as np
import pytest
import tvm
from relax_testing import TARGET
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import tirx as T

from relax_passes import KeepNaN, pipeline
from relax_passes.keep_nan import keep_nan

N = tirx.Var("n", "int64")


@T.prim_func(s_tir=True)
def before(a: T.handle, b: T.handle, c: T.handle, d: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 8))
    B = T.match_buffer(b, (n, 8))
    C = T.match_buffer(c, (n, 8))
    D = T.match_buffer(d, (n,))
    for i, j in T.grid(n, 8):
        with T.sblock("clip"):
            v, w = T.axis.remap("SS", [i, j])
            C[v, w] = T.max(T.min(A[v, w], T.float32(6)), T.float32(0))
    for i, j in T.grid(n, 8):
        with T.sblock("larger"):
            v, w = T.axis.remap("SS", [i, j])
            C[v, w] = T.max(A[v, w], B[v, w])
    for i, j in T.grid(n, 8):
        with T.sblock("largest"):
            v, w = T.axis.remap("SR", [i, j])
            with T.init():
                D[v] = T.float32(-1)
            D[v] = T.max(D[v], A[v, w])
    for i, j in T.grid(n, 8):
        with T.sblock("smallest"):
            v, w = T.axis.remap("SR", [i, j])
            with T.init():
                D[v] = T.max_value("float32")
            D[v] = T.min(D[v], A[v, w])


@T.prim_func(s_tir=True)
def expected(a: T.handle, b: T.handle, c: T.handle, d: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 8))
    B = T.match_buffer(b, (n, 8))
    C = T.match_buffer(c, (n, 8))
    D = T.match_buffer(d, (n,))
    for i, j in T.grid(n, 8):
        with T.sblock("clip"):
            v, w = T.axis.remap("SS", [i, j])
            C[v, w] = T.max(T.float32(0), T.min(T.float32(6), A[v, w]))
    for i, j in T.grid(n, 8):
        with T.sblock("larger"):
            v, w = T.axis.remap("SS", [i, j])
            C[v, w] = T.Select(A[v, w] <= T.float32("inf"), T.max(A[v, w], B[v, w]), A[v, w])
    for i, j in T.grid(n, 8):
        with T.sblock("largest"):
            v, w = T.axis.remap("SR", [i, j])
            with T.init():
                D[v] = T.float32(-1)
            D[v] = T.max(D[v], A[v, w])
    for i, j in T.grid(n, 8):
        with T.sblock("smallest"):
            v, w = T.axis.remap("SR", [i, j])
            with T.init():
                D[v] = T.float32("inf")
            D[v] = T.min(D[v], A[v, w])


def test_the_constant_comes_first():
    tvm.ir.assert_structural_equal(
        keep_nan(before).without_attr("global_symbol"), expected.without_attr("global_symbol")
    )


def test_other_targets_stay():
    mod = tvm.IRModule({"f": before.with_attr("global_symbol", "f")})
    assert KeepNaN(tvm.target.Target("nvidia/nvidia-a100"))(mod).same_as(mod)


def hardsigmoid(x):
    return np.clip(x / 6 + 0.5, 0, 1)


SHIFT = np.linspace(-1, 1, 24, dtype="float32")
SHIFT[5] = np.nan

# Of x with shape (n, n, 24).
CASES = {
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
    "relu of a sum": (
        lambda x: op.nn.relu(op.add(x, relax.const(SHIFT))),
        lambda x: np.maximum(x + SHIFT, 0),
    ),
    "clip": (lambda x: op.clip(x, -1, 1), lambda x: np.clip(x, -1, 1)),
    "hardswish": (
        lambda x: op.multiply(
            x, op.clip(op.add(op.divide(x, c(6)), relax.const(np.float32(0.5))), 0, 1)
        ),
        lambda x: x * hardsigmoid(x),
    ),
    "leaky relu": (
        lambda x: op.nn.leakyrelu(x, 0.1),
        lambda x: np.where(x > 0, x, 0.1 * x),
    ),
    "elu": (
        lambda x: op.subtract(op.nn.relu(x), op.nn.relu(op.subtract(c(1), op.exp(x)))),
        lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    ),
    "maximum": (lambda x: op.maximum(x, relax.const(SHIFT)), lambda x: np.maximum(x, SHIFT)),
    "minimum, swapped": (
        lambda x: op.minimum(relax.const(SHIFT), op.negative(x)),
        lambda x: np.minimum(SHIFT, -x),
    ),
    "maximum of exponentials": (
        lambda x: op.maximum(op.exp(x), op.exp(op.negative(x))),
        lambda x: np.exp(np.abs(x)),
    ),
}


def c(value):
    return relax.const(np.float32(value))


@pytest.mark.parametrize("name", CASES)
def test_as_numpy(name):
    form, reference = CASES[name]
    x = relax.Var("x", relax.TensorType((N, N, 24), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(form(x)))
    executable = tvm.compile(builder.get(), TARGET, relax_pipeline=pipeline(TARGET))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    for n in (0, 1, 3, 5):
        value = np.random.default_rng(n).standard_normal((n, n, 24), dtype="float32") * 3
        value.flat[::7] = np.nan
        value.flat[3::11] = np.inf
        value.flat[4::13] = -np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            expected = reference(value.astype("float64"))
        result = main(tvm.runtime.tensor(value)).numpy()
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("extreme,value", [(op.max, -np.inf), (op.min, np.inf)])
def test_extremes_of_infinities(extreme, value, axis):
    """Not the largest finite number."""
    x = relax.Var("x", relax.TensorType((N, 24), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(extreme(x, axis)))
    executable = tvm.compile(builder.get(), TARGET, relax_pipeline=pipeline(TARGET))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](
        tvm.runtime.tensor(np.full((5, 24), value, np.float32))
    )
    assert (found.numpy() == value).all()


def test_pooling_of_infinities():
    x = relax.Var("x", relax.TensorType((1, 4, N, N), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.nn.max_pool2d(x, (2, 2), (2, 2))))
    executable = tvm.compile(builder.get(), TARGET, relax_pipeline=pipeline(TARGET))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    for n in (2, 9, 20):
        value = np.full((1, 4, n, n), -np.inf, np.float32)
        assert (main(tvm.runtime.tensor(value)).numpy() == -np.inf).all()
