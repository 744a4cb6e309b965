"""What each pass changed, in numbers: calls that came and went, loop nests that were rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import tvm
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar, Op

from relax_passes.steps import Step

LOOPS = "calls of loops"
PACKED = frozenset(f"relax.call_{kind}packed" for kind in ("", "dps_", "pure_", "inplace_"))


@dataclass(frozen=True)
class Change:
    """What the pass `name` did in `seconds`: `calls` by what is called, more or fewer of them;
    `loops` of the loop nests (PrimFuncs) that were there before are others now."""

    name: str
    seconds: float
    calls: dict[str, int]
    loops: int

    def __str__(self) -> str:
        parts = [f"{name} {count:+d}" for name, count in self.calls.items()]
        parts += [f"{self.loops} loop nest{'s' * (self.loops > 1)} rewritten"] * bool(self.loops)
        return ", ".join(parts) or "-"


def changes(steps: Iterable[Step]) -> list[Change]:
    """What each step changed."""
    found = []
    for step in steps:
        before, after = calls(step.before), calls(step.after)
        new = {name: after[name] - before[name] for name in {**before, **after}}
        moved = dict(sorted((name, count) for name, count in new.items() if count))
        found.append(Change(step.name, step.seconds, moved, _rewritten(step.before, step.after)))
    return found


def calls(mod: tvm.IRModule) -> Counter[str]:
    """How often each operator, packed function and loop nest is called in `mod`."""
    counted: Counter[str] = Counter()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, Call):
            name = _name(expr)
            if name:
                counted[name] += 1

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return counted


def _name(call: Call) -> str:
    """What is called; empty for arithmetic on sizes."""
    if isinstance(call.op, GlobalVar):
        return LOOPS
    if isinstance(call.op, relax.ExternFunc):
        return str(call.op.global_symbol)
    if not isinstance(call.op, Op) or not call.op.name.startswith("relax."):
        return ""
    if call.op.name == "relax.call_tir":
        return LOOPS
    if call.op.name in PACKED and isinstance(call.args[0], relax.ExternFunc):
        return str(call.args[0].global_symbol)
    return str(call.op.name).removeprefix("relax.")


def _rewritten(before: tvm.IRModule, after: tvm.IRModule) -> int:
    old = {gv.name_hint: func for gv, func in before.functions_items()}
    return sum(
        isinstance(func, tirx.PrimFunc)
        and gv.name_hint in old
        and not func.same_as(old[gv.name_hint])
        and not _same_loops(func, old[gv.name_hint])
        for gv, func in after.functions_items()
    )


def _same_loops(a: tirx.PrimFunc, b: relax.Function | tirx.PrimFunc) -> bool:
    return isinstance(b, tirx.PrimFunc) and a.body.same_as(b.body)
