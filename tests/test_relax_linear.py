"""Linear layers: an input of any rank times a constant 2-D weight."""

import numpy as np
import tvm
from relax_testing import (
    axes,
    check,
    check_left,
    module,
    no_text,
    packed,
    padded,
    run_pass,
    table,
    tensor,
    text,
)
from tvm import relax
from tvm.script import relax as R
from tvm.script import tirx as T

W = tensor(8, 24)
B = tensor(24)
weight, bias = relax.const(W), relax.const(B)
transposed_weight = relax.const(np.ascontiguousarray(W.T))
SAME = axes(0, 1)
p_weight, p_bias, p_zero, p_table = packed(W), padded(B, 24), padded(None, 24), table(24, 8)


def test_2d_input():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        y = R.matmul(x, weight)
        return y

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        return y

    assert check(before, expected) == ["linear"]


def test_3d_input_in_a_dataflow_block():
    @R.function
    def before(x: R.Tensor(("b", "s", 8), "float32")):
        with R.dataflow():
            y = R.matmul(x, weight, out_dtype="float32")
            R.output(y)
        return y

    @R.function
    def expected(x: R.Tensor(("b", "s", 8), "float32")):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            y = R.call_dps_packed(
                "moonpoly_linear_f32",
                (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
                out_ty=R.Tensor((b, s, 24), "float32"),
            )
            R.output(y)
        return y

    check(before, expected)


def test_dimension_that_is_an_expression():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        z = R.concat((x, x), axis=0)
        y = R.matmul(z, weight)
        return y

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        z = R.concat((x, x), axis=0)
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (z, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n * 2, 24), "float32"),
        )
        return y

    check(before, expected)


def test_transposed_constant_through_a_second_name_and_a_match_cast():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        t = R.permute_dims(transposed_weight)
        u = t
        v = R.match_cast(u, R.Tensor((8, 24), "float32"))
        y = R.matmul(x, v)
        return y

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        t = R.permute_dims(transposed_weight)
        u = t
        _v = R.match_cast(u, R.Tensor((8, 24), "float32"))  # a check: it stays
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        return y

    check(before, expected)


def test_transposed_constant_used_twice_is_packed_once_and_its_transpose_goes():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32"), z: R.Tensor(("m", 8), "float32")):
        t = R.permute_dims(transposed_weight, axes=[1, 0])
        y = R.matmul(x, t)
        u = R.matmul(z, t)
        return (y, u)

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32"), z: R.Tensor(("m", 8), "float32")):
        n, m = T.int64(), T.int64()
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        u = R.call_dps_packed(
            "moonpoly_linear_f32",
            (z, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((m, 24), "float32"),
        )
        return (y, u)

    check(before, expected)
    after, _ = run_pass(module(before))
    first, second = (binding.value.args[1] for binding in after["main"].body.blocks[0].bindings)
    assert all(p.same_as(q) for p, q in zip(first.fields[1:4], second.fields[1:4], strict=True))


def test_transposed_constant_stays_for_its_other_user():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        t = R.permute_dims(transposed_weight)
        y = R.matmul(x, t)
        u = R.exp(t)
        return (y, u)

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        t = R.permute_dims(transposed_weight)
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        u = R.exp(t)
        return (y, u)

    check(before, expected)


def test_dead_code_of_the_user_stays():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        _dead = R.permute_dims(x)
        y = R.matmul(x, weight)
        return y

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        _dead = R.permute_dims(x)
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        return y

    check(before, expected)


def test_contraction_of_unknown_size_is_checked_at_run_time():
    names = text("matmul (n, k) x (8, 24): k = #, #")

    @R.function
    def before(x: R.Tensor(("n", "k"), "float32")):
        y = R.matmul(x, weight)
        return y

    @R.function
    def expected(x: R.Tensor(("n", "k"), "float32")):
        n = T.int64()
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_zero, p_table, names, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        return y

    check(before, expected)


def test_static_shapes_are_left():
    @R.function
    def before(x: R.Tensor((4, 8), "float32")):
        y = R.matmul(x, weight)
        return y

    assert check_left(before) == ["static shapes"]


def test_unknown_rank_is_left():
    @R.function
    def before(z: R.Tensor(dtype="float32")):
        u = R.matmul(z, weight)
        return u

    assert check_left(before) == ["rank unknown"]


def test_unknown_dtype_is_left():
    @R.function
    def before(x: R.Tensor(("n", 8))):
        y = R.matmul(x, weight)
        return y

    assert check_left(before) == ["dtype unknown"]


def test_empty_weight():
    empty = relax.const(np.zeros((8, 0), "float32"))

    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        y = R.matmul(x, empty)
        return y

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        y = R.call_dps_packed(
            "moonpoly_matmul_f32",
            (x, empty, R.prim_value(SAME), R.prim_value(SAME), R.prim_value(SAME), no_text),
            out_ty=R.Tensor((n, 0), "float32"),
        )
        return y

    check(before, expected)


def test_operand_that_is_no_variable_is_left():
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, weight)))
    func = builder.get()["main"]
    (binding,) = func.body.blocks[0].bindings
    nested = relax.op.matmul(relax.op.nn.relu(x), weight)
    relu_type = tvm.ir.Op.get("relax.nn.relu")
    assert nested.args[0].op == relu_type
    block = relax.BindingBlock([relax.VarBinding(binding.var, nested)])
    func = relax.Function([x], relax.SeqExpr([block], binding.var), func.ret_ty)
    after, report = run_pass(module(func))
    assert len(report.left) == 1 and not report.rewritten
    tvm.ir.assert_structural_equal(after, module(func))
