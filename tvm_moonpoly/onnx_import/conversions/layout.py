"""Slices, pieces and repetitions whose sizes are symbolic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnx
from tvm import relax, tirx, topi
from tvm.relax import Expr

from relax_passes.run_time_checks import assert_equal, emit_kept

from ..errors import Unsupported
from ..prepare import label
from ..symbolic import Size, Sizes, expression
from .operands import axis_of, data_and_shape, has, known_operand, sizes_operand

if TYPE_CHECKING:
    from ..importer import Importer


#: From here on a limit means: to the end.
ENDLESS = (1 << 31) - 1


def tile(importer: Importer, node: onnx.NodeProto, _attributes: Mapping[str, Any]) -> Expr | None:
    """Repeated along each dimension."""
    if known_operand(importer, node, 1) is None:
        return None
    times = sizes_operand(importer, node, 1, "repetitions")
    if all(isinstance(each, int) for each in times):
        return None
    data, before = data_and_shape(importer, node)
    if len(times) != len(before):
        raise Unsupported(f"it has {len(times)} repetitions for {len(before)} dimensions")
    after = [importer.sizes.simplify(a * b) for a, b in zip(before, times, strict=True)]
    return importer.bb.emit_te(
        topi.dyn_tile, data, [expression(each) for each in after], len(times)
    )


def strided_slice(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Expr | None:
    """A slice between symbolic limits.

    Where its size depends on whether a limit lies within the operand, it is taken to: the call
    raises where it does not.
    """
    if "starts" in attributes:
        starts, ends = list(attributes["starts"]), list(attributes["ends"])
        axes = list(attributes.get("axes", range(len(starts))))
        steps = [1] * len(starts)
    else:
        if any(has(node, at) and known_operand(importer, node, at) is None for at in range(1, 5)):
            return None
        starts = sizes_operand(importer, node, 1, "starts")
        ends = sizes_operand(importer, node, 2, "ends")
        axes = _integers(importer, node, 3, "axes") or list(range(len(starts)))
        steps = _integers(importer, node, 4, "steps") or [1] * len(starts)
    data, shape = data_and_shape(importer, node)
    axes = [axis_of(axis, len(shape)) for axis in axes]
    if any(step == 0 for step in steps):
        raise Unsupported("a step is 0")
    if any(step < 0 for step in steps):
        if not all(isinstance(each, int) for each in [*starts, *ends]):
            raise Unsupported("a slice backwards needs limits that are numbers")
        starts, ends = ([_narrow(each) for each in limits] for limits in (starts, ends))
        return relax.op.strided_slice(data, axes, starts, ends, steps, assume_inbound=False)
    bounds = [
        _bounds(importer.sizes, start, end, shape[axis])
        for axis, start, end in zip(axes, starts, ends, strict=True)
    ]
    for axis, (_, end) in zip(axes, bounds, strict=True):
        if importer.sizes.less(shape[axis], end) is not False:
            limit, size = expression(end), expression(shape[axis])
            text = f"main: {label(node)} needs {end} elements of {shape[axis]};"
            emit_kept(importer.bb, assert_equal(tirx.min(limit, size), limit, text))
    return relax.op.strided_slice(
        data,
        axes,
        [relax.prim_value(expression(start)) for start, _ in bounds],
        [relax.prim_value(expression(end)) for _, end in bounds],
        steps,
        assume_inbound=True,
    )


def _integers(importer: Importer, node: onnx.NodeProto, at: int, what: str) -> list[int]:
    if not has(node, at):
        return []
    found = sizes_operand(importer, node, at, what)
    if not all(isinstance(each, int) for each in found):
        raise Unsupported(f"its {what} must be numbers")
    return [int(each) for each in found]


def _bounds(sizes: Sizes, start: Size, end: Size, size: Size) -> tuple[Size, Size]:
    """Where a slice of an axis of `size` begins and ends.

    An end that is a symbolic size is taken as it is, though it may be too large: [:length] of a
    table of positions has `length` rows, or the model fails.
    """
    low = sizes.smaller(_limit(sizes, start, size), size)
    high = size if isinstance(end, int) and end >= ENDLESS else _limit(sizes, end, size)
    if isinstance(end, int) or sizes.less(high, size) is not None:
        high = sizes.smaller(high, size)
    return low, sizes.larger(high, low)


def _narrow(limit: Size) -> int:
    """TVM counts in 32 bits here."""
    return max(-ENDLESS, min(int(limit), ENDLESS))


def _limit(sizes: Sizes, limit: Size, size: Size) -> Size:
    """A limit as it counts from the front: a negative one counts from the end."""
    if isinstance(limit, int) and limit >= 0:
        return limit
    negative = sizes.less(limit, 0)
    if negative is None:
        return limit
    return sizes.larger(sizes.simplify(size + limit), 0) if negative else limit


def split(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> tuple[Expr, ...] | None:
    """Pieces along an axis, of given sizes or of equal ones, the last of which may be smaller."""
    data, shape = data_and_shape(importer, node)
    axis = axis_of(attributes.get("axis", 0), len(shape))
    sizes = importer.sizes
    if "split" in attributes:
        pieces: list[Size] = list(attributes["split"])
    elif has(node, 1):
        pieces = sizes_operand(importer, node, 1, "sizes of pieces")
    else:
        piece = sizes.divide_up(shape[axis], len(node.output))
        last = sizes.simplify(shape[axis] - piece * (len(node.output) - 1))
        pieces = [piece] * (len(node.output) - 1) + [last]
    results = []
    start: Size = 0
    for piece in pieces:
        end = sizes.simplify(start + piece)
        sliced = relax.op.strided_slice(
            data,
            [axis],
            [relax.prim_value(expression(start))],
            [relax.prim_value(expression(end))],
            [1],
            assume_inbound=True,
        )
        results.append(importer.emit(sliced))
        start = end
    if sizes.compare(start, shape[axis]) is False:
        raise Unsupported(f"its pieces make up {start} of {shape[axis]}")
    return tuple(results)
