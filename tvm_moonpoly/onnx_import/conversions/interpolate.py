"""Interpolation between pixels in loops of our own, from ONNX's definition of Resize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import te, tirx
from tvm.relax import Expr

from ..errors import Unsupported
from ..symbolic import Size, expression

if TYPE_CHECKING:
    from ..importer import Importer

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@dataclass(frozen=True)
class Axis:
    """The sizes of an axis before and after; `scale` where it is not the quotient of the two."""

    before: Size
    after: Size
    scale: float | None = None


def interpolated(
    importer: Importer,
    data: Expr,
    axes: Sequence[Axis],
    mode: str,
    coordinates: str,
    rounding: str,
) -> Expr:
    """`data` (N, C, H, W) with its last two axes resized.

    Positions are computed in float32, as onnxruntime does. Raises Unsupported for modes that there
    are no loops for.
    """
    if mode not in ("nearest", "linear") or coordinates not in COORDINATES:
        raise Unsupported(f"mode {mode!r} with {coordinates!r} and these sizes")

    def compute(x: te.Tensor) -> te.Tensor:
        # sizes as the operand's own, whose variables are those of the function that is made
        before = list(x.shape)

        def element(n: tirx.Var, c: tirx.Var, *at: tirx.Var) -> Expr:
            places = [
                _position(where, axis, size, mode, coordinates)
                for where, axis, size in zip(at, axes[2:], before[2:], strict=True)
            ]
            if mode == "nearest":
                near = [
                    _clamped(_rounded(p, rounding), size)
                    for p, size in zip(places, before[2:], strict=True)
                ]
                return x(n, c, *near)
            (top, bottom, down), (left, right, along) = (
                _between(place, size) for place, size in zip(places, before[2:], strict=True)
            )
            upper = _mixed(x(n, c, top, left), x(n, c, top, right), along)
            lower = _mixed(x(n, c, bottom, left), x(n, c, bottom, right), along)
            return _mixed(upper, lower, down)

        shape = [expression(axis.after) for axis in axes]
        return te.compute(shape, element, name="resized")

    return importer.bb.emit_te(compute, data)


def _mixed(a: Expr, b: Expr, share: Expr) -> Expr:
    return a + (b - a) * share


def _number(value: Size | float) -> Expr:
    if isinstance(value, float):
        return tirx.const(value, "float32")
    return tirx.Cast("float32", expression(value))


def _position(at: tirx.Var, axis: Axis, before: Expr, mode: str, coordinates: str) -> Expr:
    """Where the element `at` of the result lies between those of the operand."""
    where, half, zero = _number(at), tirx.const(0.5, "float32"), tirx.const(0.0, "float32")
    after = expression(axis.after)
    scale = _number(after) / _number(before) if axis.scale is None else _number(axis.scale)

    def steps(count: Expr) -> Expr:
        if coordinates == "align_corners":
            return count * _number(before - 1) / _number(after - 1)
        return count / scale

    if coordinates in ("half_pixel", "pytorch_half_pixel"):
        place = steps(where + half) - half
    elif mode == "linear":
        # TVM fails to lower a product with a bare index that is used twice
        place = steps(where + half) - steps(half)
    else:
        place = steps(where)
    if coordinates in ("align_corners", "pytorch_half_pixel"):
        return tirx.if_then_else(after > 1, place, zero)
    return place


def _rounded(place: Expr, rounding: str) -> Expr:
    half = tirx.const(0.5, "float32")
    if rounding == "round_prefer_floor":
        return tirx.ceil(place - half)
    if rounding == "round_prefer_ceil":
        return tirx.floor(place + half)
    return tirx.ceil(place) if rounding == "ceil" else tirx.floor(place)


def _clamped(place: Expr, size: Expr) -> Expr:
    at = tirx.Cast("int64", place)
    return tirx.max(tirx.min(at, size - 1), tirx.const(0, "int64"))


def _between(place: Expr, size: Expr) -> tuple[Expr, Expr, Expr]:
    """The two neighbours of a position, and how far it is from the first to the second."""
    low = tirx.floor(place)
    return _clamped(low, size), _clamped(low + 1, size), place - low
