"""Measuring tasks in worker processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.tuning.measuring import robust
from tvm_moonpoly.tuning.measuring.processes import Worker, WorkerError
from tvm_moonpoly.tuning.measuring.regions import Loop
from tvm_moonpoly.tuning.measuring.tasks import Task, Timing
from tvm_moonpoly.tuning.measuring.trials import Job, Measured, one_by_one

#: One timing lasts this long, and there are this many of them. The shorter they are, the more of
#: them nothing comes between.
NANOSECONDS, REPEATS = 2.0e5, 13

#: Steps of one probe: about 100 microseconds, so that reading the clock does not count.
PROBE_STEPS = 50_000

#: Timings that are not calm, or whose quartiles are further apart than this, are taken again, up to
#: `ATTEMPTS` times in all.
SPREAD, ATTEMPTS = 0.03, 4

#: The request for the probe alone: see `timing.Bench.probe`.
PROBING = {"op": "probe", "repeats": 400, "probe_steps": PROBE_STEPS}

#: Seconds that a request may take; building a kernel takes one at most.
LIMIT = 20.0


class Lab:
    """Measures tasks: the first worker times them, the others keep the other cores busy."""

    #: jobs that are measured at the same time
    width = 1

    def __init__(self, machine: Machine, workers: Sequence[Worker] | None = None) -> None:
        self.machine = machine
        self._workers = list(workers or (Worker() for _ in range(machine.cores)))

    def __call__(self, task: Task) -> Timing:
        """The task's timing, see `steadiest`.

        Raises WorkerError when the kernel cannot be built or timed, ValueError when the task's
        placement cannot be.
        """
        loop = loop_of(task, self.machine)
        return steadiest(lambda: self._answer(task, loop))

    def many(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measured]]:
        """See `trials.MeasureMany`: one job after the other."""
        return one_by_one(self)(jobs)

    def reference(self) -> float:
        """Nanoseconds of one step of the probe at the machine's undisturbed speed."""
        return robust.undisturbed(self._workers[0].ask(PROBING, LIMIT)["probe"])

    @property
    def first(self) -> Worker:
        """The worker that times."""
        return self._workers[0]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, task: Task, loop: Loop) -> dict[str, Any]:
        request = timing_request(task, loop)
        described = {"record": request["record"], "loop": request["loop"]}
        with ExitStack() as loads:
            if task.busy:
                for worker in self._workers[1:]:
                    worker.ask({"op": "prepare", **described}, LIMIT)
                for worker in self._workers[1:]:
                    worker.send({"op": "load", **described}, LIMIT)
                    loads.callback(_stop, worker)
            return self._workers[0].ask(request, LIMIT)


def loop_of(task: Task, machine: Machine) -> Loop:
    """Where the task's operands lie; raises ValueError where its placement cannot be."""
    loop = task.loop(machine)
    if loop is None:
        raise ValueError(f"task: {task} has no place in the caches of {machine.mcpu}")
    return loop


def timing_request(task: Task, loop: Loop) -> dict[str, Any]:
    """What a worker is asked for: see `timing.Bench.time`."""
    return {
        "op": "time",
        "record": task.record.to_json(),
        "loop": loop.to_json(),
        "repeats": REPEATS,
        "nanoseconds": NANOSECONDS,
        "probe_steps": PROBE_STEPS,
    }


def steadiest(answer: Callable[[], Mapping[str, Any]]) -> Timing:
    """The steadiest of up to `ATTEMPTS` estimates, each from an answer to `timing_request`."""
    best: robust.Estimate | None = None
    for _ in range(ATTEMPTS):
        answered = answer()
        estimate = robust.estimate(answered["task"], answered["probe"])
        if best is None or (not estimate.calm, estimate.spread) < (not best.calm, best.spread):
            best = estimate
        if best.calm and best.spread <= SPREAD:
            break
    assert best is not None
    return Timing(best.ratio, best.spread, best.timings, best.calm)


def _stop(worker: Worker) -> None:
    """End a load; raises WorkerError when it had ended before: its core was not busy then."""
    try:
        worker.ask({"op": "stop"}, LIMIT)
        worker.answer(LIMIT)
    except WorkerError:
        worker.close()
        raise
