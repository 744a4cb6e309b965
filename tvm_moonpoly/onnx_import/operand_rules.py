"""Sizes of operands that follow from those of others: a convolution's channels from its weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
from tvm import relax, tirx

from relax_passes.run_time_checks import assert_equal, emit_kept

from .errors import Unsupported
from .prepare import label
from .symbolic import Size, expression

if TYPE_CHECKING:
    from .importer import Importer

Shapes: TypeAlias = Sequence[list[Size] | None]


@dataclass(frozen=True)
class Rule:
    """The dimension `axis` of the operand `at` has this size, which is that of `because`."""

    at: int
    axis: int
    size: Size
    because: str


class FixedSize(Exception):
    """Raised when a dimension of the model's inputs, `name`, can have this size alone."""

    def __init__(self, name: str, size: int, node: onnx.NodeProto, because: str) -> None:
        self.name, self.size, self.node, self.because = name, size, node, because
        super().__init__(f"{name!r} must be {size}, {because}")


def apply(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
    """Let the operands of `node` have the sizes that they must have.

    A dimension of the model's inputs becomes a number (`FixedSize` is raised); other sizes that
    are not known to be right are checked at the call. Raises Unsupported where one is wrong.
    """
    find = RULES.get(node.op_type)
    if find is None:
        return
    shapes = [importer.shape(importer.tensor(name)) if name else None for name in node.input]
    for rule in find(shapes, attributes):
        given = shapes[rule.at]
        if given is None or not -len(given) <= rule.axis < len(given):
            continue
        _require(importer, node, given[rule.axis], rule)


def _require(importer: Importer, node: onnx.NodeProto, given: Size, rule: Rule) -> None:
    if isinstance(rule.size, int) and isinstance(given, tirx.Var) and importer.is_free(given):
        raise FixedSize(given.name, rule.size, node, rule.because)
    same = importer.sizes.compare(given, rule.size)
    name = node.input[rule.at]
    if same is False:
        raise Unsupported(f"{name!r} has the size {given} where it must be {rule.size}, "
                          f"{rule.because}")  # fmt: skip
    if same:
        return
    text = f"main: {label(node)}: a size of {name} must be {rule.because};"
    emit_kept(importer.bb, assert_equal(expression(given), expression(rule.size), text))
    tensor = importer.tensor(name)
    if isinstance(rule.size, int):
        sizes = importer.shape(tensor)
        assert sizes is not None
        sizes[rule.axis] = rule.size
        variable = tensor if isinstance(tensor, relax.Var) else importer.emit(tensor)
        cast = relax.TensorType([expression(size) for size in sizes], tensor.ty.dtype)
        importer.replace(name, importer.bb.match_cast(variable, cast))


def _convolution(shapes: Shapes, attributes: Mapping[str, Any]) -> Iterator[Rule]:
    weight = shapes[1]
    if weight is not None and len(weight) > 1:
        channels = weight[1] * int(attributes.get("group", 1))
        yield Rule(0, 1, channels, "the channels of its weight times groups")


def _transposed(shapes: Shapes, _attributes: Mapping[str, Any]) -> Iterator[Rule]:
    weight = shapes[1]
    if weight:
        yield Rule(0, 1, weight[0], "the input channels of its weight")


def _product(shapes: Shapes, _attributes: Mapping[str, Any]) -> Iterator[Rule]:
    a, b = shapes[:2]
    if a and b:
        yield from _inner(a, -1, b, -2 if len(b) > 1 else -1)


def _gemm(shapes: Shapes, attributes: Mapping[str, Any]) -> Iterator[Rule]:
    a, b = shapes[:2]
    if a and b:
        left = 0 if attributes.get("transA", 0) else 1
        yield from _inner(a, left, b, 1 if attributes.get("transB", 0) else 0)


def _inner(a: list[Size], left: int, b: list[Size], right: int) -> Iterator[Rule]:
    """Two sizes that must be equal, where one is a number: what checks a product of two
    others is its operator."""
    columns, rows = a[left], b[right]
    if isinstance(rows, int):
        yield Rule(0, left, rows, "the rows of its second operand")
    elif isinstance(columns, int):
        yield Rule(1, right, columns, "the columns of its first operand")


def _normalized(shapes: Shapes, _attributes: Mapping[str, Any]) -> Iterator[Rule]:
    for weight in shapes[1:]:
        if weight:
            yield Rule(0, 1, weight[0], "the channels of its weights")


def _broadcast_to_first(shapes: Shapes, _attributes: Mapping[str, Any]) -> Iterator[Rule]:
    """Weights that are broadcast to the first operand."""
    for weight in shapes[1:]:
        for back, size in enumerate(reversed(weight or ()), 1):
            if isinstance(size, int) and size != 1:
                yield Rule(0, -back, size, "that of its weights")


RULES: Mapping[str, Callable[[Shapes, Mapping[str, Any]], Iterator[Rule]]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MatMul": _product,
    "Gemm": _gemm,
    "BatchNormalization": _normalized,
    "InstanceNormalization": _normalized,
    "LayerNormalization": _broadcast_to_first,
    "PRelu": _broadcast_to_first,
}
