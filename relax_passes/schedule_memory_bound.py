# SPDX-License-Identifier: Apache-2.0
"""Schedule the functions around the matmuls: fused elementwise chains, softmax, layer norm."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.target import Target

from .fast_exp import use_fast_exp
from .schedule_rows import schedule_rows
from .wide_reduction import widen_reductions


@tvm.transform.module_pass(opt_level=0, name="ScheduleMemoryBound")
class ScheduleMemoryBound:
    """Reschedule the memory-bound functions of a module for a CPU; to be run after `FuseTIR`.

    Functions that are not memory-bound or not of a known form stay as they are, and so do all of
    them for a target that is not a CPU.
    """

    def __init__(self, target: Target) -> None:
        self.target = Target(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self.target.kind.name != "llvm":
            return mod
        result = mod.clone()
        for gv, func in mod.functions_items():
            scheduled = schedule_rows(func) if isinstance(func, tirx.PrimFunc) else None
            if scheduled is not None:
                result.update_func(gv, use_fast_exp(widen_reductions(scheduled)))
        return result
