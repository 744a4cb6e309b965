"""Reads that must not move past a call which writes to its arguments."""

import numpy as np
import pytest
import tvm
from relax_testing import (
    TARGET,
    axes,
    check,
    module,
    no_text,
    packed,
    padded,
    run_pass,
    table,
    tensor,
)
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import pipeline

W, B = tensor(8, 24), tensor(24)
weight, bias, w_t = relax.const(W), relax.const(B), relax.const(np.ascontiguousarray(W.T))
p_weight, p_bias, p_zero, p_table = packed(W), padded(B, 24), padded(None, 24), table(24, 8)
SAME3, SWAPPED3 = axes(0, 1, 2), axes(0, 2, 1)


@tvm.register_global_func("moonpoly.test.negate", override=True)
def negate(x):
    """Negate `x` in place."""
    array = np.from_dlpack(x)
    np.negative(array, out=array)
    return x


@tvm.register_global_func("moonpoly.test.read", override=True)
def read(x):
    """The first value of `x` as an integer."""
    return int(x.numpy().flat[0])


def compiled(func):
    """`func` as a Python function of numpy arrays, of which it may change copies only."""
    mod = func if isinstance(func, tvm.IRModule) else module(func)
    executable = tvm.compile(mod, TARGET, relax_pipeline=pipeline(TARGET))
    vm = relax.VirtualMachine(executable, tvm.cpu())

    def run(*arrays):
        result = vm["main"](*(tvm.runtime.tensor(array.copy()) for array in arrays))
        if isinstance(result, tvm.runtime.Tensor):
            return result.numpy()
        return tuple(each.numpy() if hasattr(each, "numpy") else each for each in result)

    return run


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_x_written_before_the_bias_is_added():
    @R.function(pure=False)
    def before(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        y = R.matmul(x, weight)
        x2 = R.call_packed("moonpoly.test.negate", x, ty_args=R.Tensor((n, 8), "float32"))
        z = R.add(y, bias)
        u = R.matmul(x2, weight)
        v = R.add(u, bias)
        return (z, v)

    @R.function(pure=False)
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        x2 = R.call_packed("moonpoly.test.negate", x, ty_args=R.Tensor((n, 8), "float32"))
        z = R.add(y, bias)
        v = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x2, p_weight, p_bias, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        return (z, v)

    assert check(before, expected) == ["linear", "linear, fused bias"]
    x = tensor(5, 8)
    z, v = compiled(before)(x)
    close(z, x @ W + B)
    close(v, -x @ W + B)


def test_x_written_in_place_inside_a_dataflow_block():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        with R.dataflow():
            y = R.matmul(x, weight)
            x2 = R.call_inplace_packed(
                "moonpoly.test.negate",
                x,
                inplace_indices=[0],
                ty_args=R.Tensor((n, 8), "float32"),
            )
            z = R.add(y, bias)
            R.output(z, x2)
        return (z, x2)

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        with R.dataflow():
            y = R.call_dps_packed(
                "moonpoly_linear_f32",
                (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
                out_ty=R.Tensor((n, 24), "float32"),
            )
            x2 = R.call_inplace_packed(
                "moonpoly.test.negate",
                x,
                inplace_indices=[0],
                ty_args=R.Tensor((n, 8), "float32"),
            )
            z = R.add(y, bias)
            R.output(z, x2)
        return (z, x2)

    assert check(before, expected) == ["linear"]
    x = tensor(5, 8)
    z, x2 = compiled(before)(x)
    close(z, x @ W + B)
    close(x2, -x)


def test_source_of_permute_dims_written_before_the_product():
    @R.function(pure=False)
    def before(q: R.Tensor((2, "m", 8), "float32"), k: R.Tensor((2, "n", 8), "float32")):
        n = T.int64()
        k2 = R.permute_dims(k, axes=[0, 2, 1])
        k3 = R.call_packed("moonpoly.test.negate", k, ty_args=R.Tensor((2, n, 8), "float32"))
        y = R.matmul(q, k2)
        k4 = R.permute_dims(k3, axes=[0, 2, 1])
        z = R.matmul(q, k4)
        return (y, z)

    @R.function(pure=False)
    def expected(q: R.Tensor((2, "m", 8), "float32"), k: R.Tensor((2, "n", 8), "float32")):
        m, n = T.int64(), T.int64()
        k2 = R.permute_dims(k, axes=[0, 2, 1])
        k3 = R.call_packed("moonpoly.test.negate", k, ty_args=R.Tensor((2, n, 8), "float32"))
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (q, k2, R.prim_value(SAME3), R.prim_value(SAME3), R.prim_value(SAME3), no_text),
            out_ty=R.Tensor((2, m, n), "float32"),
        )
        z = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (q, k3, R.prim_value(SAME3), R.prim_value(SWAPPED3), R.prim_value(SAME3), no_text),
            out_ty=R.Tensor((2, m, n), "float32"),
        )
        return (y, z)

    assert check(before, expected) == ["product", "product, permute_dims of b folded"]
    q, k = tensor(2, 5, 8), tensor(2, 7, 8)
    y, z = compiled(before)(q, k)
    close(y, q @ k.transpose(0, 2, 1))
    close(z, q @ -k.transpose(0, 2, 1))


