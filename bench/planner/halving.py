"""Successive halving on measured time: from all plans to the few that may be the best.

What times a plan is a function ``timer(plan, seconds, turn)``: seconds of one call of plan number
``plan``, sampled for ``seconds``, in round ``turn``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Timer = Callable[[int, float, int], float]

#: A plan that takes so much longer than the best one that a first sample tells is not sampled
#: again in a stage.
HOPELESS = 1.5


@dataclass(frozen=True)
class Stage:
    """``rounds`` samples of ``seconds`` for each plan that is left; then those stay whose least
    time is ``within`` so many times the best one's, at most ``most`` of them."""

    rounds: int
    seconds: float
    within: float
    most: int


STAGES = (Stage(2, 0.0003, 1.3, 40), Stage(3, 0.001, 1.12, 16), Stage(5, 0.002, 1.06, 8))


@dataclass(frozen=True)
class Halved:
    """``seconds`` a call of every plan, by the last stage that it was in; and which are left, the
    fastest first."""

    seconds: list[float]
    left: list[int]


def halved(count: int, timer: Timer, stages: Sequence[Stage] = STAGES) -> Halved:
    """The best of ``count`` plans, by ``stages``.

    Times of an earlier stage are brought to the speed that the machine has in the next one, by the
    plans that are in both.
    """
    left = list(range(count))
    seconds = [0.0] * count
    turn = 0
    for stage in stages:
        samples: dict[int, list[float]] = {plan: [] for plan in left}
        best = float("inf")
        for _ in range(stage.rounds):
            for plan in left:
                if samples[plan] and min(samples[plan]) > HOPELESS * stage.within * best:
                    continue
                samples[plan].append(timer(plan, stage.seconds, turn))
                best = min(best, samples[plan][-1])
            turn += 1
        latest = {plan: statistics.median(times) for plan, times in samples.items()}
        if len(left) < count:
            speed = statistics.median(latest[plan] / seconds[plan] for plan in left)
            seconds = [each * speed for each in seconds]
        for plan, each in latest.items():
            seconds[plan] = each
        near = [plan for plan in left if min(samples[plan]) <= stage.within * best]
        left = sorted(near, key=lambda plan: seconds[plan])[: stage.most]
    return Halved(seconds, left)


def interleaved(
    plans: Sequence[int],
    timer: Timer,
    rounds: int,
    seconds: float,
    seed: int,
    between: Callable[[], object] = lambda: None,
) -> np.ndarray:
    """Seconds a call, (rounds, plans): each plan once a round, in another order each time.

    ``between`` is called before each round.
    """
    rng = np.random.default_rng(seed)
    times = np.empty((rounds, len(plans)))
    for turn in range(rounds):
        between()
        for i in rng.permutation(len(plans)):
            times[turn, i] = timer(plans[i], seconds, turn)
    return times


def joined(left: Iterable[int], always: Iterable[int]) -> list[int]:
    """The finalists: those that are left, and those that must be compared, each once."""
    return list(dict.fromkeys([*left, *always]))
