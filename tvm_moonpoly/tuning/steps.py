"""The steps of the tuning stage. Whatever they measure is in the journal at once.

Every step can be taken again at any time: what the journal holds is not measured anew, and the same
measurements lead to the same search. So a stage that was killed goes on when it is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning import plan_steps
from tvm_moonpoly.tuning.findings import Found, Tile, samples_in
from tvm_moonpoly.tuning.journal import Journal
from tvm_moonpoly.tuning.measuring import trials
from tvm_moonpoly.tuning.measuring.tasks import Sample, Task, samples_of
from tvm_moonpoly.tuning.measuring.trials import MeasureMany, Trial
from tvm_moonpoly.tuning.plan_steps import Plans
from tvm_moonpoly.tuning.progress import Display
from tvm_moonpoly.tuning.searching.search import Measure
from tvm_moonpoly.tuning.settings import Settings

#: Makes what measures the plans of a library: its records, and its name.
PlanLabs = Callable[[Sequence[Record], str], plan_steps.Lab]


class Search(Protocol):
    """Searches the space of a form: see `search.search`, whose other arguments are bound."""

    def __call__(
        self,
        form: Record,
        known: Mapping[Record, float | None],
        measure: Measure,
        stop: Callable[[], bool],
    ) -> object: ...


class Stage:
    """The steps, with what they need: where to write, how to measure and to search."""

    def __init__(
        self,
        machine: Machine,
        journal: Journal,
        settings: Settings,
        measure: MeasureMany,
        reference: Callable[[], float],
        search: Search,
        display: Display,
        plan_labs: PlanLabs | None = None,
    ) -> None:
        """Without ``plan_labs``, no plans are measured, and tasks of the searched tiles only."""
        self.machine, self.journal, self.settings = machine, journal, settings
        self._plan_labs = plan_labs
        self._measure, self._search, self._display = measure, search, display
        value = journal.once("reference", {}, lambda: {"nanoseconds": reference()})
        self._reference = float(value["nanoseconds"])

    def left(self, share: float = 1.0) -> float:
        """Seconds until ``share`` of the budget is spent."""
        return self.settings.budget * share - self.journal.spent()

    def run(self, forms: Sequence[Record]) -> Found:
        """Search every form, then measure tasks of the best records, and then plans of their
        library, as far as the budget goes."""
        tiles = []
        planned = len(forms) * self.settings.trials
        for done, form in enumerate(sorted(forms, key=_less_work_for_loads)):
            self._display.phase(f"searching {form.mr}x{form.nv * self.machine.lanes}", planned)
            tile = self._tile(form, self.left(self.settings.search_share) / (len(forms) - done))
            if tile is not None:
                tiles.append(tile)
        found = Found(self._reference, tiles, [])
        if self._plan_labs is None:
            return replace(found, samples=self._samples(found.best(), planned))
        records = plan_steps.library_records(found.best(), self.machine)
        found = replace(found, samples=self._samples(records, planned))
        return replace(found, plans=self._plans(records, self._plan_labs))

    def gigaflops(self, trial: Trial) -> float | None:
        """See `trials.gigaflops`."""
        return trials.gigaflops(trial, self.machine, self._reference)

    def _tile(self, form: Record, seconds: float) -> Tile | None:
        """The best record of a form, after a search of ``seconds``; None when time is up."""
        key = {"form": form.to_json(), "trials": self.settings.trials}
        # of this search, were it finished or not, and of others
        tried = self._tried(form)
        for trial in tried.values():
            self._display.measured(self.gigaflops(trial), new=False)
        finished = self.journal.get("tile", key)
        if finished is None and seconds <= 0:
            return None
        until = self.journal.spent() + seconds

        def measured(records: Sequence[Record]) -> list[float | None]:
            for record, _, trial in self._trials([(record, None) for record in records]):
                tried[record] = trial
                self._display.measured(self.gigaflops(trial), new=True)
            return [tried[record].cost(self.machine) for record in records]

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

    def _trials(
        self, wanted: Sequence[tuple[Record, int | None]]
    ) -> Iterator[tuple[Record, int | None, Trial]]:
        """Trials of records in turns: those that the journal holds, then others once made."""
        missing = []
        for record, turn in wanted:
            value = self.journal.get("trial", _trial_key(record, turn))
            if value is None:
                missing.append((record, turn))
            else:
                yield record, turn, Trial.from_json(record, value)
        jobs = [list(trials.situations(r, self.machine).values()) for r, _ in missing]
        for number, measured in self._measure(jobs):
            record, turn = missing[number]
            trial = Trial.of(record, self.machine, measured)
            self.journal.put("trial", _trial_key(record, turn), trial.to_json())
            yield record, turn, trial

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
        turns = range(self.settings.rounds)
        for record, _, trial in self._trials([(r, turn) for turn in turns for r in finalists]):
            again[record].append(trial)
        results = {record: trials.combined(repeated) for record, repeated in again.items()}
        return Tile(self._choice(form, results), results[form], len(tried))

    def _choice(self, form: Record, results: dict[Record, Trial]) -> Trial:
        def cost(record: Record) -> float:
            found = results[record].cost(self.machine)
            return float("inf") if found is None else found

        best = min(results, key=cost)
        # the default one stays unless another is better by more than what noise may be
        return results[best if cost(best) < cost(form) * (1 - NOISE) else form]

    def _samples(self, records: Sequence[Record], planned: int) -> list[Sample]:
        """Tasks of ``records``, until there are none left or their share of time is spent."""
        settings = self.settings
        tasks = list(samples_of(records, self.machine, settings.thorough, settings.busy))
        share = 1.0 if self._plan_labs is None else settings.tasks_share
        self._display.phase("measuring tasks", planned + len(tasks))
        known: dict[Task, dict[str, Any]] = {}
        for task in tasks:
            value = self.journal.get("sample", task.to_json())
            if value is not None:
                known[task] = value
                self._display.measured(None, new=False)
        begun: list[Task] = []

        def jobs() -> Iterator[list[Task]]:
            for task in tasks:
                if task in known:
                    continue
                if self.left(share) <= 0:
                    self._display.skipped(len(tasks) - len(set(known).union(begun)))
                    break
                begun.append(task)
                yield [task]

        for number, measured in self._measure(jobs()):
            task = begun[number]
            known[task] = {"error": measured.error}
            if measured.error is None:
                (timing,) = measured.timings
                known[task] = timing.to_json()
            self.journal.put("sample", task.to_json(), known[task])
            self._display.measured(None, new=True)
        return [
            sample
            for task in tasks
            if task in known
            for sample in samples_in(task, known[task], self._reference)
        ]

    def _plans(self, records: Sequence[Record], labs: PlanLabs) -> Plans | None:
        """Plans of the library of ``records``."""
        settings = self.settings
        plan_steps.measure(
            records,
            self.machine,
            self.journal,
            labs,
            lambda: self.left(settings.plans_share),
            settings.plans,
            settings.seed,
            self._display,
        )
        return plan_steps.read(records, self.machine, self.journal, self._reference)


def _trial_key(record: Record, turn: int | None) -> dict[str, Any]:
    return {"record": record.to_json(), "turn": turn}


def _less_work_for_loads(form: Record) -> float:
    """Loads for each multiply-add: tiles with few of them matter most, and are searched first."""
    return (form.mr + form.nv) / (form.mr * form.nv)


#: A record must be better than the default one by this part to replace it.
NOISE = 0.01
