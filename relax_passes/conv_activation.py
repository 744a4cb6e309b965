"""Recognise the activation after a convolution, as one operator or spelled out."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.relax import Var

from tvm_moonpoly.operators.conv_constants import ConvActivation

from . import polynomial as poly
from .activation import CLIP, CLIP01, SPELLED_OUT, WHOLE, clip_bounds, functions_of
from .bindings import Bindings
from .polynomial import Form, Polynomial
from .shapes import dtype_of

#: How far apart constants of one formula may be, relative to the larger one: 1/6 as a float16 is
#: off by 2.4e-4.
TOLERANCE = {"float32": 1e-4, "float16": 1e-3}


@dataclass(frozen=True)
class ConvMatch:
    """`output = activation(input)`, with the activation's two parameters."""

    activation: ConvActivation
    output: Var
    first: float = 0.0
    second: float = 0.0


def match_conv_activation(var: Var, bindings: Bindings) -> ConvMatch | None:
    """The longest activation of `var`, where nothing else uses `var` or what lies between."""
    best = _whole(var, bindings)
    for output, value in functions_of(var, bindings):
        found = _named(value, output, TOLERANCE[dtype_of(var)])
        # what is one operator has its bounds as they are written
        if found and (not best or bindings.order[output] > bindings.order[best.output]):
            best = found
    return best


def _whole(var: Var, bindings: Bindings) -> ConvMatch | None:
    user = bindings.only_user(var)
    call = bindings.call(user, *WHOLE, CLIP)
    if user is None or call is None or bindings.block[user] != bindings.block[var]:
        return None
    if not call.args[0].same_as(var):
        return None
    if call.op == CLIP:
        bounds = clip_bounds(call)
        if bounds is None or not bounds[0] <= bounds[1]:
            return None
        return ConvMatch(ConvActivation.CLIP, user, *bounds)
    return ConvMatch(ConvActivation[WHOLE[call.op].name], user)


def _named(value: Polynomial, output: Var, tolerance: float) -> ConvMatch | None:
    form = poly.form(value)
    for known, activation in FORMS.items():
        if _close(form, known, tolerance):
            return ConvMatch(activation, output)
    return _hard_sigmoid(form, output, tolerance)


def _hard_sigmoid(form: Form, output: Var, tolerance: float) -> ConvMatch | None:
    """`clip(alpha * x + beta, 0, 1)`, in whatever spelling."""
    terms = dict(form)
    offset = terms.pop((), 0.0)
    if len(terms) != 1:
        return None
    ((factors, scale),) = terms.items()
    if len(factors) != 1 or factors[0][0] != CLIP01:
        return None
    argument = dict(factors[0][1])
    beta, alpha = argument.pop((), 0.0), argument.pop((("x",),), 0.0)
    if argument or not alpha:
        return None
    if abs(offset) < tolerance and abs(scale - 1.0) < tolerance:
        return ConvMatch(ConvActivation.HARDSIGMOID, output, alpha, beta)
    return None


def _close(a: object, b: object, tolerance: float) -> bool:
    """Whether two forms are the same but for the rounding of their constants."""
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= tolerance * max(abs(a), abs(b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    return a == b


def _hard_swish() -> Form:
    argument = poly.add(poly.multiply(poly.X, poly.constant(1 / 6)) or {}, poly.constant(0.5))
    return poly.form(poly.multiply(poly.X, poly.call(CLIP01, argument or {})) or {})


FORMS: dict[Form, ConvActivation] = {
    _hard_swish(): ConvActivation.HARDSWISH,
    **{form: ConvActivation[activation.name] for form, activation in SPELLED_OUT.items()},
}
