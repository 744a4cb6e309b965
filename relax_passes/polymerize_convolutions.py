"""Replace convolutions by packed functions that assemble micro-kernels at each call."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.target import Target

from tvm_moonpoly import operators

from .bindings import is_claimed
from .conv_functions import unsupported
from .conv_packing import ConvPacking
from .conv_rewrite import leave_convolutions, rewrite_convolutions
from .functions import with_externals, with_functions
from .report import Report
from .rewrite import Options


@tvm.transform.module_pass(opt_level=0, name="PolymerizeConvolutions")
class PolymerizeConvolutions:
    """Rewrite convolutions with a dynamic dimension to calls of the target's operator library.

    To be run before `LegalizeOps`, and after `ConvertToChannelsLast`, without which each
    convolution of a model in NCHW transposes its input and its output. What it does not know stays
    exactly as it was; `report`, if given, is told what became of each convolution and why.

    `static` takes in those of static shapes, unless the MetaSchedule database in context has a
    record. `verify` runs TVM's own operators beside ours at each call and raises where they differ
    by more than rounding explains. Without `winograd` none is computed by Winograd's algorithm, in
    which an output is rounded relative to the largest numbers around its window.
    """

    def __init__(
        self,
        target: Target,
        report: Report | None = None,
        *,
        static: bool = False,
        verify: bool = False,
        winograd: bool = True,
    ) -> None:
        self.target = Target(target)
        self.report = Report() if report is None else report
        self.options = Options(static=static, verify=verify, winograd=winograd)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        reason = unsupported(self.target)
        packing = None if reason is not None else ConvPacking(self.target)
        changed = {}
        for gv, func in mod.functions_items():
            if not isinstance(func, relax.Function):
                continue
            name = gv.name_hint
            if packing is None:
                leave_convolutions(func, name, str(reason), self.report)
            elif is_claimed(func):
                leave_convolutions(func, name, "claimed by another backend", self.report)
            else:
                new = rewrite_convolutions(func, name, mod, packing, self.options, self.report)
                if not new.same_as(func):
                    changed[gv] = new
        if not changed:
            return mod
        return attach_library(with_functions(mod, changed), self.target)


def attach_library(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """`mod` with the operator library of `target` among its external modules."""
    return with_externals(mod, operators.library(target).module)
