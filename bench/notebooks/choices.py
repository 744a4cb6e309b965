"""Which plan is chosen as the number of rows varies: predicted and measured.

Plans are told apart by the widths of their two regions, in vectors: `3v + 1v` cuts the columns into
groups of three vectors and a last one of one. What else a plan says (heights of tiles, blocks) is
left to the planner, which takes the cheapest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tvm.target import Target

from bench import measure
from bench.planner import calls
from bench.planner.judge import Effort, field_of, judged
from bench.planner.plans import every_plan
from bench.planner.session import Lab, described
from bench.planner.shapes import Shape
from bench.planner.variants import LEARNED, variants
from tvm_moonpoly import operators
from tvm_moonpoly.explanation import explained
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.spec import Choice, Product


@dataclass(frozen=True)
class Costs:
    """The cheapest plan of each pair of widths for ``m`` rows, the one that is chosen first."""

    m: int
    choices: Mapping[str, Choice]

    @property
    def chosen(self) -> str:
        return next(iter(self.choices))

    def above(self, widths: str) -> float:
        """By which part the prediction of ``widths`` is above the cheapest."""
        cheapest = self.choices[self.chosen].picoseconds
        return self.choices[widths].picoseconds / cheapest - 1


@dataclass(frozen=True)
class Times:
    """Seconds of a call with ``m`` rows in each round, by the widths of the plan."""

    m: int
    seconds: Mapping[str, Sequence[float]]

    def median(self, widths: str) -> float:
        return statistics.median(self.seconds[widths])

    def above(self, widths: str) -> float:
        """By which part ``widths`` is above the fastest; both by medians of paired ratios."""
        fastest = min(self.seconds, key=self.median)
        return measure.paired_ratio(self.seconds[widths], self.seconds[fastest]).median - 1


def widths(plan: Plan) -> str:
    """A plan's widths in words."""
    if plan.b_mode == BMode.STREAM:
        return "streaming"
    return f"{plan.nv}v" + f" + {plan.tail_nv}v" * bool(plan.tail_nv)


def by_widths(m: int, ranked: Iterable[Choice]) -> Costs:
    """`Costs` of plans ``ranked`` by cost."""
    choices: dict[str, Choice] = {}
    for choice in ranked:
        choices.setdefault(widths(choice.plan), choice)
    return Costs(m, choices)


def costs_of(rows: Iterable[int], n: int, k: int, target: Target) -> list[Costs]:
    """What the planner weighs for (m, k) @ (k, n), m of ``rows``: constant weights, one core."""
    return [by_widths(m, explained(m, n, k, target, threads=1).ranked) for m in rows]


def stretches(costs: Iterable[Costs]) -> list[tuple[int, int, str]]:
    """First row, last row and widths of each stretch in which the choice stays the same."""
    found = []
    for name, group in groupby(costs, key=lambda each: each.chosen):
        members = list(group)
        found.append((members[0].m, members[-1].m, name))
    return found


def winners(costs: Iterable[Costs]) -> list[str]:
    """The widths that are chosen anywhere, the most often chosen first."""
    chosen = [each.chosen for each in costs]
    return sorted(dict.fromkeys(chosen), key=lambda name: (-chosen.count(name), name))


def measured(
    costs: Iterable[Costs],
    n: int,
    k: int,
    target: Target,
    *,
    only: Sequence[str] | None = None,
    rounds: int = 7,
    min_seconds: float = 0.002,
) -> list[Times]:
    """Run the plans of ``costs``, those whose widths are among ``only``, in interleaved rounds.

    What an empty call takes is subtracted. Without ``only`` the chosen plan alone is run.
    """
    module, lanes = operators.library(target).module, operators.lanes(target)
    overhead = calls.empty_call(module, Product(1, n, k), lanes)
    found = []
    for each in costs:
        operands = calls.make_operands(Product(each.m, n, k), lanes)
        names = [name for name in only or [each.chosen] if name in each.choices]
        runs = {name: calls.call(module, operands, each.choices[name].plan) for name in names}
        seconds = measure.interleave(
            runs, rounds=rounds, min_seconds=min_seconds, clock=time.process_time
        )
        found.append(
            Times(
                each.m,
                {name: [max(s - overhead, 1e-9) for s in own] for name, own in seconds.items()},
            )
        )
    return found


def price_of_choice(costs: Iterable[Costs], times: Iterable[Times]) -> list[float]:
    """By which part the chosen plan was slower than the fastest one measured, for each m."""
    return [max(time.above(each.chosen), 0.0) for each, time in zip(costs, times, strict=True)]


def every_plan_timed(m: int, n: int, k: int, target: Target, budget: float = 2.0) -> dict[str, Any]:
    """All plans of one product predicted and timed, as `bench.planner` does it for its shapes.

    The result is what `bench.planner.figure` draws. ``budget`` is about the seconds of the rounds
    that decide between the finalists.
    """
    machine, _, table = operators.described(target)
    table = table.for_cores(1)
    module = operators.library(target).module
    shape = Shape("the product", m, n, k)
    planners = [each for each in variants(machine, table) if each.name == LEARNED]
    plans = every_plan(shape.product, machine, table)
    field = field_of(shape.product, machine, plans, planners)
    watch = Lab(shape, module, machine).watch(field.plans, time.thread_time)
    row = judged(field, planners, watch, Effort(budget=budget), seed=1)
    return {**described(shape), **row}
