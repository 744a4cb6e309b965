"""What tasks cost, learned: XGBoost on features of kernel, task and residency.

The model learns the logarithm of picoseconds for each multiply-add of vectors, so that a percentage
counts the same for all tasks. It is asked once, offline, for all that the cost table holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tvm_moonpoly.costmodel.tasks import Level, Residency
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import DECISIONS, Form, Record
from tvm_moonpoly.planner.groups import level
from tvm_moonpoly.tuning.measuring.tasks import Sample


class Point(NamedTuple):
    """A task as the cost table knows it."""

    record: Record
    k: int
    residency: Residency
    busy: bool


#: What the model is told, in this order.
FEATURES = (
    "rows",
    "vectors",
    "packed_a",
    "in_place_b",
    "tile",
    "accumulators",
    "written_out",
    "loads",
    *DECISIONS,
    "steps",
    "rest",
    "a_level",
    "b_level",
    "busy",
    "a_bytes",
    "b_bytes",
)

#: Timings are noisy, most of all from the last cache: small steps, leaves of several samples.
PARAMETERS: dict[str, Any] = {
    "objective": "reg:squarederror",
    "eta": 0.06,
    "max_depth": 6,
    "min_child_weight": 5.0,
    # the mean of trees that see different parts of the samples: what neighbours cost must not
    # differ by chance, as the planner takes the cheapest
    "num_parallel_tree": 4,
    "subsample": 0.6,
    "colsample_bytree": 0.6,
    "lambda": 1.0,
    "tree_method": "hist",
    "max_bin": 256,
    "nthread": 1,
}

ROUNDS = 500


def features(point: Point, machine: Machine) -> list[float]:
    """The numbers that `FEATURES` name."""
    record, k = point.record, point.k
    tile = record.mr * record.nv
    sums, unroll = record.decision("sums"), record.decision("unroll")
    near = not_nearer(point, machine)
    return [
        record.mr,
        record.nv,
        record.form == Form.PACKED_A,
        record.form == Form.IN_PLACE_B,
        tile,
        tile * sums,
        math.log2(sums * unroll),
        (record.mr + record.nv) / tile,
        *(math.log2(1 + record.decision(name)) for name in DECISIONS),
        math.log2(k),
        # steps that the unrolled loop leaves over
        k % (sums * unroll),
        near.a,
        near.b,
        point.busy,
        math.log2(record.mr * k),
        math.log2(record.nv * k),
    ]


def not_nearer(point: Point, machine: Machine) -> Residency:
    """Operands do not come from a cache that does not hold those of one task."""
    record, k = point.record, point.k
    a = min(level(4 * record.mr * k, machine), Level.L3)
    b = level(4 * record.nv * machine.lanes * k, machine)
    return Residency(max(point.residency.a, a), max(point.residency.b, b))


def points_of(samples: Sequence[Sample], machine: Machine) -> list[Point]:
    """Where measured tasks are in the cost table."""
    return [Point(s.task.record, s.task.k, s.task.residency(machine), s.task.busy) for s in samples]


@dataclass(frozen=True)
class TaskModel:
    """A trained booster, and the machine that it is of."""

    booster: Any
    machine: Machine

    def picoseconds(self, points: Sequence[Point]) -> np.ndarray:
        """What tasks take, float64."""
        each = self.booster.predict(matrix(points, self.machine)).astype(np.float64)
        return np.exp(each) * work(points)

    def to_json(self) -> bytes:
        """The booster in XGBoost's own JSON."""
        return bytes(self.booster.save_raw("json"))


def train(
    points: Sequence[Point],
    picoseconds: Sequence[float] | np.ndarray,
    machine: Machine,
    seed: int = 0,
    rounds: int = ROUNDS,
) -> TaskModel:
    """Train a model on tasks and what they take. The same samples make the same model."""
    import xgboost

    goal = np.log(np.asarray(picoseconds, np.float64) / work(points))
    parameters = {**PARAMETERS, "seed": seed, "base_score": float(np.median(goal))}
    data = matrix(points, machine, goal)
    return TaskModel(xgboost.train(parameters, data, num_boost_round=rounds), machine)


def matrix(points: Sequence[Point], machine: Machine, goal: np.ndarray | None = None) -> Any:
    """What the model is told of points, and their ``goal``, for XGBoost."""
    import xgboost

    rows = np.array([features(point, machine) for point in points], np.float32)
    return xgboost.DMatrix(rows.reshape(len(points), -1), label=goal, nthread=1)


def work(points: Sequence[Point]) -> np.ndarray:
    """Multiply-adds of vectors."""
    return np.array([p.record.mr * p.record.nv * p.k for p in points], np.float64)
