"""The steps of the tuning stage. Whatever they measure is in the journal at once.

Every step can be taken again at any time: what the journal holds is not measured anew, and the same
measurements lead to the same search. So a stage that was killed goes on when it is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning import trials
from tvm_moonpoly.tuning.journal import Journal
from tvm_moonpoly.tuning.processes import WorkerError
from tvm_moonpoly.tuning.progress import Display
from tvm_moonpoly.tuning.tasks import Sample, Task, Timing, samples_of
from tvm_moonpoly.tuning.trials import Trial


@dataclass(frozen=True)
class Settings:
    """How much the stage does. ``budget`` in seconds, of which ``search_share`` is for searching.

    ``trials`` records of each tile are measured at most, ``finalists`` of them and the default one
    again in ``rounds`` turns. ``thorough``: all tasks, see `tasks.samples_of`.
    """

    budget: float = 45 * 60.0
    search_share: float = 0.5
    trials: int = 32
    batch: int = 8
    finalists: int = 3
    rounds: int = 3
    thorough: bool = True
    seed: int = 0


#: Three minutes in all, less what starting and ending take.
QUICK = Settings(budget=165.0, trials=8, batch=4, finalists=1, rounds=1, thorough=False)


class Search(Protocol):
    """Searches the space of a form: see `search.search`, whose other arguments are bound."""

    def __call__(
        self,
        form: Record,
        known: Mapping[Record, float | None],
        measure: Callable[[Record], float | None],
        stop: Callable[[], bool],
    ) -> object: ...


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


class Stage:
    """The steps, with what they need: where to write, how to measure and to search."""

    def __init__(
        self,
        machine: Machine,
        journal: Journal,
        settings: Settings,
        measure_task: trials.MeasureTask,
        reference: Callable[[], float],
        search: Search,
        display: Display,
    ) -> None:
        self.machine, self.journal, self.settings = machine, journal, settings
        self._measure_task, self._search, self._display = measure_task, search, display
        value = journal.once("reference", {}, lambda: {"nanoseconds": reference()})
        self._reference = float(value["nanoseconds"])

    def left(self, share: float = 1.0) -> float:
        """Seconds until ``share`` of the budget is spent."""
        return self.settings.budget * share - self.journal.spent()

    def run(self, forms: Sequence[Record]) -> Found:
        """Search every form, then measure tasks of the best records, as far as the budget goes."""
        tiles = []
        planned = len(forms) * self.settings.trials
        for done, form in enumerate(forms):
            self._display.phase(f"searching {form.mr}x{form.nv * self.machine.lanes}", planned)
            tile = self._tile(form, self.left(self.settings.search_share) / (len(forms) - done))
            if tile is None:
                break
            tiles.append(tile)
        return Found(self._reference, tiles, self._samples(tiles, planned))

    def gigaflops(self, trial: Trial) -> float | None:
        """GFLOP/s over a trial's situations (their geometric mean); None when it failed."""
        cost = trial.cost(self.machine)
        return None if cost is None else 1 / (cost * self._reference)

    def _tile(self, form: Record, seconds: float) -> Tile | None:
        """The best record of a form, after a search of ``seconds``; None when time is up."""
        key = {"form": form.to_json(), "trials": self.settings.trials}
        # of this search, were it finished or not, and of others
        tried = self._tried(form)
        for trial in tried.values():
            self._display.measured(self.gigaflops(trial), new=False)
        finished = self.journal.get("tile", key)
        if finished is None and self.left() <= 0:
            return None
        until = self.journal.spent() + seconds

        def measured(record: Record) -> float | None:
            tried[record] = self._trial(record)
            self._display.measured(self.gigaflops(tried[record]), new=True)
            return tried[record].cost(self.machine)

        def stop() -> bool:
            return finished is not None or self.journal.spent() >= until or self.left() <= 0

        # also when it is finished: what is known of this form helps with the next ones
        known = {record: trial.cost(self.machine) for record, trial in tried.items()}
        self._search(form, known, measured, stop)
        self._display.skipped(self.settings.trials - len(tried))
        if finished is not None:
            return Tile.from_json(form, finished)
        tile = self._confirmed(form, tried)
        self.journal.put("tile", key, tile.to_json())
        return tile

    def _tried(self, form: Record) -> dict[Record, Trial]:
        """The trials of a form that the journal holds."""
        tried = {}
        for key, value in self.journal.all("trial"):
            record = Record.from_json(key["record"])
            if key["turn"] is None and replace(record, decisions={}) == form:
                tried[record] = Trial.from_json(record, value)
        return tried

    def _trial(self, record: Record, turn: int | None = None) -> Trial:
        key = {"record": record.to_json(), "turn": turn}
        value = self.journal.once(
            "trial",
            key,
            lambda: trials.measure(record, self.machine, self._measure_task).to_json(),
        )
        return Trial.from_json(record, value)

    def _confirmed(self, form: Record, tried: dict[Record, Trial]) -> Tile:
        """The best of the finalists and the default record, measured again in turns.

        The least of many noisy numbers is too low; what is chosen is compared on numbers that were
        not used to choose it.
        """
        costs = {record: trial.cost(self.machine) for record, trial in tried.items()}
        ranked = sorted((cost, i) for i, cost in enumerate(costs.values()) if cost is not None)
        records = list(costs)
        finalists = [records[i] for _, i in ranked[: self.settings.finalists]]
        if form not in finalists:
            finalists.append(form)
        again: dict[Record, list[Trial]] = {record: [] for record in finalists}
        for turn in range(self.settings.rounds):
            for record in finalists:
                again[record].append(self._trial(record, turn))
        results = {record: trials.combined(repeated) for record, repeated in again.items()}
        return Tile(self._choice(form, results), results[form], len(tried))

    def _choice(self, form: Record, results: dict[Record, Trial]) -> Trial:
        def cost(record: Record) -> float:
            found = results[record].cost(self.machine)
            return float("inf") if found is None else found

        best = min(results, key=cost)
        # the default one stays unless another is better by more than what noise may be
        return results[best if cost(best) < cost(form) * (1 - NOISE) else form]

    def _samples(self, tiles: Sequence[Tile], planned: int) -> list[Sample]:
        """Tasks of the best records, until there are none left or the budget is spent."""
        records = [tile.best.record for tile in tiles if tile.best.error is None]
        tasks = list(samples_of(records, self.machine, self.settings.thorough))
        self._display.phase("measuring tasks", planned + len(tasks))
        samples: list[Sample] = []
        for task in tasks:
            known = self.journal.get("sample", task.to_json())
            if known is None:
                if self.left() <= 0:
                    break
                known = self._sampled(task)
                self.journal.put("sample", task.to_json(), known)
                self._display.measured(None, new=True)
            else:
                self._display.measured(None, new=False)
            samples += _sample(task, known, self._reference)
        return samples

    def _sampled(self, task: Task) -> dict[str, Any]:
        try:
            return self._measure_task(task).to_json()
        except WorkerError as error:
            return {"error": str(error)}


#: A record must be better than the default one by this part to replace it.
NOISE = 0.01


def read(journal: Journal) -> Found:
    """What the journal of a stage holds: of each form the outcome of its longest search, and all
    samples. Raises ValueError when it holds no reference yet or something is malformed."""
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
        samples += _sample(Task.from_json(key), value, nanoseconds)
    return Found(nanoseconds, [tile for _, tile in tiles.values()], samples)


def _sample(task: Task, value: dict[str, Any], reference: float) -> list[Sample]:
    """The sample that the journal holds as ``value``; none when the task failed."""
    if "error" in value:
        return []
    timing = Timing.from_json(value)
    return [Sample(task, timing, round(timing.steps * reference * 1000))]
