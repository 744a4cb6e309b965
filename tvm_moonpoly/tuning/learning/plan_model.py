"""Whole plans: what their tasks and their traffic add up to, fitted to measured ones.

A plan takes the sum over the entries of the cost table that it counts. Its tasks' costs are those
that were learned from tasks, times a correction that is learned from plans: by trees that are added
to the same booster. The rest is traffic, a non-negative least-squares fit. Errors are relative, so
that small and large products weigh alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tvm_moonpoly.costmodel.tables import Traffic
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form, Record
from tvm_moonpoly.planner.counts import Task, counts
from tvm_moonpoly.planner.groups import Product
from tvm_moonpoly.planner.plan import BMode
from tvm_moonpoly.tuning.learning.task_model import PARAMETERS, Point, TaskModel, matrix, work
from tvm_moonpoly.tuning.measuring.plans import PlanSample, placeholder

#: The last two are no entries of the table: what each call takes that is not empty. It is the same
#: for all plans of a product.
TRAFFIC = (*(f.name for f in fields(Traffic)), "linear call", "matmul call")

#: How much of an entry's own size pulls it towards nothing: entries that no plan needs stay at 0.
_RIDGE = 1e-3


@dataclass(frozen=True)
class Counted:
    """Plans as counts of entries: ``tasks`` (plans, points) and ``traffic`` (plans, entries)."""

    samples: Sequence[PlanSample]
    points: Sequence[Point]
    tasks: Any
    traffic: np.ndarray
    picoseconds: np.ndarray
    overhead: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """What errors are relative to: of the smallest products, most of what is measured is not
        theirs."""
        return self.picoseconds + self.overhead

    def predicted(self, tasks: np.ndarray, traffic: np.ndarray) -> np.ndarray:
        """What `total` is, by what tasks take together and entries of traffic take each."""
        return np.maximum(tasks + self.traffic @ traffic, 1.0) + self.overhead

    def part(self, chosen: np.ndarray) -> Counted:
        """The plans at the indices ``chosen``, all points."""
        samples = [self.samples[i] for i in chosen]
        rows = self.tasks[chosen], self.traffic[chosen]
        times = self.picoseconds[chosen], self.overhead[chosen]
        return Counted(samples, self.points, *rows, *times)


def counted(samples: Sequence[PlanSample], records: Sequence[Record], machine: Machine) -> Counted:
    """The plans of ``samples``, of a library of ``records``, as counts."""
    from scipy.sparse import csr_matrix

    table = placeholder(records)
    by_tile: Mapping[tuple[int, int, Form], Record] = {(r.mr, r.nv, r.form): r for r in records}
    place: dict[Task, int] = {}
    rows, columns, numbers = [], [], []
    traffic = np.zeros((len(samples), len(TRAFFIC)))
    for i, sample in enumerate(samples):
        packed_before = sample.task.product.b_mode == BMode.PREPACKED
        traffic[i, TRAFFIC.index("linear call" if packed_before else "matmul call")] = 1.0
        for entry, number in counts(sample.task.product, sample.task.plan, machine, table).items():
            if isinstance(entry, Task):
                for task, weight in entry.mixed():
                    rows.append(i)
                    columns.append(place.setdefault(task, len(place)))
                    numbers.append(number * weight)
            else:
                traffic[i, TRAFFIC.index(entry)] = number
    points = [Point(by_tile[t[:3]], t.depth, t.residency, busy=False) for t in place]
    matrix = csr_matrix((numbers, (rows, columns)), shape=(len(samples), len(points)))
    times = (np.array([getattr(s, n) for s in samples]) for n in ("picoseconds", "overhead"))
    return Counted(samples, points, matrix, traffic, *times)


def fit_traffic(plans: Counted, tasks: np.ndarray) -> np.ndarray:
    """Picoseconds of each of `TRAFFIC`, where the plans' tasks take ``tasks`` together."""
    from scipy.optimize import nnls

    relative = plans.traffic / plans.total[:, None]
    size = np.maximum(np.sqrt((relative**2).mean(axis=0)), 1e-300)
    ridge = np.eye(len(TRAFFIC)) * np.sqrt(_RIDGE * len(relative))
    left = (plans.picoseconds - tasks) / plans.total
    solution, _ = nnls(np.vstack([relative / size, ridge]), np.append(left, np.zeros(len(ridge))))
    return np.asarray(solution / size * (size > 1e-300))


def refined(model: TaskModel, plans: Counted, rounds: int, seed: int = 0) -> TaskModel:
    """``model`` with ``rounds`` trees more, by which plans take what was measured.

    Each tree lessens the squares of the logarithms of predicted by measured times, under which the
    traffic is fitted anew; what differs between plans of one product counts twice, as it decides
    which of them is taken. A plan tells nothing of its single tasks, but every task is in many
    plans: each is corrected by its share of the plan's time.
    """
    import xgboost

    if not rounds:
        return model
    each = work(plans.points)
    absolute = abs(plans.tasks)
    same_product = _means(plans)

    def objective(margins: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
        tasks = each * np.exp(margins.astype(np.float64))
        together = plans.tasks @ tasks
        predicted = plans.predicted(together, fit_traffic(plans, together))
        error = np.clip(np.log(predicted / plans.total), -_FAR, _FAR)
        error += _AMONG * (error - same_product(error))
        # a bound of the second derivative that also holds when tasks of a plan change together
        bound = (1 + _AMONG) * (absolute @ tasks) / predicted**2
        return tasks * (plans.tasks.T @ (error / predicted)), tasks * (absolute.T @ bound) + 1e-9

    data = matrix(plans.points, model.machine)
    booster = xgboost.train(
        {**PARAMETERS, **_SMOOTH, "seed": seed},
        data,
        num_boost_round=rounds,
        obj=objective,
        xgb_model=model.booster,
    )
    return TaskModel(booster, model.machine)


def _means(plans: Counted) -> Callable[[np.ndarray], np.ndarray]:
    """Of each plan's value, the mean of the plans of its product."""
    numbers: dict[Product, int] = {}
    of = np.array([numbers.setdefault(s.task.product, len(numbers)) for s in plans.samples])
    sizes = np.bincount(of)
    return lambda values: (np.bincount(of, values) / sizes)[of]


#: Logarithms of errors beyond this count as this: plans that were disturbed when they were timed.
_FAR = 0.2

#: How much more the differences between plans of one product count.
_AMONG = 1.0

#: How the trees that correct differ from those that learn the tasks: fewer splits.
_SMOOTH: dict[str, Any] = {"eta": 0.1, "max_depth": 4, "min_child_weight": 5.0, "lambda": 5.0}
