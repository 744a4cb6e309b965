"""Let tensors that are not alive at the same time share memory."""

from __future__ import annotations

import tvm
from tvm import relax

REPLACES = "StaticPlanBlockMemory"


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
class PlanMemory:
    """TVM's `StaticPlanBlockMemory`, for functions without branches.

    TVM plans a function as one sequence: what is computed in one branch of an `If` may be placed
    in memory that only the other branch allocates, which crashes. Tensors of functions with
    branches are allocated one by one, from the virtual machine's pool.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        planned = relax.transform.StaticPlanBlockMemory()(mod)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and has_branches(func):
                planned.update_func(planned.get_global_var(gv.name_hint), func)
        return planned


def has_branches(func: relax.Function) -> bool:
    found: list[relax.If] = []
    relax.analysis.post_order_visit(
        func, lambda expr: found.append(expr) if isinstance(expr, relax.If) else None
    )
    return bool(found)
