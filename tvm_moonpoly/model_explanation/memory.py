"""How much memory the plan of a function asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import relax
from tvm.ir import Call, Op, Var

from relax_passes.shapes import show_dim
from relax_passes.steps import Step
from relax_passes.storages import STORAGE, TENSOR, size_of
from relax_passes.tir_terms import value_of

KILL = Op.get("relax.memory.kill_storage")
AFTER_PLANNING = ("ReuseStorages", "LowerAllocTensor")  # the first of them that is run


@dataclass(frozen=True)
class Memory:
    """The `storages` of one call, results included, for `tensors` of it; `peak` bytes are alive at
    once at the most. None: it depends on sizes that are not known."""

    storages: int
    tensors: int
    peak: int | None
    expressions: tuple[str, ...]


def planned_memory(steps: Sequence[Step], sizes: Mapping[str, int]) -> Memory:
    """The memory of the function `main` as it was planned, each block freed after its last use.
    Of branches, which allocate for themselves, nothing is counted."""
    planned = next(step.before for step in steps if step.name in AFTER_PLANNING)
    lowered = relax.transform.LowerAllocTensor()(planned)
    func = relax.transform.KillAfterLastUse()(lowered)["main"]
    alive: dict[Var, int | None] = {}
    expressions: list[str] = []
    tensors, peak = 0, 0
    known = True
    for block in func.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, Call):
                continue
            if call.op == STORAGE:
                size = size_of(call)
                alive[binding.var] = value_of(size, sizes)
                expressions.append(show_dim(size))
                known = known and alive[binding.var] is not None
                peak = max(peak, sum(each or 0 for each in alive.values()))
            elif call.op == KILL:
                alive.pop(call.args[0], None)
            tensors += call.op == TENSOR
    return Memory(len(expressions), tensors, peak if known else None, tuple(expressions))
