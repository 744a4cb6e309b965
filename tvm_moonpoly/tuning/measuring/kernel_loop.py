"""Native loops that are timed: tasks of one micro-kernel one after the other, and a probe.

The loop over tasks is like the one that the operator library has around a micro-kernel, and like
there the micro-kernel is inlined into it: what is measured is what runs later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvm_moonpoly import native
from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    branch,
    cell,
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

#: ``tasks(arena, walk, lda, b_vector, b_row, ldc, k, count)``: ``count`` tasks over ``k`` steps.
#: ``walk`` is memory of four integers for each of A, B and C, see `regions.Loop.walk`: where in the
#: arena it is first, how far on it is for the next task, and the bounds of the area that it stays
#: in. Where it has come is written back: the next call goes on from there.
TASKS = "moonpoly_tasks"

#: ``turns(arena, walk, state, lda, b_vector, b_row, ldc, k, count, steps)``: now `TASKS`, now
#: `PROBE`, and the other one at the next call. ``walk`` holds one more integer, of which the last
#: bit tells whose turn it is: 0 for the tasks.
TURNS = "moonpoly_turns"

#: ``probe(state, steps)``: ``steps`` times `PROBE_CHAINS` fused multiply-adds on vectors that stay
#: in registers.
PROBE = "moonpoly_probe"

#: ``fill(memory, count)``: 0.5 to each of ``count`` floats. Normal numbers: others are slower on
#: some machines.
FILL = "moonpoly_fill"

#: 2 multiply-adds a cycle with a latency of 4 need 8 chains; more hide longer latencies, and still
#: fit 16 registers.
PROBE_CHAINS = 12

_OPERANDS = ("a", "b", "c")
_STRIDES = ("lda", "b_vector", "b_row", "ldc")

#: Which of the integers of a walk it is.
_TURN = 12


def build(record: Record, machine: Machine, target: Target) -> Any:
    """A module with `TASKS` and `TURNS` of the record's kernel.

    Raises ValueError when that does not fit.
    """
    functions = _tasks(record, machine)
    return native.build(functions.module(), target, functions.marks)


def build_probe(machine: Machine, target: Target) -> Any:
    """A module with `PROBE` and `FILL`."""
    functions = _probe(machine)
    return native.build(functions.module(), target, functions.marks)


def task_program(record: Record, machine: Machine) -> str:
    """The text of what `build` compiles."""
    return str(_tasks(record, machine).module().script())


def probe_program(machine: Machine) -> str:
    """The text of what `build_probe` compiles."""
    return str(_probe(machine).module().script())


def _tasks(record: Record, machine: Machine) -> Functions:
    functions = Functions()
    functions.add(record.name, cpu_gemm.build(record, machine))
    _emit_tasks(functions, record, machine.lanes)
    _emit_probe(functions, machine.lanes)
    _emit_turns(functions, machine.lanes)
    return functions


def _probe(machine: Machine) -> Functions:
    functions = Functions()
    _emit_probe(functions, machine.lanes)
    _emit_fill(functions)
    return functions


def _emit_tasks(functions: Functions, record: Record, lanes: int) -> None:
    integers = [*_STRIDES, "k", "count"]

    # of its own, so that nothing of it is known when it is compiled, as in the library
    @functions.separate(
        "moonpoly_task_loop",
        arena=FLOATS,
        walk=INTS,
        x=FLOATS,
        lo=FLOAT,
        ldx=INT,
        **_ints(integers),
    )
    def _(arena: Pointer, walk: Pointer, x: Pointer, lo: Expr, ldx: Expr, **given: Expr) -> None:
        at = {operand: scratch(1, INT) for operand in _OPERANDS}
        areas = {}
        for i, operand in enumerate(_OPERANDS):
            at[operand][0] = walk[4 * i]
            # loaded once, as the tasks write to memory
            areas[operand] = [cell(walk[4 * i + field]) for field in (1, 2, 3)]
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
            for operand, (step, begin, end) in areas.items():
                following = let(at[operand][0] + step)
                at[operand][0] = select(following < end, following, begin)
        for i, operand in enumerate(_OPERANDS):
            walk[4 * i] = at[operand][0]

    @functions.public(TASKS, arena="handle", walk="handle", **_ints(integers))
    def _(arena: Any, walk: Any, **given: Expr) -> None:
        _call_tasks(functions, lanes, arena, walk, given)


def _call_tasks(
    functions: Functions, lanes: int, arena: Any, walk: Any, given: Mapping[str, Expr]
) -> None:
    functions["moonpoly_task_loop"](
        _memory(arena, FLOAT).at(0),
        _memory(walk, INT).at(0),
        zeros_row(lanes).at(0),
        tirx.const(-3.0e38, FLOAT),
        0,
        *(given[name] for name in (*_STRIDES, "k", "count")),
    )


def _memory(tensor: Any, dtype: str) -> Pointer:
    return Pointer.to(dltensor.address(tensor, dltensor.DATA, dtype), dtype)


def _ints(names: list[str]) -> dict[str, str]:
    return dict.fromkeys(names, INT)


def _emit_probe(functions: Functions, lanes: int) -> None:
    @functions.separate("moonpoly_probe_loop", memory=FLOATS, steps=INT)
    def _(memory: Pointer, steps: Expr) -> None:
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

    @functions.public(PROBE, state="handle", steps=INT)
    def _(state: Any, steps: Expr) -> None:
        functions["moonpoly_probe_loop"](_memory(state, FLOAT).at(0), steps)


def _emit_turns(functions: Functions, lanes: int) -> None:
    integers = [*_STRIDES, "k", "count", "steps"]

    @functions.public(TURNS, arena="handle", walk="handle", state="handle", **_ints(integers))
    def _(arena: Any, walk: Any, state: Any, steps: Expr, **given: Expr) -> None:
        calls = _memory(walk, INT)
        turn = let(calls[_TURN] % 2)
        calls[_TURN] = turn + 1
        branch(
            turn == 0,
            lambda: _call_tasks(functions, lanes, arena, walk, given),
            lambda: functions["moonpoly_probe_loop"](_memory(state, FLOAT).at(0), steps),
        )


def _emit_fill(functions: Functions) -> None:
    @functions.public(FILL, memory="handle", count=INT)
    def _(memory: Any, count: Expr) -> None:
        floats = _memory(memory, FLOAT)
        with loop(count) as i:
            floats[i] = tirx.const(0.5, FLOAT)
