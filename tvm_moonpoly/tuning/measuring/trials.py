"""Trials of a search: a record, measured in the situations that micro-kernels are used in.

A record's cost is the geometric mean over the situations of probe steps for each operation, so
that a percentage counts the same in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning.measuring.processes import WorkerError
from tvm_moonpoly.tuning.measuring.tasks import Task, Timing

#: Measures a task; raises `WorkerError` when it cannot be built or run.
MeasureTask = Callable[[Task], Timing]

#: Tasks of one record that are measured at one place, one after the other.
Job = Sequence[Task]

#: Measures jobs as they come, several at a time where it can: yields the number of each and what
#: came of it, as soon as it is done. Takes the next job only when it can begin.
MeasureMany = Callable[[Iterable[Job]], "Iterator[tuple[int, Measured]]"]

#: (placement, steps): all in the first cache, over a short and a longer reduction; many rows, which
#: stream past columns of B; few rows, past which B streams from the last cache, and from memory.
SITUATIONS = (("l1", 48), ("l1", 192), ("a_l2", 384), ("b_l3", 768), ("b_memory", 768))


@dataclass(frozen=True)
class Measured:
    """What came of a job: timings of its tasks, up to the first that failed, and why that did."""

    timings: Sequence[Timing]
    error: str | None = None


def in_turn(job: Job, measure_task: MeasureTask) -> Measured:
    """The tasks of a job one after the other; the first failure ends it."""
    timings: list[Timing] = []
    try:
        for task in job:
            timings.append(measure_task(task))
    except WorkerError as error:
        return Measured(timings, str(error))
    return Measured(timings)


def one_by_one(measure_task: MeasureTask) -> MeasureMany:
    """Measures one job after the other."""

    def measure(jobs: Iterable[Job]) -> Iterator[tuple[int, Measured]]:
        for number, job in enumerate(jobs):
            yield number, in_turn(job, measure_task)

    return measure


@dataclass(frozen=True)
class Trial:
    """A measured record: its timing in each situation that is possible, or why there is none."""

    record: Record
    timings: Mapping[str, Timing]
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "timings": {name: timing.to_json() for name, timing in self.timings.items()},
            "error": self.error,
        }

    @classmethod
    def of(cls, record: Record, machine: Machine, measured: Measured) -> Trial:
        """The trial of which the tasks are those of `situations`, in their order."""
        names = situations(record, machine)
        timings = dict(zip(names, measured.timings, strict=False))
        return cls(record, timings, measured.error)

    @classmethod
    def from_json(cls, record: Record, data: Mapping[str, Any]) -> Trial:
        """Inverse of `to_json`; raises ValueError on anything else."""
        timings = data.get("timings")
        if not isinstance(timings, Mapping):
            raise ValueError(f"trial: timings must be an object, not {timings!r}")
        error = data.get("error")
        return cls(
            record,
            {name: Timing.from_json(timing) for name, timing in timings.items()},
            None if error is None else str(error),
        )

    def cost(self, machine: Machine) -> float | None:
        """Probe steps for each operation; None when the record failed."""
        tasks = situations(self.record, machine)
        if self.error is not None or not set(tasks) <= set(self.timings):
            return None
        each = [self.timings[name].steps / task.flops(machine) for name, task in tasks.items()]
        return math.exp(sum(map(math.log, each)) / len(each))


def gigaflops(trial: Trial, machine: Machine, reference: float) -> float | None:
    """GFLOP/s over a trial's situations (their geometric mean); None when it failed.

    ``reference``: nanoseconds of one step of the probe.
    """
    cost = trial.cost(machine)
    return None if cost is None else 1 / (cost * reference)


def situations(record: Record, machine: Machine) -> dict[str, Task]:
    """The situations that are possible for a record on a machine, by name."""
    tasks = {f"{placement} {k}": Task(record, k, placement) for placement, k in SITUATIONS}
    return {name: task for name, task in tasks.items() if task.loop(machine) is not None}


def combined(trials: Sequence[Trial]) -> Trial:
    """Repeated trials of one record as one: the median of each situation.

    A record that failed once has failed.
    """
    for trial in trials:
        if trial.error is not None:
            return trial
    timings = {}
    for name in trials[0].timings:
        repeated = [trial.timings[name] for trial in trials]
        timings[name] = Timing(
            median(timing.steps for timing in repeated),
            max(timing.spread for timing in repeated),
            sum(timing.timings for timing in repeated),
            all(timing.calm for timing in repeated),
        )
    return Trial(trials[0].record, timings)
