"""The pass CheckOperands: a weight that does not fit its operand raises at the call."""

import numpy as np
import pytest
import tvm
from graph_testing import ours, plain, run
from relax_testing import tensor
from tvm import relax, tirx
from tvm.relax.op import nn

from relax_passes import CheckOperands
from relax_passes.check_operands import MATMUL

SIZES = {"n": 2, "h": 5, "w": 6, "d": 3}
RANDOM = np.random.default_rng(5)


def weight(*shape):
    return relax.const(np.abs(RANDOM.standard_normal(shape)).astype(np.float32))


def built(axes, operator, dtype="float32", **fixed):
    """A function that adds the result of an operator on x to itself; `axes` are the names of
    its dimensions, symbolic but for those that are `fixed`."""
    shape = [fixed.get(name) or tirx.Var(name, "int64") for name in axes]
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(operator(x))
            if isinstance(y.ty, relax.TupleType):
                y = builder.emit(relax.TupleGetItem(y, 0))
            y = builder.emit_output(relax.op.add(y, y))
        builder.emit_func_output(y)
    return builder.get()


def changed(mod, *arguments):
    relax.analysis.well_formed(mod)
    after = CheckOperands(*arguments)(mod)
    relax.analysis.well_formed(after)
    return not after.same_as(mod)


CONV2D, CONV1D, CONV3D = weight(8, 4, 3, 3), weight(8, 4, 3), weight(8, 4, 3, 3, 3)
HWIO, GROUPS = weight(3, 3, 4, 8), weight(8, 2, 3, 3)
TRANSPOSED, TRANSPOSED_1D, FOUR = weight(4, 8, 3, 3), weight(4, 8, 3), weight(4)
CASES = {
    "conv2d": ("nchw", lambda x: nn.conv2d(x, CONV2D, padding=1)),
    "conv2d_nhwc": (
        "nhwc",
        lambda x: nn.conv2d(x, HWIO, padding=1, data_layout="NHWC", kernel_layout="HWIO"),
    ),
    "conv2d_groups": ("nchw", lambda x: nn.conv2d(x, GROUPS, groups=2)),
    "conv1d": ("nch", lambda x: nn.conv1d(x, CONV1D)),
    "conv3d": ("nchwd", lambda x: nn.conv3d(x, CONV3D)),
    "conv2d_transpose": ("nchw", lambda x: nn.conv2d_transpose(x, TRANSPOSED)),
    "conv1d_transpose": ("nch", lambda x: nn.conv1d_transpose(x, TRANSPOSED_1D)),
    "batch_norm": ("nchw", lambda x: nn.batch_norm(x, FOUR, FOUR, FOUR, FOUR, 1, training=False)),
    "layer_norm": ("nc", lambda x: nn.layer_norm(x, FOUR, FOUR, -1)),
    "rms_norm": ("nhc", lambda x: nn.rms_norm(x, FOUR, -1)),
}


@pytest.mark.parametrize("case", CASES)
def test_other_channels_raise(case):
    axes, operator = CASES[case]
    mod = built(axes, operator)
    assert changed(mod)
    vm, report = ours(mod)
    # knowing its channels, a convolution is ours
    assert not [entry.detail for entry in report.left]
    x = tensor(*({**SIZES, "c": 4}[name] for name in axes))
    (wanted,) = run(plain(built(axes, operator, c=4)), [x])
    (found,) = run(vm, [x])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    name = case.removesuffix("_nhwc").removesuffix("_groups")
    for c in (0, 1, 3, 5, 6, 8):
        x = tensor(*({**SIZES, "c": c}[name] for name in axes))
        with pytest.raises(RuntimeError, match=rf"^main: {name} \(n, .*fit; {c} instead of 4$"):
            run(vm, [x])


def test_fixed_channels_are_left():
    for axes, operator in CASES.values():
        assert not changed(built(axes, operator, c=4))


@pytest.mark.parametrize("operator", ["conv2d", "layer_norm"])
def test_without_the_pass_nothing_is_checked(operator):
    mod = built(*CASES[operator])
    after = CheckOperands([MATMUL])(mod)
    assert after.same_as(mod)


def test_channels_that_are_a_sum():
    """What is known of the sum of a concat is only that it must be 4."""
    n, a, b = (tirx.Var(name, "int64") for name in ("n", "a", "b"))
    params = [relax.Var(name, relax.TensorType([n, c, 5, 6], "float32"))
              for name, c in (("x", a), ("y", b))]  # fmt: skip
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            both = builder.emit(relax.op.concat(params, 1))
            out = builder.emit_output(nn.conv2d(both, CONV2D))
        builder.emit_func_output(out)
    vm, report = ours(builder.get())
    assert len(report.rewritten) == 1
    x, y = tensor(2, 1, 5, 6), tensor(2, 3, 5, 6)
    (wanted,) = run(
        plain(built("nchw", lambda x: nn.conv2d(x, CONV2D), c=4)), [np.concatenate([x, y], 1)]
    )
    np.testing.assert_allclose(run(vm, [x, y])[0] * 2, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match=r"^main: conv2d .*do not fit; 6 instead of 4$"):
        run(vm, [y, y])


def test_products_that_are_not_ours():
    """float64 products are TVM's: (n, k) by a matrix of 4 rows."""
    b = relax.const(RANDOM.standard_normal((4, 8)), "float64")
    mod = built("nk", lambda x: relax.op.matmul(x, b), "float64")
    assert changed(mod, [MATMUL]) and not changed(mod)
    vm = relax.VirtualMachine(
        tvm.compile(tvm.transform.Sequential([CheckOperands([MATMUL])])(mod), "llvm"), tvm.cpu()
    )
    x = RANDOM.standard_normal((3, 4))
    np.testing.assert_allclose(run(vm, [x])[0], 2 * x @ b.value.numpy(), rtol=1e-12)
    for k in (0, 3, 5):
        with pytest.raises(RuntimeError, match=rf"\({k} vs\. 4\) : main: matmul .*do not fit"):
            run(vm, [RANDOM.standard_normal((3, k))])
