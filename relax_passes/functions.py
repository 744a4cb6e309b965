"""A module with some of its functions replaced."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm.ir import GlobalVar
from tvm.relax import Function


def with_functions(mod: tvm.IRModule, changed: Mapping[GlobalVar, Function]) -> tvm.IRModule:
    """A copy of `mod` with the functions `changed`; `mod` itself if there are none."""
    if not changed:
        return mod
    result = mod.clone()
    for gv, func in changed.items():
        result.update_func(gv, func)
    return result
