"""The pass on whole modules: branches, private and nested functions, attributes, reports."""

import logging

import pytest
import tvm
from relax_testing import (
    TARGET,
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

from relax_passes import PolymerizeDynamicOps, Report

W, B = tensor(8, 24), tensor(24)
weight, bias = relax.const(W), relax.const(B)
p_weight, p_bias, p_zero, p_table = packed(W), padded(B, 24), padded(None, 24), table(24, 8)


@R.function
def linear(x: R.Tensor(("n", 8), "float32")):
    y = R.matmul(x, weight)
    return y


@R.function
def static(x: R.Tensor((4, 8), "float32")):
    y = R.matmul(x, weight)
    z = R.add(y, bias)
    return z


def test_inside_both_branches():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool")):
        if c:
            y = R.matmul(x, weight)
            z = R.add(y, bias)
            u = z
        else:
            v = R.matmul(x, weight)
            u = v
        return u

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool")):
        n = T.int64()
        if c:
            z = R.call_dps_packed(
                "moonpoly_linear_f32",
                (x, p_weight, p_bias, p_table, no_text, R.prim_value(0)),
                out_ty=R.Tensor((n, 24), "float32"),
            )
            u = z
        else:
            v = R.call_dps_packed(
                "moonpoly_linear_f32",
                (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
                out_ty=R.Tensor((n, 24), "float32"),
            )
            u = v
        return u

    check(before, expected)


def test_epilogue_inside_a_branch_stays_there():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool")):
        y = R.matmul(x, weight)
        if c:
            z = R.add(y, bias)
            u = z
        else:
            v = R.exp(y)
            u = v
        return u

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool")):
        n = T.int64()
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        if c:
            z = R.add(y, bias)
            u = z
        else:
            v = R.exp(y)
            u = v
        return u

    check(before, expected)


def test_private_function_and_its_caller():
    @I.ir_module
    class Before:
        @R.function(private=True)
        def inner(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 24), "float32"):
            y = R.matmul(x, weight)
            return y

        @R.function
        def main(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 24), "float32"):
            cls = Before
            y = cls.inner(x)
            z = R.add(y, bias)
            return z

    @I.ir_module
    class Expected:
        @R.function(private=True)
        def inner(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 24), "float32"):
            n = T.int64()
            y = R.call_dps_packed(
                "moonpoly_linear_f32",
                (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
                out_ty=R.Tensor((n, 24), "float32"),
            )
            return y

        @R.function
        def main(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 24), "float32"):
            cls = Expected
            y = cls.inner(x)
            z = R.add(y, bias)
            return z

    after, report = run_pass(Before)
    tvm.ir.assert_structural_equal(after, Expected)
    assert [(entry.function, entry.action) for entry in report] == [("inner", "rewritten")]


def test_nested_function():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        @R.function
        def inner(z: R.Tensor(("m", 8), "float32")) -> R.Tensor(("m", 24), "float32"):
            y = R.matmul(z, weight)
            u = R.nn.relu(y)
            return u

        v = inner(x)
        return v

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        @R.function
        def inner(z: R.Tensor(("m", 8), "float32")) -> R.Tensor(("m", 24), "float32"):
            m = T.int64()
            u = R.call_dps_packed(
                "moonpoly_linear_f32",
                (z, p_weight, p_zero, p_table, no_text, R.prim_value(1)),
                out_ty=R.Tensor((m, 24), "float32"),
            )
            return u

        v = inner(x)
        return v

    check(before, expected)


@pytest.mark.parametrize("attr", ["Composite", "Codegen", "Primitive"])
def test_function_of_another_backend_is_left(attr):
    theirs = linear.with_attr(attr, 1 if attr == "Primitive" else "their.matmul")
    original = module(static, theirs=theirs)
    after, report = run_pass(original)
    assert after.same_as(original)
    reasons = {entry.function: entry.detail for entry in report}
    assert reasons == {"main": "static shapes", "theirs": "claimed by another backend"}


def test_module_without_a_match_comes_back_as_it_was():
    original = module(static)
    after, report = run_pass(original)
    assert after.same_as(original)
    assert "external_mods" not in after.attrs
    assert [(e.function, e.shapes, e.action) for e in report] == [
        ("main", "(4, 8) x (8, 24)", "left")
    ]


