"""Replace convolutions by packed functions that assemble micro-kernels at each call."""

from __future__ import annotations

from functools import partial

import tvm
from tvm import relax
from tvm.target import Target

from tvm_moonpoly.arguments import target_of

from .conv_functions import unsupported
from .conv_match import CONVOLUTIONS
from .conv_packing import ConvPacking
from .conv_rewrite import rewrite_convolutions
from .functions import attach_library, with_rewritten
from .report import Report, report_of
from .rewrite import Options, leave_function


@tvm.transform.module_pass(opt_level=0, name="PolymerizeConvolutions")
class PolymerizeConvolutions:
    """Rewrite convolutions with a dynamic dimension to calls of the target's operator library.

    To be run before `LegalizeOps`, and after `ConvertToChannelsLast`, without which each
    convolution of a model in NCHW transposes its input and its output. What it does not know stays
    exactly as it was; `report`, if given, is told what became of each convolution and why.

    `static` takes in those of static shapes, unless the MetaSchedule database in context has a
    record. `pack_parameters` takes in those whose weights are parameters (after the first
    `num_input`), packed by operators, to be hoisted by `LiftTransformParams`; without that pass
    they would run at each call. `verify` runs TVM's own operators beside ours at each call and
    raises where they differ by more than rounding explains. Without `winograd` none is computed by
    Winograd's algorithm, in which an output is rounded relative to the largest numbers around its
    window; nor is one whose weight is a parameter, which may not be finite.
    """

    def __init__(
        self,
        target: Target,
        report: Report | None = None,
        *,
        static: bool = False,
        pack_parameters: bool = False,
        verify: bool = False,
        winograd: bool = True,
    ) -> None:
        self.target = target_of(target)
        self.report = report_of(report)
        self.options = Options(static, pack_parameters, verify, winograd)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        reason = unsupported(self.target)
        packing = None if reason is not None else ConvPacking(self.target)

        def rewrite(func: relax.Function, name: str) -> relax.Function:
            assert packing is not None
            return rewrite_convolutions(func, name, mod, packing, self.options, self.report)

        leave = partial(leave_function, report=self.report, operators=CONVOLUTIONS)
        new = with_rewritten(mod, rewrite, leave, reason)
        return mod if new.same_as(mod) else attach_library(new, self.target)
