"""ONNX's operators that move, repeat or choose elements of small tensors that hold sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .elements import Unknown
from .known import MOST_ELEMENTS, Known
from .shape_operands import Attributes, axes_of, given, given_integers
from .symbolic import Sizes


def gather(sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    a, at = given(inputs, 0), np.array(given_integers(inputs, 1), np.int64)
    at = at.reshape(given(inputs, 1).array.shape)
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


def slice_of(_sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    a = given(inputs, 0)
    starts, ends = given_integers(inputs, 1), given_integers(inputs, 2)
    told = len(inputs) > 3 and inputs[3] is not None
    axes = given_integers(inputs, 3) if told else list(range(len(starts)))
    told = len(inputs) > 4 and inputs[4] is not None
    steps = given_integers(inputs, 4) if told else [1] * len(starts)
    index = [slice(None)] * a.array.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # backwards to the first element: numpy takes an end of -1 for the last one
        stop = None if step < 0 and end < -a.array.shape[axis] else end
        index[axis] = slice(start, stop, step)
    return Known(a.array[tuple(index)], a.dtype)


def concat(_sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    found = [given(inputs, at) for at in range(len(inputs))]
    array = np.concatenate([each.array for each in found], axis=attributes.get("axis", 0))
    return Known(array, found[0].dtype)


def squeeze(_sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    a, axes = given(inputs, 0), axes_of(inputs, attributes)
    try:
        array = np.squeeze(a.array, None if axes is None else tuple(axes))
    except ValueError as error:
        raise Unknown from error
    return Known(_as_array(array), a.dtype)


def unsqueeze(_sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    a, axes = given(inputs, 0), axes_of(inputs, attributes)
    if axes is None:
        raise Unknown
    return Known(np.expand_dims(a.array, tuple(axes)), a.dtype)


def reshape(_sizes: Sizes, inputs: Sequence[Known | None], attributes: Attributes) -> Known:
    a, shape = given(inputs, 0), given_integers(inputs, 1)
    if not attributes.get("allowzero", 0):
        shape = [a.array.shape[at] if size == 0 else size for at, size in enumerate(shape)]
    return Known(a.array.reshape(shape), a.dtype)


def expand(_sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
    a, shape = given(inputs, 0), given_integers(inputs, 1)
    if math.prod(shape) > MOST_ELEMENTS:
        raise Unknown
    return Known(
        np.broadcast_to(a.array, np.broadcast_shapes(a.array.shape, tuple(shape))), a.dtype
    )


def tile(_sizes: Sizes, inputs: Sequence[Known | None], _attributes: Attributes) -> Known:
    a, times = given(inputs, 0), given_integers(inputs, 1)
    if a.array.size * math.prod(times) > MOST_ELEMENTS:
        raise Unknown
    return Known(np.tile(a.array, times), a.dtype)
