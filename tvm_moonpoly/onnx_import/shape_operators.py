"""ONNX's operators on small tensors that hold sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm.relax import Expr

from . import elements, shape_moves
from .elements import Unknown
from .known import MOST_ELEMENTS, Known
from .shape_operands import Attributes, Operator, axes_of, given
from .symbolic import Quotient, Sizes


def compute(
    kind: str, sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes
) -> Known | None:
    """What the operator `kind` makes of `inputs`, or None where that cannot be told."""
    operator = OPERATORS.get(kind)
    if operator is None:
        return None
    try:
        found = operator(sizes, inputs, attributes)
    except (Unknown, OverflowError):
        return None
    return found if found.array.size <= MOST_ELEMENTS else None


def _elementwise(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    shapes = [array.shape for array in arrays]
    result = np.empty(np.broadcast_shapes(*shapes), object)
    for at, values in zip(
        np.ndindex(result.shape),
        zip(*(np.broadcast_to(array, result.shape).ravel() for array in arrays), strict=True),
        strict=True,
    ):
        result[at] = function(*values)
    return result


def _is_float(known: Known) -> bool:
    return np.dtype(known.dtype).kind == "f"


def _binary(function: Callable[[Sizes, Any, Any], Any], dtype: str | None = None) -> Operator:
    def operator(sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
        a, b = given(inputs, 0), given(inputs, 1)
        array = _elementwise(lambda x, y: function(sizes, x, y), a.array, b.array)
        return Known(array, dtype or a.dtype)

    return operator


def _folded(function: Callable[[Sizes, Any, Any], Any]) -> Operator:
    """Of any number of operands, from the left to the right."""

    def operator(sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
        result = given(inputs, 0)
        for at in range(1, len(inputs)):
            result = _binary(function)(sizes, [result, given(inputs, at)], attributes)
        return result

    return operator


def _unary(function: Callable[[Sizes, Any], Any], dtype: str | None = None) -> Operator:
    def operator(sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
        a = given(inputs, 0)
        return Known(_elementwise(lambda x: function(sizes, x), a.array), dtype or a.dtype)

    return operator


def _reduction(function: Callable[[Sizes, Any, Any], Any]) -> Operator:
    def operator(sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
        a, axes = given(inputs, 0), axes_of(inputs, attributes)
        if a.array.ndim != 1 or axes not in (None, [0], [-1]) or not a.array.size:
            raise Unknown
        result, *others = a.elements
        for each in others:
            result = function(sizes, result, each)
        found = Known.of([result], a.dtype)
        return found if attributes.get("keepdims", 1) else Known(found.array.reshape(()), a.dtype)

    return operator


def _cast(sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    import onnx

    a = given(inputs, 0)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]))

    def cast(value: Any) -> Any:
        if isinstance(value, int | float) or dtype.kind == "f":
            return (
                np.asarray(value).astype(dtype).item() if isinstance(value, int | float) else value
            )
        if dtype.kind not in "iu":
            raise Unknown
        if not isinstance(value, Quotient):
            return value
        if sizes.less(value.above, 0) is not False:
            raise Unknown
        return sizes.divide_down(value.above, value.below)

    array = _elementwise(cast, a.array)
    if dtype.kind == "f" and not _is_float(a):
        array = _elementwise(lambda v: Quotient(v, 1) if isinstance(v, Expr) else v, array)
    return Known(array, dtype.name)


def _where(sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
    condition, a, b = (given(inputs, at) for at in range(3))
    array = _elementwise(lambda c, x, y: x if c else y, condition.array, a.array, b.array)
    return Known(array, a.dtype)


def _identity(_sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
    return given(inputs, 0)


OPERATORS: Mapping[str, Operator] = {
    "Add": _binary(elements.add),
    "Sub": _binary(lambda sizes, a, b: elements.add(sizes, a, b, -1)),
    "Mul": _binary(elements.multiply),
    "Div": _binary(elements.divide),
    "Mod": _binary(elements.modulo),
    "Min": _folded(elements.extreme(larger=False)),
    "Max": _folded(elements.extreme(larger=True)),
    "Neg": _unary(elements.negative),
    "Floor": _unary(elements.floor),
    "Ceil": _unary(elements.ceil),
    "Equal": _binary(elements.equal, "bool"),
    "Less": _binary(elements.less, "bool"),
    "Greater": _binary(lambda sizes, a, b: elements.less(sizes, b, a), "bool"),
    "LessOrEqual": _binary(lambda sizes, a, b: not elements.less(sizes, b, a), "bool"),
    "GreaterOrEqual": _binary(lambda sizes, a, b: not elements.less(sizes, a, b), "bool"),
    "Not": _unary(lambda _sizes, value: not value),
    "And": _binary(lambda _sizes, a, b: a and b),
    "Or": _binary(lambda _sizes, a, b: a or b),
    "Where": _where,
    "Cast": _cast,
    "Identity": _identity,
    "Gather": shape_moves.gather,
    "Slice": shape_moves.slice_of,
    "Concat": shape_moves.concat,
    "Squeeze": shape_moves.squeeze,
    "Unsqueeze": shape_moves.unsqueeze,
    "Reshape": shape_moves.reshape,
    "Expand": shape_moves.expand,
    "Tile": shape_moves.tile,
    "ReduceProd": _reduction(elements.multiply),
    "ReduceSum": _reduction(elements.add),
    "ReduceMax": _reduction(elements.extreme(larger=True)),
    "ReduceMin": _reduction(elements.extreme(larger=False)),
}
