"""Conversions of operators that TVM's importer cannot import with symbolic shapes, or loses them.

Each takes the importer, the node and its attributes, and returns the result: an expression or known
sizes, a tuple for several outputs, or None to leave the node to TVM's importer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import importer
from . import activations, broadcasting, elementwise, layout, padding, resize, shape

BROADCAST = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Sum", "Mean", "Where", "PRelu"),
    *("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor"),
)

FUNCTIONS_OF_FLOATS = ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Cosh", "Sinh")

CONVERSIONS: Mapping[str, Callable[[importer.Importer, Any, Mapping[str, Any]], Any]] = {
    "Shape": shape.shape,
    "Size": shape.size,
    "Reshape": shape.reshape,
    "Squeeze": shape.squeeze,
    "Expand": shape.expand,
    "ConstantOfShape": shape.constant_of_shape,
    "Range": shape.value_range,
    "Tile": layout.tile,
    "Slice": layout.strided_slice,
    "Split": layout.split,
    "Pad": padding.pad,
    "Conv": padding.convolution,
    "ConvTranspose": padding.transposed_convolution,
    "MaxPool": padding.max_pool,
    "AveragePool": padding.average_pool,
    "Resize": resize.resize,
    "Upsample": resize.resize,
    **dict.fromkeys(BROADCAST, broadcasting.elementwise),
    "Pow": elementwise.power,
    "Max": elementwise.extreme,
    "Min": elementwise.extreme,
    "MatMul": broadcasting.product,
    "Concat": broadcasting.concatenation,
    "Clip": elementwise.clip,
    "Elu": activations.elu,
    "Selu": activations.selu,
    "Celu": activations.celu,
    "ThresholdedRelu": activations.thresholded_relu,
    "MeanVarianceNormalization": activations.mean_variance_normalization,
    "LayerNormalization": activations.layer_normalization,
    **dict.fromkeys(FUNCTIONS_OF_FLOATS, activations.in_float32),
    "LRN": activations.local_response_normalization,
    "Dropout": elementwise.dropout,
}
