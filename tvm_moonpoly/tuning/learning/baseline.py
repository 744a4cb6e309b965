"""What a learned model has to be better than: straight lines, and one number for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from tvm_moonpoly.tuning.learning.lines import line_through
from tvm_moonpoly.tuning.learning.table import Predict
from tvm_moonpoly.tuning.learning.task_model import Point, work

Fit = Callable[[Sequence[Point], np.ndarray], Predict]


def _lines(of: Callable[[Point], Hashable]) -> Fit:
    """``start + step * k`` for all points that ``of`` says are one, by relative errors."""

    def fit(points: Sequence[Point], times: np.ndarray) -> Predict:
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for i, point in enumerate(points):
            groups[of(point)].append(i)
        lines = {}
        for group, members in groups.items():
            lines[group] = line_through([points[i].k for i in members], times[members])
        rest = constant(points, times)

        def predict(asked: Sequence[Point]) -> np.ndarray:
            found = rest(asked)
            for i, point in enumerate(asked):
                if of(point) in lines:
                    start, step = lines[of(point)]
                    found[i] = start + step * point.k
            return found

        return predict

    return fit


def constant(points: Sequence[Point], times: np.ndarray) -> Predict:
    """One time for every multiply-add of vectors, whatever the kernel: the median."""
    each = float(np.median(times / work(points)))
    return lambda asked: each * work(asked)


#: By what they are called in reports.
BASELINES: dict[str, Fit] = {
    "a line for each kernel": _lines(lambda point: (point.record, point.busy)),
    "a line for each kernel and residency": _lines(
        lambda point: (point.record, point.residency, point.busy)
    ),
    "one constant": constant,
}
