"""What is fused into a linear layer, and what must stay outside."""

import math

import numpy as np
import pytest
import tvm
from relax_testing import check, no_text, packed, padded, run_pass, table, tensor
from tvm import relax
from tvm.relax import op
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_moonpoly.operators import Activation, Chain, Step

W = tensor(8, 24)
B = tensor(24)
weight, bias, row_bias = relax.const(W), relax.const(B), relax.const(B.reshape(1, 1, 24))
unused = relax.const(np.zeros((), np.float32))
p_weight, p_bias, p_zero, p_table = packed(W), padded(B, 24), padded(None, 24), table(24, 8)


def test_bias_on_either_side_and_of_higher_rank():
    @R.function
    def before(x: R.Tensor(("b", "s", 8), "float32")):
        y = R.matmul(x, weight)
        z = R.add(bias, y)
        u = R.matmul(x, weight)
        v = R.add(u, row_bias)
        return (z, v)

    @R.function
    def expected(x: R.Tensor(("b", "s", 8), "float32")):
        b, s = T.int64(), T.int64()
        z = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_bias, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((b, s, 24), "float32"),
        )
        v = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_bias, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((b, s, 24), "float32"),
        )
        return (z, v)

    assert check(before, expected) == ["linear, fused bias"] * 2


def test_bias_residual_relu():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32"), r: R.Tensor(("n", 24), "float32")):
        with R.dataflow():
            y = R.matmul(x, weight)
            z = R.add(y, bias)
            u = R.add(r, z)
            v = R.nn.relu(u)
            R.output(v)
        return v

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32"), r: R.Tensor(("n", 24), "float32")):
        n = T.int64()
        with R.dataflow():
            v = R.call_dps_packed(
                "moonpoly_linear_residual_f32",
                (x, p_weight, p_bias, r, p_table, no_text, R.prim_value(1)),
                out_ty=R.Tensor((n, 24), "float32"),
            )
            R.output(v)
        return v

    assert check(before, expected) == ["linear, fused bias + residual + relu"]


def test_residual_computed_between_the_matmul_and_its_bias():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32"), r: R.Tensor(("n", 24), "float32")):
        y = R.matmul(x, weight)
        e = R.exp(r)
        z = R.add(y, e)
        u = R.add(z, bias)
        return u

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32"), r: R.Tensor(("n", 24), "float32")):
        n = T.int64()
        e = R.exp(r)
        u = R.call_dps_packed(
            "moonpoly_linear_residual_f32",
            (x, p_weight, p_bias, e, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        return u

    assert check(before, expected) == ["linear, fused residual + bias"]


def test_residual_after_the_activation():
    program = Chain(((Activation.GELU, None), (Step.ADD, 0))).encode()

    @R.function
    def before(x: R.Tensor(("n", 8), "float32"), r: R.Tensor(("n", 24), "float32")):
        y = R.matmul(x, weight)
        z = R.nn.gelu(y)
        u = R.add(z, r)
        return u

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32"), r: R.Tensor(("n", 24), "float32")):
        n = T.int64()
        u = R.call_dps_packed(
            "moonpoly_linear_chain_f32",
            (x, p_weight, p_zero, p_table, no_text, R.prim_value(program), r, unused, unused),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        return u

    assert check(before, expected) == ["linear, fused gelu + residual"]


def chain_of(build, *shapes, rows=(3, "n")):
    """The call and the detail of the report for `build(x @ W, *others)`, x of shape (*rows, 8)."""
    symbols = {name: tvm.tirx.Var(name, "int64") for name in "nm"}

    def variable(name, shape):
        dims = [symbols.get(dim, dim) for dim in shape]
        return relax.Var(name, relax.TensorType(dims, "float32"))

    x = variable("x", (*rows, 8))
    others = [variable(f"other{i}", shape) for i, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *others]):
        y = builder.emit(op.matmul(x, weight))
        builder.emit_func_output(builder.emit(build(y, *others)))
    after, report = run_pass(builder.get())
    (entry,) = report
    return [binding.value for binding in after["main"].body.blocks[0].bindings], entry.detail


def steps(call):
    """The chain in a call."""
    (program,) = [int(arg) for arg in call.args[1] if isinstance(arg, tvm.tirx.IntImm)]
    return Chain.decode(program).steps


@pytest.mark.parametrize(
    ("shape", "name"),
    [((1, 24), "bias"), (("n", 24), "add"), ((1,), "add"), ((3, 1, 24), "add"), ((), "add")],
)
def test_addend_that_broadcasts(shape, name):
    (call,), detail = chain_of(op.add, shape)
    assert call.args[0].global_symbol == "moonpoly_linear_chain_f32"
    assert steps(call) == ((Step.ADD, 0),)
    assert detail == f"linear, fused {name}"


def test_bias_that_is_a_variable_and_fills_its_panels():
    (call,), detail = chain_of(op.add, (24,))
    assert call.args[0].global_symbol == "moonpoly_linear_f32"
    assert call.args[1][2].name == "other0"
    assert detail == "linear, fused bias"


def test_addend_of_unknown_relation_stays_outside():
    values, detail = chain_of(op.add, ("m", 24))
    assert values[-1].op.name == "relax.add" and detail == "linear"


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda y, e: op.subtract(y, e), ((Step.SUBTRACT, 0),)),
        (lambda y, e: op.subtract(e, y), ((Step.REVERSE_SUBTRACT, 0),)),
        (lambda y, e: op.multiply(e, y), ((Step.MULTIPLY, 0),)),
        (lambda y, e: op.divide(y, e), ((Step.DIVIDE, 0),)),
        (lambda y, e: op.maximum(y, e), ((Step.MAXIMUM, 0),)),
        (lambda y, e: op.minimum(e, y), ((Step.MINIMUM, 0),)),
    ],
)
def test_arithmetic(build, expected):
    (call,), _ = chain_of(build, (1, 24))
    assert steps(call) == expected


