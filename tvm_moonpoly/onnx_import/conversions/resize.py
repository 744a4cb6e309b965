"""Resize to sizes or by scales that the graph computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
from tvm import relax
from tvm.relax import Expr

from ..errors import Unsupported
from ..symbolic import Quotient, Size, Sizes, expression, fraction
from .interpolate import Axis, interpolated
from .operands import axis_of, data_and_shape, has, known_operand, sizes_operand

if TYPE_CHECKING:
    from ..importer import Importer

METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
#: What TVM computes with symbolic sizes; its layout passes know it as an operator.
NATIVE = {("nearest", "half_pixel"), ("nearest", "asymmetric"), ("linear", "half_pixel")}
NATIVE |= {("cubic", "half_pixel")}


def resize(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Expr | None:
    """Images (N, C, H, W) to symbolic sizes.

    TVM takes the quotient of the sizes for the scale, as ONNX does for given sizes. Where given
    scales may lead to other ones, and where TVM knows no symbolic sizes, the loops are ours.
    """
    data, before = data_and_shape(importer, node)
    if len(before) != 4:
        return None
    if attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise Unsupported("keep_aspect_ratio_policy")
    if attributes.get("antialias", 0):
        raise Unsupported("antialias")
    old = node.op_type == "Upsample" or importer.opset < 11
    mode = attributes.get("mode", b"nearest").decode()
    coordinates = attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    coordinates = "asymmetric" if old else coordinates
    rounding = attributes.get("nearest_mode", b"round_prefer_floor").decode()
    rounding = "floor" if old else rounding
    axes = _axes(importer, node, attributes, before)
    if any(importer.sizes.compare(each.before, each.after) is not True for each in axes[:2]):
        raise Unsupported("it changes the batch or the channels")
    symbolic = not all(isinstance(each.before, int) for each in axes[2:])
    native = (mode, coordinates) in NATIVE if symbolic else coordinates != "tf_crop_and_resize"
    if native and all(each.scale is None for each in axes):
        return relax.op.image.resize2d(
            data,
            size=relax.ShapeExpr([expression(each.after) for each in axes[2:]]),
            roi=[0.0] * 4,
            layout="NCHW",
            method=METHODS[mode],
            coordinate_transformation_mode=coordinates,
            rounding_method=rounding,
            cubic_alpha=attributes.get("cubic_coeff_a", -0.75),
            cubic_exclude=attributes.get("exclude_outside", 0),
            extrapolation_value=attributes.get("extrapolation_value", 0.0),
        )
    return interpolated(importer, data, axes, mode, coordinates, rounding)


def _axes(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any], before: Sequence[Size]
) -> list[Axis]:
    changed = [axis_of(axis, len(before)) for axis in attributes.get("axes", range(len(before)))]
    axes = [Axis(size, size) for size in before]
    if has(node, 3):
        for axis, size in zip(changed, sizes_operand(importer, node, 3, "sizes"), strict=True):
            axes[axis] = Axis(before[axis], size)
        return axes
    for axis, scale in zip(changed, _scales(importer, node, attributes), strict=True):
        axes[axis] = scaled(importer.sizes, before[axis], scale)
    return axes


def _scales(
    importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> Sequence[Any]:
    if "scales" in attributes:  # Upsample of opset 7
        return list(attributes["scales"])
    found = known_operand(importer, node, 1 if len(node.input) == 2 else 2)
    if found is None:
        raise Unsupported("its scales must follow from the model's dimensions and constants")
    return found.elements


def scaled(sizes: Sizes, size: Size, scale: Any) -> Axis:
    """The size times `scale`, rounded down; with the scale where the product may be no integer."""
    if isinstance(scale, Quotient):
        above, below = scale.above, scale.below
        given: float | None = None
    else:
        exact = fraction(float(scale))
        above, below, given = exact.numerator, exact.denominator, float(scale)
    if sizes.compare(below, size):
        return Axis(size, above)
    product = sizes.simplify(size * above)
    after = sizes.divide_down(product, below)
    if sizes.compare(sizes.simplify(after * below), product):
        return Axis(size, after)
    if given is None:
        raise Unsupported(f"the scale {above} / {below} of a size {size}, which is no whole size")
    return Axis(size, after, given)
