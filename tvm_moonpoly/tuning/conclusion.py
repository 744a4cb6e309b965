"""The stage's end: learn, select, and write the tuning log with its model and its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tvm_moonpoly import logs
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators.operator_library import costs
from tvm_moonpoly.tuning import plan_steps
from tvm_moonpoly.tuning.findings import Found
from tvm_moonpoly.tuning.learning import learn
from tvm_moonpoly.tuning.learning.learn import Learned
from tvm_moonpoly.tuning.report import report
from tvm_moonpoly.tuning.select import elite
from tvm_moonpoly.tuning.settings import Settings


@dataclass(frozen=True)
class Files:
    """Where a log lies, and what lies beside it."""

    log: Path

    @property
    def model(self) -> Path:
        """The learned model, in XGBoost's JSON."""
        return self.log.with_name(f"{self.log.stem}.model.json")

    @property
    def report(self) -> Path:
        own = self.log.name == logs.FILE_NAME
        return self.log.with_name("report.md" if own else f"{self.log.stem}.report.md")


def conclude(
    found: Found,
    machine: Machine,
    settings: Settings,
    seconds: Callable[[], float],
    files: Files,
) -> Learned:
    """Learn from what was ``found``, and write the log and what lies beside it.

    ``seconds`` that the stage has taken. A log that is there is replaced in one step, after
    everything else. Where a file cannot be written, there is a warning.

    Raises ValueError when there is too little to learn from.
    """
    learned, borrowed = _learned(found, machine, settings.seed)
    selection = elite(learned.table, machine, shapes=settings.shapes)
    learned = replace(learned, table=selection.table)
    text = report(found, learned, machine, settings, seconds(), borrowed, selection)
    logs.replace_bytes(files.model, learned.model.to_json())
    logs.replace_bytes(files.report, text.encode())
    logs.write(files.log, machine, learned.table.to_entries())
    return learned


def _learned(found: Found, machine: Machine, seed: int) -> tuple[Learned, str | None]:
    """What is learned, and the log that lends the traffic, where too few plans were measured."""
    count = len(found.plans.samples) if found.plans is not None else 0
    if found.plans is not None and count >= learn.FEWEST:
        return learn.learn(found.samples, found.plans, machine, seed), None
    for log in logs.usable(machine):
        try:
            traffic = costs(log, machine).traffic
        except ValueError:
            continue
        records = plan_steps.library_records(found.best(), machine)
        return learn.learn_tasks(found.samples, records, traffic, machine, seed), log.origin
    measured = f"{count} are too few to learn from" if count else "none were measured"
    raise ValueError(f"plans: {measured}, and no log can lend what they cost")
