"""What of the operators after a matmul can be done on its tiles, or its rows, as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax
from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr, Var

from tvm_moonpoly.operators import MAX_OPERANDS, MAX_STEPS, Activation, Chain, Step

from .activation import CLIP, clip_bounds, match_activation
from .bindings import Bindings
from .match import PERMUTE_DIMS, permutation
from .shapes import dims, dtype_of, known_dims, same_dim, same_tensor

#: Operators of two tensors, as steps on the first operand and on the second one.
BINARY = {
    Op.get("relax.add"): (Step.ADD, Step.ADD),
    Op.get("relax.subtract"): (Step.SUBTRACT, Step.REVERSE_SUBTRACT),
    Op.get("relax.multiply"): (Step.MULTIPLY, Step.MULTIPLY),
    Op.get("relax.divide"): (Step.DIVIDE, None),
    Op.get("relax.maximum"): (Step.MAXIMUM, Step.MAXIMUM),
    Op.get("relax.minimum"): (Step.MINIMUM, Step.MINIMUM),
}


@dataclass(frozen=True, eq=False)
class Link:
    """One step of an epilogue: an activation, or an arithmetic step with an operand."""

    step: Step | Activation
    operand: Expr | None = None

    def is_bias(self, features: Expr) -> bool:
        """Whether it adds one value a column, for all `features` columns."""
        if self.step != Step.ADD or self.operand is None:
            return False
        *leading, last = known_dims(self.operand) or [None]
        return last is not None and same_dim(last, features) and all(map(_is_one, leading))


@dataclass(frozen=True, eq=False)
class Epilogue:
    """`last = links(product)`, each applied to the result of the one before."""

    last: Var
    links: tuple[Link, ...] = ()


def operands(links: Sequence[Link]) -> list[Expr]:
    """The tensors that `links` read, in order."""
    return [link.operand for link in links if link.operand is not None]


def chain(links: Sequence[Link]) -> Chain:
    """`links` as the packed functions take them, numbering their `operands`."""
    numbers = iter(range(MAX_OPERANDS))
    steps = [(link.step, None if link.operand is None else next(numbers)) for link in links]
    return Chain(tuple(steps))


def fits_chain(links: Sequence[Link]) -> bool:
    """Whether a chain of the packed functions has room for `links`."""
    return len(links) <= MAX_STEPS and len(operands(links)) <= MAX_OPERANDS


def match_epilogue(
    var: Var, bindings: Bindings, accepts: Callable[[Sequence[Link]], bool] = fits_chain
) -> Epilogue:
    """The longest epilogue after the matmul `var` of which each beginning is accepted.

    All operands are then read where the epilogue ends, so that nothing may write before that.
    """
    epilogue = Epilogue(var)
    while True:
        longer = _next(epilogue, bindings)
        if longer is None or not bindings.undisturbed(var, longer.last):
            return epilogue
        if not accepts(longer.links):
            return epilogue
        epilogue = longer


def _next(epilogue: Epilogue, bindings: Bindings) -> Epilogue | None:
    """`epilogue` and the operator after it, if that can be part of one."""
    last = epilogue.last
    match = match_activation(last, bindings)
    if match is not None:
        return Epilogue(match.output, (*epilogue.links, Link(match.activation)))
    user = bindings.only_user(last)
    call = bindings.call(user, CLIP, *BINARY)
    if user is None or call is None or not same_tensor(call, last):
        return None
    if bindings.block[user] != bindings.block[last]:
        return None
    links = _clip(call) if call.op == CLIP else _binary(call, last)
    return Epilogue(user, (*epilogue.links, *links)) if links else None


def _clip(call: Call) -> list[Link]:
    bounds = clip_bounds(call)
    if bounds is None:
        return []
    if bounds == (0.0, 6.0):
        return [Link(Activation.RELU6)]
    steps = zip((Step.MAXIMUM, Step.MINIMUM), bounds, strict=True)
    return [Link(step, relax.const(bound, "float32")) for step, bound in steps]


def _binary(call: Call, last: Var) -> list[Link]:
    first, second = BINARY[call.op]
    a, b = call.args
    step, other = (first, b) if last.same_as(a) else (second, a)
    if step is None or not isinstance(other, Var | GenericConst):
        return []
    if dtype_of(other) != dtype_of(last):
        return []
    return [] if dims(other) is None else [Link(step, other)]


def transposed_store(var: Var, bindings: Bindings) -> tuple[Var, tuple[int, ...]]:
    """The variable that holds the product `var` once a `permute_dims` after it is done by the
    store, and which dim of the product each stored dim is."""
    identity = tuple(range(var.ty.ndim))
    user = bindings.only_user(var)
    call = bindings.call(user, PERMUTE_DIMS)
    if user is None or call is None or bindings.block[user] != bindings.block[var]:
        return var, identity
    if not bindings.undisturbed(var, user):
        return var, identity
    axes = permutation(call, len(identity))
    return (user, axes) if axes[-1] == identity[-1] else (var, identity)


def _is_one(dim: Expr) -> bool:
    return same_dim(dim, 1)
