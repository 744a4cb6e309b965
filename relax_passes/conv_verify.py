"""Compare the packed functions for convolutions with TVM's own operators at each call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.ir import Call
from tvm.relax import Expr, Var

from tvm_moonpoly import operators
from tvm_moonpoly.operators.conv_constants import ConvActivation

from .conv_activation import ConvMatch
from .conv_calls import ConvReplacement
from .conv_match import Convolution
from .conv_packing import ConvPacking
from .conv_parameters import as_float
from .shapes import known_dims, show
from .verify import OF_ACTIVATION, magnitude

#: TVM's own operators.
ACTIVATIONS: dict[ConvActivation, Callable[[Expr, ConvMatch], Expr]] = {
    ConvActivation.RELU: lambda x, _: relax.op.nn.relu(x),
    ConvActivation.GELU: lambda x, _: relax.op.nn.gelu(x),
    ConvActivation.GELU_TANH: lambda x, _: relax.op.nn.gelu_tanh(x),
    ConvActivation.SILU: lambda x, _: relax.op.nn.silu(x),
    ConvActivation.SIGMOID: lambda x, _: relax.op.sigmoid(x),
    ConvActivation.TANH: lambda x, _: relax.op.tanh(x),
    ConvActivation.CLIP: lambda x, match: relax.op.clip(x, match.first, match.second),
    ConvActivation.HARDSWISH: lambda x, _: relax.op.multiply(x, _ramp(x, 1 / 6, 0.5)),
    ConvActivation.HARDSIGMOID: lambda x, match: _ramp(x, match.first, match.second),
}
#: Half a unit in the last place of a float16, in units of what `operators.VERIFY` multiplies its
#: bound by for each product: 4 eps of a float32.
OF_FLOAT16 = 1.01 * 2.0**-11 / (4 * 2.0**-23)


def verified_conv(
    var: Var, call: Call, conv: Convolution, found: ConvReplacement, packing: ConvPacking
) -> Expr:
    """A value that gives the result of `found`, the replacement of the convolution `conv` (the
    `call` bound to `var`) and of its epilogue, after comparing it with that of TVM's operators.

    It raises at run time where an element differs by more than `c * K * eps * (|x| conv |w|)`,
    that bound being led through the epilogue; see `operators.VERIFY`. Of float16, TVM's operators
    run in float32, and what the rounding of the result explains is allowed as well.
    """
    dtype = "float32"
    x = as_float(conv.x)
    weight = conv.weight_array() if conv.is_constant else as_float(conv.weight)
    size = np.abs(weight) if isinstance(weight, np.ndarray) else relax.op.abs(weight)
    plain = conv.call(x, weight, dtype=dtype)
    bound = conv.call(magnitude(x), size, dtype=dtype)
    epilogue = found.epilogue
    if epilogue.bias is not None:
        bias = relax.const(conv.by_channel(epilogue.bias), dtype)
        plain, bound = relax.op.add(plain, bias), relax.op.add(bound, magnitude(bias))
    if epilogue.parameter is not None:
        added = as_float(epilogue.parameter)
        plain, bound = relax.op.add(plain, added), relax.op.add(bound, relax.op.abs(added))
    if epilogue.residual is not None:
        residual = as_float(epilogue.residual)
        plain, bound = relax.op.add(plain, residual), relax.op.add(bound, magnitude(residual))
    if epilogue.activation is not None:
        bound = _bound(bound, epilogue.activation)
        plain = ACTIVATIONS[epilogue.activation.activation](plain, epilogue.activation)
    depth = int(np.prod(conv.weight_shape[1:]))
    value = found.value
    if conv.dtype != dtype:
        value = relax.op.astype(value, dtype)
        rounding = relax.const(np.float32(OF_FLOAT16 / depth))
        bound = relax.op.add(bound, relax.op.multiply(relax.op.abs(plain), rounding))
        smallest = relax.const(np.float32(2.0**-24 / (4 * 2.0**-23 * depth)))
        bound = relax.op.add(bound, smallest)
    text = packing.others.text(f"{var.name} = {conv.name} {show(*call.args)}, {found.detail}")
    args = [value, plain, bound, relax.prim_value(depth), text]
    ty = relax.TensorType(known_dims(epilogue.last), dtype)
    checked = relax.call_dps_packed(operators.VERIFY[dtype], args, ty)
    return checked if conv.dtype == dtype else relax.op.astype(checked, conv.dtype)


def _ramp(x: Expr, alpha: float, beta: float) -> Expr:
    scaled = relax.op.multiply(x, relax.const(alpha, "float32"))
    return relax.op.clip(relax.op.add(scaled, relax.const(beta, "float32")), 0.0, 1.0)


def _bound(bound: Expr, match: ConvMatch) -> Expr:
    """By how much the result of the activation may be off, in the unit of `bound`."""
    kind = match.activation
    if kind in (ConvActivation.RELU, ConvActivation.CLIP):
        return bound
    if kind == ConvActivation.HARDSIGMOID:
        slope = relax.const(abs(match.first), "float32")
        scale = relax.const(1.0 + abs(match.second), "float32")
        return relax.op.add(relax.op.multiply(bound, slope), scale)
    if kind in (ConvActivation.SIGMOID, ConvActivation.TANH):
        return relax.op.add(bound, relax.const(1.0, "float32"))
    return relax.op.multiply(bound, relax.const(OF_ACTIVATION, "float32"))
