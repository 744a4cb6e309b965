"""Nodes whose operands are constants, computed by ONNX's reference implementation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

#: Not computed: random ones, those whose result is larger than what they are made from, and
#: quantized weights, which would grow to four times their size.
NEVER = frozenset(
    [
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"),
        *("Multinomial", "Dropout", "ConstantOfShape", "Expand", "Tile", "Range", "EyeLike"),
        *("OneHot", "DequantizeLinear", "QuantizeLinear", "If", "Loop", "Scan"),
    ]
)
#: Unless the result is small.
SMALL = 1 << 16
#: The reference computes these by loops in Python.
SLOW = frozenset(["Conv", "ConvTranspose", "MatMul", "Gemm", "Resize", "MaxPool", "AveragePool"])


def compute(
    node: onnx.NodeProto, operands: Sequence[np.ndarray | None], opset: int
) -> list[np.ndarray] | None:
    """The results of `node`, or None where they are better computed at run time."""
    if not operands or any(
        value is not None and value.dtype.kind not in "iufb" for value in operands
    ):
        return None
    if node.op_type in NEVER and not _is_small(node, operands):
        return None
    size = max(value.size for value in operands if value is not None)
    if node.op_type in SLOW and size > SMALL:
        return None
    names = [name or "" for name in node.input]
    values = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape)
        )
        for name, value in dict(zip(names, operands, strict=True)).items()
        if value is not None
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "one", values, outputs)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10
    )
    try:
        found = ReferenceEvaluator(model).run(
            None, {name: value for name, value in zip(names, operands, strict=True) if name}
        )
    except Exception:  # what the reference does not know is TVM's to convert, or to refuse
        return None
    results = iter(found)
    arrays = [np.asarray(next(results)) if name else np.empty(0) for name in node.output]
    return arrays if all(array.dtype.kind in "iufb" for array in arrays) else None


def _is_small(node: onnx.NodeProto, operands: Sequence[np.ndarray | None]) -> bool:
    """Whether a shape, a number of repetitions or a range is small."""
    if node.op_type in ("ConstantOfShape", "Expand", "Tile"):
        shape = operands[-1]
        base = (
            operands[0].size if node.op_type != "ConstantOfShape" and operands[0] is not None else 1
        )
        return shape is not None and base * math.prod(int(size) for size in shape.ravel()) <= SMALL
    if node.op_type == "Range":
        start, limit, delta = (float(np.asarray(value).ravel()[0]) for value in operands)
        return delta != 0 and (limit - start) / delta <= SMALL
    return False
