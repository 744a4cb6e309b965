"""Padding of symbolic extent, given by the graph or by `auto_pad`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from tvm import relax, te, tirx
from tvm.relax import Expr

from ..errors import Unsupported
from ..symbolic import Size, Sizes, constant, expression
from .operands import axis_of, data_and_shape, has, known_operand, sizes_operand

if TYPE_CHECKING:
    from ..importer import Importer


@dataclass(frozen=True)
class Margin:
    """What is added before and after an axis, and the size that it then has."""

    before: Size
    after: Size
    size: Size

    @property
    def is_constant(self) -> bool:
        return isinstance(self.before, int) and isinstance(self.after, int)


def pad(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Expr | None:
    """With pads that the graph computes, in mode `constant`."""
    if not has(node, 1):
        return None
    pads = sizes_operand(importer, node, 1, "pads")
    if all(isinstance(each, int) and each >= 0 for each in pads) and (
        not has(node, 2) or known_operand(importer, node, 2) is not None
    ):
        return None
    mode = attributes.get("mode", b"constant").decode()
    if mode != "constant":
        raise Unsupported(f"pads of symbolic or negative extent in mode {mode!r}")
    data, shape = data_and_shape(importer, node)
    axes = list(range(len(shape)))
    if has(node, 3):
        given = known_operand(importer, node, 3)
        if given is None or not given.is_constant:
            raise Unsupported("its axes must be numbers")
        axes = [axis_of(axis, len(shape)) for axis in given.elements]
    if len(pads) != 2 * len(axes):
        raise Unsupported(f"it has {len(pads)} pads for {len(axes)} axes")
    margins = [Margin(0, 0, size) for size in shape]
    for at, axis in enumerate(axes):
        low, high = pads[at], pads[at + len(axes)]
        size = importer.sizes.simplify(shape[axis] + low + high)
        margins[axis] = Margin(low, high, size)
    value: Expr = relax.const(0, data.ty.dtype)
    if has(node, 2):
        value = importer.tensor(node.input[2])
        if value.ty.ndim != 0:
            value = importer.emit(relax.op.reshape(value, ()))
    return padded(importer, data, margins, value)


def padded(importer: Importer, data: Expr, margins: Sequence[Margin], value: Expr) -> Expr:
    """`data` with margins that hold `value`, a scalar; a negative margin cuts off."""

    def compute(x: te.Tensor, filling: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> Expr:
            inside, index = [], []
            for axis, margin, size in zip(at, margins, x.shape, strict=True):
                low = margin.before
                if isinstance(low, int) and low == 0 and margin.is_constant and margin.after == 0:
                    index.append(axis)
                    continue
                index.append(axis - low)
                inside += [axis >= low, axis < size + low]
            read = x(*index)
            return tirx.if_then_else(tirx.all(*inside), read, filling()) if inside else read

        return te.compute([expression(margin.size) for margin in margins], element, name="padded")

    return importer.bb.emit_te(compute, data, value)


def same_margin(
    sizes: Sizes, size: Size, stride: int, kernel: int, dilation: int, lower: bool
) -> Margin:
    """The margin of `auto_pad`: as many outputs as strides begin within `size`.

    The odd element is after the axis, or before it when `lower`.
    """
    reach = (kernel - 1) * dilation + 1
    if stride == 1:
        total: Size = reach - 1
        after_all: Size = sizes.simplify(size + total)
    else:
        after_all = sizes.simplify((sizes.divide_up(size, stride) - 1) * stride + reach)
        if reach < stride:
            after_all = sizes.larger(after_all, size)
        total = sizes.simplify(after_all - size)
    half = sizes.divide_down(total, 2)
    rest = sizes.simplify(total - half)
    return Margin(rest, half, after_all) if lower else Margin(half, rest, after_all)


@dataclass(frozen=True)
class Window:
    """The sliding window of a convolution or pooling over the axes after the first two."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]


def _window(attributes: Mapping[str, Any], kernel: Sequence[int]) -> Window:
    ones = [1] * len(kernel)
    return Window(
        tuple(attributes.get("kernel_shape", kernel)),
        tuple(attributes.get("strides", ones)),
        tuple(attributes.get("dilations", ones)),
    )


def _margins(importer: Importer, shape: Sequence[Size], window: Window, mode: str) -> list[Margin]:
    return [
        same_margin(importer.sizes, size, stride, kernel, dilation, mode == "SAME_LOWER")
        for size, stride, kernel, dilation in zip(
            shape[2:], window.strides, window.kernel, window.dilations, strict=True
        )
    ]


def _mode(attributes: Mapping[str, Any]) -> str:
    mode = attributes.get("auto_pad", b"NOTSET").decode()
    if mode not in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"):
        raise Unsupported(f"auto_pad has no mode {mode!r}")
    return mode


