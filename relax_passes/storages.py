"""Storages of a function whose memory is planned: what they ask for, and when they are alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tvm import relax, tirx
from tvm.ir import Call, Op, Type
from tvm.relax import Binding, Expr, ShapeExpr, Var, VarBinding

from .tir_terms import variables

STORAGE, TENSOR = (Op.get(f"relax.memory.alloc_{name}") for name in ("storage", "tensor"))


def size_of(storage: Call) -> Expr:
    """The bytes that a call of `STORAGE` asks for."""
    (size,) = storage.args[0].values
    return size


def resized(storage: Call, size: Expr) -> Call:
    """The same call for ``size`` bytes."""
    args = [ShapeExpr([size]), *storage.args[1:]]
    return Call(storage.op, args, storage.attrs, storage.ty_args, storage.span)


def with_size(storage: VarBinding, size: Expr, builder: relax.BlockBuilder) -> VarBinding:
    return VarBinding(storage.var, builder.normalize(resized(storage.value, size)))


def bindings_of(func: relax.Function) -> Iterator[Binding]:
    """Those of a function without branches, in order."""
    for block in func.body.blocks:
        yield from block.bindings


def storages_of(func: relax.Function) -> Iterator[VarBinding]:
    """The storages whose sizes are known when the function is entered."""
    told = symbols_of(func)
    for binding in bindings_of(func):
        if not isinstance(binding, VarBinding) or not isinstance(binding.value, Call):
            continue
        if binding.value.op == STORAGE and variables(size_of(binding.value)) <= told:
            yield binding


def symbols_of(func: relax.Function) -> set[tirx.Var]:
    """The symbols that the function's parameters bind."""
    return {var for param in func.params for var in _symbols(param.ty)}


def _symbols(ty: Type) -> Iterator[tirx.Var]:
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _symbols(field)
    elif isinstance(ty, relax.TensorType) and isinstance(ty.shape, ShapeExpr):
        yield from (dim for dim in ty.shape.values if isinstance(dim, tirx.Var))
    elif isinstance(ty, relax.ShapeType) and ty.values is not None:
        yield from (dim for dim in ty.values if isinstance(dim, tirx.Var))


@dataclass(frozen=True)
class Life:
    """The numbers of the first and the last binding that use a tensor, or what is made of it."""

    first: int
    last: int

    def overlaps(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last


def lives(func: relax.Function, storages: Iterable[Var]) -> dict[Var, list[Life]]:
    """When what lies in each of the ``storages`` is alive: a life for each tensor, between two of
    which a storage holds nothing.

    What a binding makes of a tensor is taken to lie where that lies, be it a view, a tuple or the
    result of a call, unless it is an empty tuple, which calls of functions that write to their last
    arguments return. A storage that is used for something else than a tensor is always alive.
    """
    ordered = list(bindings_of(func))
    found: dict[Var, dict[Var, Life]] = {storage: {} for storage in storages}
    within: dict[Var, set[tuple[Var, Var]]] = {}  # of each variable the storages, and their tensors

    def use(expr: Expr, at: int) -> set[tuple[Var, Var]]:
        read = relax.analysis.free_vars(expr)
        used = set().union(*(within.get(var, set()) for var in read))
        for storage, tensor in used:
            found[storage][tensor] = Life(found[storage][tensor].first, at)
        for storage in (var for var in read if var in found):
            found[storage][storage] = Life(0, len(ordered))
        return used

    for at, binding in enumerate(ordered):
        value = binding.value
        if isinstance(value, Call) and value.op == TENSOR and value.args[0] in found:
            found[value.args[0]][binding.var] = Life(at, at)
            within[binding.var] = {(value.args[0], binding.var)}
            continue
        used = use(value, at)
        if used and not _holds_nothing(binding.var.ty):
            within[binding.var] = used
    use(func.body.body, len(ordered))
    return {storage: list(each.values()) for storage, each in found.items()}


def _holds_nothing(ty: Type) -> bool:
    return isinstance(ty, relax.TupleType) and not ty.fields
