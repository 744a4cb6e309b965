"""One shape: all plans timed, the oracle found, and every planner's choice compared with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.planner import halving, metrics
from bench.planner.calls import SETS
from bench.planner.halving import Timer
from bench.planner.plans import same_work
from bench.planner.variants import LEARNED, Variant
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.planner.plan import Plan
from tvm_moonpoly.planner.spec import Product

Row = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """The last stage: samples of ``sample`` seconds, in as many rounds as take about ``budget``
    seconds, but no fewer than ``least`` and no more than ``most``."""

    sample: float = 0.003
    budget: float = 4.0
    least: int = 12
    most: int = 48

    def rounds(self, seconds: Sequence[float]) -> int:
        """Rounds for plans whose calls take ``seconds``. Each set of the operands has its turn in
        even and in odd rounds equally often."""
        once = sum(max(self.sample, each) for each in seconds)
        unit = 2 * SETS
        return max(min(int(self.budget / once), self.most), self.least) // unit * unit


@dataclass(frozen=True)
class Field:
    """All plans of a product; ``chosen`` are each planner's first ones, as indices of ``plans``."""

    product: Product
    plans: tuple[Plan, ...]
    chosen: Mapping[str, tuple[int, ...]]


def field_of(
    product: Product, machine: Machine, plans: Iterable[Plan], planners: Sequence[Variant]
) -> Field:
    """``plans``, which are all that there are, and which of them the planners choose.

    Of the planner itself the `metrics.TOP` cheapest ones are kept, of the others the first one.
    """
    number = {plan: i for i, plan in enumerate(plans)}
    chosen: dict[str, tuple[int, ...]] = {}
    for planner in planners:
        # plans that are equal but for their names count once
        first = dict.fromkeys(
            same_work(choice.plan, product, machine) for choice in planner.ranked(product)
        )
        kept = list(first)[: metrics.TOP if planner.name == LEARNED else 1]
        chosen[planner.name] = tuple(number.setdefault(plan, len(number)) for plan in kept)
    return Field(product, tuple(number), chosen)


def judged(
    field: Field,
    planners: Sequence[Variant],
    timer: Timer,
    effort: Effort,
    seed: int,
    between: Callable[[], object] = lambda: None,
    stages: Sequence[halving.Stage] = halving.STAGES,
) -> Row:
    """Time ``field`` and say how far each planner is from the oracle.

    Times are picoseconds of one product, as are predictions. ``plans`` lists the encoded plan, the
    prediction and the time of each; ``planners`` holds what `metrics.summary` takes.
    """
    product, batch = field.product, field.product.batch
    halved = halving.halved(len(field.plans), timer, stages)
    must = [index for indices in field.chosen.values() for index in indices]
    finalists = halving.joined(halved.left, must)
    rounds = effort.rounds([halved.seconds[index] for index in finalists])
    times = halving.interleaved(finalists, timer, rounds, effort.sample, seed, between)
    medians = np.median(times, axis=0)
    measured = list(halved.seconds)
    for index, median in zip(finalists, medians, strict=True):
        measured[index] = float(median)
    column = {index: i for i, index in enumerate(finalists)}
    best = finalists[metrics.fastest(times, range(len(finalists)))]

    def picoseconds(index: int) -> int:
        return round(measured[index] / batch * 1e12)

    def about(planner: Variant) -> Row:
        columns = [column[index] for index in field.chosen[planner.name]]
        first = field.chosen[planner.name][0]
        found: Row = {
            "plan": field.plans[first].encode(),
            "measured_ps": picoseconds(first),
            "loss": metrics.loss(times, columns[:1]),
            "top": metrics.loss(times, columns) if planner.name == LEARNED else None,
        }
        if planner.priced is not None:
            predicted = [planner.priced(product, plan) for plan in field.plans]
            found |= {"predicted_ps": predicted[first], **metrics.correlations(predicted, measured)}
            if planner.name == LEARNED:
                found["all_predicted_ps"] = predicted
        return found

    found = {planner.name: about(planner) for planner in planners}
    predicted = found[LEARNED].pop("all_predicted_ps")
    return {
        "best": field.plans[best].encode(),
        "best_ps": picoseconds(best),
        "finalists": [field.plans[index].encode() for index in finalists],
        "rounds": rounds,
        "planners": found,
        "plans": [
            [plan.encode(), predicted[i], picoseconds(i)] for i, plan in enumerate(field.plans)
        ],
    }
