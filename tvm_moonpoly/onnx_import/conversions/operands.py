"""What several conversions ask of a node's operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from tvm.relax import Expr

from ..errors import Unsupported
from ..known import Known
from ..symbolic import Quotient, Size

if TYPE_CHECKING:
    from ..importer import Importer


def has(node: onnx.NodeProto, at: int) -> bool:
    """Whether the optional operand `at` is there."""
    return at < len(node.input) and bool(node.input[at])


def data_and_shape(importer: Importer, node: onnx.NodeProto) -> tuple[Expr, list[Size]]:
    """The first operand and its sizes. Raises Unsupported where its rank is not known."""
    data = importer.tensor(node.input[0])
    shape = importer.shape(data)
    if shape is None:
        raise Unsupported(f"the rank of {node.input[0]!r} is not known")
    return data, shape


def known_operand(importer: Importer, node: onnx.NodeProto, at: int) -> Known | None:
    """The operand `at` by its elements, or None where it is left out or computed from data."""
    return importer.known_value(node.input[at]) if has(node, at) else None


def sizes_operand(importer: Importer, node: onnx.NodeProto, at: int, what: str) -> list[Size]:
    """The elements of the operand `at`, which hold sizes.

    Raises Unsupported where they are computed from data.
    """
    found = known_operand(importer, node, at)
    if found is None:
        raise Unsupported(
            f"its {what}, {node.input[at]!r}, must follow from the model's dimensions and "
            "constants, but depends on data"
        )
    return integers(found, what)


def integers(found: Known, what: str) -> list[Size]:
    elements: list[Any] = []
    for each in found.elements:
        if isinstance(each, Quotient) and isinstance(each.below, int) and each.below == 1:
            each = each.above
        if isinstance(each, float | Quotient):
            raise Unsupported(f"its {what} must be integers")
        elements.append(each)
    return elements


def axis_of(axis: int, rank: int) -> int:
    """`axis`, counted from the front. Raises Unsupported where it is none of `rank` axes."""
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} is out of range for {rank} dimensions")
    return axis % rank
