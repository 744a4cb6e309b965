"""Operands whose sizes must agree, though the model does not show that they do.

The sum of two feature maps that were halved and doubled again is such a one: its operands have the
sizes `(h - 1) // 2 * 2 + 2` and `h`, which are equal for even h. TVM would forget the sizes of the
result; here they are taken to be equal, which is checked at the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax import Expr

from relax_passes.run_time_checks import assert_equal, emit_kept

from ..errors import Unsupported
from ..prepare import label
from ..symbolic import Size, Sizes, expression
from .operands import axis_of

if TYPE_CHECKING:
    from ..importer import Importer


def elementwise(
    importer: Importer, node: onnx.NodeProto, _attributes: Mapping[str, Any]
) -> Expr | None:
    """Operands that are broadcast like numpy's."""
    return _converted(importer, node, agreeing(importer, node))


def agreeing(importer: Importer, node: onnx.NodeProto) -> dict[int, Expr]:
    """The operands, by their place, that are only equal in size to others when a check at the call
    says so."""
    return _agreeing(importer, node, _shapes(importer, node), None)


def product(
    importer: Importer, node: onnx.NodeProto, _attributes: Mapping[str, Any]
) -> Expr | None:
    """A product of matrices: all dimensions but the last two are broadcast."""
    shapes = _shapes(importer, node)
    if shapes is None or min(map(len, shapes)) < 2:
        return None
    outer = [shape[:-2] for shape in shapes]
    return _converted(importer, node, _agreeing(importer, node, outer, None, tail=2))


def concatenation(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr | None:
    """Operands that differ along one axis alone."""
    shapes = _shapes(importer, node)
    if shapes is None or len(set(map(len, shapes))) != 1:
        return None
    axis = axis_of(attributes["axis"], len(shapes[0]))
    return _converted(importer, node, _agreeing(importer, node, shapes, axis))


def agreed(
    sizes: Sizes, shapes: Sequence[Sequence[Size]], free: int | None = None
) -> list[list[Size]]:
    """The shapes with equal sizes in dimensions that are aligned at the end.

    Operands are broadcast, and sizes that are 1 remain, unless there is a dimension `free`, along
    which they may differ.
    """
    result = [list(shape) for shape in shapes]
    for back in range(1, max(map(len, shapes), default=0) + 1):
        if free is not None and free == len(shapes[0]) - back:
            continue
        here = [shape for shape in result if len(shape) >= back]
        if free is None:
            here = [shape for shape in here if not _is_one(shape[-back])]
        if not here:
            continue
        best = _simplest([shape[-back] for shape in here])
        for shape in here:
            same = sizes.compare(shape[-back], best)
            if same is False and (free is not None or not _may_be_one(sizes, shape[-back], best)):
                raise Unsupported(f"sizes {shape[-back]} and {best} of its operands differ")
            if same is None:
                shape[-back] = best
    return result


def _simplest(candidates: Sequence[Size]) -> Size:
    """The size that the others are checked to equal.

    A variable is none where another is computed from it: TVM's `FuseTIR` does not come to an end
    when it meets a `match_cast` of `h // 2 * 2` to `h`.
    """
    ordered = sorted(candidates, key=lambda size: 0 if isinstance(size, int) else len(str(size)))
    for size in ordered:
        others = [each for each in ordered if isinstance(each, Expr) and not each.same_as(size)]
        if not isinstance(size, tirx.Var) or not any(_uses(each, size) for each in others):
            return size
    return ordered[0]


def _uses(expr: Expr, variable: tirx.Var) -> bool:
    return any(each.same_as(variable) for each in tirx.analysis.undefined_vars(expr))


def _may_be_one(sizes: Sizes, *candidates: Size) -> bool:
    return any(sizes.compare(each, 1) is not False for each in candidates)


def _is_one(size: Size) -> bool:
    return isinstance(size, int) and size == 1


def _shapes(importer: Importer, node: onnx.NodeProto) -> list[list[Size]] | None:
    found = [importer.shape(importer.tensor(name)) for name in node.input]
    shapes = [shape for shape in found if shape is not None]
    return shapes if shapes and len(shapes) == len(found) else None


def _converted(
    importer: Importer, node: onnx.NodeProto, operands: Mapping[int, Expr]
) -> Expr | None:
    return importer.convert_with(node, operands, {}) if operands else None


def _agreeing(
    importer: Importer,
    node: onnx.NodeProto,
    shapes: list[list[Size]] | None,
    free: int | None,
    tail: int = 0,
) -> dict[int, Expr]:
    operands: dict[int, Expr] = {}
    if shapes is None:
        return operands
    for at, (before, after) in enumerate(
        zip(shapes, agreed(importer.sizes, shapes, free), strict=True)
    ):
        operand = importer.tensor(node.input[at])
        if before == after or isinstance(operand, GenericConst):
            continue
        for size, wanted in zip(before, after, strict=True):
            if size is not wanted:
                text = f"main: {label(node)} takes operands whose sizes agree;"
                check = assert_equal(expression(size), expression(wanted), text)
                emit_kept(importer.bb, check)
        rest = importer.shape(operand)[-tail:] if tail else []  # type: ignore[index]
        cast = relax.TensorType([expression(size) for size in [*after, *rest]], operand.ty.dtype)
        variable = operand if isinstance(operand, relax.Var) else importer.emit(operand)
        operands[at] = importer.bb.match_cast(variable, cast)
    return operands
