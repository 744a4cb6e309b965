"""Building micro-kernels and timing their tasks, in this process and thread.

Requests and answers are JSON: `worker` takes them from another process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm

from tvm_moonpoly.machine import Machine, detect_target
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning import kernel_loop
from tvm_moonpoly.tuning.kernel_loop import PROBE_CHAINS
from tvm_moonpoly.tuning.regions import Loop, Walk

Request = Mapping[str, Any]

#: Built kernels that are kept for the next request.
_KEPT = 64


class Bench:
    """Builds and times kernels on this machine, in this thread."""

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        """``asked`` tells whether another request waits."""
        self.target = detect_target()
        self.machine = Machine.from_target(self.target)
        self._asked = asked
        self._modules: dict[Any, Any] = {}
        self._arena = self._floats(1)
        self._probing = kernel_loop.build_probe(self.machine, self.target)
        self._state = self._floats(PROBE_CHAINS * self.machine.lanes)

    def time(self, request: Request) -> dict[str, Any]:
        """Time a loop of tasks: nanoseconds of ``repeats`` timings, and of the probes around them.

        ``record``: of the kernel. ``loop``: `regions.Loop` as JSON. ``nanoseconds``: how long one
        timing is to be. Answers ``task``, for one task, and ``probe``, for one step of the probe.
        """
        run = self._prepared(request)
        length, probe_steps = float(request["nanoseconds"]), int(request["probe_steps"])
        run(min(Loop.from_json(request["loop"]).round, _affordable(run, 20e6)))
        count = _affordable(run, length)
        task, step = _timer(run, count), _timer(self._probe, probe_steps)
        tasks, probes = [], [step()]
        for _ in range(int(request["repeats"])):
            tasks.append(task())
            probes.append(step())
        return {"task": tasks, "probe": probes}

    def probe(self, request: Request) -> dict[str, Any]:
        """Time the probe alone, ``repeats`` times: ``probe``, nanoseconds of one step."""
        step = _timer(self._probe, int(request["probe_steps"]))
        return {"probe": [step() for _ in range(int(request["repeats"]))]}

    def prepare(self, request: Request) -> dict[str, Any]:
        """Build a kernel, for a `load` that is to begin at once."""
        self._prepared(request)
        return {}

    def load(self, request: Request) -> dict[str, Any]:
        """Run a loop of tasks until the next request, to keep this core and the memory busy."""
        run = self._prepared(request)
        count = _affordable(run, 1e6)
        done = 0
        while not self._asked():
            run(count)
            done += count
        return {"tasks": done}

    def stop(self, request: Request) -> dict[str, Any]:
        """Nothing: that it comes ends a `load`."""
        return {}

    def _probe(self, steps: int) -> None:
        self._probing[kernel_loop.PROBE](self._state, steps)

    def _prepared(self, request: Request) -> Callable[[int], None]:
        record = Record.from_json(request["record"])
        loop = Loop.from_json(request["loop"])
        if record not in self._modules:
            if len(self._modules) >= _KEPT:
                self._modules.pop(next(iter(self._modules)))
            self._modules[record] = kernel_loop.build(record, self.machine, self.target)
        module = self._modules[record]
        tasks = module[kernel_loop.TASKS]
        if self._arena.shape[0] < loop.floats:
            self._arena = self._floats(loop.floats)
        arena, walk = self._arena, Walk(loop)

        def run(count: int) -> None:
            tasks(arena, *loop.strides, loop.k, count, *walk.next(count))

        return run

    @staticmethod
    def _floats(count: int) -> Any:
        # normal numbers: others are slower on some machines
        return tvm.runtime.tensor(np.full(count, 0.5, np.float32))


def _timer(run: Callable[[int], None], count: int) -> Callable[[], float]:
    """Times ``run(count)`` in nanoseconds for each one, without what the call itself takes."""
    call = min(_timed(run, 0) for _ in range(9))
    return lambda: max(_timed(run, count) - call, 1) / count


def _timed(run: Callable[[int], None], count: int) -> int:
    # the processor time of this thread: others that want the core do not count
    start = time.thread_time_ns()
    run(count)
    return time.thread_time_ns() - start


def _affordable(run: Callable[[int], None], nanoseconds: float) -> int:
    """How many take about ``nanoseconds``."""
    count = 1
    while True:
        took = max(_timed(run, count), 1)
        if took * 4 >= nanoseconds or count >= 1 << 30:
            return max(1, round(count * nanoseconds / took))
        count *= max(2, min(int(nanoseconds / took / 2), 1000))
