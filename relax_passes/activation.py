"""Recognise an activation, as one operator or spelled out in elementary ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr, Var
from tvm.tirx import FloatImm, IntImm

from tvm_moonpoly.operators import Activation

from . import polynomial as poly
from .bindings import Bindings
from .polynomial import Polynomial
from .shapes import same_tensor

WHOLE = {
    Op.get("relax.nn.relu"): Activation.RELU,
    Op.get("relax.nn.gelu"): Activation.GELU,
    Op.get("relax.nn.gelu_tanh"): Activation.GELU_TANH,
    Op.get("relax.nn.silu"): Activation.SILU,
    Op.get("relax.sigmoid"): Activation.SIGMOID,
    Op.get("relax.tanh"): Activation.TANH,
}
ADD, SUBTRACT, MULTIPLY, DIVIDE, POWER = (
    Op.get(f"relax.{name}") for name in ("add", "subtract", "multiply", "divide", "power")
)
CLIP = Op.get("relax.clip")
FUNCTIONS = {Op.get(f"relax.{name}"): name for name in ("erf", "tanh", "sigmoid")}
CLIP01 = "clip01"  # to between 0 and 1, which every clip is after scaling
MAX_STEPS = 12  # the longest spelling, gelu_tanh with its cube as products, has 9 operators


# The constants in spellings, and half a unit in the last place of the types that they are kept in.
SPELLED_WITH = (math.sqrt(0.5), math.sqrt(2), math.sqrt(2 / math.pi), 0.044715)
UNITS = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Match:
    """`output = activation(input)`."""

    activation: Activation
    output: Var


def match_activation(var: Var, bindings: Bindings) -> Match | None:
    """The activation applied to `var`, where nothing else uses `var` or what lies between."""
    user = bindings.only_user(var)
    if user is None:
        return _match_spelled_out(var, bindings)
    call = bindings.call(user, *WHOLE)
    if call is None or bindings.block[user] != bindings.block[var]:
        return None
    return Match(WHOLE[call.op], user) if call.args[0].same_as(var) else None


def _match_spelled_out(var: Var, bindings: Bindings) -> Match | None:
    """The first one of the functions of `var` that is an activation."""
    for output, value in functions_of(var, bindings):
        activation = SPELLED_OUT.get(poly.form(value))
        if activation is not None:
            return Match(activation, output)
    return None


def functions_of(var: Var, bindings: Bindings) -> Iterator[tuple[Var, Polynomial]]:
    """Each function of `var` alone that is all that the rest of the program sees of `var` and of
    the functions before it, in program order, with its value in terms of `var`."""
    known = {var: poly.X}
    users = list(bindings.users.get(var, ()))
    while users and None not in users and len(known) <= MAX_STEPS:
        output = min((user for user in users if user is not None), key=bindings.order.__getitem__)
        value = _polynomial_of(output, var, known, bindings)
        if value is None:
            return
        users = [user for user in users if not output.same_as(user)]
        if not users:
            yield output, value
        known[output] = value
        users += bindings.users.get(output, ())


def _polynomial_of(
    output: Var, var: Var, known: dict[Var, Polynomial], bindings: Bindings
) -> Polynomial | None:
    """The value of `output` in terms of `var`, or None if there is more to it than that."""
    call = bindings.value.get(output)
    if not isinstance(call, Call) or bindings.block[output] != bindings.block[var]:
        return None
    if not same_tensor(call, var):  # a constant of shape (1, 1, 1, 1) may raise the rank
        return None
    operands = []
    for arg in call.args:
        operand = known.get(arg) if isinstance(arg, Var) else _scalar(arg)
        if operand is None:
            return None
        operands.append(operand)
    return _apply(call.op, operands)


def _scalar(expr: Expr) -> Polynomial | None:
    if isinstance(expr, IntImm | FloatImm):
        return poly.constant(float(expr.value))
    dtype = str(expr.value.dtype) if isinstance(expr, GenericConst) else ""
    if dtype not in UNITS:
        return None
    array = expr.value.numpy()
    if array.size != 1:
        return None
    value = float(array.reshape(()))
    # rounded to the tensors' type, it no longer has the digits by which it is known
    near = (known for known in SPELLED_WITH if abs(value - known) <= known * UNITS[dtype])
    return poly.constant(next(near, value))


def clip_bounds(call: Call) -> tuple[float, float] | None:
    """The bounds of a `clip`, if they are numbers."""
    _, low, high = call.args
    if not all(isinstance(bound, IntImm | FloatImm) for bound in (low, high)):
        return None
    return float(low.value), float(high.value)


def _apply(op: Op, operands: list[Polynomial]) -> Polynomial | None:
    if op in FUNCTIONS:
        return poly.call(FUNCTIONS[op], operands[0])
    if op == CLIP:
        low, high = (poly.constant_value(bound) for bound in operands[1:])
        return None if low is None or high is None else _clip(operands[0], low, high)
    if op not in (ADD, SUBTRACT, MULTIPLY, DIVIDE, POWER):
        return None
    a, b = operands
    if op == ADD:
        return poly.add(a, b)
    if op == SUBTRACT:
        return poly.add(a, {term: -factor for term, factor in b.items()})
    if op == MULTIPLY:
        return poly.multiply(a, b)
    number = poly.constant_value(b)
    if op == DIVIDE:
        return poly.multiply(a, poly.constant(1.0 / number)) if number else None
    return poly.multiply(*[a] * int(number)) if number in (2.0, 3.0) else None


def _clip(value: Polynomial, low: float, high: float) -> Polynomial | None:
    if not (low < high and math.isfinite(high - low)):
        return None
    scaled = poly.multiply(
        poly.add(value, poly.constant(-low)) or {}, poly.constant(1.0 / (high - low))
    )
    return poly.add(
        poly.multiply(poly.call(CLIP01, scaled or {}), poly.constant(high - low)) or {},
        poly.constant(low),
    )


def _gelu(call: str, argument: Polynomial | None) -> poly.Form:
    """Of `x / 2 * (1 + call(argument))`."""
    assert argument is not None
    terms = poly.add(poly.constant(1.0), poly.call(call, argument))
    product = poly.multiply(poly.X, poly.constant(0.5), terms)
    assert product is not None
    return poly.form(product)


def _silu() -> poly.Form:
    product = poly.multiply(poly.X, poly.call("sigmoid", poly.X))
    assert product is not None
    return poly.form(product)


_CUBE = poly.multiply(poly.X, poly.X, poly.X, poly.constant(0.044715))
SPELLED_OUT = {
    _gelu("erf", poly.multiply(poly.X, poly.constant(math.sqrt(0.5)))): Activation.GELU,
    _gelu(
        "tanh",
        poly.multiply(poly.constant(math.sqrt(2 / math.pi)), poly.add(poly.X, _CUBE or {})),
    ): Activation.GELU_TANH,
    _silu(): Activation.SILU,
}
