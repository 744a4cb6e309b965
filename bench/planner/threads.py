"""Plans over several cores: the ways to share one out, and what the planner expects of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.planner.halving import Stage, Timer, halved, joined
from bench.planner.plans import every_plan, same_work
from bench.planner.variants import LEARNED, Variant
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.planner.plan import Plan, largest
from tvm_moonpoly.planner.spec import Product, ceil_div

#: One-core plans that are shared out in all ways, besides those that planners choose.
BEST = 12

#: How these are found: by their times on one core.
ONE_CORE = (Stage(2, 0.0003, 1.3, 40), Stage(2, 0.001, 1.15, BEST))

#: A worker has at most so many parts on average, and a side is cut into so many parts a worker.
PARTS, CUTS = 16, (1, 2, 3, 5, 8)


def sharings(plan: Plan, product: Product, machine: Machine) -> Iterator[Plan]:
    """``plan`` on one core, and by all cores in every way: its rows and its groups in one part, in
    some for each worker, or, where there are fewer, each in a part of its own, as long as each
    worker has a part."""
    yield alone(plan)
    tiles = ceil_div(product.m, plan.mr)
    groups = (product.n // machine.lanes - plan.tail_nv) // plan.nv + (plan.tail_nv > 0)
    cores = min(machine.cores, largest("workers"))
    for splits_m in _cuts(tiles, cores, "splits_m"):
        for splits_n in _cuts(groups, cores, "splits_n"):
            parts = splits_m * splits_n * product.batch
            if cores <= parts <= max(PARTS * cores, product.batch):
                yield replace(plan, splits_m=splits_m, splits_n=splits_n, workers=cores)


def _cuts(count: int, cores: int, field: str) -> list[int]:
    """Into how many parts ``count`` tiles or groups are cut."""
    most = max(min(count, largest(field)), 1)
    return sorted({min(parts, most) for parts in (1, *(cores * each for each in CUTS))})


def alone(plan: Plan) -> Plan:
    """What one core does of ``plan``, or all that it does if nobody helps."""
    return replace(plan, splits_m=1, splits_n=1, workers=1)


def one_core_plans(
    product: Product, machine: Machine, table: CostTable, planners: Sequence[Variant]
) -> list[Plan]:
    """All plans on one core, the planner's own first."""
    own = [planner for planner in planners if planner.name == LEARNED]
    chosen = [alone(planner.ranked(product)[0].plan) for planner in own]
    every = every_plan(product, machine, table)
    return list(dict.fromkeys([*(same_work(plan, product, machine) for plan in chosen), *every]))


def worth_sharing(plans: Sequence[Plan], timer: Timer) -> list[Plan]:
    """The fastest of ``plans`` on one core, and the first of them."""
    return [plans[index] for index in joined(halved(len(plans), timer, ONE_CORE).left, [0])]
