"""Activations and norms whose constants TVM's importer makes in float32 alone, for all floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnx
from tvm import relax
from tvm.relax import Expr

from ..errors import Unsupported
from .operands import axis_of, data_and_shape, has

if TYPE_CHECKING:
    from ..importer import Importer

NARROW = ("float16", "bfloat16")
STD_EPSILON = 1e-9  # of MeanVarianceNormalization, as ONNX defines it
# The parameters of Selu, where a node has none.
SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def elu(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Expr:
    """x, and alpha * (exp(x) - 1) below 0."""
    data = importer.tensor(node.input[0])
    return _elu(data, attributes.get("alpha", 1.0), data)


def selu(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Expr:
    """gamma * x, and gamma * alpha * (exp(x) - 1) below 0."""
    data = importer.tensor(node.input[0])
    value = importer.emit(_elu(data, attributes.get("alpha", SELU_ALPHA), data))
    return _number(attributes.get("gamma", SELU_GAMMA), data) * value


def _elu(data: Expr, alpha: float, exponent: Expr) -> Expr:
    """The data, and alpha * (exp(exponent) - 1) where that is negative."""
    below = relax.op.nn.relu(_number(1.0, data) - relax.op.exp(exponent))
    return _number(-alpha, data) * below + relax.op.nn.relu(data)


def celu(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Expr:
    """x, and alpha * (exp(x / alpha) - 1) below 0."""
    data, alpha = importer.tensor(node.input[0]), float(attributes.get("alpha", 1.0))
    return _elu(data, alpha, importer.emit(data * _number(1.0 / alpha, data)))


def in_float32(
    importer: Importer, node: onnx.NodeProto, _attributes: Mapping[str, Any]
) -> Expr | None:
    """Of float16, for which LLVM has no such function: computed in float32."""
    data = importer.tensor(node.input[0])
    if str(data.ty.dtype) not in NARROW:
        return None
    return _in_float32(importer, data, lambda wide: importer.convert_with(node, {0: wide}, {}))


def layer_normalization(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr | None:
    """In float64, which TVM's own operator does not take; None for the other types."""
    data, shape = data_and_shape(importer, node)
    if str(data.ty.dtype) != "float64" or len(node.output) != 1:
        return None
    axis = axis_of(int(attributes.get("axis", -1)), len(shape))
    axes = list(range(axis, len(shape)))
    mean = relax.op.mean(data, axes, keepdims=True)
    rest = importer.emit(data - mean)
    variance = importer.emit(relax.op.mean(rest * rest, axes, keepdims=True))
    epsilon = _number(attributes.get("epsilon", 1e-5), data)
    result = rest / relax.op.sqrt(variance + epsilon) * importer.tensor(node.input[1])
    return result + importer.tensor(node.input[2]) if has(node, 2) else result


def thresholded_relu(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr:
    """x where it is above alpha, else 0: also of an infinity or NaN, which a product would keep."""
    data = importer.tensor(node.input[0])
    above = relax.op.greater(data, _number(attributes.get("alpha", 1.0), data))
    return relax.op.where(above, data, _number(0.0, data))


def mean_variance_normalization(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr:
    """(x - mean) / (std + 1e-9) over some axes, the variance being that of the differences."""
    axes = [int(axis) for axis in attributes.get("axes", (0, 2, 3))]

    def normalized(data: Expr) -> Expr:
        mean = relax.op.mean(data, axes, keepdims=True)
        rest = importer.emit(data - mean)
        variance = relax.op.mean(rest * rest, axes, keepdims=True)
        return rest / (relax.op.sqrt(variance) + _number(STD_EPSILON, data))

    return _in_float32(importer, importer.tensor(node.input[0]), normalized)


def local_response_normalization(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr:
    """x / (bias + alpha * the mean of the squares of neighbouring channels) ** beta."""
    data, shape = data_and_shape(importer, node)
    if len(shape) not in (3, 4):
        raise Unsupported(f"it has {len(shape)} dimensions: 3 and 4 are supported")
    size, rest = int(attributes["size"]), [0] * (len(shape) - 2)
    window, before = [size, *(1 for _ in rest)], (size - 1) // 2
    pads = [before, *rest, size - 1 - before, *rest]
    pool, layout = (
        (relax.op.nn.avg_pool2d, "NCHW") if len(shape) == 3 else (relax.op.nn.avg_pool3d, "NCDHW")
    )
    alpha, beta, bias = (
        attributes.get(name, usual)
        for name, usual in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )

    def normalized(data: Expr) -> Expr:
        squares = relax.op.expand_dims(data * data, 1)
        means = pool(
            importer.emit(squares),
            window,
            padding=pads,
            count_include_pad=True,
            layout=layout,
        )
        scale = relax.op.squeeze(means, [1]) * _number(alpha, data) + _number(bias, data)
        return data / relax.op.power(scale, _number(beta, data))

    return _in_float32(importer, data, normalized)


def _in_float32(importer: Importer, data: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of the data, which has at least the precision of float32."""
    dtype = str(data.ty.dtype)
    if dtype not in NARROW:
        return body(data)
    wide = importer.emit(relax.op.astype(data, "float32"))
    return relax.op.astype(importer.emit(body(wide)), dtype)


def _number(value: float, data: Expr) -> Expr:
    """A constant of the type of the data."""
    return relax.const(value, str(data.ty.dtype))
