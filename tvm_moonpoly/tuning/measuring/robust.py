"""One number from repeated timings on a machine whose speed changes.

Each timing of a task stands between two timings of a probe: a fixed computation in registers, which
shows how fast the core is at that moment. What is estimated is the ratio of task to probe.

Timings between slow probes are left out: another thread on the same core, or a machine that others
use, slows a computation in registers and one that waits for memory by different factors. Of the
others the estimate is the median. Interference with the task makes a ratio too large, interference
with a probe makes it too small, so that neither end of the ratios can be trusted (the least time,
which serves for absolute times, cannot).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

#: A probe is slow when it takes longer than the fastest of its series by more than this part.
SLOW = 0.03

#: With fewer timings than this between probes that are not slow, all are used.
ENOUGH = 3


@dataclass(frozen=True)
class Estimate:
    """A ratio to the probe; ``spread`` is the distance between its quartiles, as a part of it.

    ``calm`` says that enough timings stood between probes that were not slow.
    """

    ratio: float
    spread: float
    timings: int
    calm: bool


def estimate(task: Sequence[float], probe: Sequence[float]) -> Estimate:
    """The ratio of task to probe from ``n`` timings of a task and the ``n + 1`` probes around them.

    Raises ValueError when the numbers of timings do not belong together or a time is not positive.
    """
    if not task or len(probe) != len(task) + 1:
        raise ValueError(f"probe: {len(probe)} timings around {len(task)} of the task")
    if min(*task, *probe) <= 0:
        raise ValueError("task: a timing is not positive")
    # not the very fastest, which may be a slip of the clock
    limit = sorted(probe)[1] * (1 + SLOW)
    around = list(zip(task, probe, probe[1:], strict=False))
    calm = [2 * t / (p + q) for t, p, q in around if p <= limit and q <= limit]
    enough = len(calm) >= min(ENOUGH, len(task))
    used = calm if enough else [2 * t / (p + q) for t, p, q in around]
    middle = median(used)
    return Estimate(middle, _between_quartiles(used) / middle, len(used), enough)


def undisturbed(probe: Sequence[float]) -> float:
    """The time of a probe on the machine when nothing disturbs it: the lower decile.

    A probe alone is only ever made slower by others, so its low end is the machine's speed; the
    very least may be a slip of the clock.
    """
    if len(probe) < 2:
        raise ValueError(f"probe: {len(probe)} timings are too few")
    return quantiles(probe, n=10, method="inclusive")[0]


def _between_quartiles(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return high - low
