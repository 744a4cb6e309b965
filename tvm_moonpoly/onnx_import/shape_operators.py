"""ONNX's operators on small tensors that hold sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm.relax import Expr

from . import elements
from .elements import Unknown
from .known import MOST_ELEMENTS, Known
from .symbolic import Quotient, Sizes

Attributes = Mapping[str, Any]
Operator = Callable[[Sizes, Sequence[Known | None], Attributes], Known]


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


def _given(inputs: Sequence[Known | None], at: int) -> Known:
    if at >= len(inputs) or inputs[at] is None:
        raise Unknown
    found = inputs[at]
    assert found is not None
    return found


def _given_integers(inputs: Sequence[Known | None], at: int) -> list[int]:
    elements = _given(inputs, at).elements
    if not all(isinstance(each, int) for each in elements):
        raise Unknown
    return elements


def _axes(inputs: Sequence[Known | None], attributes: Attributes) -> list[int] | None:
    """The axes, which are an attribute up to opset 12 and an input after it."""
    if len(inputs) > 1 and inputs[1] is not None:
        return _given_integers(inputs, 1)
    return list(attributes["axes"]) if "axes" in attributes else None


def _binary(function: Callable[[Sizes, Any, Any], Any], dtype: str | None = None) -> Operator:
    def operator(sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
        a, b = _given(inputs, 0), _given(inputs, 1)
        array = _elementwise(lambda x, y: function(sizes, x, y), a.array, b.array)
        return Known(array, dtype or a.dtype)

    return operator


def _folded(function: Callable[[Sizes, Any, Any], Any]) -> Operator:
    """Of any number of operands, from the left to the right."""

    def operator(sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
        result = _given(inputs, 0)
        for at in range(1, len(inputs)):
            result = _binary(function)(sizes, [result, _given(inputs, at)], attributes)
        return result

    return operator


def _unary(function: Callable[[Sizes, Any], Any], dtype: str | None = None) -> Operator:
    def operator(sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
        a = _given(inputs, 0)
        return Known(_elementwise(lambda x: function(sizes, x), a.array), dtype or a.dtype)

    return operator


def _reduction(function: Callable[[Sizes, Any, Any], Any]) -> Operator:
    def operator(sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
        a, axes = _given(inputs, 0), _axes(inputs, attributes)
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

    a = _given(inputs, 0)
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
    condition, a, b = (_given(inputs, at) for at in range(3))
    array = _elementwise(lambda c, x, y: x if c else y, condition.array, a.array, b.array)
    return Known(array, a.dtype)


def _gather(sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    a, at = _given(inputs, 0), np.array(_given_integers(inputs, 1), np.int64)
    at = at.reshape(_given(inputs, 1).array.shape)
    try:
        found = np.take(a.array, at, axis=attributes.get("axis", 0))
    except IndexError as error:
        raise Unknown from error
    return Known(_as_array(found), a.dtype)


def _as_array(found: Any) -> np.ndarray:
    """numpy gives the element itself in place of an array of no dimensions."""
    if isinstance(found, np.ndarray):
        return found
    array = np.empty((), object)
    array[()] = found
    return array


def _slice(_sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    a = _given(inputs, 0)
    starts, ends = _given_integers(inputs, 1), _given_integers(inputs, 2)
    given = len(inputs) > 3 and inputs[3] is not None
    axes = _given_integers(inputs, 3) if given else list(range(len(starts)))
    given = len(inputs) > 4 and inputs[4] is not None
    steps = _given_integers(inputs, 4) if given else [1] * len(starts)
    index = [slice(None)] * a.array.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # backwards to the first element: numpy takes an end of -1 for the last one
        stop = None if step < 0 and end < -a.array.shape[axis] else end
        index[axis] = slice(start, stop, step)
    return Known(a.array[tuple(index)], a.dtype)


def _concat(_sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    found = [_given(inputs, at) for at in range(len(inputs))]
    array = np.concatenate([each.array for each in found], axis=attributes.get("axis", 0))
    return Known(array, found[0].dtype)


def _squeeze(_sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    a, axes = _given(inputs, 0), _axes(inputs, attributes)
    try:
        array = np.squeeze(a.array, None if axes is None else tuple(axes))
    except ValueError as error:
        raise Unknown from error
    return Known(_as_array(array), a.dtype)


def _unsqueeze(_sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    a, axes = _given(inputs, 0), _axes(inputs, attributes)
    if axes is None:
        raise Unknown
    return Known(np.expand_dims(a.array, tuple(axes)), a.dtype)


def _reshape(_sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    a, shape = _given(inputs, 0), _given_integers(inputs, 1)
    if not attributes.get("allowzero", 0):
        shape = [a.array.shape[at] if size == 0 else size for at, size in enumerate(shape)]
    return Known(a.array.reshape(shape), a.dtype)


def _expand(_sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
    a, shape = _given(inputs, 0), _given_integers(inputs, 1)
    if math.prod(shape) > MOST_ELEMENTS:
        raise Unknown
    return Known(
        np.broadcast_to(a.array, np.broadcast_shapes(a.array.shape, tuple(shape))), a.dtype
    )


def _tile(_sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
    a, times = _given(inputs, 0), _given_integers(inputs, 1)
    if a.array.size * math.prod(times) > MOST_ELEMENTS:
        raise Unknown
    return Known(np.tile(a.array, times), a.dtype)


def _identity(_sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
    return _given(inputs, 0)


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
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Expand": _expand,
    "Tile": _tile,
    "ReduceProd": _reduction(elements.multiply),
    "ReduceSum": _reduction(elements.add),
    "ReduceMax": _reduction(elements.extreme(larger=True)),
    "ReduceMin": _reduction(elements.extreme(larger=False)),
}
