"""Building micro-kernels and timing their tasks, in this process and thread.

Requests and answers are JSON: `worker` takes them from another process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from tvm_moonpoly.machine import Machine, detect_target
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning.measuring import kernel_loop
from tvm_moonpoly.tuning.measuring.kernel_loop import PROBE_CHAINS
from tvm_moonpoly.tuning.measuring.regions import Loop

Request = Mapping[str, Any]

#: Runs something that many times, and tells how many nanoseconds that took.
Clock = Callable[[int], float]

#: ``turns(count, steps, repeats)``: nanoseconds of ``steps`` of the probe, ``count`` tasks, the
#: probe again, and so on, ``repeats`` times, and of the last probe.
Turns = Callable[[int, int, int], Sequence[float]]

#: Built kernels that are kept for the next request.
KEPT = 256


class Bench:
    """Builds and times kernels on this machine, in this thread."""

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        """``asked`` tells whether another request waits."""
        self.target = detect_target()
        self.machine = Machine.from_target(self.target)
        self._asked = asked
        self._modules: dict[Any, Any] = {}
        self._probing = kernel_loop.build_probe(self.machine, self.target)
        self._arena = self._floats(1)
        self._state = self._floats(PROBE_CHAINS * self.machine.lanes)

    def time(self, request: Request) -> dict[str, Any]:
        """Time a loop of tasks: nanoseconds of ``repeats`` timings, and of the probes around them.

        ``record``: of the kernel. ``loop``: `regions.Loop` as JSON. ``nanoseconds``: how long one
        timing is to be. Answers ``task``, for one task, and ``probe``, for one step of the probe.
        """
        run = self._prepared(request)

        def turns(count: int, steps: int, repeats: int) -> list[float]:
            times = self._probes(steps, 1)
            for _ in range(repeats):
                times += [timed(run, count), *self._probes(steps, 1)]
            return times

        return in_turns(lambda count: timed(run, count), turns, request)

    def probe(self, request: Request) -> dict[str, Any]:
        """Time the probe alone, ``repeats`` times: ``probe``, nanoseconds of one step."""
        return alone(self._probes, request)

    def prepare(self, request: Request) -> dict[str, Any]:
        """Build a kernel, for a `load` that is to begin at once."""
        self._prepared(request)
        return {}

    def load(self, request: Request) -> dict[str, Any]:
        """Run a loop of tasks until the next request, to keep this core and the memory busy."""
        run = self._prepared(request)
        count = affordable(lambda n: timed(run, n), 1e6)
        done = 0
        while not self._asked():
            run(count)
            done += count
        return {"tasks": done}

    def stop(self, request: Request) -> dict[str, Any]:
        """Nothing: that it comes ends a `load`."""
        return {}

    def probing(self, steps: int) -> Callable[[], float]:
        """Times ``steps`` steps of the probe, in nanoseconds for each one."""
        call = min(self._probes(0, 9))
        return lambda: max(self._probes(steps, 1)[0] - call, 1) / steps

    def _probe(self, steps: int) -> None:
        self._probing[kernel_loop.PROBE](self._state, steps)

    def _probes(self, steps: int, repeats: int) -> list[float]:
        """Nanoseconds of ``steps`` of the probe, ``repeats`` times.

        Some are run before. What comes right after native code that ran for milliseconds is slow on
        some machines, as if they had to be paid back what they had lent.
        """
        self._probe(steps // 2)
        return [timed(self._probe, steps) for _ in range(repeats)]

    def _prepared(self, request: Request) -> Callable[[int], None]:
        record = Record.from_json(request["record"])
        loop = Loop.from_json(request["loop"])
        if record not in self._modules:
            if len(self._modules) >= KEPT:
                self._modules.pop(next(iter(self._modules)))
            self._modules[record] = kernel_loop.build(record, self.machine, self.target)
        module = self._modules[record]
        tasks = module[kernel_loop.TASKS]
        if self._arena.shape[0] < loop.floats:
            self._arena = self._floats(loop.floats)
        arena, walk = self._arena, tvm.runtime.tensor(np.array(loop.walk, np.int64))
        return lambda count: tasks(arena, walk, *loop.strides, loop.k, count)

    def _floats(self, count: int) -> Any:
        memory = tvm.runtime.empty((count,), "float32")
        self._probing[kernel_loop.FILL](memory, count)
        return memory


def in_turns(task: Clock, turns: Turns, request: Request) -> dict[str, Any]:
    """Timings of a loop of tasks, and of the probes around them: see `Bench.time`."""
    length, probe_steps = float(request["nanoseconds"]), int(request["probe_steps"])
    repeats = int(request["repeats"])
    # once around, so that all is where it is going to be
    task(min(Loop.from_json(request["loop"]).round, affordable(task, 20e6)))
    count = affordable(task, length)
    idle, times = turns(0, 0, 9), turns(count, probe_steps, repeats)
    return {
        "task": each(times[1::2], idle[1::2], count),
        "probe": each(times[::2], idle[::2], probe_steps),
    }


def alone(probe: Callable[[int, int], Sequence[float]], request: Request) -> dict[str, Any]:
    """Timings of the probe: see `Bench.probe`. ``probe(steps, repeats)`` takes them."""
    steps = int(request["probe_steps"])
    return {"probe": each(probe(steps, int(request["repeats"])), probe(0, 9), steps)}


def each(times: Sequence[float], idle: Sequence[float], count: int) -> list[float]:
    """Nanoseconds for each of ``count``, without what the call itself takes."""
    call = min(idle)
    return [max(time - call, 1) / count for time in times]


def timer(run: Callable[[int], object], count: int) -> Callable[[], float]:
    """Times ``run(count)`` in nanoseconds for each one, without what the call itself takes."""
    call = min(timed(run, 0) for _ in range(9))
    return lambda: max(timed(run, count) - call, 1) / count


def timed(run: Callable[[int], object], count: int) -> float:
    # the processor time of this thread: others that want the core do not count
    start = time.thread_time_ns()
    run(count)
    return time.thread_time_ns() - start


def affordable(clock: Clock, nanoseconds: float) -> int:
    """How many take about ``nanoseconds``."""
    count = 1
    while True:
        # the shorter of two: after one that was disturbed, far too few would be timed
        took = max(min(clock(count), clock(count)), 1)
        if took * 4 >= nanoseconds or count >= 1 << 30:
            return max(1, round(count * nanoseconds / took))
        count *= max(2, min(int(nanoseconds / took / 2), 1000))