def test_only_the_permutes_after_the_writer_are_folded():
    @R.function(pure=False)
    def before(q: R.Tensor((2, "m", 8), "float32"), k: R.Tensor((2, 8, "n"), "float32")):
        n = T.int64()
        k1 = R.permute_dims(k, axes=[0, 2, 1])
        _ = R.call_packed("moonpoly.test.negate", k, ty_args=R.Tensor((2, 8, n), "float32"))
        k2 = R.permute_dims(k1, axes=[0, 2, 1])
        y = R.matmul(q, k2)
        return y

    after, report = run_pass(module(before))
    assert [entry.detail for entry in report] == ["product, permute_dims of b folded"]
    assert after["main"].script().count("permute_dims") == 1
    q, k = tensor(2, 5, 8), tensor(2, 8, 7)
    close(compiled(before)(q, k), q @ k)


def test_residual_written_before_the_activation():
    @R.function(pure=False)
    def before(x: R.Tensor(("n", 8), "float32"), r: R.Tensor(("n", 24), "float32")):
        n = T.int64()
        y = R.matmul(x, weight)
        z = R.add(y, r)
        r2 = R.call_packed("moonpoly.test.negate", r, ty_args=R.Tensor((n, 24), "float32"))
        u = R.nn.relu(z)
        return (u, r2)

    @R.function(pure=False)
    def expected(x: R.Tensor(("n", 8), "float32"), r: R.Tensor(("n", 24), "float32")):
        n = T.int64()
        z = R.call_dps_packed(
            "moonpoly_linear_residual_f32",
            (x, p_weight, p_zero, r, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        r2 = R.call_packed("moonpoly.test.negate", r, ty_args=R.Tensor((n, 24), "float32"))
        u = R.nn.relu(z)
        return (u, r2)

    assert check(before, expected) == ["linear, fused residual"]
    x, r = tensor(5, 8), tensor(5, 24)
    u, r2 = compiled(before)(x, r)
    close(u, np.maximum(x @ W + r, 0))
    close(r2, -r)


def test_operand_written_before_the_product_is_permuted():
    @R.function(pure=False)
    def before(a: R.Tensor((2, 3, "m", 8), "float32"), b: R.Tensor((2, 3, 8, 4), "float32")):
        y = R.matmul(a, b)
        _ = R.call_packed("moonpoly.test.negate", b, ty_args=R.Tensor((2, 3, 8, 4), "float32"))
        z = R.permute_dims(y, axes=[0, 2, 1, 3])
        return z

    after, report = run_pass(module(before))
    assert [entry.detail for entry in report] == ["product"]
    assert after["main"].script().count("permute_dims") == 1
    a, b = tensor(2, 3, 5, 8), tensor(2, 3, 8, 4)
    close(compiled(before)(a, b), (a @ b).transpose(0, 2, 1, 3))


def test_transposed_weight_written_before_the_matmul():
    @R.function(pure=False)
    def before(x: R.Tensor(("n", 8), "float32")):
        t = R.permute_dims(w_t)
        _ = R.call_packed("moonpoly.test.negate", t, ty_args=R.Tensor((8, 24), "float32"))
        y = R.matmul(x, t)
        return y

    after, report = run_pass(module(before))
    assert [entry.detail for entry in report] == ["product"]
    assert after["main"].script().count("permute_dims") == 1


def test_writer_outside_the_chain_changes_nothing():
    @R.function(pure=False)
    def before(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        x2 = R.call_packed("moonpoly.test.negate", x, ty_args=R.Tensor((n, 8), "float32"))
        y = R.matmul(x2, weight)
        z = R.add(y, bias)
        u = R.nn.relu(z)
        v = R.call_packed("moonpoly.test.negate", u, ty_args=R.Tensor((n, 24), "float32"))
        return v

    _, report = run_pass(module(before))
    assert [entry.detail for entry in report] == ["linear, fused bias + relu"]
    x = tensor(5, 8)
    close(compiled(before)(x), -np.maximum(-x @ W + B, 0))


def test_writer_inside_a_branch():
    @R.function(pure=False)
    def before(x: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool")):
        n = T.int64()
        y = R.matmul(x, weight)
        if c:
            p = R.call_packed("moonpoly.test.negate", x, ty_args=R.Tensor((n, 8), "float32"))
            q = p
        else:
            q = x
        z = R.add(y, bias)
        return (z, q)

    _, report = run_pass(module(before))
    assert [entry.detail for entry in report] == ["linear"]
    x = tensor(5, 8)
    z, q = compiled(before)(x, np.array(True))
    close(z, x @ W + B)
    close(q, -x)


@I.ir_module
class Callees:
    @T.prim_func(private=True, s_tir=True)
    def loops(a: T.handle):
        n = T.int64()
        x = T.match_buffer(a, (n, 8), "float32")
        for i, j in T.grid(n, 8):
            with T.sblock("negate"):
                vi, vj = T.axis.remap("SS", [i, j])
                x[vi, vj] = -x[vi, vj]

    @R.function(private=True)
    def pure(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32"):
        return R.negative(x)

    @R.function(private=True, pure=False)
    def impure(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32"):
        n = T.int64()
        y = R.call_packed("moonpoly.test.negate", x, ty_args=R.Tensor((n, 8), "float32"))
        return y

    @R.function(private=True)
    def typed_pure(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32"):
        n = T.int64()
        cls = Callees
        y = R.call_tir_inplace(
            cls.loops, (x,), inplace_indices=[0], out_ty=R.Tensor((n, 8), "float32")
        )
        return y

    @R.function(private=True)
    def indirect(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32"):
        cls = Callees
        y = cls.typed_pure(x)
        return y


@pytest.mark.parametrize(
    ("callee", "fused"),
    [
        ("pure", "linear, fused bias"),
        ("impure", "linear"),
        ("typed_pure", "linear"),
        ("indirect", "linear"),
    ],
)
def test_call_of_another_function(callee, fused):
    x = relax.Var("x", relax.TensorType([tvm.tirx.Var("n", "int64"), 8], "float32"))
    builder = relax.BlockBuilder(Callees)
    with builder.function("main", [x], pure=callee != "impure"):
        y = builder.emit(relax.op.matmul(x, weight))
        x2 = builder.emit(relax.Call(Callees.get_global_var(callee), [x]))
        z = builder.emit(relax.op.add(y, bias))
        builder.emit_func_output(relax.Tuple([z, x2]))
    mod = builder.get()
    relax.analysis.well_formed(mod)
    _, report = run_pass(mod)
    assert [entry.detail for entry in report] == [fused]
    value = tensor(5, 8)
    z, x2 = compiled(mod)(value)
    close(z, value @ W + B)
    close(x2, -value)


def test_nested_function_that_writes_and_reads_again():
    @R.function(pure=False)
    def before(q: R.Tensor((2, "m", 8), "float32"), k: R.Tensor((2, "n", 8), "float32")):
        m, n = T.int64(), T.int64()
        k2 = R.permute_dims(k, axes=[0, 2, 1])

        @R.function
        def inner(a: R.Tensor((2, m, 8), "float32")) -> R.Tensor((2, m, n), "float32"):
            y = R.matmul(a, k2)
            return y

        _ = R.call_packed("moonpoly.test.negate", k, ty_args=R.Tensor((2, n, 8), "float32"))
        z = inner(q)
        return z

    _, report = run_pass(module(before))
    assert [entry.detail for entry in report] == ["product"]


def test_nested_function_without_writers_reads_through_permute_dims():
    @R.function
    def before(q: R.Tensor((2, "m", 8), "float32"), k: R.Tensor((2, "n", 8), "float32")):
        m, n = T.int64(), T.int64()
        k2 = R.permute_dims(k, axes=[0, 2, 1])

        @R.function
        def inner(a: R.Tensor((2, m, 8), "float32")) -> R.Tensor((2, m, n), "float32"):
            y = R.matmul(a, k2)
            return y

        z = inner(q)
        return z

    _, report = run_pass(module(before))
    assert [entry.detail for entry in report] == ["product, permute_dims of b folded"]


def test_call_that_returns_a_number_uses_its_arguments():
    @R.function(pure=False)
    def before(x: R.Tensor(("n", 8), "float32")):
        y = R.matmul(x, weight)
        z = R.add(y, bias)
        first = R.call_packed("moonpoly.test.read", y, ty_args=R.Prim("int64"))
        return (z, first)

    after, report = run_pass(module(before))
    relax.analysis.well_formed(after)
    assert [entry.detail for entry in report] == ["linear"]
    x = tensor(5, 8)
    z, first = compiled(before)(x)
    close(z, x @ W + B)
    assert first == int((x @ W)[0, 0])