def _with_margins(
    importer: Importer,
    data: Expr,
    shape: Sequence[Size],
    margins: Sequence[Margin],
    value: Callable[[str], Expr],
) -> tuple[Expr, list[int]]:
    """`data` and ONNX's attribute `pads`: the margins, where they are numbers, else none, `data`
    being padded with the `value` of its type. `margins` are those after the first two axes."""
    pads = [margin.before for margin in margins] + [margin.after for margin in margins]
    numbers = [each for each in pads if isinstance(each, int)]
    if len(numbers) == len(pads):
        return data, numbers
    around = [Margin(0, 0, size) for size in shape[:2]]
    data = padded(importer, data, [*around, *margins], value(str(data.ty.dtype)))
    return data, [0] * len(pads)


def _zero(dtype: str) -> Expr:
    return relax.const(0, dtype)


def _lowest(dtype: str) -> Expr:
    kind = np.dtype(dtype)
    return constant(np.array(-np.inf if kind.kind == "f" else np.iinfo(kind).min, kind))


def convolution(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr | None:
    """With `auto_pad`: pads where they are numbers, else a padded operand."""
    mode = _mode(attributes)
    if mode == "NOTSET":
        return None
    data, shape = data_and_shape(importer, node)
    weight = importer.shape(importer.tensor(node.input[1]))
    if weight is None or not all(isinstance(each, int) for each in weight):
        raise Unsupported("auto_pad needs weights of known size")
    window = _window(attributes, [int(each) for each in weight[2:]])
    pads = [0] * 2 * len(window.kernel)
    if mode != "VALID":
        margins = _margins(importer, shape, window, mode)
        data, pads = _with_margins(importer, data, shape, margins, _zero)
    return importer.convert_with(node, {0: data}, {"auto_pad": None, "pads": pads})


def transposed_convolution(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr | None:
    """With `output_shape`, which TVM's importer passes over: the pads follow from it."""
    if "output_shape" not in attributes:
        return None
    _, shape = data_and_shape(importer, node)
    weight = importer.shape(importer.tensor(node.input[1]))
    spatial = shape[2:]
    if weight is None or not all(isinstance(each, int) for each in [*weight, *spatial]):
        raise Unsupported("output_shape needs an operand and weights of fixed size")
    window = _window(attributes, [int(each) for each in weight[2:]])
    extra = attributes.get("output_padding", [0] * len(spatial))
    lower = _mode(attributes) == "SAME_LOWER"
    before, after = [], []
    for axis, wanted in enumerate(attributes["output_shape"][-len(spatial) :]):
        reach = (window.kernel[axis] - 1) * window.dilations[axis] + 1
        full = window.strides[axis] * (int(spatial[axis]) - 1) + extra[axis] + reach
        total = full - wanted
        if total < 0:
            raise Unsupported(f"output_shape {wanted} is larger than the full output, {full}")
        half = total // 2
        # as in ONNX: without SAME_UPPER the odd element is taken off in front
        first = half if _mode(attributes) == "SAME_UPPER" and not lower else total - half
        before.append(first)
        after.append(total - first)
    changed = {"auto_pad": None, "output_shape": None, "pads": before + after}
    return importer.convert_with(node, {}, changed)


def max_pool(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr | None:
    """With `auto_pad`; margins hold the smallest number of the type."""
    if len([name for name in node.output if name]) > 1:
        raise Unsupported("the indices of the largest elements")
    mode = _mode(attributes)
    if mode in ("NOTSET", "VALID"):
        return None
    data, shape = data_and_shape(importer, node)
    window = _window(attributes, attributes["kernel_shape"])
    margins = _margins(importer, shape, window, mode)
    data, pads = _with_margins(importer, data, shape, margins, _lowest)
    return importer.convert_with(node, {0: data}, {"auto_pad": None, "pads": pads})


def average_pool(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr | None:
    """With `auto_pad`; margins count only with `count_include_pad`."""
    mode = _mode(attributes)
    if mode in ("NOTSET", "VALID"):
        return None
    data, shape = data_and_shape(importer, node)
    window = _window(attributes, attributes["kernel_shape"])
    margins = _margins(importer, shape, window, mode)
    whole, pads = _with_margins(importer, data, shape, margins, _zero)
    changed = {"auto_pad": None, "pads": pads}
    means = importer.convert_with(node, {0: whole}, changed)
    if whole.same_as(data) or attributes.get("count_include_pad", 0):
        return means
    # averages of ones tell which part of each window lies within the operand
    means = importer.emit(means)
    dtype = data.ty.dtype
    sizes = [expression(size) for size in [1, 1, *shape[2:]]]
    ones = importer.emit(relax.op.full(relax.ShapeExpr(sizes), relax.const(1, dtype), dtype))
    part, _ = _with_margins(importer, ones, [1, 1], margins, _zero)
    return relax.op.divide(means, importer.emit(importer.convert_with(node, {0: part}, changed)))
