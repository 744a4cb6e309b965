"""Drawing what comes after a product: bias, residual, scale and activations, in chains."""

from __future__ import annotations

from bench.fuzz.graph import Dim, Role, static
from bench.fuzz.sketch import Known, Sketch

UNARY = (
    "relu",
    "relu6",
    "gelu",
    "gelu_tanh",
    "silu",
    "sigmoid",
    "tanh",
    "gelu_spelled",
    "negative",
)
BINARY = {
    "add": 0.5,
    "multiply": 0.18,
    "subtract": 0.12,
    "divide": 0.08,
    "maximum": 0.06,
    "minimum": 0.06,
}
INTEGER_UNARY = ("relu", "relu6")
STEPS = {0: 0.25, 1: 0.25, 2: 0.2, 3: 0.14, 4: 0.09, 5: 0.07}


def chain(sketch: Sketch, value: str, weights: Role | None, steps: int | None = None) -> str:
    """``value`` after 0 to 5 elementwise steps (or ``steps``); ``weights`` is the role of those
    operands that do not change from call to call."""
    for _ in range(sketch.weighted(STEPS) if steps is None else steps):
        value = _step(sketch, value, weights)
    return value


def _step(sketch: Sketch, value: str, weights: Role | None) -> str:
    known = sketch.values[value]
    integer = known.dtype.startswith("int")
    if sketch.chance(0.45):
        op = sketch.pick(INTEGER_UNARY if integer else UNARY)
        if op == "relu6" and sketch.chance(0.6):
            number = int if integer else float
            low, high = map(number, sketch.pick([(0, 6), (0, 6), (-1, 1), (0, 1)]))
            return sketch.emit(
                "clip", value, dims=known.dims, dtype=known.dtype, low=low, high=high
            )
        return sketch.emit(op, value, dims=known.dims, dtype=known.dtype)
    op = sketch.weighted(BINARY)
    if integer and op == "divide":
        op = "multiply"
    if op != "divide" and sketch.chance(0.25):
        other = _residual(sketch, value)
        if other is not None:
            pair = (value, other) if sketch.chance(0.75) else (other, value)
            return sketch.emit(op, *pair, dims=known.dims, dtype=known.dtype)
    dims = _operand_dims(sketch, known)
    role = sketch.pick([Role.CONSTANT, weights or Role.CONSTANT, Role.DYNAMIC])
    other = sketch.input(dims, known.dtype, role, divisor=op == "divide")
    result = _broadcast(known, sketch.values[other])
    swapped = op != "divide" and sketch.chance(0.25)
    return sketch.emit(
        op, *((other, value) if swapped else (value, other)), dims=result, dtype=known.dtype
    )


def _residual(sketch: Sketch, value: str) -> str | None:
    """A value of the same shape that is there already."""
    known = sketch.values[value]
    if None in known.dims:
        return None
    same = [name for name, each in sketch.values.items() if each == known and name != value]
    return sketch.pick(same) if same else None


def _operand_dims(sketch: Sketch, known: Known) -> list[Dim]:
    """A shape that broadcasts with that of ``known``: a scalar, a vector, a column, a whole
    tensor, any dims 1, leading dims absent, and rarely more than ``known`` has."""
    whole = [dim or static(1) for dim in known.dims]
    way = sketch.weighted(
        {"scalar": 0.22, "last": 0.33, "column": 0.08, "whole": 0.17, "any": 0.16, "wider": 0.04}
    )
    if way == "scalar" or not whole:
        return [static(1)] * int(sketch.rng.integers(0, 1 + min(2, len(whole))))
    if way == "last":
        return [static(1)] * sketch.pick([0, 0, 0, len(whole) - 1]) + whole[-1:]
    if way == "column":
        return [*whole[-2:-1], static(1)]
    if way == "whole":
        return whole
    dims = [dim if sketch.chance(0.5) else static(1) for dim in whole]
    if way == "wider":
        if len(whole) < 5 and sketch.chance(0.5):
            return [static(sketch.pick([1, 2])), *dims]
        grown = static(sketch.pick([2, 3]))
        ones = [dim == static(1) for dim in known.dims]  # not where two symbols were broadcast
        return [grown if one else each for one, each in zip(ones, dims, strict=True)]
    return dims[int(sketch.rng.integers(len(dims))) :]


def _broadcast(known: Known, other: Known) -> list[Dim | None]:
    """The dims of an elementwise operator; those of ``other`` are 1, absent, or fit."""
    longer = max(len(known.dims), len(other.dims))
    left = [*[static(1)] * (longer - len(known.dims)), *known.dims]
    right = [*[static(1)] * (longer - len(other.dims)), *other.dims]
    return [b if a == static(1) else a for a, b in zip(left, right, strict=True)]
