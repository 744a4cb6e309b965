"""The stage's steps with whole plans: measured in a fixed order, kept in the journal at once.

Entries of the journal hold the library's digest in their keys: other micro-kernels make other
plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning import origin
from tvm_moonpoly.tuning.journal import Journal
from tvm_moonpoly.tuning.measuring.plan_bench import function_of
from tvm_moonpoly.tuning.measuring.plans import PlanSample, PlanTask, placeholder, random_plans
from tvm_moonpoly.tuning.measuring.processes import WorkerError
from tvm_moonpoly.tuning.measuring.tasks import Timing
from tvm_moonpoly.tuning.progress import Display

#: What is measured of a library, see `PlanLab`: plans in turns, and what is around them. Between
#: two turns are minutes: what disturbs a machine (others on the same core, most of all) slows all
#: that is measured for a while, and the probe by another factor.
_TURNS, _AROUND = ("plan", "plan_again"), "plan_around"


class Lab(Protocol):
    """Measures plans of one library: see `plan_lab.PlanLab`."""

    def __call__(self, task: PlanTask) -> Timing: ...

    def overhead(self) -> dict[str, float]: ...

    def launch(self) -> float: ...


@dataclass(frozen=True)
class Plans:
    """Whole plans of a library of ``records`` that were measured; ``launch`` in picoseconds."""

    records: Sequence[Record]
    samples: Sequence[PlanSample]
    launch: float


def library_records(best: Sequence[Record], machine: Machine) -> list[Record]:
    """The family, with the best records in the place of the default ones of their forms."""
    chosen = {replace(record, decisions={}): record for record in best}
    return [chosen.get(form, form) for form in cpu_gemm.family(machine)]


def measure(
    records: Sequence[Record],
    machine: Machine,
    journal: Journal,
    lab: Callable[[Sequence[Record], str], Lab],
    left: Callable[[], float],
    most: int,
    seed: int,
    display: Display,
) -> None:
    """Measure up to ``most`` plans of the library of ``records``, and then all of them again, while
    there is time ``left``.

    ``lab`` makes what measures plans of a library: its records, and its name. It is not called when
    the journal holds them all, nor when there is no time left.
    """
    library = origin.library(records, machine)
    opened: list[Lab] = []

    def there() -> Lab:
        if not opened:
            opened.append(lab(records, library))
        return opened[0]

    def around() -> dict[str, Any]:
        return {"overhead": there().overhead(), "launch": there().launch()}

    if journal.get(_AROUND, {"library": library}) is None and left() <= 0:
        return  # compiling the library alone takes half a minute
    try:
        journal.once(_AROUND, {"library": library}, around)
    except WorkerError as error:
        display.say(f"no plans are measured: {error}")
        return
    tasks = list(itertools.islice(random_plans(machine, placeholder(records), seed), most))
    display.more("measuring plans", len(_TURNS) * most)
    for kind, task in itertools.product(_TURNS, tasks):
        key = {"library": library, **task.to_json()}
        new = journal.get(kind, key) is None
        if new and left() <= 0:
            break
        journal.once(kind, key, lambda: _measured(there(), task))  # noqa: B023
        display.measured(None, new=new)


def _measured(lab: Lab, task: PlanTask) -> dict[str, Any]:
    try:
        return lab(task).to_json()
    except WorkerError as error:
        return {"error": str(error)}


def read(
    records: Sequence[Record], machine: Machine, journal: Journal, reference: float
) -> Plans | None:
    """What the journal holds of the library of ``records``; None when that was not measured.

    ``reference``: nanoseconds of one step of the probe.
    """
    library = origin.library(records, machine)
    around = journal.get(_AROUND, {"library": library})
    if around is None:
        return None
    samples = []
    for task, timing in _fastest(library, journal, around["overhead"]).items():
        empty = float(around["overhead"][function_of(task.product.b_mode)])
        times = (timing.steps - empty, empty)
        samples.append(PlanSample(task, timing, *(t * reference * 1000 for t in times)))
    return Plans(list(records), samples, float(around["launch"]) * 1000)


def _fastest(
    library: str, journal: Journal, overhead: Mapping[str, float]
) -> dict[PlanTask, Timing]:
    """Of each plan the timing of the turn in which it was least disturbed.

    One that is no longer than the empty call's ``overhead`` of its function tells nothing: the
    product is too small to be measured, or the probe was disturbed. Without another turn, the plan
    is left out.
    """
    found: dict[PlanTask, Timing] = {}
    for kind in _TURNS:
        for key, value in journal.all(kind):
            if key.pop("library") != library or "error" in value:
                continue
            task, timing = PlanTask.from_json(key), Timing.from_json(value)
            if timing.steps <= overhead[function_of(task.product.b_mode)]:
                continue
            if task not in found or timing.steps < found[task].steps:
                found[task] = timing
    return found
