"""Give each function variables of its own."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax import Var
from tvm.relax.utils import copy_with_new_vars

from .bindings import analyze
from .functions import with_functions


@tvm.transform.module_pass(opt_level=0, name="OwnVariables")
class OwnVariables:
    """Copy a function that shares Relax variables with another one.

    TVM compiles such a module, but its fusion, which comes next, refuses it.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        seen: set[Var] = set()
        copies = {}
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function):
                bound = {*func.params, *analyze(func, mod).order}
                if bound & seen:
                    copies[gv] = copy_with_new_vars(func)
                seen |= bound
        return with_functions(mod, copies)
