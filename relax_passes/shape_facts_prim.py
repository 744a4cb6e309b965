"""What is known of sizes in the functions that a Relax function calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, Expr, GlobalVar, Op, Var
from tvm.relax.expr_functor import PyExprVisitor, visitor
from tvm.tirx import For, ForKind

from .functions import with_functions
from .shape_facts import ShapeFacts, facts
from .shape_promises import with_promised
from .shape_range import LARGEST, Range
from .shapes import dims

CALL_TIR = Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="TellPrimFuncs")
class TellPrimFuncs:
    """Write into the attributes of PrimFuncs what their callers know of their sizes.

    `facts` of a PrimFunc then tells it, for schedules to drop tails and guards. Only private
    functions are told, which nothing calls but the Relax functions of the module, and only what
    holds at all of these calls.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        calls: dict[GlobalVar, list[tuple[ShapeFacts, list[Expr] | None]]] = {}
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                known = facts(func)
                for name, arguments in _calls(func):
                    calls.setdefault(name, []).append((known, arguments))
        changed = {}
        for name, sites in calls.items():
            func = mod[name]
            if isinstance(func, tirx.PrimFunc) and "global_symbol" not in (func.attrs or {}):
                ranges = _ranges(func, sites)
                if ranges:
                    changed[name] = with_promised(func, ranges)
        return with_functions(mod, changed)


def in_steps(func: tirx.PrimFunc, step: int) -> tirx.PrimFunc:
    """`func` with the extents of loops that are known to be multiples of `step` written so: what
    splits such a loop by it sees that there is no rest."""
    known = facts(func)

    def rewrite(loop: For) -> For:
        extent = loop.extent
        if loop.kind != ForKind.SERIAL or isinstance(extent, tirx.IntImm):
            return loop
        if known.multiple_of(extent) % step:
            return loop
        whole = tirx.floordiv(extent, step) * step
        return For(loop.loop_var, loop.min, whole, loop.kind, loop.body)

    if all(each.multiple_of == 1 for each in known.ranges.values()):
        return func
    return func.with_body(tvm_ffi.structural_map(func.body, (For, rewrite)))


def _calls(func: relax.Function) -> list[tuple[GlobalVar, list[Expr] | None]]:
    """Each call of a function of the module with its arguments, results included; None in their
    place where the function is used otherwise."""
    found: list[tuple[GlobalVar, list[Expr] | None]] = []

    @visitor
    class Visitor(PyExprVisitor):
        def visit_call_(self, call: Call) -> None:
            if isinstance(call.op, GlobalVar):
                found.append((call.op, list(call.args)))
            elif call.op == CALL_TIR and isinstance(call.args[1], relax.Tuple):
                outputs = [relax.Var("out", ty) for ty in _fields(call.ty_args[0])]
                found.append((call.args[0], [*call.args[1].fields, *outputs]))
            else:
                found.extend((each, None) for each in call.args if isinstance(each, GlobalVar))

        def visit_global_var_(self, name: GlobalVar) -> None:
            found.append((name, None))

    Visitor().visit_expr(func)
    return found


def _fields(ty: relax.Type) -> Sequence[relax.Type]:
    return ty.fields if isinstance(ty, relax.TupleType) else [ty]


def _ranges(
    func: tirx.PrimFunc, sites: Sequence[tuple[ShapeFacts, list[Expr] | None]]
) -> dict[str, Range]:
    """What all calls of `func` promise of its variables whose names are not used twice."""
    told: dict[Var, Range] = {}
    for i, (known, arguments) in enumerate(sites):
        if arguments is None or len(arguments) != len(func.params):
            return {}
        here: dict[Var, Range] = {}
        for var, size in _matched(func, arguments):
            here.setdefault(var, _range_of(known, size))
        both = [var for var in told if var in here]
        told = {var: _either(told[var], here[var]) for var in both} if i else here
    names = [var.name for var in facts(func).ranges]
    return {
        var.name: known
        for var, known in told.items()
        if names.count(var.name) == 1 and known != Range()
    }


def _matched(func: tirx.PrimFunc, arguments: Sequence[Expr]) -> Iterator[tuple[Var, Expr]]:
    """Each variable of the parameters of `func`, and what an argument has in its place."""
    for param, argument in zip(func.params, arguments, strict=True):
        if tirx.is_buffer_var(param):
            given = dims(argument)
            if given is not None and len(given) == len(param.shape):
                for size, value in zip(param.shape, given, strict=True):
                    if isinstance(size, Var):
                        yield size, value


def _range_of(known: ShapeFacts, size: Expr) -> Range:
    """What is known of `size` as a range; any size where that is none (it is never reached)."""
    smallest, largest = known.bounds(size)
    if largest is not None and largest > LARGEST // 2:
        largest = None
    try:
        found = Range(max(smallest or 0, 0), largest, known.multiple_of(size) or 1)
    except ValueError:
        return Range()
    return replace(found, likely=tuple(each for each in known.likely(size) if each in found))


def _either(a: Range, b: Range) -> Range:
    """What holds where one of both does."""
    largest = None if a.largest is None or b.largest is None else max(a.largest, b.largest)
    likely = tuple(dict.fromkeys((*a.likely, *b.likely)))
    return Range(min(a.smallest, b.smallest), largest, gcd(a.multiple_of, b.multiple_of), likely)
