"""A module with some of its functions replaced."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm.ir import GlobalVar
from tvm.relax import Function
from tvm.runtime import Module

EXTERNAL_MODS = "external_mods"  # runtime modules that TVM links into the executable


def with_functions(mod: tvm.IRModule, changed: Mapping[GlobalVar, Function]) -> tvm.IRModule:
    """A copy of `mod` with the functions `changed`; `mod` itself if there are none."""
    if not changed:
        return mod
    result = mod.clone()
    for gv, func in changed.items():
        result.update_func(gv, func)
    return result


def with_externals(mod: tvm.IRModule, library: Module) -> tvm.IRModule:
    """`mod` with `library` among its external modules, once."""
    attached = list((mod.attrs or {}).get(EXTERNAL_MODS) or [])
    if any(each.same_as(library) for each in attached):
        return mod
    return mod.with_attr(EXTERNAL_MODS, [*attached, library])
