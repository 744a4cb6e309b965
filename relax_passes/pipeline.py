# SPDX-License-Identifier: Apache-2.0
"""The whole compiler from Relax to a virtual machine executable, from top to bottom."""

from __future__ import annotations

import tvm
from tvm.relax import pipeline as relax_pipeline
from tvm.target import Target

from .polymerize import PolymerizeDynamicOps
from .report import Report


def pipeline(target: Target, *, report: Report | None = None) -> tvm.transform.Pass:
    """The pass to give to `tvm.compile(mod, target, relax_pipeline=...)`.

    It is TVM's own default pipeline for `target`, with the dynamic matmuls taken out first.
    `report`, if given, is told what became of each of them.
    """
    target = Target(target)

    @tvm.transform.module_pass(opt_level=0, name="MoonPolyPipeline")
    def _pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        passes = [
            # Phase 1. Dynamic matmuls become calls of the operator library.
            PolymerizeDynamicOps(target, report),
            # Phase 2. The libraries that TVM itself brings for sampling and sorting.
            *relax_pipeline.library_dispatch_passes(target),
            # Phase 3. All other operators become loops, fused where they are elementwise.
            *relax_pipeline.legalize_passes(target),
            # Phase 4. Dataflow blocks become calls with explicit destinations.
            *relax_pipeline.dataflow_lower_passes(target),
            # Phase 5. Memory planning, shape computation, virtual machine built-ins.
            *relax_pipeline.finalize_passes(target),
        ]
        with target:
            return tvm.transform.Sequential(passes)(mod)

    return _pipeline
