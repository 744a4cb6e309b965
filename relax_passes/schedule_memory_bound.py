"""Schedule the functions around the matmuls: elementwise chains, softmax, norms, transposes."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_moonpoly.arguments import target_of

from .bound_exponents import bound_exponents
from .fused_loops import fuse_loops
from .join_passes import join_passes
from .parallel_rows import choose, is_large
from .row_divisors import invert_divisors
from .row_loops import LANES
from .row_pieces import split_pieces
from .schedule_columns import schedule_columns
from .schedule_pooling import schedule_pooling
from .schedule_rows import schedule_rows
from .schedule_transpose import schedule_transpose
from .shape_facts import facts
from .shape_facts_prim import in_steps
from .vector_columns import vectorize_columns
from .wide_reduction import widen_reductions


@tvm.transform.module_pass(opt_level=0, name="ScheduleMemoryBound")
class ScheduleMemoryBound:
    """Reschedule the memory-bound functions of a module for a CPU.

    To be run after `FuseTIR`, and after `RewriteDataflowReshape`, which knows a reshape by its
    unscheduled loops.

    With `num-cores` above 1 in the target, large results are shared among the threads of TVM's
    pool. Functions that are not memory-bound or not of a known form stay as they are, and so do
    all of them for a target that is not a CPU.
    """

    def __init__(self, target: Target) -> None:
        self.target = target_of(target)
        self.cores = int(self.target.attrs.get("num-cores", 1))

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self.target.kind.name != "llvm":
            return mod
        result = mod.clone()
        for gv, func in mod.functions_items():
            scheduled = self._schedule(func) if isinstance(func, tirx.PrimFunc) else None
            if scheduled is not None:
                result.update_func(gv, scheduled)
        return result

    def _schedule(self, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
        for rule in (schedule_transpose, schedule_pooling, schedule_columns):
            scheduled = rule(func, parallel=self.cores > 1)
            if scheduled is not None:
                return scheduled
        func = bound_exponents(func)
        serial = schedule_rows(func)
        if serial is None:
            return None
        parallel = schedule_rows(func, parallel=True) if self.cores > 1 else None
        if parallel is None:
            return _vectorized(serial)
        large = is_large(serial)
        always = facts(func).holds(large)
        if always is not None:
            return _vectorized(parallel if always else serial)
        return choose(large, _vectorized(parallel), _vectorized(serial))


def _vectorized(func: tirx.PrimFunc) -> tirx.PrimFunc:
    func = widen_reductions(join_passes(in_steps(fuse_loops(func), LANES)))
    return vectorize_columns(split_pieces(invert_divisors(func)))
