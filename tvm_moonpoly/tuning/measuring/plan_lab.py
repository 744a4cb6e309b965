"""Measuring whole plans in a worker process of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning.measuring import robust
from tvm_moonpoly.tuning.measuring.lab import NANOSECONDS, PROBE_STEPS, SPREAD
from tvm_moonpoly.tuning.measuring.plans import PlanTask
from tvm_moonpoly.tuning.measuring.processes import Worker, WorkerError
from tvm_moonpoly.tuning.measuring.tasks import Timing

#: Timings of one plan, nanoseconds after which few are enough, probes between two of them, of which
#: the fastest counts, and how often they are taken again at most.
REPEATS, MOST, PROBES, ATTEMPTS = 9, 1.5e7, 2, 2

#: Turns in which a parallel launch is timed.
ROUNDS = 200

#: Seconds that a request may take, and one that compiles the library.
LIMIT, COMPILING = 30.0, 600.0


class PlanLab:
    """Measures plans of the library ``name`` of ``records``; ``worker`` compiles it when it is
    needed."""

    def __init__(self, worker: Worker, records: Sequence[Record], name: str) -> None:
        self._worker, self._records, self._name = worker, list(records), name

    def __call__(self, task: PlanTask) -> Timing:
        """The steadiest of up to `ATTEMPTS` estimates; raises WorkerError when there is none."""
        best: Timing | None = None
        for _ in range(ATTEMPTS):
            answer = self._ask("plan", LIMIT, plan=task.to_json(), **_TIMING)
            found = _timing(answer)
            if best is None or (not found.calm, found.spread) < (not best.calm, best.spread):
                best = found
            if best.calm and best.spread <= SPREAD:
                break
        assert best is not None
        return best

    def overhead(self) -> dict[str, float]:
        """Probe steps of an empty call of each function that takes plans, by its name."""
        answer = self._ask("overhead", LIMIT, **_TIMING)
        return {name: _timing(timed).steps for name, timed in answer.items()}

    def launch(self) -> float:
        """Nanoseconds of handing work to another thread."""
        answer = self._ask("launch", LIMIT, rounds=ROUNDS)
        return max(median(answer["two"]) - median(answer["one"]), 1.0)

    def compile(self) -> None:
        """Compile the library; raises WorkerError when that cannot be done."""
        records = [record.to_json() for record in self._records]
        request = {"op": "library", "name": self._name, "records": records}
        self._worker.ask(request, COMPILING)

    def _ask(self, op: str, seconds: float, **request: Any) -> dict[str, Any]:
        asked = {"op": op, "name": self._name, **request}
        answer = self._worker.ask(asked, seconds)
        if "missing" in answer:
            # a new worker, in the place of one that has died
            self.compile()
            answer = self._worker.ask(asked, seconds)
        if "missing" in answer:
            raise WorkerError(f"the library {self._name} is not there")
        return answer


_TIMING = {
    "repeats": REPEATS,
    "nanoseconds": NANOSECONDS,
    "probe_steps": PROBE_STEPS,
    "most": MOST,
    "probes": PROBES,
}


def _timing(answer: dict[str, Any]) -> Timing:
    found = robust.estimate(answer["task"], answer["probe"])
    return Timing(found.ratio, found.spread, found.timings, found.calm)