def test_second_run_does_nothing():
    once = PolymerizeDynamicOps(TARGET)(module(linear))
    report = Report()
    assert PolymerizeDynamicOps(TARGET, report)(once).same_as(once)
    assert len(report) == 0


def test_library_is_attached_once_and_others_stay():
    @T.prim_func(s_tir=True)
    def their_function(a: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("one"):
                v = T.axis.spatial(4, i)
                a[v] = T.float32(1)

    theirs = tvm.tirx.build(tvm.IRModule({"their_function": their_function}), target="llvm")
    once = PolymerizeDynamicOps(TARGET)(module(linear).with_attr("external_mods", [theirs]))
    assert len(once.attrs["external_mods"]) == 2
    assert once.attrs["external_mods"][0].same_as(theirs)
    again = once.clone()
    again["second"] = linear.with_attr("global_symbol", "second")
    twice = PolymerizeDynamicOps(TARGET)(again)
    assert len(twice.attrs["external_mods"]) == 2
    assert "call_dps_packed" in twice["second"].script()


def test_other_attributes_and_functions_stay():
    @T.prim_func(s_tir=True)
    def loops(a: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("one"):
                v = T.axis.spatial(4, i)
                a[v] = T.float32(1)

    original = module(linear.with_attr("num_input", 1), loops=loops).with_attr("theirs", "kept")
    after, _ = run_pass(original)
    assert after.attrs["theirs"] == "kept"
    assert int(after["main"].attrs["num_input"]) == 1
    assert after["loops"].same_as(original["loops"])
    assert original["main"].attrs["num_input"] == 1 and "external_mods" not in original.attrs


def test_unsupported_target_leaves_all():
    target = tvm.target.Target("nvidia/nvidia-a100")
    original = module(linear)
    report = Report()
    assert PolymerizeDynamicOps(target, report)(original).same_as(original)
    (entry,) = report
    assert entry.action == "left" and entry.detail


def test_report_and_log(caplog):
    original = module(linear, second=linear.with_attr("global_symbol", "second"), third=static)
    with caplog.at_level(logging.INFO, logger="tvm_moonpoly"):
        _, report = run_pass(original)
    assert len(report) == 3
    said = [record.message for record in caplog.records if record.name == "tvm_moonpoly"]
    assert said == [str(entry) for entry in report]
    text = str(report)
    assert text.splitlines()[0] == "2 rewritten, 1 left as they were"
    assert "1 x rewritten main: matmul (n, 8) x (8, 24): linear" in text
    assert "1 x left      third: matmul (4, 8) x (8, 24): static shapes" in text


def test_report_shows_dimensions_without_type_prefixes():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        doubled = R.concat((x, x), axis=0)
        padded_up = R.zeros(R.shape([(n + 3) // 4 * 4, T.max(n, 2), 8]), dtype="float32")
        y = R.matmul(doubled, weight)
        z = R.matmul(padded_up, weight)
        return (y, z)

    _, report = run_pass(module(before))
    assert [entry.shapes for entry in report] == [
        "(n * 2, 8) x (8, 24)",
        "((n + 3) // 4 * 4, max(n, 2), 8) x (8, 24)",
    ]


@pytest.mark.parametrize("attribute", ["Composite", "Codegen", "Primitive"])
def test_nested_function_of_another_backend_is_left(attribute):
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 8), "float16"))
    a = relax.Var("a", relax.TensorType((tvm.tirx.Var("m", "int64"), 8), "float16"))
    half = relax.const(W[:, :8].astype("float16"))
    builder = relax.BlockBuilder()
    with builder.function("inner", [a]):
        builder.emit_func_output(builder.emit(relax.op.matmul(a, half)))
    inner = builder.get()["inner"].without_attr("global_symbol")
    inner = inner.with_attr(attribute, 1 if attribute == "Primitive" else "other")
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        local = builder.emit(inner)
        y = builder.emit(relax.Call(local, [x]))
        builder.emit_func_output(builder.emit(relax.op.matmul(y, half)))
    after, report = run_pass(builder.get())
    assert len(report.rewritten) == 1
    (kept,) = [
        binding.value
        for binding in after["main"].body.blocks[0].bindings
        if isinstance(binding.value, relax.Function)
    ]
    tvm.ir.assert_structural_equal(kept, inner)