def test_clip():
    (call,), detail = chain_of(lambda y: op.clip(y, 0, 6))
    assert call.args[0].global_symbol == "moonpoly_linear_f32"
    assert int(call.args[1][-1]) == Activation.RELU6 and detail == "linear, fused relu6"
    (call,), _ = chain_of(lambda y: op.clip(y, -1, 3))
    assert steps(call) == ((Step.MAXIMUM, 0), (Step.MINIMUM, 1))


def test_what_a_chain_cannot_hold_stays_outside():
    values, detail = chain_of(lambda y, e: op.divide(e, y), (1, 24))
    assert len(values) == 2 and detail == "linear"
    long = lambda y: op.tanh(long_chain(y, op.tanh, 7))  # noqa: E731
    values, detail = chain_of(long)
    assert len(values) == 2 and detail == "linear, fused " + " + ".join(["tanh"] * 7)
    wide = lambda y, e: long_chain(y, lambda v: op.subtract(v, e), 4)  # noqa: E731
    values, detail = chain_of(wide, (1, 24))
    assert len(values) == 2 and detail == "linear, fused " + " + ".join(["subtract"] * 3)


def long_chain(value, step, times):
    for _ in range(times):
        value = step(value)
    return value


def test_two_linear_layers_added_to_each_other():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        y = R.matmul(x, weight)
        z = R.matmul(x, weight)
        b = R.add(z, bias)
        u = R.add(y, b)
        return u

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        b = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_bias, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        u = R.call_dps_packed(
            "moonpoly_linear_residual_f32",
            (x, p_weight, p_zero, b, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        return u

    check(before, expected)


def test_intermediate_used_twice():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        y = R.matmul(x, weight)
        z = R.add(y, bias)
        u = R.nn.relu(z)
        v = R.exp(z)
        return (u, v)

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        z = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_bias, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        u = R.nn.relu(z)
        v = R.exp(z)
        return (u, v)

    check(before, expected)


def test_doubled_product_is_not_its_own_residual():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        y = R.matmul(x, weight)
        z = R.add(y, y)
        return z

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        z = R.add(y, y)
        return z

    check(before, expected)


def test_intermediate_that_is_an_output():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        with R.dataflow():
            y = R.matmul(x, weight)
            z = R.add(y, bias)
            R.output(y, z)
        return (y, z)

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        with R.dataflow():
            y = R.call_dps_packed(
                "moonpoly_linear_f32",
                (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
                out_ty=R.Tensor((n, 24), "float32"),
            )
            z = R.add(y, bias)
            R.output(y, z)
        return (y, z)

    check(before, expected)


def test_epilogue_in_another_block_stays_outside():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        with R.dataflow():
            e = R.exp(x)
            y = R.matmul(e, weight)
            R.output(y)
        z = R.add(y, bias)
        return z

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        with R.dataflow():
            e = R.exp(x)
            y = R.call_dps_packed(
                "moonpoly_linear_f32",
                (e, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
                out_ty=R.Tensor((n, 24), "float32"),
            )
            R.output(y)
        z = R.add(y, bias)
        return z

    check(before, expected)


def c(value, shape=()):
    return relax.const(np.full(shape, value, "float32"))


ROOT, GELU, TANH, SILU = math.sqrt(2), Activation.GELU, Activation.GELU_TANH, Activation.SILU
SCALE, CUBE = math.sqrt(2 / math.pi), 0.044715


FORMS = {
    "relu": (Activation.RELU, op.nn.relu),
    "gelu": (GELU, op.nn.gelu),
    "gelu_tanh": (TANH, op.nn.gelu_tanh),
    "silu": (SILU, op.nn.silu),
    "silu, spelled out": (SILU, lambda x: op.multiply(x, op.sigmoid(x))),
    "silu, swapped": (SILU, lambda x: op.multiply(op.sigmoid(x), x)),
    "gelu, x * (1 + erf) * half": (
        GELU,
        lambda x: op.multiply(
            op.multiply(x, op.add(op.erf(op.divide(x, c(ROOT))), c(1, (1,)))), c(0.5)
        ),
    ),
    "gelu, (x * half) * (1 + erf)": (
        GELU,
        lambda x: op.multiply(
            op.multiply(x, c(0.5, (1,))), op.add(c(1), op.erf(op.divide(x, c(ROOT, (1,)))))
        ),
    ),
    "gelu, x * (half * (erf + 1)), scaled by a product": (
        GELU,
        lambda x: op.multiply(
            op.multiply(c(0.5), op.add(op.erf(op.multiply(c(1 / ROOT), x)), c(1))), x
        ),
    ),
    "gelu, half + erf / 2": (
        GELU,
        lambda x: op.multiply(
            x, op.add(c(0.5), op.divide(op.erf(op.divide(x, c(ROOT))), c(2, (1, 1))))
        ),
    ),
    "gelu_tanh, cube by power": (
        TANH,
        lambda x: op.multiply(
            op.multiply(c(0.5), x),
            op.add(
                c(1),
                op.tanh(op.multiply(c(SCALE), op.add(x, op.multiply(c(CUBE), op.power(x, c(3)))))),
            ),
        ),
    ),
    "gelu_tanh, cube by products": (
        TANH,
        lambda x: op.multiply(
            op.multiply(
                x,
                op.add(
                    op.tanh(
                        op.multiply(
                            op.multiply(x, c(SCALE)),
                            op.add(op.multiply(op.multiply(x, x), c(CUBE)), c(1)),
                        )
                    ),
                    c(1),
                ),
            ),
            c(0.5),
        ),
    ),
}

NEAR_MISSES = {
    "quick gelu": lambda x: op.multiply(x, op.sigmoid(op.multiply(x, c(1.702)))),
    "gelu without the half": lambda x: op.multiply(x, op.add(op.erf(op.divide(x, c(ROOT))), c(1))),
    "gelu with another scale": lambda x: op.multiply(
        op.multiply(x, c(0.5)), op.add(op.erf(op.divide(x, c(1.5))), c(1))
    ),
    "constant of higher rank": lambda x: op.multiply(
        op.multiply(x, c(0.5, (1, 1, 1, 1))), op.add(op.erf(op.divide(x, c(ROOT))), c(1))
    ),
    "reciprocal": lambda x: op.divide(c(1), x),
    "cube": lambda x: op.multiply(op.multiply(x, x), x),
    "many squares": lambda x: square_often(op.power(x, c(1)), 8),
}


def square_often(x, times):
    for _ in range(times):
        x = op.power(x, c(2))
    return x


def build(activation, fused):
    """`activation(x @ W + B)` and a use of it."""
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 5, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            if fused is None:
                y = builder.emit(op.add(builder.emit(op.matmul(x, weight)), bias))
                z = builder.emit(activation(y))
            else:
                args = [x, p_weight, p_bias, p_table, no_text, relax.prim_value(int(fused))]
                ty = relax.TensorType((x.ty.shape.values[0], 5, 24), "float32")
                z = builder.emit(relax.call_dps_packed("moonpoly_linear_f32", args, ty))
                z = z if activation is None else builder.emit(activation(z))
            out = builder.emit_output(op.exp(z))
        builder.emit_func_output(out)
    return builder.get()["main"]


@pytest.mark.parametrize("name", FORMS)
def test_activation(name):
    kind, form = FORMS[name]
    (detail,) = check(build(form, None), build(None, kind))
    assert detail == f"linear, fused bias + {kind.name.lower()}"


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_only_looks_like_an_activation_stays(name):
    form = NEAR_MISSES[name]
    check(build(form, None), build(form, Activation.NONE))


def test_inside_of_an_activation_used_elsewhere_stays():
    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        y = R.matmul(x, weight)
        s = R.sigmoid(y)
        z = R.multiply(y, s)
        return (z, s)

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        y = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, p_weight, p_zero, p_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 24), "float32"),
        )
        s = R.sigmoid(y)
        z = R.multiply(y, s)
        return (z, s)

    check(before, expected)


def test_scalar_bias_of_a_layer_with_one_output():
    one = tensor(8, 1)
    one_weight, one_bias = relax.const(one), relax.const(np.float32([3]))
    one_packed, one_padded, one_table = packed(one), padded(np.float32([3]), 1), table(1, 8)

    @R.function
    def before(x: R.Tensor(("n", 8), "float32")):
        y = R.matmul(x, one_weight)
        z = R.add(y, one_bias)
        return z

    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        z = R.call_dps_packed(
            "moonpoly_linear_f32",
            (x, one_packed, one_padded, one_table, no_text, R.prim_value(0)),
            out_ty=R.Tensor((n, 1), "float32"),
        )
        return z

    check(before, expected)
