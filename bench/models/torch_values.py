"""ONNX operators in torch that move numbers about or combine them one by one.

Shapes and positions in them are no tensors here but whole numbers and lists of them, so that
torch.compile sees sizes as symbols and nothing breaks its graph. A value is therefore a tensor, a
number, or a list of numbers. Functions take the inputs of the operator in their order, and its
attributes by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

Value = Any  # torch.Tensor | int | float | list[int]
FLOAT, INT32, INT64, BOOL = 1, 6, 7, 9  # of onnx.TensorProto
DTYPES = {FLOAT: torch.float32, INT32: torch.int32, INT64: torch.int64, BOOL: torch.bool}


def elementwise(
    on_numbers: Callable[..., Any], on_tensors: Callable[..., torch.Tensor] | None = None
) -> Callable[..., Value]:
    """An operator of broadcast operands; without ``on_tensors`` it is the same of both kinds."""

    def apply(*operands: Value) -> Value:
        if any(isinstance(each, torch.Tensor) for each in operands):
            return (on_tensors or on_numbers)(*map(beside_tensor, operands))
        if not any(isinstance(each, list) for each in operands):
            return on_numbers(*operands)
        length = max(len(each) for each in operands if isinstance(each, list))
        lists = [spread(each, length) for each in operands]
        return [on_numbers(*parts) for parts in zip(*lists, strict=True)]

    return apply


def beside_tensor(value: Value) -> Value:
    """What an operand becomes where another is a tensor."""
    if not isinstance(value, list):
        return value
    return value[0] if len(value) == 1 else torch.tensor(value)


def spread(value: Value, length: int) -> list[Any]:
    """A number or a list of one as a list of ``length``."""
    found = value if isinstance(value, list) else [value]
    return found * length if len(found) == 1 else found


def largest(*operands: Value) -> torch.Tensor:
    """Of a tensor and others."""
    found, *others = sorted(operands, key=lambda each: not isinstance(each, torch.Tensor))
    for each in others:
        tensor = isinstance(each, torch.Tensor)
        found = torch.maximum(found, each) if tensor else torch.clamp(found, min=each)
    return found


def shape(x: torch.Tensor) -> list[int]:
    return list(x.shape)


def cast(x: Value, to: int) -> Value:
    """To another type; sizes stay what they are."""
    if isinstance(x, torch.Tensor):
        return x.to(DTYPES[to])
    return x if to != FLOAT else torch.tensor(x, dtype=torch.float32)


def gather(x: Value, at: Value, axis: int = 0) -> Value:
    """Of a list numbers of it; of a tensor slices, by a number without that dimension."""
    if isinstance(x, list):
        return [x[each] for each in at] if isinstance(at, list) else x[at]
    if isinstance(at, int):
        return x.select(axis, at)
    if isinstance(at, list):
        at = torch.tensor(at)
    if axis == 0 and x.dim() == 2:
        return functional.embedding(at, x)
    found = x.index_select(axis, at.reshape(-1))
    return found.reshape([*x.shape[:axis], *at.shape, *x.shape[axis % x.dim() + 1 :]])


def unsqueeze(x: Value, axes: Sequence[int]) -> Value:
    """A number becomes a list of it."""
    if not isinstance(x, torch.Tensor):
        return [x]
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def squeeze(x: Value, axes: Sequence[int]) -> Value:
    """A list of one becomes a number."""
    return torch.squeeze(x, tuple(axes)) if isinstance(x, torch.Tensor) else x[0]


def part(
    x: Value,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Value:
    """Slice."""
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    found = list(zip(starts, ends, axes, steps, strict=True))
    if isinstance(x, list):
        ((start, end, _, step),) = found
        return x[start:end:step]
    cuts = [slice(None)] * x.dim()
    for start, end, axis, step in found:
        cuts[axis] = slice(start, end, step)
    return x[tuple(cuts)]


def concat(*parts: Value, axis: int) -> Value:
    """Lists one after the other, or tensors along ``axis``."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(parts, axis)
    return [each for one in parts for each in one]


def reshape(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """A zero among the sizes stands for the size that ``x`` has there."""
    return x.reshape([x.shape[at] if is_the(0, size) else size for at, size in enumerate(sizes)])


def is_the(number: int, size: int) -> bool:
    """Whether ``size`` is ``number`` in all calls; what a symbolic size is now is not asked."""
    return type(size) is int and size == number


def constant_of_shape(sizes: Sequence[int], value: float = 0.0) -> list[Any]:
    """A list of as many, the only form that the networks have."""
    (length,) = sizes
    return [value] * length


def expand(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """A one among the sizes keeps the size that ``x`` has there."""
    new = len(sizes) - x.dim()
    return x.expand(
        [-1 if at >= new and is_the(1, each) else each for at, each in enumerate(sizes)]
    )


def arange(start: int, end: int, step: int) -> torch.Tensor:
    return torch.arange(start, end, step)


def split(
    x: torch.Tensor, sizes: Sequence[int] | None = None, axis: int = 0
) -> Sequence[torch.Tensor]:
    assert sizes is not None
    return torch.split(x, list(sizes), axis)


def identity(x: Value) -> Value:
    return x


def transpose(x: torch.Tensor, perm: Sequence[int]) -> torch.Tensor:
    return x.permute(list(perm))


def clip(x: torch.Tensor, low: float | None = None, high: float | None = None) -> torch.Tensor:
    return torch.clamp(x, low, high)
