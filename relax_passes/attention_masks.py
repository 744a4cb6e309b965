"""Which part of the masks of an attention is the triangle of a causal one, and what remains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from tvm import relax
from tvm.ir import Call, Op
from tvm.relax import Expr, Var

from tvm_moonpoly.operators.attention_constants import Causal

from .attention_numbers import WHERE
from .index_tensors import IndexTensors
from .index_values import Affine, Piecewise, int64, negated
from .shape_facts import ShapeFacts
from .shapes import dims, known_dims, same_dim

ADD = Op.get("relax.add")
AND = tuple(Op.get(f"relax.{name}") for name in ("logical_and", "bitwise_and"))
OR = tuple(Op.get(f"relax.{name}") for name in ("logical_or", "bitwise_or"))
NOT = tuple(Op.get(f"relax.{name}") for name in ("logical_not", "bitwise_not"))

#: From here on, what a score is before it is replaced, or added to, makes no difference.
LOWEST = -1e30

#: The same, where another key of the row is known not to be masked.
LOW = -1e8

#: How often masks are sums, or conditions joined, of others.
DEEPEST = 6


@dataclass(frozen=True, eq=False)
class Masking:
    """`expr` is added to scores; or they become ``low``, by replacement or addition, where the
    condition `expr` is not ``seen``."""

    expr: Expr
    low: float | None = None
    seen: bool = True

    @property
    def addend(self) -> Expr:
        """What to add to the scores."""
        if self.low is None:
            return self.expr
        zero, low = relax.const(0.0, "float32"), relax.const(self.low, "float32")
        return relax.op.where(self.expr, *((zero, low) if self.seen else (low, zero)))


@dataclass(frozen=True, eq=False)
class Triangle:
    """Scores become ``low`` where ``at``, a tensor of the dimensions `shape`, is below 0."""

    at: Affine
    shape: list[Expr]
    low: float


@dataclass(frozen=True, eq=False)
class Mask:
    """What is added to the scores, of how many dimensions, and which keys are looked at at all."""

    addend: Expr | None = None
    ndim: int = 0
    causal: Causal = Causal.NONE


def settled(maskings: Sequence[Masking], scores: Var, tensors: IndexTensors) -> Mask | None:
    """What `maskings` of the product `scores` come to; None where that is no single addend."""
    if len(maskings) > 1 and any(each.low not in (None, -np.inf) for each in maskings):
        return None  # what replaces scores replaces other masks as well
    parts = [part for each in maskings for part in _parts(each, tensors)]
    triangles = [part for part in parts if isinstance(part, Triangle)]
    rest = [part for part in parts if isinstance(part, Masking)]
    kinds = {_causal(each, scores, tensors.known) for each in triangles}
    # what is wholly masked by numbers is what the numbers make of it
    certain = LOW if not rest else -np.inf
    exact = len(kinds) == 1 and all(each.low <= certain for each in triangles)
    causal = kinds.pop() if exact else None
    if causal is None or not all(_is_addend(each, scores) for each in rest):
        causal, rest = Causal.NONE, list(maskings)
        if len(rest) > 1 or not all(_is_addend(each, scores) for each in rest):
            return None
    if not rest:
        return Mask(None, 0, causal)
    ndim = max(len(known_dims(each.expr)) for each in rest)
    return Mask(reduce(relax.op.add, [each.addend for each in rest]), ndim, causal)


def _is_addend(masking: Masking, scores: Var) -> bool:
    """Whether the packed function can add it: with all keys, and none that are replaced by a
    number which counts."""
    shape = dims(masking.expr)
    low = masking.low is None or masking.low <= LOWEST
    return bool(low and shape and same_dim(shape[-1], known_dims(scores)[-1]))


def _parts(masking: Masking, tensors: IndexTensors, depth: int = 0) -> Iterator[Masking | Triangle]:
    """`masking` as several ones that do the same together, without those that do nothing."""
    found, shape = tensors.of(masking.expr), dims(masking.expr) or []
    if isinstance(found, Piecewise):
        if masking.low is None:
            seen = bool(found.yes == 0)
            low = float(found.no if seen else found.yes)
            is_mask = found.yes == 0 or found.no == 0
        else:
            seen, low = bool(found.yes) == masking.seen, masking.low
            is_mask = found.at is None or bool(found.yes) != bool(found.no)
        if found.at is None and seen:
            return
        if found.at is not None and is_mask:
            yield Triangle(found.at if seen else negated(found.at), shape, low)
            return
    cut = list(_cut(masking, tensors)) if depth < DEEPEST else []
    if not cut:
        yield masking
    for part in cut:
        yield from _parts(part, tensors, depth + 1)


def _cut(masking: Masking, tensors: IndexTensors) -> Iterator[Masking]:
    """The operands of `masking`, where it is a sum, a choice, or conditions joined."""
    bindings, reader = tensors.bindings, tensors.reader
    joined = AND if masking.seen else OR
    ops = (ADD, WHERE) if masking.low is None else (*joined, *NOT)
    call = bindings.call(masking.expr, *ops)
    if call is None or not isinstance(masking.expr, Var):
        return
    block = bindings.block[reader]
    reached = all(bindings.reaches(arg, block) for arg in call.args)
    if not reached or not bindings.undisturbed(masking.expr, reader):
        return
    if call.op in NOT:
        yield Masking(call.args[0], masking.low, not masking.seen)
    elif call.op == WHERE:
        yield from _choice(call, tensors)
    else:
        yield from (Masking(arg, masking.low, masking.seen) for arg in call.args)


def _choice(call: Call, tensors: IndexTensors) -> Iterator[Masking]:
    """A condition, where `call` chooses between 0 and a number below."""
    condition, *values = call.args
    found = [tensors.of(value) for value in values]
    numbers = [float(f.yes) for f in found if isinstance(f, Piecewise) and f.at is None]
    if len(numbers) == 2 and min(numbers) < max(numbers) == 0.0:
        yield Masking(condition, min(numbers), numbers[0] == 0.0)


def _causal(triangle: Triangle, scores: Var, known: ShapeFacts) -> Causal | None:
    """The kind of causal attention that a triangle is the mask of, in which each row sees at least
    the first key."""
    *_, rows, keys = known_dims(scores)
    shape, steps = triangle.shape, triangle.at.steps
    if not shape or not same_dim(shape[-1], keys) or steps[-1] != -1 or any(steps[:-2]):
        return None
    row, step = (shape[-2], steps[-2]) if len(shape) > 1 else (int64(1), 0)
    if not same_dim(row, rows) or step != (0 if same_dim(row, int64(1)) else 1):
        return None
    if known.equal(triangle.at.base, int64(0)):
        return Causal.FROM_FIRST
    last = known.equal(triangle.at.base, keys - rows) and known.holds(keys >= rows)
    return Causal.FROM_LAST if last else None
