"""Single convolutions: what they become, what is folded and fused, and what is left, and why."""

import numpy as np
import pytest
import tvm
from relax_conv_testing import (
    LANES,
    TARGET,
    calls,
    compiled,
    constant,
    converted,
    run,
    stand_ins,  # noqa: F401
    tensor,
)
from relax_in_numpy import evaluate
from relax_testing import module
from tvm import relax
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import (
    FoldIntoConvolutions,
    NormalizeOperators,
    PolymerizeConvolutions,
    Report,
)
from tvm_moonpoly import operators
from tvm_moonpoly.operators.conv_constants import (
    ConvActivation,
    ConvSpec,
    pack_conv_weight,
    pack_depthwise_weight,
    pad_conv_bias,
)

pytestmark = pytest.mark.usefixtures("stand_ins")

W, B = tensor(24, 3, 3, 3), tensor(24)
weight = relax.const(W)
bias_first, bias_last = relax.const(B.reshape(1, 24, 1, 1)), relax.const(B)
spec = ConvSpec((3, 3), 3, 24, strides=(2, 2), padding=(1, 1, 1, 1))
p_weight = relax.const(pack_conv_weight(W, spec, LANES))
p_bias = relax.const(pad_conv_bias(B, spec, LANES))
p_zero = relax.const(pad_conv_bias(None, spec, LANES))


def encoded(**changes):
    fields = {**{name: getattr(spec, name) for name in spec.__dataclass_fields__}, **changes}
    return relax.const(ConvSpec(**fields).encode(), "int64")


p_spec = encoded()
p_relu = encoded(activation=ConvActivation.RELU)
p_planes = encoded(activation=ConvActivation.RELU, planes=True)
half_weight = relax.const(W.astype("float16"))


def check(before, expected):
    """The passes turn the function `before` into `expected`. Returns the details of the report."""
    original = module(before)
    report = Report()
    after = converted(original, report)
    tvm.ir.assert_structural_equal(after, module(expected))
    tvm.ir.assert_structural_equal(original, module(before))  # the input is not touched
    return [entry.detail for entry in report]


def check_left(before, **options):
    """The passes leave the function `before` as it is. Returns the reasons."""
    original = module(before)
    report = Report()
    tvm.ir.assert_structural_equal(converted(original, report, **options), original)
    assert not report.rewritten
    return [entry.detail for entry in report]


def check_result(before, *inputs, rtol=1e-5, atol=1e-5, **options):
    """What the passes make of `before` gives what it gives. Returns its calls."""
    mod = module(before)
    after = converted(mod, **options)
    for each in inputs:
        want = evaluate(mod, each)
        np.testing.assert_allclose(evaluate(after, each), want, rtol=rtol, atol=atol)
    return calls(after)


