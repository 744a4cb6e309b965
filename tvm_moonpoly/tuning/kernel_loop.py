"""Native loops that are timed: tasks of one micro-kernel one after the other, and a probe.

The loop over tasks is like the one that the operator library has around a micro-kernel, and like
there the micro-kernel is inlined into it: what is measured is what runs later.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvm_moonpoly import native
from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    Expr,
    Functions,
    Pointer,
    let,
    loop,
    scratch,
    select,
    vector,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.operators import dltensor
from tvm_moonpoly.operators.gemm_tiles import zeros_row

#: ``tasks(arena, lda, b_vector, b_row, ldc, k, count, *walks)``: ``count`` tasks over ``k`` steps.
#: ``walks`` are four integers for each of A, B and C: where in the arena it is first, how far on it
#: is for the next task, and the bounds of the area in which it goes round.
TASKS = "moonpoly_tasks"

#: ``probe(state, steps)``: ``steps`` times `PROBE_CHAINS` fused multiply-adds on vectors that stay
#: in registers.
PROBE = "moonpoly_probe"

#: 2 multiply-adds a cycle with a latency of 4 need 8 chains; more hide longer latencies, and still
#: fit 16 registers.
PROBE_CHAINS = 12

_OPERANDS = ("a", "b", "c")
_WALK = ("at", "step", "begin", "end")
_STRIDES = ("lda", "b_vector", "b_row", "ldc")


def build(record: Record, machine: Machine, target: Target) -> Any:
    """A module with `TASKS` of the record's kernel; raises ValueError when that does not fit."""
    functions = Functions()
    functions.add(record.name, cpu_gemm.build(record, machine))
    _emit_tasks(functions, record, machine.lanes)
    return native.build(functions.module(), target, functions.marks)


def build_probe(machine: Machine, target: Target) -> Any:
    """A module with `PROBE`."""
    functions = Functions()
    _emit_probe(functions, machine.lanes)
    return native.build(functions.module(), target, functions.marks)


def _emit_tasks(functions: Functions, record: Record, lanes: int) -> None:
    integers = [*_STRIDES, "k", "count", *(f"{o}_{w}" for o in _OPERANDS for w in _WALK)]

    # of its own, so that nothing of it is known when it is compiled, as in the library
    @functions.separate(
        "moonpoly_task_loop", arena=FLOATS, x=FLOATS, lo=FLOAT, ldx=INT, **_ints(integers)
    )
    def _(arena: Pointer, x: Pointer, lo: Expr, ldx: Expr, **given: Expr) -> None:
        at = {operand: scratch(1, INT) for operand in _OPERANDS}
        for operand in _OPERANDS:
            at[operand][0] = given[f"{operand}_at"]
        with loop(given["count"]):
            functions[record.name](
                arena.at(at["a"][0]),
                arena.at(at["b"][0]),
                x.at(0),
                x.at(0),
                arena.at(at["c"][0]),
                given["lda"],
                given["b_vector"],
                given["b_row"],
                ldx,
                given["ldc"],
                given["k"],
                lo,
            )
            for operand in _OPERANDS:
                following = let(at[operand][0] + given[f"{operand}_step"])
                inside = following < given[f"{operand}_end"]
                at[operand][0] = select(inside, following, given[f"{operand}_begin"])

    @functions.public(TASKS, arena="handle", **_ints(integers))
    def _(arena: Any, **given: Expr) -> None:
        floats = Pointer.to(dltensor.address(arena, dltensor.DATA, FLOAT), FLOAT)
        lowest = tirx.const(-3.0e38, FLOAT)
        functions["moonpoly_task_loop"](
            floats.at(0), zeros_row(lanes).at(0), lowest, 0, *(given[name] for name in integers)
        )


def _ints(names: list[str]) -> dict[str, str]:
    return dict.fromkeys(names, INT)


def _emit_probe(functions: Functions, lanes: int) -> None:
    @functions.public(PROBE, state="handle", steps=INT)
    def _(state: Any, steps: Expr) -> None:
        memory = Pointer.to(dltensor.address(state, dltensor.DATA, FLOAT), FLOAT)
        chains = scratch(PROBE_CHAINS * lanes)
        at = [vector(i * lanes, lanes) for i in range(PROBE_CHAINS)]
        # 0.5 x + 0.5 stays a normal number for ever
        half = T.Broadcast(tirx.const(0.5, FLOAT), lanes)
        for i in at:
            chains[i] = memory[i]
        with loop(steps):
            for i in at:
                chains[i] = chains[i] * half + half
        for i in at:
            memory[i] = chains[i]
