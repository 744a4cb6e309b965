"""Timing calls of packed functions side by side, for ``--measure``.

They take turns, round by round, so that what disturbs the machine disturbs them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from tvm_moonpoly.cli import output
from tvm_moonpoly.cli.command import UserError
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators.operator_library import runs_here

ROUNDS = 8

#: Seconds that one call is timed in one round, and that all of it should take.
SECONDS, BUDGET = 0.003, 20.0

#: Bytes of operands that are made.
MOST_BYTES = 4 << 30

Call = Callable[[], object]


def require_measurable(machine: Machine, operands: int) -> None:
    """Raise UserError when code for ``machine`` does not run here, or its operands are of too many
    bytes."""
    if not runs_here(machine):
        raise UserError(f"--measure: code for {machine.mcpu} does not run here")
    if operands > MOST_BYTES:
        raise UserError(
            f"--measure: the operands take {output.size(operands)}, more than "
            f"{output.size(MOST_BYTES)}"
        )


def interleaved(calls: list[Call]) -> np.ndarray:
    """Picoseconds of each call in this thread: (rounds, calls), rounds an even number."""
    once = np.array([_timed(call, 1) for call in calls for _ in range(2)]).reshape(-1, 2)[:, 1]
    repeats = np.maximum(SECONDS / np.maximum(once, 1e-7), 1).astype(int)
    rounds = int(np.clip(BUDGET / max(float(once @ repeats), 1e-9), 2, ROUNDS)) // 2 * 2
    times = [
        [_timed(call, int(repeat)) for call, repeat in zip(calls, repeats, strict=True)]
        for _ in range(rounds)
    ]
    return np.array(times) * 1e12


def after_a_pause(call: Call, seconds: float = 0.5) -> float:
    """Picoseconds of one call by the wall clock, other work in between: the median.

    A thread pool answers faster when it is called again at once than it does in a model.
    """
    call()
    times: list[float] = []
    end = time.monotonic() + seconds
    while len(times) < 5 or time.monotonic() < end:
        time.sleep(0.0002)
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e12


def threads_of(planned: int) -> int:
    """How many of the planned threads TVM has."""
    return min(planned, int(tvm.get_global_func("runtime.NumThreads")()))


def whole_call(picoseconds: float, planned: int, threads: int) -> str:
    """What is said of a call on more threads than one."""
    return (
        f"the whole call, planned for {planned} threads, of which TVM has {threads}: "
        f"{picoseconds / 1e6:.2f} us by the clock on the wall"
    )


def filled(*shape: int, dtype: str = "float32") -> Any:
    """A tensor whose values do not matter, only that they are normal numbers."""
    return tvm.runtime.tensor(np.full(shape, 0.5, dtype))


def _timed(call: Call, repeat: int) -> float:
    start = time.thread_time()
    for _ in range(repeat):
        call()
    return (time.thread_time() - start) / repeat
