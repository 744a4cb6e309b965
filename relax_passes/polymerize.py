"""Replace dynamic-shape matmuls by packed functions that assemble micro-kernels at each call."""

from __future__ import annotations

from functools import partial

import tvm
from tvm import relax
from tvm.target import Target

from tvm_moonpoly import operators
from tvm_moonpoly.arguments import target_of

from . import cuda
from .functions import attach_library, with_rewritten
from .packing import Packing
from .report import Report, report_of
from .rewrite import Options, leave_function, rewrite_function


@tvm.transform.module_pass(opt_level=0, name="PolymerizeDynamicOps")
class PolymerizeDynamicOps:
    """Rewrite matmuls with a dynamic dimension to calls of the target's operator library.

    To be run before `LegalizeOps`. What it does not know stays exactly as it was; `report`, if
    given, is told what became of each matmul and why, and so is the logger `tvm_moonpoly`.

    `static` takes in matmuls of static shapes, unless the MetaSchedule database in context has a
    record for them. `pack_parameters` packs weights that are parameters (those after the first
    `num_input`) by an operator of its own, to be hoisted by `LiftTransformParams`; without that
    pass it would run at each call. `verify` runs TVM's own operators beside ours at each call and
    raises where they differ by more than rounding explains.
    """

    def __init__(
        self,
        target: Target,
        report: Report | None = None,
        *,
        static: bool = False,
        pack_parameters: bool = False,
        verify: bool = False,
    ) -> None:
        self.target = target_of(target)
        self.report = report_of(report)
        self.options = Options(static, pack_parameters, verify)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if str(self.target.kind.name) == "cuda":
            return cuda.polymerize(mod, self.target, self.options, self.report)
        unsupported = operators.supported(self.target)
        packing = None if unsupported is not None else Packing(self.target)

        def rewrite(func: relax.Function, name: str) -> relax.Function:
            assert packing is not None
            return rewrite_function(func, name, mod, packing, self.options, self.report)

        leave = partial(leave_function, report=self.report)
        new = with_rewritten(mod, rewrite, leave, unsupported)
        return mod if new.same_as(mod) else attach_library(new, self.target)
