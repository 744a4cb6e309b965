"""Learning the cost table from what the stage has measured.

Every choice is made by plans and tasks that the model was not trained on; then it is trained once
more, on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from tvm_moonpoly.costmodel.tables import CostTable, Traffic
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning.learning import baseline, plan_model, table, task_model
from tvm_moonpoly.tuning.learning.errors import Errors, PlanErrors, plan_errors, relative
from tvm_moonpoly.tuning.learning.plan_model import TRAFFIC
from tvm_moonpoly.tuning.learning.task_model import TaskModel
from tvm_moonpoly.tuning.measuring.tasks import Sample
from tvm_moonpoly.tuning.plan_steps import Plans

#: Parts of the samples that a model is judged by.
HELD_OUT = 0.15

#: Trees for the correction by plans that are tried.
CORRECTIONS = (0, 60, 200, 500)


@dataclass(frozen=True)
class Learned:
    """The cost table, the model that it was made with, and how far off they are held out.

    ``tasks`` and ``plans``: errors by what was tried. ``corrections``: trees that were chosen.
    """

    table: CostTable
    model: TaskModel
    corrections: int
    tasks: Mapping[str, Errors] = field(default_factory=dict)
    plans: Mapping[str, PlanErrors] = field(default_factory=dict)

    @property
    def held_out(self) -> tuple[Errors, PlanErrors | None]:
        """The errors of what was chosen; None without plans."""
        return self.tasks[LEARNED], self.plans.get(_by_plans(self.corrections))


def load() -> None:
    """Raises ImportError when what learning needs is not installed."""
    try:
        import scipy  # noqa: F401
        import xgboost  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'tvm_moonpoly[tune]' brings it") from error


def learn(
    samples: Sequence[Sample],
    plans: Plans,
    machine: Machine,
    seed: int = 0,
    corrections: Sequence[int] = CORRECTIONS,
    rounds: int = task_model.ROUNDS,
) -> Learned:
    """The cost table of the library of ``plans``.

    Raises ValueError when there are too few samples to learn from.
    """
    _enough("plans", len(plans.samples))
    tasks = _Tasks(samples, machine, seed, rounds)
    first, task_errors = tasks.judged()
    # in whatever order they were measured, the same samples make the same table
    ordered = sorted(plans.samples, key=lambda sample: str(sample.task.to_json()))
    every = plan_model.counted(ordered, plans.records, machine)
    kept, held = split([sample.task.product for sample in ordered], seed)
    train, judge = every.part(kept), every.part(held)

    def judged(predict: table.Predict) -> PlanErrors:
        alone = table.tasks(predict, plans.records, busy=False)
        each = table.at_points(alone, every.points)
        return plan_errors(
            judge, judge.tasks @ each, plan_model.fit_traffic(train, train.tasks @ each)
        )

    errors = {
        trees: judged(plan_model.refined(first, train, trees, seed).picoseconds)
        for trees in corrections
    }
    chosen = min(errors, key=lambda trees: errors[trees].typical)
    tried = {_by_plans(trees): found for trees, found in errors.items()}
    for name, fit in baseline.BASELINES.items():
        tried[name] = judged(fit(tasks.points, tasks.times))

    final = plan_model.refined(tasks.trained(), every, chosen, seed)
    alone = table.tasks(final.picoseconds, plans.records, busy=False)
    traffic = plan_model.fit_traffic(every, every.tasks @ table.at_points(alone, every.points))
    entries = {**dict(zip(TRAFFIC, traffic, strict=True)), "launch": plans.launch}
    result = table.cost_table(final.picoseconds, plans.records, entries, machine.cores)
    return Learned(result, final, chosen, task_errors, tried)


def learn_tasks(
    samples: Sequence[Sample],
    records: Sequence[Record],
    traffic: Traffic,
    machine: Machine,
    seed: int = 0,
    rounds: int = task_model.ROUNDS,
) -> Learned:
    """As `learn`, of ``records`` and with ``traffic``, where no plans could be measured."""
    tasks = _Tasks(samples, machine, seed, rounds)
    _, errors = tasks.judged()
    model = tasks.trained()
    result = table.cost_table(model.picoseconds, records, asdict(traffic), machine.cores)
    return Learned(result, model, 0, errors, {})


class _Tasks:
    """Measured tasks, to learn from all of them or to be judged by a part."""

    def __init__(self, samples: Sequence[Sample], machine: Machine, seed: int, rounds: int) -> None:
        _enough("tasks", len(samples))
        ordered = sorted(samples, key=lambda sample: str(sample.task.to_json()))
        self.points = task_model.points_of(ordered, machine)
        self.times = np.array([sample.picoseconds for sample in ordered], np.float64)
        self._machine, self._seed, self._rounds = machine, seed, rounds

    def trained(self, chosen: Sequence[int] | np.ndarray | None = None) -> TaskModel:
        """A model of the tasks at the indices ``chosen``, or of all."""
        where = np.arange(len(self.points)) if chosen is None else np.asarray(chosen)
        part = [self.points[i] for i in where]
        times = self.times[where]
        return task_model.train(part, times, self._machine, self._seed, self._rounds)

    def judged(self) -> tuple[TaskModel, dict[str, Errors]]:
        """A model of a part of the tasks, and its errors for the others beside the baselines'."""
        kept, held = split([(point.record, point.k) for point in self.points], self._seed)
        model = self.trained(kept)
        asked, real = [self.points[i] for i in held], self.times[held]
        errors = {LEARNED: relative(model.picoseconds(asked), real)}
        for name, fit in baseline.BASELINES.items():
            predict = fit([self.points[i] for i in kept], self.times[kept])
            errors[name] = relative(predict(asked), real)
        return model, errors


def _enough(what: str, count: int) -> None:
    if count < FEWEST:
        raise ValueError(f"samples: {count} {what} are too few to learn from, {FEWEST} are needed")


#: Samples without which nothing can be said.
FEWEST = 40

#: What reports call the model, alone and with so many trees more.
LEARNED = "XGBoost"


def _by_plans(trees: int) -> str:
    return f"{LEARNED}, {trees} trees by plans"


def split(groups: Sequence[object], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of samples to learn from and of those to judge by; a group is on one side."""
    distinct = list(dict.fromkeys(groups))
    order = np.random.default_rng(seed).permutation(len(distinct))
    aside = {distinct[i] for i in order[: max(round(len(distinct) * HELD_OUT), 1)]}
    held = np.array([group in aside for group in groups])
    return np.flatnonzero(~held), np.flatnonzero(held)
