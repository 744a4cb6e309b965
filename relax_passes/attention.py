"""Attention as one operator."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.target import Target

from tvm_moonpoly import operators
from tvm_moonpoly.arguments import require_flags, target_of
from tvm_moonpoly.operators.attention_constants import ATTENTION, ATTENTION_MASKED

from .attention_match import Attention, attentions, classify_attention
from .bindings import analyze
from .functions import attach_library, with_rewritten
from .match import Left
from .report import Entry, Report, report_of
from .rewrite import Rebuild, replace
from .shape_facts import facts
from .shapes import show


@tvm.transform.module_pass(opt_level=0, name="FuseAttention")
class FuseAttention:
    """Rewrite ``matmul(softmax(scale * matmul(q, k.T) + mask), v)`` in float32, and TVM's own
    attention operators, to one call of the target's operator library.

    What only moves q, k, v and the result around it (permutes, slices, reshapes to heads and back)
    becomes part of the call, which reads and writes in place. Where scores or probabilities are
    used elsewhere too, nothing is done. To be run before `PolymerizeDynamicOps`. `static` takes in
    attention of static shapes as well.
    """

    def __init__(
        self, target: Target, report: Report | None = None, *, static: bool = False
    ) -> None:
        require_flags(static=static)
        self.target = target_of(target)
        self.report = report_of(report)
        self.static = static

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if str(self.target.kind.name) != "llvm" or operators.supported(self.target) is not None:
            return mod
        new = with_rewritten(mod, lambda func, name: self._rewritten(func, name, mod))
        return mod if new.same_as(mod) else attach_library(new, self.target)

    def _rewritten(self, func: relax.Function, name: str, mod: tvm.IRModule) -> relax.Function:
        bindings = analyze(func, mod)
        known = facts(func)
        before = dict(bindings.value)
        for var in list(attentions(bindings)):
            found = classify_attention(var, bindings, known, self.static)
            if isinstance(found, Left):
                shapes = show(*before[var].args)
                self.report.add(Entry(name, "attention", shapes, "left", found.reason))
                continue
            shapes = show(found.q.stored, found.k.stored, found.v.stored)
            replace(found.last, packed_call(found), bindings)
            self.report.add(Entry(name, "attention", shapes, "rewritten", _detail(found)))
        new = {v: call for v, call in bindings.value.items() if not call.same_as(before[v])}
        dropped = before.keys() - bindings.value.keys()
        return Rebuild(mod, new, dropped).visit_expr(func) if new else func


def packed_call(found: Attention) -> Call:
    """The call of the operator library that stands for `found`."""
    masks = [] if found.mask is None else [found.mask]
    spec = relax.const(found.spec.encode(), "int64")
    operands = [found.q.stored, found.k.stored, found.v.stored, *masks, spec]
    name = ATTENTION_MASKED if masks else ATTENTION
    return relax.call_dps_packed(name, operands, found.last.ty)


def _detail(found: Attention) -> str:
    heads = found.q.heads
    parts = [f"{heads} head{'s' if heads > 1 else ''} of {found.q.size}"]
    if found.k.heads not in (1, heads):
        parts.append(f"{found.k.heads} of k and v")
    if found.mask is not None:
        parts.append("masked")
    if found.causal:
        parts.append("causal")
    for name in ("q", "k", "v"):
        if getattr(found, name).merged:
            parts.append(f"{name} in place")
    return ", ".join(parts)
