"""Matmuls of half precision become calls of the CUDA operators, with what follows them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from cuda_models import few_assemblies
from relax_testing import module
from tvm import relax
from tvm.relax import op
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm.target import Target

import relax_passes.cuda.rewrite
from relax_passes import PolymerizeDynamicOps, Report
from tvm_moonpoly.operators import encode_axes
from tvm_moonpoly.operators.cuda import library as cuda_library

A100 = Target("nvidia/nvidia-a100")


def half(*shape, dtype="float16"):
    values = np.random.default_rng([7, *shape]).standard_normal(shape)
    return relax.const(values.astype(dtype), dtype)


W, B, SQUARE = half(8, 24), half(24), half(24, 24)
W_T = half(24, 8)
BIAS_ROW = relax.const(B.value.numpy().reshape(1, 24))


@pytest.fixture(autouse=True)
def used(monkeypatch):
    """The operators that a module was given; none is compiled."""
    given = []
    empty = tvm.compile(tvm.IRModule({"nothing": nothing}), target="llvm").mod

    def library(_target, matmuls):
        given[:] = [each.function for each in matmuls]
        return empty

    monkeypatch.setattr(relax_passes.cuda.rewrite, "library", library)
    monkeypatch.setattr(cuda_library, "assemblies", few_assemblies)
    return given


@T.prim_func
def nothing() -> None:
    T.func_attr({"global_symbol": "nothing"})
    T.evaluate(0)


def run_pass(before, target=A100, **options):
    report = Report()
    original = module(before)
    after = PolymerizeDynamicOps(target, report, **options)(original)
    relax.analysis.well_formed(after)
    if after.same_as(original):
        return after, report
    assert len(after.attrs["external_mods"]) == 1
    return after.without_attr("external_mods"), report


def check(before, expected, **options):
    """The pass turns `before` into `expected`. Returns the details of the report."""
    after, report = run_pass(before, **options)
    tvm.ir.assert_structural_equal(after, module(expected))
    return [entry.detail for entry in report]


def check_left(before, **options):
    """The pass leaves `before` as it is. Returns the reasons."""
    after, report = run_pass(before, **options)
    tvm.ir.assert_structural_equal(after, module(before))
    assert not report.rewritten
    return [entry.detail for entry in report]


def test_bias_and_activation(used):
    @R.function
    def before(x: R.Tensor(("n", 8), "float16")):
        y = R.matmul(x, W)
        z = R.add(y, B)
        w = R.nn.gelu(z)
        return w

    @R.function
    def expected(x: R.Tensor(("n", 8), "float16")):
        n = T.int64()
        w = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn_bias_gelu", (x, W, B), out_ty=R.Tensor((n, 24), "float16")
        )
        return w

    assert check(before, expected) == ["float16, NN, fused bias + gelu"]
    assert used == ["moonpoly_cuda_f16_f16_nn_bias_gelu"]


def test_a_transposed_weight_stays_where_it_is():
    @R.function
    def before(x: R.Tensor(("b", "s", 8), "float16")):
        with R.dataflow():
            w = R.permute_dims(W_T)
            y = R.matmul(x, w)
            R.output(y)
        return y

    @R.function
    def expected(x: R.Tensor(("b", "s", 8), "float16")):
        b, s = T.int64(), T.int64()
        with R.dataflow():
            y = R.call_dps_packed(
                "moonpoly_cuda_f16_f16_nt", (x, W_T), out_ty=R.Tensor((b, s, 24), "float16")
            )
            R.output(y)
        return y

    assert check(before, expected) == ["float16, NT"]


def test_a_residual_before_the_bias():
    @R.function
    def before(x: R.Tensor(("n", 24), "float16"), r: R.Tensor(("n", 24), "float16")):
        y = R.matmul(x, SQUARE)
        z = R.add(r, y)
        v = R.add(z, BIAS_ROW)
        w = R.nn.silu(v)
        return w

    @R.function
    def expected(x: R.Tensor(("n", 24), "float16"), r: R.Tensor(("n", 24), "float16")):
        n = T.int64()
        w = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn_bias_residual_silu",
            (x, SQUARE, B, r),
            out_ty=R.Tensor((n, 24), "float16"),
        )
        return w

    assert check(before, expected) == ["float16, NN, fused bias + residual + silu"]


def test_what_follows_an_activation_is_an_operator_of_its_own():
    @R.function
    def before(x: R.Tensor(("n", 24), "float16")):
        y = R.matmul(x, SQUARE)
        z = R.nn.relu(y)
        w = R.add(z, x)
        return w

    @R.function
    def expected(x: R.Tensor(("n", 24), "float16")):
        n = T.int64()
        z = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn_relu", (x, SQUARE), out_ty=R.Tensor((n, 24), "float16")
        )
        w = R.add(z, x)
        return w

    assert check(before, expected) == ["float16, NN, fused relu"]


def test_a_bias_that_is_a_parameter():
    @R.function
    def before(x: R.Tensor(("n", 8), "float16"), b: R.Tensor((24,), "float16")):
        y = R.matmul(x, W)
        z = R.add(y, b)
        return z

    @R.function
    def expected(x: R.Tensor(("n", 8), "float16"), b: R.Tensor((24,), "float16")):
        n = T.int64()
        z = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn_bias", (x, W, b), out_ty=R.Tensor((n, 24), "float16")
        )
        return z

    check(before, expected)


def test_a_single_value_is_a_bias_for_all_columns():
    one = relax.const(np.float16(0.5), "float16")
    same = relax.const(np.full(24, 0.5, np.float16), "float16")

    @R.function
    def before(x: R.Tensor(("n", 8), "float16")):
        y = R.matmul(x, W)
        z = R.add(y, one)
        return z

    @R.function
    def expected(x: R.Tensor(("n", 8), "float16")):
        n = T.int64()
        z = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn_bias", (x, W, same), out_ty=R.Tensor((n, 24), "float16")
        )
        return z

    check(before, expected)


def test_products_of_attention():
    @R.function
    def before(
        q: R.Tensor(("b", 4, "s", 16), "float16"), k: R.Tensor(("b", 4, "t", 16), "float16")
    ):
        turned = R.permute_dims(k, [0, 1, 3, 2])
        y = R.matmul(q, turned)
        z = R.matmul(y, k)
        return z

    @R.function
    def expected(
        q: R.Tensor(("b", 4, "s", 16), "float16"), k: R.Tensor(("b", 4, "t", 16), "float16")
    ):
        b, s, t = T.int64(), T.int64(), T.int64()
        y = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nt", (q, k), out_ty=R.Tensor((b, 4, s, t), "float16")
        )
        z = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn", (y, k), out_ty=R.Tensor((b, 4, s, 16), "float16")
        )
        return z

    assert check(before, expected) == ["float16, NT", "float16, NN"]


def codes(*axes):
    """Axes as an operator takes them, dimensions as digits, ``-`` for one that is not stored."""
    return [
        relax.prim_value(encode_axes([None if c == "-" else int(c) for c in each])) for each in axes
    ]


A_HEADS, B_HEADS, IN_ORDER = codes("0213", "0231", "0123")


def test_heads_are_read_and_written_where_they_are_stored(used):
    @R.function
    def before(
        q: R.Tensor(("b", "s", 4, 16), "float16"),
        k: R.Tensor(("b", "t", 4, 16), "float16"),
        v: R.Tensor(("b", "t", 4, 16), "float16"),
    ):
        left = R.permute_dims(q, [0, 2, 1, 3])
        right = R.permute_dims(k, [0, 2, 3, 1])
        y = R.matmul(left, right)
        values = R.permute_dims(v, [0, 2, 1, 3])
        z = R.matmul(y, values)
        back = R.permute_dims(z, [0, 2, 1, 3])
        return back

    @R.function
    def expected(
        q: R.Tensor(("b", "s", 4, 16), "float16"),
        k: R.Tensor(("b", "t", 4, 16), "float16"),
        v: R.Tensor(("b", "t", 4, 16), "float16"),
    ):
        b, s, t = T.int64(), T.int64(), T.int64()
        y = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nt_by_axes",
            (q, k, A_HEADS, B_HEADS, IN_ORDER),
            out_ty=R.Tensor((b, 4, s, t), "float16"),
        )
        back = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn_by_axes",
            (y, v, IN_ORDER, A_HEADS, A_HEADS),
            out_ty=R.Tensor((b, s, 4, 16), "float16"),
        )
        return back

    assert check(before, expected) == [
        "float16, NT, permute_dims of a, b folded",
        "float16, NN, permute_dims of b, output folded",
    ]
    assert sorted(used) == ["moonpoly_cuda_f16_f16_nn_by_axes", "moonpoly_cuda_f16_f16_nt_by_axes"]


def test_leading_dimensions_that_broadcast():
    @R.function
    def before(x: R.Tensor(("b", 1, "n", 8), "float16"), y: R.Tensor((1, "h", 8, "m"), "float16")):
        z = R.matmul(x, y)
        w = R.nn.relu(z)
        return w

    @R.function
    def expected(
        x: R.Tensor(("b", 1, "n", 8), "float16"), y: R.Tensor((1, "h", 8, "m"), "float16")
    ):
        b, n, h, m = T.int64(), T.int64(), T.int64(), T.int64()
        w = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn_by_axes_relu",
            (x, y, IN_ORDER, IN_ORDER, IN_ORDER),
            out_ty=R.Tensor((b, h, n, m), "float16"),
        )
        return w

    assert check(before, expected) == ["float16, NN, by axes, fused relu"]


def test_a_vector_on_either_side():
    """What follows such a product stays an operator of its own."""
    three, vector, row, no_rows, no_columns = codes("012", "0-", "-0", "0-1", "01-")

    @R.function
    def before(
        x: R.Tensor(("batch", "n", 8), "float16"),
        v: R.Tensor((8,), "float16"),
        y: R.Tensor(("batch", 8, "m"), "float16"),
    ):
        p = R.matmul(x, v)
        q = R.nn.relu(p)
        r = R.matmul(v, y)
        return (q, r)

    @R.function
    def expected(
        x: R.Tensor(("batch", "n", 8), "float16"),
        v: R.Tensor((8,), "float16"),
        y: R.Tensor(("batch", 8, "m"), "float16"),
    ):
        batch, n, m = T.int64(), T.int64(), T.int64()
        p = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn_by_axes",
            (x, v, three, vector, no_columns),
            out_ty=R.Tensor((batch, n), "float16"),
        )
        q = R.nn.relu(p)
        r = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn_by_axes",
            (v, y, row, three, no_rows),
            out_ty=R.Tensor((batch, m), "float16"),
        )
        return (q, r)

    assert check(before, expected) == ["float16, NN, by axes"] * 2


def test_rows_that_share_a_matrix_stay_in_order():
    """They are rows of one product then, which they are not where they are stored."""

    @R.function
    def before(x: R.Tensor(("b", "s", 4, 8), "float16")):
        turned = R.permute_dims(x, [0, 2, 1, 3])
        y = R.matmul(turned, W)
        z = R.permute_dims(y, [0, 2, 1, 3])
        return z

    @R.function
    def expected(x: R.Tensor(("b", "s", 4, 8), "float16")):
        b, s = T.int64(), T.int64()
        turned = R.permute_dims(x, [0, 2, 1, 3])
        y = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn", (turned, W), out_ty=R.Tensor((b, 4, s, 24), "float16")
        )
        z = R.permute_dims(y, [0, 2, 1, 3])
        return z

    check(before, expected)


def test_an_operand_whose_rows_are_scattered_is_an_operator_of_its_own():
    @R.function
    def before(x: R.Tensor(("b", 8, "n"), "float16"), y: R.Tensor((8, "b", "m"), "float16")):
        left = R.permute_dims(x, [0, 2, 1])
        right = R.permute_dims(y, [1, 0, 2])
        z = R.matmul(left, right)
        return z

    @R.function
    def expected(x: R.Tensor(("b", 8, "n"), "float16"), y: R.Tensor((8, "b", "m"), "float16")):
        b, n, m = T.int64(), T.int64(), T.int64()
        left = R.permute_dims(x, [0, 2, 1])
        z = R.call_dps_packed(
            "moonpoly_cuda_f16_f16_nn_by_axes",
            (left, y, THREE, TURNED, THREE),
            out_ty=R.Tensor((b, n, m), "float16"),
        )
        return z

    assert check(before, expected) == ["float16, NN, permute_dims of b folded"]


THREE, TURNED = codes("012", "102")


def spelled_out_gelu(dtype):
    """Of a product, as exporters write it, its constants rounded to ``dtype``."""
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 8), dtype))
    number = {v: relax.const(np.array(v, dtype), dtype) for v in (1.0, 0.5, 2**0.5)}
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", [x]):
        with builder.dataflow():
            y = emit(op.matmul(x, half(8, 24, dtype=dtype)))
            inner = emit(op.erf(emit(op.divide(y, number[2**0.5]))))
            outer = emit(op.multiply(y, emit(op.add(inner, number[1.0]))))
            result = builder.emit_output(op.multiply(outer, number[0.5]))
        builder.emit_func_output(result)
    return builder.get()["main"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_activation_spelled_out_with_rounded_constants(dtype):
    _, report = run_pass(spelled_out_gelu(dtype))
    assert [entry.detail for entry in report] == [f"{dtype}, NN, fused gelu"]


@pytest.mark.parametrize("sums", ["float16", "float32"])
def test_mixed_precision(sums):
    """Converted constants are constants: weights, biases, and the numbers of a gelu; sums that are
    converted at once are rounded by the micro-kernel."""
    mod = relax.transform.ToMixedPrecision(out_dtype=sums)(
        tvm.IRModule({"main": spelled_out_gelu("float32")})
    )
    after, report = run_pass(mod["main"])
    assert "moonpoly_cuda_f16_f16_nn_gelu" in after.script()
    assert [entry.detail for entry in report] == ["float16, NN, fused gelu"]
    # no weight is converted at each call: what is left is the input, and the result
    assert after.script().count("R.astype(") == 2


@pytest.mark.filterwarnings("error")
def test_a_converted_constant_may_be_too_large_without_a_warning():
    """As the mask of an attention is, and then it is infinite, as the operator makes it."""
    mask = relax.const(np.full((1, 24), -3e38, np.float32))

    @R.function
    def before(x: R.Tensor(("n", 8), "float16")):
        with R.dataflow():
            y = R.add(R.matmul(x, W), R.astype(mask, dtype="float16"))
            R.output(y)
        return y

    after, report = run_pass(before)
    assert [entry.detail for entry in report] == ["float16, NN, fused bias"]
    assert "R.astype(" not in after.script()


def test_sums_may_be_kept_in_float32():

    @R.function
    def before(x: R.Tensor(("n", 8), "float16")):
        y = R.matmul(x, W, out_dtype="float32")
        z = R.add(y, R.const(1.0, "float32"))
        return z

    after, report = run_pass(before)
    assert "moonpoly_cuda_f16_f32_nn_bias" in after.script()
    assert [entry.detail for entry in report] == ["float16, NN, fused bias"]


@R.function
def of_float32(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 24), "float32")):
    y = R.matmul(x, w)
    return y


@R.function
def of_static_shapes(x: R.Tensor((4, 8), "float16")):
    y = R.matmul(x, W)
    return y


@pytest.mark.parametrize(
    "before, reason",
    [
        (of_float32, "dtype float32 x float32 to float32"),
        (of_static_shapes, "static shapes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_to_tvm(before, reason):
    assert check_left(before) == [reason]


def test_static_shapes_on_demand():
    _, report = run_pass(of_static_shapes, static=True)
    assert [entry.action for entry in report] == ["rewritten"]


def test_a_gpu_without_micro_kernels():
    @R.function
    def before(x: R.Tensor(("n", 8), "float16")):
        y = R.matmul(x, W)
        return y

    (reason,) = check_left(before, target=Target({"kind": "cuda", "arch": "sm_75"}))
    assert "sm_75" in reason


def test_calls_cannot_be_verified():
    with pytest.raises(ValueError, match="verify: only calls on CPUs"):
        run_pass(of_static_shapes, verify=True)


def test_bfloat16_is_its_own_operator(used):
    weight = half(8, 24, dtype=ml_dtypes.bfloat16)

    @R.function
    def before(x: R.Tensor(("n", 8), "bfloat16")):
        y = R.matmul(x, weight)
        return y

    run_pass(before)
    assert used == ["moonpoly_cuda_bf16_bf16_nn"]
