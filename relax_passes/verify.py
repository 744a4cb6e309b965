"""Compare the packed functions with TVM's own operators at each call."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax import Expr, Var

from tvm_moonpoly import operators
from tvm_moonpoly.operators import Activation, Step

from .calls import Replacement
from .epilogue import Link
from .packing import Packing
from .shapes import dims, dtype_of, known_dims, product_shape, show

ACTIVATIONS = {
    Activation.RELU: relax.op.nn.relu,
    Activation.GELU: relax.op.nn.gelu,
    Activation.GELU_TANH: relax.op.nn.gelu_tanh,
    Activation.SILU: relax.op.nn.silu,
    Activation.RELU6: lambda value: relax.op.clip(value, 0, 6),
    Activation.SIGMOID: relax.op.sigmoid,
    Activation.TANH: relax.op.tanh,
}
ARITHMETIC = {
    Step.ADD: relax.op.add,
    Step.SUBTRACT: relax.op.subtract,
    Step.MULTIPLY: relax.op.multiply,
    Step.DIVIDE: relax.op.divide,
    Step.REVERSE_SUBTRACT: lambda value, operand: relax.op.subtract(operand, value),
    Step.MAXIMUM: relax.op.maximum,
    Step.MINIMUM: relax.op.minimum,
}
#: How much an activation may enlarge an error: by its slope, at most 1.2, and by its own rounding,
#: which is relative to a value that is no larger than its input.
OF_ACTIVATION = 2.2


def verified(var: Var, call: Call, found: Replacement, packing: Packing) -> Call:
    """A call that gives the result of `found`, the replacement of the matmul `call` (bound to
    `var`) and of its epilogue, after comparing it with that of TVM's operators.

    It raises at run time where an element differs by more than `c * K * eps * (|A| @ |B|)`, that
    bound being led through the epilogue; see `operators.VERIFY`. Where TVM itself is wrong, a rule
    takes its place: a sum of no products is zero, and batch dimensions that Relax cannot tell are
    broadcast by plain loops in the widest type.
    """
    a, b = call.args
    dtype = dtype_of(call)
    plain = _product(a, b, call, packing)
    # integers must be equal: nothing is read of their bound
    bound = plain
    if dtype.startswith("float"):
        bound = _product(magnitude(a), magnitude(b), call, packing)
    for link in found.epilogue.links:
        plain, bound = _value(plain, link), _bound(bound, link)
    if found.is_transposed:
        plain, bound = (relax.op.permute_dims(each, found.axes) for each in (plain, bound))
    k = relax.prim_value(known_dims(a)[-1])
    text = packing.text(f"{var.name} = matmul {show(a, b)}, {found.detail}")
    args = [found.value, plain, bound, k, text]
    return relax.call_dps_packed(operators.VERIFY[dtype], args, found.value.ty_args[0])


def _product(a: Expr, b: Expr, call: Call, packing: Packing) -> Expr:
    """`a @ b` by TVM, or by plain loops in the widest type where Relax does not know its shape;
    zeros where K is 0."""
    dtype = dtype_of(call)
    shape = product_shape(*(known_dims(each) for each in call.args))
    if dims(call) is not None:
        value = relax.op.matmul(a, b, out_dtype=dtype)
    else:
        wide = "float64" if dtype.startswith("float") else "int64"
        axes = [tuple(range(len(known_dims(each)))) for each in call.args]
        codes = [relax.prim_value(operators.encode_axes(e)) for e in (*axes, range(len(shape)))]
        args = [relax.op.astype(a, wide), relax.op.astype(b, wide), *codes, packing.text(None)]
        ty = relax.TensorType(shape, wide)
        function = operators.PRODUCTS[wide, wide, wide]
        value = relax.op.astype(relax.call_dps_packed(function, args, ty), dtype)
    k = relax.prim_value(known_dims(call.args[0])[-1])
    ty = relax.TensorType(shape, dtype)
    return relax.call_dps_packed(operators.ZEROS_IF_EMPTY[dtype], [value, k], ty)


def magnitude(tensor: Expr) -> Expr:
    """The absolute values of `tensor`."""
    if isinstance(tensor, GenericConst):
        return relax.const(np.abs(tensor.value.numpy()), dtype_of(tensor))
    return relax.op.abs(tensor)


def _value(value: Expr, link: Link) -> Expr:
    if isinstance(link.step, Step):
        return ARITHMETIC[link.step](value, link.operand)
    return ACTIVATIONS[link.step](value)


def _bound(bound: Expr, link: Link) -> Expr:
    """By how much the result of `link` may be off, in the unit of `bound`."""
    step = link.step
    if step in (Activation.RELU, Activation.RELU6):
        return bound
    if step in (Activation.SIGMOID, Activation.TANH):  # TVM's rounding of these is relative to 1
        return relax.op.add(bound, relax.const(1.0, "float32"))
    if isinstance(step, Activation):
        return relax.op.multiply(bound, relax.const(OF_ACTIVATION, "float32"))
    operand = magnitude(link.operand)
    if step in (Step.MULTIPLY, Step.DIVIDE):
        return ARITHMETIC[step](bound, operand)
    return relax.op.add(bound, operand)
