"""What the tuning stage has found: its own result, and what its journal holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning import plan_steps
from tvm_moonpoly.tuning.journal import Journal
from tvm_moonpoly.tuning.measuring.tasks import Sample, Task, Timing
from tvm_moonpoly.tuning.measuring.trials import Trial
from tvm_moonpoly.tuning.plan_steps import Plans


@dataclass(frozen=True)
class Tile:
    """The outcome of a tile's search: the best record and the default one, measured in turns."""

    best: Trial
    default: Trial
    searched: int

    def to_json(self) -> dict[str, Any]:
        return {
            "record": self.best.record.to_json(),
            "best": self.best.to_json(),
            "default": self.default.to_json(),
            "searched": self.searched,
        }

    @classmethod
    def from_json(cls, form: Record, data: Any) -> Tile:
        """Inverse of `to_json`; raises ValueError on anything else."""
        record = Record.from_json(data["record"])
        best = Trial.from_json(record, data["best"])
        return cls(best, Trial.from_json(form, data["default"]), int(data["searched"]))


@dataclass(frozen=True)
class Found:
    """What a stage has found so far. ``reference``: nanoseconds of one undisturbed probe step."""

    reference: float
    tiles: Sequence[Tile]
    samples: Sequence[Sample]
    plans: Plans | None = None

    def best(self) -> list[Record]:
        """The best record of each tile that was searched with success."""
        return [tile.best.record for tile in self.tiles if tile.best.error is None]


def read(journal: Journal, machine: Machine) -> Found:
    """What the journal of a stage holds: of each form the outcome of its longest search, all
    samples, and the plans of the library of the best records.

    Raises ValueError when it holds no reference yet or something is malformed.
    """
    try:
        return _read(journal, machine)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"journal: {journal.path} has a malformed entry: {error}") from error


def _read(journal: Journal, machine: Machine) -> Found:
    reference = journal.get("reference", {})
    if reference is None:
        raise ValueError(f"journal: {journal.path} holds no measurements yet")
    nanoseconds = float(reference["nanoseconds"])
    tiles: dict[Record, tuple[int, Tile]] = {}
    for key, value in journal.all("tile"):
        form = Record.from_json(key["form"])
        if form not in tiles or tiles[form][0] <= key["trials"]:
            tiles[form] = (key["trials"], Tile.from_json(form, value))
    samples: list[Sample] = []
    for key, value in journal.all("sample"):
        samples += samples_in(Task.from_json(key), value, nanoseconds)
    found = Found(nanoseconds, [tile for _, tile in tiles.values()], samples)
    records = plan_steps.library_records(found.best(), machine)
    return replace(found, plans=plan_steps.read(records, machine, journal, nanoseconds))


def samples_in(task: Task, value: dict[str, Any], reference: float) -> list[Sample]:
    """The sample of a task that the journal holds as ``value``; none when the task failed."""
    if "error" in value:
        return []
    timing = Timing.from_json(value)
    return [Sample(task, timing, round(timing.steps * reference * 1000))]
