"""The calls of the operator library that stand for a convolution and its epilogue."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import relax, tirx
from tvm.ir import Call
from tvm.relax import Expr, Var
from tvm.tirx import IntImm

from tvm_moonpoly.operators import conv_constants
from tvm_moonpoly.operators.conv_constants import ConvSpec

from .conv_epilogue import ConvEpilogue
from .conv_match import CONV2D, Convolution
from .conv_packing import ConvPacking
from .layouts import permuted_shape, to_first, to_last
from .run_time_checks import assert_equal
from .shapes import known_dims, show_dim, show_dims

#: The packed function by data type, depthwise or not, and with a residual or not.
FUNCTIONS = {
    ("float32", False, False): conv_constants.CONV2D,
    ("float32", False, True): conv_constants.CONV2D_RESIDUAL,
    ("float32", True, False): conv_constants.DEPTHWISE,
    ("float32", True, True): conv_constants.DEPTHWISE_RESIDUAL,
    ("float16", False, False): conv_constants.CONV2D_F16,
    ("float16", False, True): conv_constants.CONV2D_RESIDUAL_F16,
    ("float16", True, False): conv_constants.DEPTHWISE_F16,
    ("float16", True, True): conv_constants.DEPTHWISE_RESIDUAL_F16,
}


@dataclass(frozen=True, eq=False)
class ConvReplacement:
    """`value` is to be bound to `epilogue.last`, after `checks`, which raise at the call where
    the kernel is larger than the padded input."""

    epilogue: ConvEpilogue
    value: Expr
    detail: str
    checks: list[Call]


def replace_convolution(
    conv: Convolution,
    epilogue: ConvEpilogue,
    spec: ConvSpec,
    packing: ConvPacking,
    function: str,
    planes: Expr | None = None,
) -> ConvReplacement:
    """What stands for `conv` and `epilogue`, in the function called `function`. `planes`: its input
    as (N, C, H, W), where it is to read that."""
    residual = epilogue.residual
    if planes is not None:
        spec = replace(spec, planes=True)
    args = [_as_images(conv.x, conv) if planes is None else planes, packing.weight(conv, spec)]
    args.append(packing.bias(epilogue, spec))
    args += [] if residual is None else [_as_images(residual, conv)]
    args.append(packing.spec(spec))
    name = FUNCTIONS[conv.dtype, spec.depthwise, residual is not None]
    out = epilogue.last
    ty = relax.TensorType(_shape_of_images(out, conv), conv.dtype)
    value = _from_images(relax.call_dps_packed(name, args, ty), out, conv)
    return ConvReplacement(
        epilogue, value, _detail(conv, spec, epilogue), _checks(conv, spec, function)
    )


def _detail(conv: Convolution, spec: ConvSpec, epilogue: ConvEpilogue) -> str:
    parts = ["depthwise" if spec.depthwise else "convolution"]
    parts += [f"{spec.groups} groups"] * (spec.groups > 1 and not spec.depthwise)
    parts += [conv.dtype] * (conv.dtype != "float32")
    back = "transposed back" if spec.planes else "transposed to channels last and back"
    parts += ["of planes of channels"] * spec.planes
    parts += [back] * (not conv.channels_last)
    parts += ["weight packed by operators"] * (not conv.is_constant)
    parts += [f"fused {epilogue}"] * bool(str(epilogue))
    return ", ".join(parts)


def _channels_last(expr: Expr, conv: Convolution) -> tuple[int, ...]:
    ndim = expr.ty.ndim
    return tuple(range(ndim)) if conv.channels_last else to_last(ndim)


def _shape_of_images(expr: Expr, conv: Convolution) -> list[Expr]:
    """The shape of `expr` as (N, H, W, C)."""
    batch, *spatial, channels = permuted_shape(expr, _channels_last(expr, conv))
    rows = [] if conv.op == CONV2D else [tirx.const(1, "int64")]
    return [batch, *rows, *spatial, channels]


def _as_images(expr: Expr, conv: Convolution) -> Expr:
    """`expr`, laid out as the operand of `conv` is, as (N, H, W, C)."""
    shape = relax.ShapeExpr(_shape_of_images(expr, conv))
    if not conv.channels_last:
        expr = relax.op.permute_dims(expr, list(to_last(expr.ty.ndim)))
    return expr if conv.op == CONV2D else relax.op.reshape(expr, shape)


def _from_images(images: Expr, like: Var, conv: Convolution) -> Expr:
    """`images` (N, H, W, C) in the shape and layout of `like`."""
    if conv.op != CONV2D:
        last = permuted_shape(like, _channels_last(like, conv))
        images = relax.op.reshape(images, relax.ShapeExpr(last))
    if conv.channels_last:
        return images
    return relax.op.permute_dims(images, list(to_first(like.ty.ndim)))


def _checks(conv: Convolution, spec: ConvSpec, function: str) -> list[Call]:
    """Calls that raise where an output size would be negative, before the output is allocated.
    There are none where it cannot be: the packed function itself raises where it is zero."""
    found = []
    for axis, size in enumerate(_shape_of_images(conv.x, conv)[1:3]):
        margin = spec.padding[axis] + spec.padding[axis + 2]
        reach = (spec.kernel[axis] - 1) * spec.dilation[axis] + 1
        of_nothing = (margin - reach) // spec.strides[axis] + 1
        if of_nothing >= 0 or (isinstance(size, IntImm) and int(size) + margin >= reach):
            continue
        padded, side = size + margin, ("height", "width")[axis]
        text = (
            f"{function}: {conv.name} of x {show_dims(known_dims(conv.x))}: its {side} with "
            f"padding is less than that of the kernel: {show_dim(padded)} instead of {reach};"
        )
        limit = tirx.const(reach, "int64")
        found.append(assert_equal(tirx.min(padded, limit), limit, text))
    return found
