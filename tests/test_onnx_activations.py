"""Activations and norms with constants, in each type of floats, against ONNX's definitions."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from relax_testing import TARGET
from tvm import relax

import tvm_moonpoly as mp

SCALE = np.linspace(0.5, 2, 7)
TYPES = {
    "float16": (TensorProto.FLOAT16, 4e-3),
    "float32": (TensorProto.FLOAT, 1e-5),
    "float64": (TensorProto.DOUBLE, 1e-12),
}


def neighbours(x, size):
    """The mean of the squares of so many neighbouring channels."""
    before, squares = (size - 1) // 2, np.zeros_like(x)
    for c in range(x.shape[1]):
        squares[:, c] = (x[:, max(0, c - before) : c - before + size] ** 2).sum(1)
    return squares / size


def below(x, alpha):
    return alpha * (np.exp(np.minimum(x, 0)) - 1)


def normalized(x, axes, epsilon):
    rest = x - x.mean(axes, keepdims=True)
    return rest / epsilon(np.mean(rest**2, axes, keepdims=True))


NODES = {
    "elu": (
        helper.make_node("Elu", ["x"], ["y"], alpha=0.5),
        lambda x: np.where(x < 0, below(x, 0.5), x),
    ),
    "celu": (
        helper.make_node("Celu", ["x"], ["y"], alpha=0.5),
        lambda x: np.where(x < 0, below(x / 0.5, 0.5), x),
    ),
    "selu": (
        helper.make_node("Selu", ["x"], ["y"], alpha=1.5, gamma=1.25),
        lambda x: 1.25 * np.where(x < 0, below(x, 1.5), x),
    ),
    "thresholded relu": (
        helper.make_node("ThresholdedRelu", ["x"], ["y"], alpha=0.25),
        lambda x: np.where(x > 0.25, x, 0),
    ),
    "mean and variance": (
        helper.make_node("MeanVarianceNormalization", ["x"], ["y"]),
        lambda x: normalized(x, (0, 2, 3), lambda v: np.sqrt(v) + 1e-9),
    ),
    "neighbouring channels": (
        helper.make_node("LRN", ["x"], ["y"], size=3, alpha=0.5, bias=2.0),
        lambda x: x / (2 + 0.5 * neighbours(x, 3)) ** 0.75,
    ),
    "an even number of channels": (
        helper.make_node("LRN", ["x"], ["y"], size=4, alpha=0.5, beta=0.5),
        lambda x: x / (1 + 0.5 * neighbours(x, 4)) ** 0.5,
    ),
    "layer norm": (
        helper.make_node("LayerNormalization", ["x", "scale"], ["y"], epsilon=0.125),
        lambda x: SCALE * normalized(x, (3,), lambda v: np.sqrt(v + 0.125)),
    ),
    "asinh": (helper.make_node("Asinh", ["x"], ["y"]), np.arcsinh),
    "atan": (helper.make_node("Atan", ["x"], ["y"]), np.arctan),
    "cosh": (helper.make_node("Cosh", ["x"], ["y"]), np.cosh),
    "sinh": (helper.make_node("Sinh", ["x"], ["y"]), np.sinh),
}


def model_of(node, dtype, shape=("n", 5, "h", 7)):
    values = [
        helper.make_tensor_value_info(name, TYPES[dtype][0], list(shape)) for name in ("x", "y")
    ]
    scale = numpy_helper.from_array(SCALE.astype(dtype), "scale")
    graph = helper.make_graph([node], "graph", values[:1], values[1:], [scale])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compiled(model, target=TARGET):
    built = tvm.compile(mp.import_onnx(model), target, relax_pipeline=mp.pipeline(target))
    main = relax.VirtualMachine(built, tvm.cpu())["main"]
    return lambda x: main(tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", NODES)
def test_in_each_type(name, dtype):
    node, reference = NODES[name]
    run = compiled(model_of(node, dtype))
    for shape in ((2, 5, 3, 7), (1, 5, 1, 7)):
        x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
        expected = reference(x.astype("float64"))
        result, within = run(x), TYPES[dtype][1]
        assert result.dtype == x.dtype and result.shape == expected.shape
        np.testing.assert_allclose(result.astype("float64"), expected, rtol=within, atol=within)


@pytest.mark.parametrize("dtype", TYPES)
def test_windows_of_one_row_and_column_on_two_threads(dtype):
    """Once rows are shared among threads, dimensions of one element have no loops."""
    node, reference = NODES["neighbouring channels"]
    two = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    x = np.random.default_rng(2).standard_normal((2, 5, 31, 33)).astype(dtype)
    result = compiled(model_of(node, dtype, ("n", 5, "h", "w")), two)(x)
    within, expected = TYPES[dtype][1], reference(x.astype("float64"))
    np.testing.assert_allclose(result.astype("float64"), expected, rtol=within, atol=within)


@pytest.mark.parametrize("name", ["elu", "celu", "selu", "thresholded relu"])
def test_of_infinities_and_nan(name):
    x = np.float32([np.inf, -np.inf, np.nan, 0.0, 1.0]).reshape(1, 5, 1, 1).repeat(7, 3)
    node, reference = NODES[name]
    result = compiled(model_of(node, "float32"))(x)
    np.testing.assert_allclose(result, reference(x), rtol=1e-6)
