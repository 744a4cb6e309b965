"""The cost table that a model of tasks and the traffic of plans make: whole picoseconds.

Trees tell steps where there are none, and the planner takes the cheapest of many plans: those that
err to the low side the most. A table is therefore halfway, in logarithms, between what a model
predicts of a task at each trip count and the straight line through that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

import numpy as np

from tvm_moonpoly.costmodel.tables import CostTable, Traffic
from tvm_moonpoly.costmodel.tasks import MAX_TASK, RESIDENCIES, TRIPS, Residency, TaskCost
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning.learning.lines import line_through
from tvm_moonpoly.tuning.learning.task_model import Point

#: What tasks take, in picoseconds: see `TaskModel.picoseconds`.
Predict = Callable[[Sequence[Point]], np.ndarray]


def tasks(predict: Predict, records: Sequence[Record], busy: bool) -> dict[Record, TaskCost]:
    """What is predicted for ``records``, at all residencies and trip counts of a table."""
    points = [
        Point(r, k, residency, busy) for r in records for residency in RESIDENCIES for k in TRIPS
    ]
    values = dict(zip(points, np.minimum(predict(points), MAX_TASK - 1.0), strict=True))

    def cost(record: Record) -> Callable[[Residency, int], float]:
        found = {
            residency: halfway([values[Point(record, k, residency, busy)] for k in TRIPS])
            for residency in RESIDENCIES
        }
        return lambda residency, k: float(found[residency][TRIPS.index(k)])

    return {record: TaskCost.of(cost(record)) for record in records}


def halfway(costs: Sequence[float]) -> np.ndarray:
    """The geometric mean of ``costs`` at `TRIPS` and of the line through them."""
    start, step = line_through(TRIPS, costs)
    line = start + step * np.array(TRIPS, np.float64)
    return np.minimum(np.sqrt(np.asarray(costs, np.float64) * line), MAX_TASK - 1.0)


def cost_table(
    predict: Predict, records: Sequence[Record], traffic: Mapping[str, float], cores: int
) -> CostTable:
    """The table of ``records``, with every core busy as well where there are several.

    ``traffic``: picoseconds of each of its entries, and of others that are left out.
    """
    whole = Traffic(**{f.name: max(round(traffic[f.name]), 0) for f in fields(Traffic)})
    busy = tasks(predict, records, True) if cores > 1 else {}
    return CostTable(tasks(predict, records, False), whole, busy)


def at_points(alone: Mapping[Record, TaskCost], points: Sequence[Point]) -> np.ndarray:
    """What tasks take by a table: float64, so that counts of them can be large."""
    values = [alone[p.record].at(p.residency, p.k) for p in points]
    return np.array(values, np.float64)
