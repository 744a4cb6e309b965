"""A module with some of its functions replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
from tvm import relax
from tvm.ir import GlobalVar
from tvm.relax import Function
from tvm.runtime import Module
from tvm.target import Target

from tvm_moonpoly import operators

from .bindings import is_claimed

EXTERNAL_MODS = "external_mods"  # runtime modules that TVM links into the executable


def with_functions(mod: tvm.IRModule, changed: Mapping[GlobalVar, Function]) -> tvm.IRModule:
    """A copy of `mod` with the functions `changed`; `mod` itself if there are none."""
    if not changed:
        return mod
    result = mod.clone()
    for gv, func in changed.items():
        result.update_func(gv, func)
    return result


def with_rewritten(
    mod: tvm.IRModule,
    rewrite: Callable[[Function, str], Function],
    leave: Callable[[Function, str, str], None] = lambda _func, _name, _reason: None,
    reason: str | None = None,
) -> tvm.IRModule:
    """`mod` with its Relax functions as `rewrite` makes them of each and its name; `mod` itself if
    none of them changes.

    Those of other backends, or all if there is a `reason`, are left: `leave` is told function, name
    and why.
    """
    changed = {}
    for gv, func in mod.functions_items():
        if not isinstance(func, Function):
            continue
        name = gv.name_hint
        if reason is not None:
            leave(func, name, reason)
        elif is_claimed(func):
            leave(func, name, "claimed by another backend")
        else:
            new = rewrite(func, name)
            if not new.same_as(func):
                changed[gv] = new
    return with_functions(mod, changed)


def attach_library(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """`mod` with those parts of the operator library of `target` among its external modules that
    it calls, and no others."""
    library = operators.library(target).module
    others = [each for each in _externals(mod) if not library.has(each)]
    parts = [library.part(part) for part in operators.parts_of(_called(mod))]
    return mod.with_attr(EXTERNAL_MODS, [*others, *parts])


def _called(mod: tvm.IRModule) -> set[str]:
    """The packed functions that the Relax functions of `mod` name."""
    names: set[str] = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.ExternFunc):
            names.add(str(expr.global_symbol))

    for _, func in mod.functions_items():
        if isinstance(func, Function):
            relax.analysis.post_order_visit(func, visit)
    return names


def _externals(mod: tvm.IRModule) -> list[Module]:
    return list((mod.attrs or {}).get(EXTERNAL_MODS) or [])


def with_externals(mod: tvm.IRModule, library: Module) -> tvm.IRModule:
    """`mod` with `library` among its external modules, once."""
    attached = _externals(mod)
    if any(each.same_as(library) for each in attached):
        return mod
    return mod.with_attr(EXTERNAL_MODS, [*attached, library])
