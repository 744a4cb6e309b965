"""Large weights lie in the library's file, from where the system maps them: no call copies them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import Call, GenericConst, GlobalVar
from tvm.target import Target

from tvm_moonpoly.operators import mapped_weights

from .functions import EXTERNAL_MODS, with_rewritten

logger = logging.getLogger("tvm_moonpoly")

SMALLEST = 16 * 1024  # bytes of a weight: to fetch one takes a call a time that it is used
LEAST = 2**20  # bytes of all: below, a file beside the executable does not pay


@tvm.transform.module_pass(opt_level=0, name="MapWeights")
class MapWeights:
    """Move large constants from the executable's pool into a section of its library.

    TVM keeps constants as bytes of the library that loading copies twice and then once more into
    tensors, all of which are there at once: four times the weights at the peak, and twice of them
    for good. From a section of its own a weight is read where the system maps it, page by page as
    it is used; processes that run the same library share it.

    Only what functions of loops and our packed functions read is moved, which return nothing: no
    result of the model may lie in the library, which can be unloaded before it. Constants stay
    as they are where they are less than a megabyte together, or the object format is not ELF.
    """

    def __init__(self, target: Target) -> None:
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        found = _Constants(mod)
        with_rewritten(mod, found.of)
        tensors = [each.value for each in found.read]
        if sum(map(mapped_weights.size_of, tensors)) < LEAST:
            return mod
        if not mapped_weights.supported(self.target):
            return mod
        try:
            weights = mapped_weights.store(tensors, self.target)
        except OSError as error:
            logger.warning("weights stay constants: no file can be written for them: %s", error)
            return mod
        token = relax.const(weights.token)
        changed = with_rewritten(
            mod, lambda func, _name: _Fetching(mod, found.read, token).visit_expr(func)
        )
        return changed.with_attr(
            EXTERNAL_MODS, [*(mod.attrs or {}).get(EXTERNAL_MODS, []), weights.module]
        )


def _reads(call: Call, mod: tvm.IRModule) -> Sequence[GenericConst]:
    """The large constants that `call` reads and does not hand on."""
    if isinstance(call.op, GlobalVar):
        reads = isinstance(mod[call.op], tirx.PrimFunc)
    else:
        reads = isinstance(call.op, relax.ExternFunc) and _is_ours(call.op)
    return [
        each
        for each in call.args
        if reads
        and isinstance(each, GenericConst)
        and mapped_weights.size_of(each.value) >= SMALLEST
    ]


def _is_ours(func: relax.ExternFunc) -> bool:
    return str(func.global_symbol).startswith("moonpoly_")


class _Constants:
    """Collects the constants to move, each once."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self.read: list[GenericConst] = []

    def of(self, func: relax.Function, _name: str) -> relax.Function:
        def visit(expr: relax.Expr) -> None:
            if isinstance(expr, Call):
                for const in _reads(expr, self._mod):
                    if _position(self.read, const) is None:
                        self.read.append(const)

        relax.analysis.post_order_visit(func, visit)
        return func


def _position(constants: Sequence[GenericConst], expr: relax.Expr) -> int | None:
    """Where the tensor of `expr` is among `constants`; None where it is none of them."""
    if not isinstance(expr, GenericConst):
        return None
    found = (at for at, each in enumerate(constants) if each.value.same_as(expr.value))
    return next(found, None)


@relax.expr_functor.mutator
class _Fetching(relax.PyExprMutator):
    """Fetches a weight just before the call that reads it: it is nothing but an address."""

    def __init__(
        self, mod: tvm.IRModule, moved: Sequence[GenericConst], token: GenericConst
    ) -> None:
        super().__init__()
        self._mod, self._moved, self._token = mod, moved, token
        self._fetch = relax.ExternFunc(mapped_weights.NAME)

    def visit_call_(self, call: Call) -> relax.Expr:
        read = _reads(call, self._mod)
        if not read:
            return super().visit_call_(call)
        args = [
            self.visit_expr(each) if _position(read, each) is None else self._fetched(each)
            for each in call.args
        ]
        return Call(call.op, args, call.attrs, call.ty_args, call.span)

    def _fetched(self, const: GenericConst) -> relax.Var:
        index = relax.prim_value(_position(self._moved, const))
        fetch = Call(self._fetch, [self._token, index], None, [const.ty])
        return self.builder_.emit(fetch, "weight")