def test_channels_first():
    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            y = R.nn.conv2d(x, weight, strides=2, padding=1)
            z = R.add(y, bias_first)
            r = R.nn.relu(z)
            R.output(r)
        return r

    @R.function
    def expected(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        n, h, w = T.int64(), T.int64(), T.int64()
        with R.dataflow():
            y = R.call_dps_packed(
                "moonpoly_conv2d_f32",
                (x, p_weight, p_bias, p_planes),
                out_ty=R.Tensor((n, (h - 1) // 2 + 1, (w - 1) // 2 + 1, 24), "float32"),
            )
            r = R.permute_dims(y, axes=[0, 3, 1, 2])
            R.output(r)
        return r

    found = ["convolution, of planes of channels, fused bias + relu"]
    assert check(before, expected) == found
    assert check_result(before, tensor(2, 3, 6, 7)) == ["moonpoly_conv2d_f32", "permute_dims"]


def test_planes_where_the_layout_is_not_converted():
    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        y = R.nn.conv2d(x, weight, strides=2, padding=1)
        return y

    report = Report()
    after = PolymerizeConvolutions(TARGET, report)(module(before))
    assert calls(after) == ["moonpoly_conv2d_f32", "permute_dims"]
    found = "convolution, of planes of channels, transposed back"
    assert [entry.detail for entry in report] == [found]


def test_a_transpose_that_others_need_stays():
    """Of float16, with a residual, and of any number of outputs the channels come last."""
    few, pointwise = constant(10, 3, 3, 3), constant(24, 3, 1, 1)

    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            a = R.nn.conv2d(x, few, padding=1)
            b = R.nn.conv2d(x, weight, padding=1)
            c = R.nn.conv2d(x, pointwise)
            d = R.add(b, c)
            y = R.concat([a, d], axis=1)
            R.output(y)
        return y

    found = check_result(before, tensor(2, 3, 6, 7))
    assert found.count("permute_dims") == 2 and found.count("moonpoly_conv2d_f32") >= 2

    @R.function
    def half(x: R.Tensor(("n", 3, "h", "w"), "float16")):
        y = R.nn.conv2d(x, half_weight, padding=1)
        return y

    assert calls(converted(module(half))).count("permute_dims") == 2


def test_channels_last_outside_of_a_dataflow_block():
    @R.function
    def before(x: R.Tensor(("n", "h", "w", 3), "float32")):
        y = R.nn.conv2d(x, weight, strides=2, padding=1, data_layout="NHWC")
        z = R.add(bias_last, y)
        return z

    @R.function
    def expected(x: R.Tensor(("n", "h", "w", 3), "float32")):
        n, h, w = T.int64(), T.int64(), T.int64()
        z = R.call_dps_packed(
            "moonpoly_conv2d_f32",
            (x, p_weight, p_bias, p_spec),
            out_ty=R.Tensor((n, (h - 1) // 2 + 1, (w - 1) // 2 + 1, 24), "float32"),
        )
        return z

    assert check(before, expected) == ["convolution, fused bias"]


def test_kernel_in_the_layout_of_tensorflow():
    kernel = relax.const(np.ascontiguousarray(W.transpose(2, 3, 1, 0)))

    @R.function
    def before(x: R.Tensor((1, "h", "w", 3), "float32")):
        y = R.nn.conv2d(x, kernel, strides=2, padding=1, data_layout="NHWC", kernel_layout="HWIO")
        return y

    @R.function
    def expected(x: R.Tensor((1, "h", "w", 3), "float32")):
        h, w = T.int64(), T.int64()
        y = R.call_dps_packed(
            "moonpoly_conv2d_f32",
            (x, p_weight, p_zero, p_spec),
            out_ty=R.Tensor((1, (h - 1) // 2 + 1, (w - 1) // 2 + 1, 24), "float32"),
        )
        return y

    check(before, expected)


def test_residual_then_activation():
    @R.function
    def before(
        x: R.Tensor(("n", "h", "w", 3), "float32"),
        r: R.Tensor(("n", "(h - 1) // 2 + 1", "(w - 1) // 2 + 1", 24), "float32"),
    ):
        y = R.nn.conv2d(x, weight, strides=2, padding=1, data_layout="NHWC")
        z = R.add(y, bias_last)
        s = R.add(r, z)
        t = R.nn.relu(s)
        return t

    @R.function
    def expected(
        x: R.Tensor(("n", "h", "w", 3), "float32"),
        r: R.Tensor(("n", "(h - 1) // 2 + 1", "(w - 1) // 2 + 1", 24), "float32"),
    ):
        n, h, w = T.int64(), T.int64(), T.int64()
        t = R.call_dps_packed(
            "moonpoly_conv2d_residual_f32",
            (x, p_weight, p_bias, r, p_relu),
            out_ty=R.Tensor((n, (h - 1) // 2 + 1, (w - 1) // 2 + 1, 24), "float32"),
        )
        return t

    assert check(before, expected) == ["convolution, fused bias + residual + relu"]


def test_what_something_else_reads_is_not_fused():
    @R.function
    def before(x: R.Tensor(("n", "h", "w", 3), "float32")):
        y = R.nn.conv2d(x, weight, strides=2, padding=1, data_layout="NHWC")
        z = R.nn.relu(y)
        s = R.exp(y)
        return (z, s)

    @R.function
    def expected(x: R.Tensor(("n", "h", "w", 3), "float32")):
        n, h, w = T.int64(), T.int64(), T.int64()
        y = R.call_dps_packed(
            "moonpoly_conv2d_f32",
            (x, p_weight, p_zero, p_spec),
            out_ty=R.Tensor((n, (h - 1) // 2 + 1, (w - 1) // 2 + 1, 24), "float32"),
        )
        z = R.nn.relu(y)
        s = R.exp(y)
        return (z, s)

    assert check(before, expected) == ["convolution"]


def test_one_dimension():
    kernel = tensor(8, 4, 3)
    one_row = ConvSpec((1, 3), 4, 8, strides=(1, 2), padding=(0, 1, 0, 0), dilation=(1, 2))
    w_const = relax.const(kernel)
    packed = relax.const(pack_conv_weight(kernel[:, :, None], one_row, LANES))
    zero = relax.const(pad_conv_bias(None, one_row, LANES))
    code = relax.const(one_row.encode(), "int64")

    @R.function
    def before(x: R.Tensor(("n", 4, "w"), "float32")):
        with R.dataflow():
            y = R.nn.conv1d(x, w_const, strides=2, padding=[1, 0], dilation=2)
            R.output(y)
        return y

    @R.function
    def expected(x: R.Tensor(("n", 4, "w"), "float32")):
        n, w = T.int64(), T.int64()
        with R.dataflow():
            last = R.permute_dims(x, axes=[0, 2, 1])
            text = R.call_pure_packed(
                "vm.builtin.match_shape",
                R.shape([T.min(w + 1, T.int64(5))]),
                R.prim_value(0),
                R.prim_value(1),
                R.prim_value(0),
                R.prim_value(T.int64(5)),
                R.str(
                    "main: conv1d of x (n, w, 4): its width with padding is less than that of the "
                    "kernel: w + 1 instead of 5;"
                ),
                ty_args=(R.Shape(ndim=-1),),
            )
            _kept = R.match_cast(text, R.Object)
            row = R.reshape(last, R.shape([n, 1, w, 4]))
            y = R.call_dps_packed(
                "moonpoly_conv2d_f32",
                (row, packed, zero, code),
                out_ty=R.Tensor((n, 1, w // 2 - 1, 8), "float32"),
            )
            z = R.reshape(y, R.shape([n, w // 2 - 1, 8]))
            back = R.permute_dims(z, axes=[0, 2, 1])
            R.output(back)
        return back

    assert check(before, expected) == ["convolution"]


def test_depthwise_and_groups():
    deep, grouped = tensor(6, 1, 3, 3), tensor(8, 2, 1, 1)
    deep_w, grouped_w = relax.const(deep), relax.const(grouped)
    deep_spec = ConvSpec((3, 3), 6, 6, padding=(1, 1, 1, 1), groups=6)
    grouped_spec = ConvSpec((1, 1), 8, 8, groups=4)
    p_deep = relax.const(pack_depthwise_weight(deep, LANES))
    p_deep_bias = relax.const(operators.pad_bias(None, 6, LANES))
    p_grouped = relax.const(pack_conv_weight(grouped, grouped_spec, LANES))
    p_grouped_bias = relax.const(pad_conv_bias(None, grouped_spec, LANES))
    deep_code = relax.const(deep_spec.encode(), "int64")
    grouped_code = relax.const(grouped_spec.encode(), "int64")

    @R.function
    def before(
        x: R.Tensor(("n", "h", "w", 6), "float32"), z: R.Tensor(("n", "h", "w", 8), "float32")
    ):
        y = R.nn.conv2d(x, deep_w, padding=1, groups=6, data_layout="NHWC")
        t = R.nn.conv2d(z, grouped_w, groups=4, data_layout="NHWC")
        return (y, t)

    @R.function
    def expected(
        x: R.Tensor(("n", "h", "w", 6), "float32"), z: R.Tensor(("n", "h", "w", 8), "float32")
    ):
        n, h, w = T.int64(), T.int64(), T.int64()
        y = R.call_dps_packed(
            "moonpoly_depthwise_f32",
            (x, p_deep, p_deep_bias, deep_code),
            out_ty=R.Tensor((n, h, w, 6), "float32"),
        )
        t = R.call_dps_packed(
            "moonpoly_conv2d_f32",
            (z, p_grouped, p_grouped_bias, grouped_code),
            out_ty=R.Tensor((n, h, w, 8), "float32"),
        )
        return (y, t)

    assert check(before, expected) == ["depthwise", "convolution, 4 groups"]


# What is left


def test_weight_that_is_a_parameter_is_left():
    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32"), k: R.Tensor((8, 3, 3, 3), "float32")):
        y = R.nn.conv2d(x, k)
        return y

    assert check_left(before) == ["the weight is not a constant"]


def test_static_shapes_are_left_unless_asked_for():
    @R.function
    def before(x: R.Tensor((1, 3, 8, 8), "float32")):
        y = R.nn.conv2d(x, weight)
        return y

    assert check_left(before) == ["static shapes"]
    report = Report()
    assert "moonpoly_conv2d_f32" in calls(converted(module(before), report, static=True))


def test_empty_operands_are_left():
    row = relax.const(W[:, :, 0])

    @R.function
    def before(x: R.Tensor((0, 3, 9), "float32")):
        y = R.nn.conv1d(x, row, padding=1)
        return y

    report = Report()
    assert calls(converted(module(before), report, static=True)) == ["nn.conv1d"]
    assert [entry.detail for entry in report.left] == ["empty operand"]


def test_dtypes_that_there_is_no_function_for_are_left():
    double = relax.const(W.astype("float64"), "float64")
    half = relax.const(W.astype("float16"), "float16")

    @R.function
    def before(
        x: R.Tensor(("n", 3, "h", "w"), "float64"), z: R.Tensor(("n", 3, "h", "w"), "float16")
    ):
        y = R.nn.conv2d(x, double)
        t = R.nn.conv2d(z, half, out_dtype="float32")
        return (y, t)

    assert check_left(before) == [
        "dtype float64 x float64 to float64",
        "dtype float16 x float16 to float32",
    ]


def test_layouts_in_blocks_are_left():
    blocked = constant(3, 1, 3, 3, 1, 8)

    @R.function
    def before(x: R.Tensor(("n", 1, "h", "w", 1), "float32")):
        y = R.nn.conv2d(x, blocked, data_layout="NCHW1c", kernel_layout="OIHW1i8o")
        return y

    assert check_left(before) == ["layout NCHW1c to NCHW1c"]


def test_transposed_convolution_stays_as_it_is():
    up = constant(24, 4, 2, 2)

    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            y = R.nn.conv2d(x, weight, strides=2, padding=1)
            r = R.nn.relu(y)
            z = R.nn.conv2d_transpose(r, up, strides=2)
            R.output(z)
        return z

    found = calls(converted(module(before)))
    assert found.count("nn.conv2d_transpose") == 1 and found.count("permute_dims") == 1

    @R.function
    def alone(x: R.Tensor(("n", 24, "h", "w"), "float32")):
        y = R.nn.conv2d_transpose(x, up, strides=2)
        return y

    assert check_left(alone) == []


def test_a_function_that_another_backend_claimed_is_left():
    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        R.func_attr({"Codegen": "other"})
        y = R.nn.conv2d(x, weight)
        return y

    assert check_left(before) == ["claimed by another backend"]


def test_a_target_without_a_library_leaves_all():
    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        y = R.nn.conv2d(x, weight)
        return y

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    assert check_left(before, target=target) == ["no convolutions for cuda"]


# Folding and fusing


def folded(before):
    passes = [NormalizeOperators(TARGET), FoldIntoConvolutions(TARGET)]
    return tvm.transform.Sequential(passes)(module(before))


def test_scales_and_shifts_fold_into_weight_and_bias():
    scale, shift = constant(24, 1, 1), constant(1, 24, 1, 1)

    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            y = R.nn.conv2d(x, weight)
            a = R.add(y, bias_first)
            b = R.multiply(scale, a)
            c = R.subtract(shift, b)
            d = R.divide(c, R.const(0.5, "float32"))
            R.output(d)
        return d

    assert calls(folded(before)) == ["nn.conv2d", "add"]
    check_result(before, tensor(2, 3, 5, 6), tensor(1, 3, 3, 3))
    check_result(before, tensor(2, 3, 5, 6), fold=False)


def test_a_scale_of_what_is_read_twice_or_that_is_not_finite_stays():
    infinite = relax.const(np.full((24, 1, 1), np.inf, "float32"))

    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            y = R.nn.conv2d(x, weight)
            a = R.multiply(y, R.const(2.0, "float32"))
            b = R.add(y, a)
            z = R.nn.conv2d(x, weight)
            c = R.multiply(z, infinite)
            R.output(b, c)
        return (b, c)

    tvm.ir.assert_structural_equal(folded(before), module(before))


def test_batch_norm_as_one_operator_and_in_parts():
    gamma, beta, mean = constant(24), constant(24), constant(24)
    variance = relax.const(np.abs(tensor(24)) + 0.1)

    @R.function
    def whole(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            y = R.nn.conv2d(x, weight)
            t = R.nn.batch_norm(y, gamma, beta, mean, variance, axis=1, training=False)
            z = t[0]
            R.output(z)
        return z

    @R.function
    def in_parts(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            y = R.nn.conv2d(x, weight)
            m = R.subtract(y, R.reshape(mean, R.shape([1, 24, 1, 1])))
            d = R.sqrt(R.add(R.reshape(variance, R.shape([1, 24, 1, 1])), R.const(1e-5, "float32")))
            q = R.divide(m, d)
            s = R.multiply(q, R.reshape(gamma, R.shape([1, 24, 1, 1])))
            z = R.add(s, R.expand_dims(beta, axis=[0, 2, 3]))
            R.output(z)
        return z

    @R.function
    def training(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            y = R.nn.conv2d(x, weight)
            t = R.nn.batch_norm(y, gamma, beta, mean, variance, axis=1, training=True)
            z = t[0]
            R.output(z)
        return z

    for each in (whole, in_parts):
        assert calls(folded(each)) == ["nn.conv2d", "add"]
        check_result(each, tensor(2, 3, 5, 6), rtol=1e-4)
    assert calls(folded(training)) == ["nn.conv2d", "nn.batch_norm"]


def test_batch_norm_before_a_convolution_is_a_product_and_a_sum():
    gamma, beta, mean = constant(3), constant(3), constant(3)
    variance = relax.const(np.abs(tensor(3)) + 0.1)

    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            t = R.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, training=False)
            z = R.nn.conv2d(R.nn.relu(t[0]), weight, padding=1)
            R.output(z)
        return z

    found = check_result(before, tensor(2, 3, 5, 6))
    assert "nn.batch_norm" not in found and found.count("permute_dims") == 1


def test_zero_pads_fold_and_others_do_not():
    @R.function
    def zero(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            p = R.nn.pad(x, [0, 0, 0, 0, 1, 2, 0, 3])
            y = R.nn.conv2d(p, weight, padding=[1, 0, 1, 0], strides=2)
            R.output(y)
        return y

    @R.function
    def ones(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            p = R.nn.pad(x, [0, 0, 0, 0, 1, 2, 0, 3], pad_value=1.0)
            y = R.nn.conv2d(p, weight, padding=[1, 0, 1, 0], strides=2)
            R.output(y)
        return y

    @R.function
    def channels(x: R.Tensor(("n", 2, "h", "w"), "float32")):
        with R.dataflow():
            p = R.nn.pad(x, [0, 0, 1, 0, 0, 0, 0, 0])
            y = R.nn.conv2d(p, weight)
            R.output(y)
        return y

    assert "nn.pad" not in check_result(zero, tensor(2, 3, 5, 6), tensor(1, 3, 1, 1))
    assert "nn.pad" in check_result(ones, tensor(2, 3, 5, 6))
    assert "nn.pad" in check_result(channels, tensor(2, 2, 5, 6))


def activation(emit):
    """A convolution with `emit(R's operators of y)` after it, NHWC."""
    bb = relax.BlockBuilder()
    n, h, w = (tvm.tirx.Var(name, "int64") for name in "nhw")
    x = relax.Var("x", relax.TensorType((n, h, w, 3), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.conv2d(x, weight, padding=1, data_layout="NHWC"))
            out = bb.emit_output(emit(y))
        bb.emit_func_output(out)
    return bb.get()["main"]


op, const = relax.op, relax.const
C3, C6, C1 = const(3.0), const([[[[6.0]]]], "float32"), const([1.0], "float32")
ACTIVATIONS = {
    "relu": lambda y: op.nn.relu(y),
    "relu of maximum": lambda y: op.maximum(y, const(0.0)),
    "clip": lambda y: op.clip(y, -1.5, 2.5),
    "clip of two bounds": lambda y: op.minimum(op.maximum(y, const(-1.5)), const([2.5], "float32")),
    "clip, relu6": lambda y: op.nn.relu6(y),
    "clip, relu first": lambda y: op.minimum(op.nn.relu(y), C6),
    "clip of clips": lambda y: op.clip(op.clip(y, -1.5, float("inf")), float("-inf"), 2.5),
    "relu of clips": lambda y: op.clip(op.clip(y, 0, float("inf")), -1, float("inf")),
    "gelu": lambda y: op.nn.gelu(y),
    "gelu_tanh": lambda y: op.nn.gelu_tanh(y),
    "gelu in parts": lambda y: op.multiply(
        op.multiply(y, const(0.5)), op.add(op.erf(op.divide(y, const(2**0.5))), C1)
    ),
    "silu": lambda y: op.nn.silu(y),
    "silu in parts": lambda y: op.multiply(y, op.sigmoid(y)),
    "sigmoid": lambda y: op.sigmoid(y),
    "tanh": lambda y: op.tanh(y),
    "hardswish": lambda y: op.multiply(y, op.divide(op.clip(op.add(y, C3), 0, 6), C6)),
    "hardswish, product first": lambda y: op.divide(
        op.multiply(y, op.clip(op.add(y, C3), 0, 6)), C6
    ),
    "hardswish, scaled": lambda y: op.multiply(
        op.multiply(op.minimum(op.maximum(op.add(C3, y), const(0.0)), C6), y), const(1 / 6)
    ),
    "hardswish of hardsigmoid": lambda y: op.multiply(
        y, op.clip(op.add(op.multiply(const(0.1666667), y), const(0.5)), 0, 1)
    ),
    "hardsigmoid": lambda y: op.divide(op.clip(op.add(y, C3), 0, 6), C6),
    "hardsigmoid, slope": lambda y: op.clip(
        op.add(op.multiply(const(0.2), y), const(0.5)), 0.0, 1.0
    ),
}


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, fold):
    before = activation(ACTIVATIONS[name])
    report = Report()
    found = calls(converted(module(before), report, fold=fold))
    assert found == ["moonpoly_conv2d_f32"]
    expected = name.split()[0].rstrip(",")
    if fold and expected == "hardsigmoid" and "slope" in name:
        expected = "clip"  # its slope is in the weight
    assert expected in report.rewritten[0].detail.split("fused ")[1].split(" + ")
    check_result(before, tensor(1, 4, 5, 3), fold=fold)


NO_ACTIVATIONS = {
    "clip without a lower bound": (lambda y: op.minimum(y, const(1.0)), ["minimum"]),
    "hardswish with other constants": (
        lambda y: op.multiply(y, op.divide(op.clip(op.add(y, C3), 0, 6), const(5.0))),
        ["add", "clip", "divide", "multiply"],
    ),
    "product of two activations": (
        lambda y: op.multiply(op.nn.relu(y), op.sigmoid(y)),
        ["nn.relu", "sigmoid", "multiply"],
    ),
    "bounds of each channel": (lambda y: op.maximum(y, constant(24)), ["maximum"]),
    "bounds in the wrong order": (
        lambda y: op.minimum(op.maximum(y, const(2.0)), const(1.0)),
        ["maximum", "minimum"],
    ),
}


@pytest.mark.parametrize("name", NO_ACTIVATIONS)
def test_what_is_no_activation_stays(name):
    emit, stay = NO_ACTIVATIONS[name]
    assert check_result(activation(emit), tensor(1, 4, 5, 3)) == ["moonpoly_conv2d_f32", *stay]


# At the call


def test_kernel_larger_than_the_input_raises():
    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        y = R.nn.conv2d(x, weight, padding=[0, 1, 0, 0])
        return y

    vm = compiled(module(before))
    assert run(vm, tensor(0, 3, 3, 2)).shape == (0, 24, 1, 1)
    message = (
        "main: conv2d of x (n, h, w, 3): its height with padding is less than that of the kernel: "
        "h instead of 3;"
    )
    for shape in ((1, 3, 2, 5), (1, 3, 0, 5)):
        with pytest.raises(RuntimeError) as caught:
            run(vm, tensor(*shape))
        assert message in str(caught.value)
    with pytest.raises(RuntimeError, match="its width with padding is less"):
        run(vm, tensor(1, 3, 5, 1))
    assert run(vm, tensor(1, 3, 3, 2)).shape == (1, 24, 1, 1)


def test_float16():
    half, ones = relax.const(W.astype("float16")), relax.const(np.ones((8, 512, 3, 3), "float16"))
    half_bias = relax.const(B.astype("float16").reshape(24, 1, 1))
    sixth = relax.const(np.float16(1 / 6))

    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float16")):
        with R.dataflow():
            y = R.add(R.nn.conv2d(x, half, padding=1), half_bias)
            r = R.clip(R.add(y, R.const(3.0, "float16")), 0, 6)
            z = R.multiply(R.multiply(y, r), sixth)
            R.output(z)
        return z

    assert "moonpoly_conv2d_f16" in check_result(
        before, tensor(2, 3, 4, 5, dtype="float16"), rtol=1e-3, atol=2e-3
    )

    @R.function
    def long_sum(x: R.Tensor(("n", 512, "h", "w"), "float16")):
        y = R.nn.conv2d(x, ones)
        return y

    vm = compiled(module(long_sum))
    assert (run(vm, np.ones((1, 512, 3, 4), "float16")) == 4608).all()


def test_scales_and_shifts_before_a_convolution():
    scale, shift, small = constant(4, 1, 1), constant(4, 1, 1), constant(6, 2, 1, 1)

    @R.function
    def before(x: R.Tensor(("n", 4, "h", "w"), "float32")):
        with R.dataflow():
            a = R.nn.relu(x)
            b = R.multiply(scale, a)
            c = R.add(b, shift)
            y = R.nn.conv2d(c, small, groups=2)
            d = R.subtract(R.const(1.0, "float32"), y)
            z = R.nn.relu(d)
            R.output(z)
        return z

    @R.function
    def padded(x: R.Tensor(("n", 4, "h", "w"), "float32")):
        with R.dataflow():
            a = R.nn.relu(x)
            b = R.multiply(scale, a)
            c = R.add(b, shift)
            d = R.multiply(c, R.const(2.0, "float32"))
            y = R.nn.conv2d(d, small, groups=2, padding=1)
            R.output(y)
        return y

    @R.function
    def padded_before(x: R.Tensor(("n", 4, "h", "w"), "float32")):
        with R.dataflow():
            a = R.nn.pad(R.nn.relu(x), [0, 0, 0, 0, 1, 1, 0, 2])
            c = R.add(a, shift)
            y = R.nn.conv2d(c, small, groups=2)
            R.output(y)
        return y

    assert calls(folded(before)) == ["nn.relu", "nn.conv2d", "add", "nn.relu"]
    assert calls(folded(padded)) == ["nn.relu", "multiply", "add", "nn.conv2d"]
    assert calls(folded(padded_before)) == ["nn.relu", "nn.conv2d", "add"]
    for each in (before, padded, padded_before):
        check_result(each, tensor(2, 4, 5, 6))


def test_an_activation_does_not_lose_its_last_operator_to_the_next_convolution():
    small = constant(6, 24, 1, 1)

    @R.function
    def before(x: R.Tensor(("n", 3, "h", "w"), "float32")):
        with R.dataflow():
            y = R.nn.conv2d(x, weight, padding=1)
            a = R.add(y, bias_first)
            b = R.clip(R.add(a, R.const(3.0, "float32")), 0, 6)
            c = R.divide(R.multiply(a, b), R.const(6.0, "float32"))
            d = R.multiply(c, R.const(1.5, "float32"))
            z = R.nn.conv2d(R.add(d, R.const(0.25, "float32")), small)
            R.output(z)
        return z

    found = check_result(before, tensor(1, 3, 4, 5))
    assert found == ["moonpoly_conv2d_f32", "moonpoly_conv2d_f32", "permute_dims"]
