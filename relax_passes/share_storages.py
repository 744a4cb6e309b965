"""Storages that are not alive at the same time become one, of whatever sizes they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relax, tirx
from tvm.ir import Call
from tvm.relax import Binding, BindingBlock, Expr, Var, VarBinding
from tvm.sym import Analyzer

from .functions import with_rewritten
from .plan_memory import has_branches
from .shape_promises import promised
from .shape_range import Range
from .storages import TENSOR, Life, lives, size_of, storages_of, with_size
from .tir_terms import value_of, variables

#: What a dimension is taken to be of which nothing is known. Another number, or the real one, may
#: give another choice, as right and perhaps larger.
NEUTRAL = 256


@tvm.transform.module_pass(opt_level=0, name="ShareStorages")
class ShareStorages:
    """Make one storage of those that are not alive at the same time.

    `PlanMemory` lets tensors share a storage where one has the size of the other, or is known to be
    smaller. Here a storage has the size of its largest tensor, which a call finds out: the maximum
    of their sizes. Which of them share is decided by their sizes for dimensions that are likely, or
    the largest that are promised, or `NEUTRAL`: the largest first, each in the smallest storage
    that is free while it is alive.

    Follows `PlanMemory`. Functions with branches are left, and so are storages whose sizes are not
    known when the function is entered.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        builder = relax.BlockBuilder(mod)

        def rewrite(func: relax.Function, _name: str) -> relax.Function:
            found = [] if has_branches(func) else slots(func)
            shared = [slot for slot in found if len(slot.members) > 1]
            return _sharing(func, shared, builder) if shared else func

        return with_rewritten(mod, rewrite)


@dataclass
class Slot:
    """Storages, in the order of their sizes, that are never alive at the same time."""

    members: list[VarBinding] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)

    def is_free(self, lives: Iterable[Life]) -> bool:
        return not any(life.overlaps(other) for life in lives for other in self.lives)


def slots(func: relax.Function) -> list[Slot]:
    """Who shares with whom among the storages of ``func``: see `ShareStorages`."""
    storages = list(storages_of(func))
    alive = lives(func, [each.var for each in storages])
    promises = promised(func)
    found: dict[str, list[Slot]] = {}
    for storage in sorted(storages, key=lambda each: -_likely(size_of(each.value), promises)):
        kind = found.setdefault(_kind(storage), [])
        free = [slot for slot in kind if slot.is_free(alive[storage.var])]
        # they are made from the largest to the smallest
        slot = free[-1] if free else Slot()
        if not free:
            kind.append(slot)
        slot.members.append(storage)
        slot.lives.extend(alive[storage.var])
    return [slot for kind in found.values() for slot in kind]


def _kind(storage: VarBinding) -> str:
    """What storages that share must have in common: the device and its scope."""
    _size, *others = storage.value.args
    return str(others[:2])


def _likely(size: Expr, promises: Mapping[str, Range]) -> int:
    """Bytes, where all dimensions are likely."""
    names = {var.name for var in variables(size)}
    return value_of(size, {each: _likely_dim(promises.get(each, Range())) for each in names}) or 0


def _likely_dim(told: Range) -> int:
    if told.likely:
        return max(told.likely)
    if told.largest is not None:
        return told.largest
    return -(-max(told.smallest, NEUTRAL) // told.multiple_of) * told.multiple_of


def _sharing(
    func: relax.Function, shared: Sequence[Slot], builder: relax.BlockBuilder
) -> relax.Function:
    """``func`` with one storage for each of the ``shared``, where its first one was."""
    order = {each.var: at for at, each in enumerate(storages_of(func))}
    first: dict[Var, VarBinding] = {}
    instead: dict[Var, Var] = {}
    for slot in shared:
        begun = min(slot.members, key=lambda each: order[each.var])
        size = largest(size_of(each.value) for each in slot.members)
        first[begun.var] = with_size(begun, size, builder)
        instead.update((each.var, begun.var) for each in slot.members if each is not begun)

    def bound(binding: Binding) -> Binding:
        if binding.var in first:
            return first[binding.var]
        call = binding.value
        if not isinstance(call, Call) or call.op != TENSOR or call.args[0] not in instead:
            return binding
        args = [instead[call.args[0]], *call.args[1:]]
        call = Call(call.op, args, call.attrs, call.ty_args, call.span)
        return VarBinding(binding.var, builder.normalize(call))

    blocks = [
        BindingBlock([bound(each) for each in block.bindings if each.var not in instead])
        for block in func.body.blocks
    ]
    body = builder.normalize(relax.SeqExpr(blocks, func.body.body))
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def largest(sizes: Iterable[Expr]) -> Expr:
    """The maximum of ``sizes``, of which those that are known to be no larger are left out."""
    analyzer = Analyzer()
    kept: list[Expr] = []
    for size in sizes:
        if any(analyzer.can_prove(size <= other) for other in kept):
            continue
        kept = [other for other in kept if not analyzer.can_prove(other <= size)] + [size]
    found = kept[0]
    for size in kept[1:]:
        found = tirx.max(found, size)
    return found
