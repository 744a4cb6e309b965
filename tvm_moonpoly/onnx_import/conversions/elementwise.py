"""Elementwise operators that TVM's importer hides from passes, or does not leave out."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import Expr

from ..errors import Unsupported
from . import broadcasting
from .operands import has, known_operand

if TYPE_CHECKING:
    from ..importer import Importer


def clip(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Expr | None:
    """Between constant bounds: two operators, where TVM's importer calls loops of its own."""
    data = importer.tensor(node.input[0])
    dtype = str(data.ty.dtype)
    bounds: list[Any] = [attributes.get("min"), attributes.get("max")]
    for at in (1, 2):
        if has(node, at):
            constant = importer.tensor(node.input[at])
            if not isinstance(constant, GenericConst) or constant.value.numpy().size != 1:
                return None
            bounds[at - 1] = constant.value.numpy().item()
    low, high = (None if bound is None or bound != bound else bound for bound in bounds)
    if low is not None and low != -np.inf:
        data = importer.emit(relax.op.maximum(data, relax.const(low, dtype)))
    if high is not None and high != np.inf:
        data = relax.op.minimum(data, relax.const(high, dtype))
    return data


def extreme(importer: Importer, node: onnx.NodeProto, _attributes: Mapping[str, Any]) -> Expr:
    """Max or Min: operators of two operands, which pass NaN on and become part of what is before
    them, where TVM's importer stacks the operands and reduces them."""
    of_two = relax.op.maximum if node.op_type == "Max" else relax.op.minimum
    checked = broadcasting.agreeing(importer, node)
    operands = [checked.get(at, importer.tensor(name)) for at, name in enumerate(node.input)]
    return functools.reduce(lambda first, second: importer.emit(of_two(first, second)), operands)


def dropout(
    importer: Importer, node: onnx.NodeProto, _attributes: Mapping[str, Any]
) -> Expr | tuple[Expr, ...] | None:
    """Nothing, when the model is not being trained."""
    training = known_operand(importer, node, 2)
    if has(node, 2) and (training is None or training.elements != [False]):
        raise Unsupported("it may be in training mode")
    data = importer.tensor(node.input[0])
    if len(node.output) == 1:
        return data
    return data, relax.op.ones_like(data, "bool")


def power(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Expr | None:
    """With an exponent of another type: of the type of the base, or in float64 for integers."""
    base, exponent = (importer.tensor(name) for name in node.input)
    dtype = str(base.ty.dtype)
    if dtype == str(exponent.ty.dtype) and "float" in dtype:
        return broadcasting.elementwise(importer, node, attributes)
    inner = dtype if "float" in dtype else "float64"
    operands = {
        at: each if str(each.ty.dtype) == inner else importer.emit(relax.op.astype(each, inner))
        for at, each in enumerate((base, exponent))
    }
    result = importer.convert_with(node, operands, {})
    return result if inner == dtype else relax.op.astype(importer.emit(result), dtype)
