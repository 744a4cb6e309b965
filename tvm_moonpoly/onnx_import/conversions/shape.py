"""Shapes, and the operators that take one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax
from tvm.relax import Expr

from ..errors import Unsupported
from ..known import MOST_ELEMENTS, Known
from ..materialize import materialized
from ..symbolic import Size, Sizes, constant, expression
from .operands import axis_of, data_and_shape, known_operand, sizes_operand

if TYPE_CHECKING:
    from ..importer import Importer


def shape(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Known | None:
    """The sizes of a tensor, from `start` to `end` (opset 15)."""
    value = importer.known_value(node.input[0])
    if value is not None:
        sizes: list[Size] | None = list(value.array.shape)
    else:
        sizes = importer.shape(importer.tensor(node.input[0]))
    if sizes is None:
        return None
    return Known.of(sizes[attributes.get("start", 0) : attributes.get("end")])


def size(importer: Importer, node: onnx.NodeProto, _attributes: Mapping[str, Any]) -> Known | None:
    """The number of elements of a tensor."""
    sizes = importer.shape(importer.tensor(node.input[0]))
    if sizes is None:
        return None
    return Known(Known.of([importer.sizes.product(sizes)]).array.reshape(()), "int64")


def reshape(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Expr | None:
    """To a shape whose 0 keeps a size and whose -1 is what remains."""
    target = sizes_operand(importer, node, 1, "shape")
    data = importer.tensor(node.input[0])
    before = importer.shape(data)
    if before is None:
        return None
    after = reshaped(importer.sizes, before, target, bool(attributes.get("allowzero", 0)))
    if any(isinstance(each, int) and each == 0 for each in after):
        # TVM divides by the sizes; there is nothing to keep
        return relax.op.zeros(_vector(after), data.ty.dtype)
    return relax.op.reshape(data, _vector(after))


def reshaped(
    sizes: Sizes, before: Sequence[Size], target: Sequence[Size], allow_zero: bool = False
) -> list[Size]:
    """The shape that ONNX's Reshape makes of `before`. Raises Unsupported where there is none."""
    after = list(target)
    if not allow_zero:
        for axis, each in enumerate(after):
            if isinstance(each, int) and each == 0:
                if axis >= len(before):
                    raise Unsupported(f"its shape keeps dimension {axis}, which is not there")
                after[axis] = before[axis]
    rest = [axis for axis, each in enumerate(after) if isinstance(each, int) and each == -1]
    if len(rest) > 1:
        raise Unsupported("its shape has more than one -1")
    if rest:
        others = [each for axis, each in enumerate(after) if axis != rest[0]]
        if any(isinstance(each, int) and each == 0 for each in others):
            raise Unsupported("its shape has a -1 beside a size of 0")
        after[rest[0]] = sizes.quotient_of_products(before, others)
    return after


def squeeze(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Expr | None:
    """Without dimensions of size 1, which TVM's importer wants to see proved."""
    data = importer.tensor(node.input[0])
    before = importer.shape(data)
    axes = _axes(importer, node, attributes)
    if before is None or axes is None:
        return None
    gone = {axis_of(axis, len(before)) for axis in axes}
    if all(isinstance(before[axis], int) for axis in gone):
        return None
    return relax.op.reshape(data, _vector([s for axis, s in enumerate(before) if axis not in gone]))


def _axes(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> list[int] | None:
    if "axes" in attributes:
        return list(attributes["axes"])
    found = known_operand(importer, node, 1)
    return found.elements if found is not None and found.is_constant else None


def expand(importer: Importer, node: onnx.NodeProto, _attributes: Mapping[str, Any]) -> Expr | None:
    """Broadcast with a shape: each size is that of the operand where the shape has a 1."""
    if known_operand(importer, node, 1) is None:
        return None
    target = sizes_operand(importer, node, 1, "shape")
    data, before = data_and_shape(importer, node)
    after = broadcast(importer.sizes, before, target)
    if len(after) == len(before) and all(
        importer.sizes.compare(a, b) for a, b in zip(before, after, strict=True)
    ):
        return data
    return relax.op.broadcast_to(data, _vector(after))


def broadcast(sizes: Sizes, a: Sequence[Size], b: Sequence[Size]) -> list[Size]:
    """numpy's common shape of two. Of two sizes that may differ the second is taken."""
    rank = max(len(a), len(b))
    result: list[Size] = []
    for x, y in zip([1] * (rank - len(a)) + list(a), [1] * (rank - len(b)) + list(b), strict=True):
        if isinstance(x, int) and x == 1:
            result.append(y)
        elif isinstance(y, int) and y == 1:
            result.append(x)
        elif isinstance(x, int) and isinstance(y, int) and x != y:
            raise Unsupported(f"sizes {x} and {y} cannot be broadcast")
        else:
            result.append(y)
    return result


def constant_of_shape(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr | Known | None:
    """A tensor with one value everywhere."""
    sizes = sizes_operand(importer, node, 0, "shape")
    value = attributes.get("value")
    array = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    scalar = array.reshape(())
    numbers = [each for each in sizes if isinstance(each, int)]
    if len(numbers) == len(sizes) and math.prod(numbers) <= MOST_ELEMENTS:
        return Known.of(np.full(numbers, scalar), scalar.dtype.name)
    return relax.op.full(_vector(sizes), constant(scalar), scalar.dtype.name)


def value_range(
    importer: Importer, node: onnx.NodeProto, _attributes: Mapping[str, Any]
) -> Expr | None:
    """Equally spaced integers; TVM's importer reads their number from a tensor."""
    parts = [known_operand(importer, node, at) for at in range(3)]
    if any(part is None or np.dtype(part.dtype).kind != "i" for part in parts):
        return None
    start, limit, delta = (sizes_operand(importer, node, at, "limits")[0] for at in range(3))
    dtype = parts[0].dtype if parts[0] is not None else "int64"
    if not isinstance(delta, int) or delta <= 0:
        return None
    sizes = importer.sizes
    count = sizes.larger(sizes.divide_up(sizes.simplify(limit - start), delta), 0)
    result = importer.emit(relax.op.arange(0, expression(count), 1, dtype))
    if delta != 1:
        result = relax.op.multiply(result, constant(np.array(delta, dtype)))
    if isinstance(start, int):
        return relax.op.add(result, constant(np.array(start, dtype))) if start else result
    return relax.op.add(result, materialized(importer.bb, Known.of(np.array(start, object), dtype)))


def _vector(sizes: Sequence[Size]) -> relax.ShapeExpr:
    return relax.ShapeExpr([expression(each) for each in sizes])
