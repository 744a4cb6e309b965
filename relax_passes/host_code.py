"""Leave at least one function for TVM to compile."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.script import tirx as T


@tvm.transform.module_pass(opt_level=0, name="KeepHostCode")
class KeepHostCode:
    """Add a function that does nothing to a module without any.

    In the place of no code at all TVM puts C source, which every virtual machine then has compiled
    and linked by the C compiler, for seconds.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if any(isinstance(func, tirx.PrimFunc) for func in mod.functions.values()):
            return mod
        result = mod.clone()
        result["moonpoly_nothing"] = nothing
        return result


@T.prim_func
def nothing() -> None:
    T.func_attr({"global_symbol": "moonpoly_nothing"})
    T.evaluate(0)
