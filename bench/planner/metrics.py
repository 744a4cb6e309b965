"""From the times of finalists to losses, and from losses to a summary: pure functions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A choice that is at most so much slower than the oracle is a hit.
HIT = 0.02

#: Losses above this are listed.
LARGE = 0.05

#: Of the planner's cheapest plans that the best of is taken.
TOP = 3


@dataclass(frozen=True)
class Target:
    """What the planner is to reach over all shapes, with any number of threads.

    ``figure`` is a key of `summary` and ``title`` its name; it must be at most ``limit``, or at
    least that where ``at_least``.
    """

    figure: str
    title: str
    limit: float
    at_least: bool = False

    def met(self, found: dict[str, Any]) -> bool:
        """Whether a summary reaches it; without the figure it does not."""
        value = found[self.figure]
        if value is None:
            return False
        return bool(value >= self.limit if self.at_least else value <= self.limit)


TARGETS = (
    Target("mean", "mean loss", 0.02),
    Target("p90", "90th percentile", 0.05),
    Target("worst", "worst", 0.12),
    Target("top1", f"choices within {HIT:.0%}", 0.75, at_least=True),
    Target("top3", f"best of the {TOP} cheapest within {HIT:.0%}", 0.92, at_least=True),
)


def fastest(times: np.ndarray, columns: Sequence[int]) -> int:
    """The fastest of ``columns`` in the rounds 0, 2, 4, ...; ``times`` are (rounds, plans)."""
    medians = np.median(times[::2], axis=0)
    return min(columns, key=lambda column: medians[column])


def loss(times: np.ndarray, columns: Sequence[int]) -> float:
    """By how much the fastest of ``columns`` is slower than the oracle, the fastest of all.

    Both are picked on the even rounds; the loss is the median over the odd rounds of the ratio of
    their times, less 1. Where those say that the oracle is the slower one, there is no loss.
    """
    oracle, mine = fastest(times, range(times.shape[1])), fastest(times, columns)
    later = times[1::2]
    return max(float(np.median(later[:, mine] / later[:, oracle]) - 1), 0.0)


def correlations(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float | None]:
    """Spearman's and Kendall's rank correlation; None where one side is all the same."""
    from scipy import stats

    found: dict[str, float | None] = {}
    for name, function in (("spearman", stats.spearmanr), ("kendall", stats.kendalltau)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            value = float(function(predicted, measured).statistic)
        found[name] = value if math.isfinite(value) else None
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of one planner over shapes; a row has ``loss``, ``spearman``, ``kendall``, and may have
    ``top``, the loss of the best of its first plans."""
    losses = [row["loss"] for row in rows]
    tops = [row["top"] for row in rows if row.get("top") is not None]
    found: dict[str, Any] = {
        "shapes": len(rows),
        "mean": float(np.mean(losses)),
        "median": float(np.median(losses)),
        "p90": float(np.quantile(losses, 0.9)),
        "worst": float(np.max(losses)),
        "top1": share(losses),
        "top3": share(tops) if tops else None,
        "large": sum(each > LARGE for each in losses),
    }
    for name in ("spearman", "kendall"):
        known = [row[name] for row in rows if row.get(name) is not None]
        found[name] = float(np.mean(known)) if known else None
    return found


def judged(found: dict[str, Any]) -> tuple[list[Target], list[Target]]:
    """The targets that a summary meets, and those that it misses."""
    return [t for t in TARGETS if t.met(found)], [t for t in TARGETS if not t.met(found)]


def share(losses: Sequence[float]) -> float:
    """The share of losses that are hits."""
    return sum(each <= HIT for each in losses) / len(losses)
