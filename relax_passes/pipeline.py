"""The whole compiler from Relax to a virtual machine executable, from top to bottom."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.target import Target

from .polymerize import PolymerizeDynamicOps
from .report import Report
from .schedule_memory_bound import ScheduleMemoryBound


def pipeline(
    target: Target, *, report: Report | None = None, schedule_memory_bound: bool = True
) -> tvm.transform.Pass:
    """The pass to give to `tvm.compile(mod, target, relax_pipeline=...)`.

    It is TVM's own default pipeline for `target`, with the dynamic matmuls taken out first and,
    unless `schedule_memory_bound` is False, a schedule for the functions that remain between
    them. `report`, if given, is told what became of each matmul.
    """
    target = Target(target)

    @tvm.transform.module_pass(opt_level=0, name="MoonPolyPipeline")
    def _pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        passes = [
            # Phase 1. Dynamic matmuls become calls of the operator library.
            PolymerizeDynamicOps(target, report),
            # Phase 2 and later. Everything else.
            *(
                _cpu_passes(target, schedule_memory_bound)
                if target.kind.name == "llvm"
                else [_tvm_pipeline(target)]
            ),
        ]
        with target:
            return tvm.transform.Sequential(passes)(mod)

    return _pipeline


def _tvm_pipeline(target: Target) -> tvm.transform.Pass:
    """TVM's pipeline for `target`, or the general one where it has none of its own."""
    try:
        return relax.get_default_pipeline(target)
    except ValueError:
        return relax.get_pipeline("default")


def _cpu_passes(target: Target, schedule_memory_bound: bool) -> list[tvm.transform.Pass]:
    return [
        # Phase 2. The libraries that TVM itself brings for sampling and sorting.
        *cpu.library_dispatch_passes(target),
        # Phase 3. The other operators become loops, fused where they are elementwise.
        *cpu.legalize_passes(target),
        # Phase 4. Dataflow becomes a sequence of calls with explicit destinations, and a reshape
        # a view: those are recognised by their loops, which therefore come to be scheduled later.
        *cpu.dataflow_lower_passes(target),
        # Phase 5. The loops pass over memory once, in vectors.
        *([ScheduleMemoryBound(target)] if schedule_memory_bound else []),
        # Phase 6. Memory planning, computation of shapes, built-ins of the virtual machine.
        *cpu.finalize_passes(target),
    ]
