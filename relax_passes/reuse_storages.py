"""Memory that a call leaves in the pool serves the next one, of whatever sizes, or goes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

import tvm
from tvm import relax, tirx
from tvm.ir import Call, Op
from tvm.relax import BindingBlock, Expr, ExternFunc, MatchCast, ShapeExpr, Var, VarBinding

from . import storage_sizes
from .bindings import is_claimed
from .functions import with_functions
from .plan_memory import has_branches
from .round_storages import power_of_two
from .shapes import dtype_of, known_dims
from .storages import bindings_of, size_of, storages_of, symbols_of, with_size
from .tir_terms import variables

TENSOR = Op.get("relax.builtin.alloc_tensor")
CALL = Op.get("relax.vm.call_tir_dyn")
FORGET = f"{storage_sizes.PREFIX}_forget"


@tvm.transform.module_pass(opt_level=0, name="ReuseStorages")
class ReuseStorages:
    """Keep as much memory as the largest call so far needs, whatever sizes the calls have.

    The virtual machine's pool hands a block out again for its own size only, and never gives one
    back: blocks of all sizes that there ever were add up. Therefore

    * storages of tensors between the operators have the largest size that they had so far, and when
      one grows, the pool is emptied. What of a storage is not used costs addresses, no memory.
    * Results, which the caller may keep for long, have their own size. The pool is emptied when
      those of different sizes in it are more than the largest call returns; at that time the
      storages are in use already, and stay. What the last call returned is let go of before.

    Follows `PlanMemory`, in whose result storages are those of tensors that do not leave the
    function, and `ShareStorages`, without which all of them would be there together; precedes
    `RoundStorages`. Functions with branches are left, and so are sizes that are not known when the
    function is entered.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        builder = relax.BlockBuilder(mod)
        changed: dict[tvm.ir.GlobalVar, relax.Function] = {}
        for gv, func in mod.functions_items():
            if not isinstance(func, relax.Function) or is_claimed(func) or has_branches(func):
                continue
            found = _found(func)
            if found.dynamic or found.results:
                kinds = 2 * len(changed) + 1, 2 * len(changed) + 2
                changed[gv] = _reusing(func, found, builder, kinds)
        return with_functions(builder.get(), changed) if changed else mod


@dataclass(frozen=True)
class _Found:
    """Storages whose sizes are known when the function is entered, those of which that depend on
    the call; and the bytes of tensors on their own that do."""

    storages: Sequence[VarBinding]
    dynamic: Sequence[VarBinding]
    results: Sequence[Expr]


def _found(func: relax.Function) -> _Found:
    told = symbols_of(func)
    storages = list(storages_of(func))
    results = []
    for binding in bindings_of(func):
        if isinstance(binding.value, Call) and binding.value.op == TENSOR:
            size = _bytes_of(binding.var)
            if not isinstance(size, tirx.IntImm) and variables(size) <= told:
                results.append(size)
    dynamic = [each for each in storages if not isinstance(size_of(each.value), tirx.IntImm)]
    return _Found(storages, dynamic, results)


def _bytes_of(tensor: Var) -> Expr:
    dtype = tvm.DataType(dtype_of(tensor))
    return reduce(mul, known_dims(tensor), tirx.IntImm("int64", -(-dtype.bits * dtype.lanes // 8)))


def _reusing(
    func: relax.Function, found: _Found, builder: relax.BlockBuilder, kinds: tuple[int, int]
) -> relax.Function:
    """`func` with such sizes; ``kinds`` are those of what is remembered of its storages and of its
    results."""
    first = _storages(found, builder, kinds[0])
    if found.results:
        first.insert(0, _forgetting(builder))
        total = reduce(lambda a, b: a + b, map(power_of_two, found.results))
        known = storage_sizes.nothing_yet(kinds[1], storage_sizes.RESULTS)
        gv = builder.add_func(storage_sizes.sizes_of_results(), storage_sizes.PREFIX)
        first.append(_called(builder, gv, known, [total]))
    moved = {binding.var for binding in found.storages}
    blocks = [
        BindingBlock([each for each in block.bindings if each.var not in moved])
        for block in func.body.blocks
    ]
    body = builder.normalize(relax.SeqExpr([BindingBlock(first), *blocks], func.body.body))
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def _storages(found: _Found, builder: relax.BlockBuilder, kind: int) -> list[relax.Binding]:
    """All storages, each that depends on the call of the largest size so far."""
    sizes = [size_of(each.value) for each in found.dynamic]
    count = len(sizes)
    if not count:
        return list(found.storages)
    largest = storage_sizes.nothing_yet(kind, count)
    gv = builder.add_func(storage_sizes.sizes_of_tensors(count), storage_sizes.PREFIX)
    known = ExternFunc("vm.builtin.tensor_to_shape")
    read = Call(known, [largest], None, [relax.ShapeType(ndim=count)])
    held = Var("largest", relax.ShapeType(ndim=count))
    symbols = [tirx.Var(f"largest{at}", "int64") for at in range(count)]
    told = relax.ShapeType(symbols)
    bindings = [
        _called(builder, gv, largest, sizes),
        VarBinding(held, builder.normalize(read)),
        MatchCast(Var("sizes", told), held, told),
    ]
    # another thread may have lost a size: the largest known need not be that of this call
    larger = {
        each.var: tirx.max(symbol, size)
        for each, symbol, size in zip(found.dynamic, symbols, sizes, strict=True)
    }
    resized = (
        with_size(each, larger[each.var], builder) if each.var in larger else each
        for each in found.storages
    )
    return [*bindings, *resized]


def _forgetting(builder: relax.BlockBuilder) -> VarBinding:
    """A call of a function that returns a number: the virtual machine holds what was returned last
    until something else is."""
    number = relax.prim_value(0)
    returning = relax.Function([], builder.normalize(relax.SeqExpr([], number)), number.ty)
    call = builder.normalize(Call(builder.add_func(returning, FORGET), []))
    return VarBinding(Var("_", call.ty), call)


def _called(
    builder: relax.BlockBuilder, gv: tvm.ir.GlobalVar, known: Expr, sizes: Sequence[Expr]
) -> VarBinding:
    arguments = [gv, relax.Tuple([known, ShapeExpr(sizes)])]
    call = Call(CALL, arguments, None, [relax.TupleType([])])
    call = builder.normalize(call)
    return VarBinding(Var("_", call.ty), call)
