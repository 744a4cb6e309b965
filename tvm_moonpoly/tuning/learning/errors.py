"""How far predictions are from what was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_moonpoly.tuning.learning.plan_model import Counted


@dataclass(frozen=True)
class Errors:
    """Relative errors, or losses, of which there are ``count``: the median, and what a tenth of
    them exceed. One that was measured while the machine was disturbed moves neither."""

    count: int
    median: float
    tenth: float


@dataclass(frozen=True)
class PlanErrors:
    """`Errors` of plans, and how well those of one product are ranked.

    ``spearman``: the mean rank correlation; ``losses``: of each product with several plans, how
    much longer than the best of them the one takes that is predicted to be the best. An empty call
    is part of both: without it, the smallest products take no time that can be measured.
    """

    errors: Errors
    spearman: float
    losses: Errors

    @property
    def typical(self) -> float:
        """What structures of the model are compared by."""
        return sum(e.median + 0.5 * e.tenth for e in (self.errors, self.losses))


def relative(predicted: np.ndarray, measured: np.ndarray) -> Errors:
    """The errors relative to what was measured."""
    return _summed_up(np.abs(predicted - measured) / measured)


def _summed_up(each: Sequence[float] | np.ndarray) -> Errors:
    """Of nothing, no numbers."""
    if not len(each):
        return Errors(0, float("nan"), float("nan"))
    return Errors(len(each), float(np.median(each)), float(np.quantile(each, 0.9)))


def plan_errors(plans: Counted, tasks: np.ndarray, traffic: np.ndarray) -> PlanErrors:
    """The errors of plans, by what their tasks take together and entries of traffic take each."""
    from scipy.stats import spearmanr

    predicted = plans.predicted(tasks, traffic)
    groups = defaultdict(list)
    for i, sample in enumerate(plans.samples):
        groups[sample.task.product].append(i)
    ranks, losses = [], []
    for members in groups.values():
        # where all take the same, there is no order
        if len(members) > 2 and min(map(np.ptp, (predicted[members], plans.total[members]))) > 0:
            ranks.append(float(spearmanr(predicted[members], plans.total[members]).statistic))
        if len(members) > 1:
            times = plans.total[members]
            best = float(times[int(np.argmin(predicted[members]))])
            losses.append(best / float(times.min()) - 1)
    return PlanErrors(
        relative(predicted, plans.total),
        float(np.mean(ranks)) if ranks else float("nan"),
        _summed_up(losses),
    )
