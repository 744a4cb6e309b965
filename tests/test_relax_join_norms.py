"""Layer norms that a graph spells out: one function each, exact also where the mean is large."""

import numpy as np
import pytest
import tvm
from relax_testing import TARGET, tensor
from tvm import relax, tirx
from tvm.relax import op

from relax_passes import pipeline
from relax_passes.join_norms import JoinNorms

M, N = (tirx.Var(name, "int64") for name in "mn")
EPSILON = np.float32(1e-5)


def norm(x, power, axis, affine):
    deviation = op.subtract(x, op.mean(x, [axis], keepdims=True))
    square = op.multiply(deviation, deviation)
    if power is not None:
        square = op.power(deviation, relax.const(np.float32(power)))
    variance = op.add(op.mean(square, [axis], keepdims=True), relax.const(EPSILON))
    result = op.divide(deviation, op.sqrt(variance))
    if affine:
        result = op.add(op.multiply(result, relax.const(tensor(1))), relax.const(tensor(1)))
    return result


def module_of(*args):
    x = relax.Var("x", relax.TensorType((M, N), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(norm(x, *args)))
        builder.emit_func_output(result)
    return builder.get()


def functions(mod):
    with TARGET:
        legal = relax.get_pipeline("zero")(mod)
    return sum(isinstance(each, tirx.PrimFunc) for each in legal.functions.values())


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("power", [None, 2])
def test_one_function(power, affine):
    mod = module_of(power, -1, affine)
    assert functions(mod) > 1
    assert functions(JoinNorms(TARGET)(mod)) == 1
    executable = tvm.compile(mod, TARGET, relax_pipeline=pipeline(TARGET))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    for shape in ((0, 3), (1, 1), (5, 16), (3, 37), (2, 385)):
        x = tensor(*shape) + 1000
        wide = x.astype("float64")
        deviation = wide - wide.mean(-1, keepdims=True)
        expected = deviation / np.sqrt((deviation**2).mean(-1, keepdims=True) + EPSILON)
        if affine:
            expected = expected * tensor(1) + tensor(1)
        result = main(tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(result, expected, atol=2e-3)  # the mean itself is rounded


def test_nan_stays_in_its_row():
    executable = tvm.compile(module_of(2, -1, True), TARGET, relax_pipeline=pipeline(TARGET))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    x = tensor(4, 40)
    x[1, 3] = np.nan
    result = main(tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(np.isnan(result).all(1), [False, True, False, False])
    assert np.isfinite(result[[0, 2, 3]]).all()


@pytest.mark.parametrize("args", [(None, 0, True), (3, -1, True)])
def test_others_stay(args):
    """Means over columns, and other powers."""
    mod = module_of(*args)
    assert functions(JoinNorms(TARGET)(mod)) == functions(mod)


def test_other_targets_stay():
    mod = module_of(2, -1, True)
    assert JoinNorms(tvm.target.Target("nvidia/nvidia-a100"))(mod).same_as(mod)
