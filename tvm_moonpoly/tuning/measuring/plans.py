"""Whole products that are measured: random shapes, and random plans of the kinds that are chosen.

What tasks do not show is in them: packing, the loops around the tiles, later blocks of the
reduction, the partial panel, and how near the caches really keep the operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tvm_moonpoly.costmodel.tables import BLOCKINGS, CostTable, Traffic
from tvm_moonpoly.costmodel.tasks import TaskCost
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form, Record
from tvm_moonpoly.planner.groups import Product, main_form, tail_form
from tvm_moonpoly.planner.plan import READINGS, BMode, Plan
from tvm_moonpoly.planner.spec import applies, ceil_div, column_blocks
from tvm_moonpoly.tuning.measuring.tasks import Timing

#: Largest product that is measured, in multiply-adds, and largest matrix B, in elements: beyond the
#: third-level cache.
_LARGEST, _LARGEST_B = 1 << 28, 1 << 24

#: How B is stored, and how often that is measured.
_SHARES = {BMode.PREPACKED: 0.5, BMode.DIRECT: 0.3, BMode.PACKED: 0.2}

#: Plans of one product: what a planner needs to know is which of them is the best.
_PLANS = 4

#: Rows up to which products are streamed.
_STREAMED_ROWS = 8

#: Parts of the products that have 16 rows at most, and that are large enough for all blockings.
_FEW, _LARGE = 0.4, 0.25

#: Part of the products whose columns are no whole number of panels.
_PARTIAL = 0.15


@dataclass(frozen=True)
class PlanTask:
    """A plan for a product."""

    product: Product
    plan: Plan

    def to_json(self) -> dict[str, Any]:
        m, n, k = self.product.m, self.product.n, self.product.k
        stored, word = int(self.product.b_mode), self.plan.encode()
        return {"m": m, "n": n, "k": k, "b_mode": stored, "plan": word}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanTask:
        """Inverse of `to_json`; raises ValueError on anything else."""
        names = ("m", "n", "k", "b_mode", "plan")
        numbers = {name: data.get(name) for name in names}
        if any(type(value) is not int or value < 0 for value in numbers.values()):
            raise ValueError(f"plan: {dict(data)!r} has not the numbers {', '.join(names)}")
        m, n, k, stored, word = (data[name] for name in names)
        product, plan = Product(m, n, k, b_mode=BMode(stored)), Plan.decode(word)
        readings = READINGS.get(product.b_mode, ())
        if min(m, n, k, plan.nv, plan.mr) < 1 or plan.b_mode not in readings:
            raise ValueError(f"plan: {plan} is none for {product}")
        return cls(product, plan)


@dataclass(frozen=True)
class PlanSample:
    """A measured plan: picoseconds at the undisturbed speed of the machine, on one core.

    ``overhead`` is what an empty call takes, which is not in ``picoseconds``.
    """

    task: PlanTask
    timing: Timing
    picoseconds: float
    overhead: float


def placeholder(records: Iterable[Record]) -> CostTable:
    """A table of ``records`` for a library that is only ever given its plans."""
    tasks = {record: TaskCost.linear(1000, 10 * record.mr * record.nv) for record in records}
    return CostTable(tasks, Traffic(*(1 for _ in fields(Traffic))))


def random_plans(machine: Machine, table: CostTable, seed: int) -> Iterator[PlanTask]:
    """Products and plans for them, small and large alike, without end.

    The plans are of the kinds that a planner with ``table`` weighs; which kernels there are is all
    that the table is asked for.
    """
    rng = np.random.default_rng(seed)
    while True:
        m, n, k = _shape(rng, machine)
        stored = list(_SHARES)[rng.choice(len(_SHARES), p=list(_SHARES.values()))]
        product = Product(m, n, k, b_mode=stored)
        modes = [
            mode for mode in READINGS[product.b_mode] if mode != BMode.STREAM or m <= _STREAMED_ROWS
        ]
        drawn = [
            _random_plan(product, modes[rng.integers(len(modes))], machine, table, rng)
            for _ in range(_PLANS)
        ]
        yield from (PlanTask(product, plan) for plan in dict.fromkeys(drawn))


def _shape(rng: np.random.Generator, machine: Machine) -> tuple[int, int, int]:
    """m, n, k of a random product, of one of three kinds."""

    def size(low: int, high: int) -> int:
        return int(round(np.exp(rng.uniform(np.log(low), np.log(high)))))

    kind = rng.random()
    while True:
        if kind < _LARGE:
            m, n, k = size(96, 2048), size(128, 6144), size(512, 6144)
        elif kind < _LARGE + _FEW:
            m, n, k = size(1, 16), size(8, 8192), size(8, 6144)
        else:
            m, n, k = size(12, 1024), size(8, 8192), size(8, 6144)
        if m * n * k <= _LARGEST and n * k <= _LARGEST_B:
            break
    whole = max(n // machine.lanes, 1) * machine.lanes
    return m, n if rng.random() < _PARTIAL else whole, k


def _random_plan(
    product: Product, mode: BMode, machine: Machine, table: CostTable, rng: np.random.Generator
) -> Plan:
    if mode == BMode.STREAM:
        return Plan(1, 1, 0, 0, False, mode)
    packable = mode != BMode.DIRECT
    blocks = [b for b in BLOCKINGS if applies(b, product) and (packable or not b.pack_a)]
    choice = blocks[rng.integers(len(blocks))]
    form, panels = main_form(choice.pack_a, mode), product.n // machine.lanes
    rows = ceil_div(product.m, ceil_div(product.m, choice.mc)) if choice.mc else product.m
    nv = int(rng.choice(table.widths(form)))
    tails, tail = tail_form(mode), panels % nv
    joined = tail + nv
    if tail and panels >= joined and joined in table.widths(tails) and rng.random() < 0.5:
        tail = joined
    k_blocks = max(ceil_div(product.k, choice.kc), 1) if choice.kc else 1
    depth = ceil_div(product.k, k_blocks)
    nc, _ = column_blocks(mode, (panels - tail) // nv, nv, depth, machine)
    return Plan(
        nv,
        _height(nv, form, rows, table, rng),
        tail,
        _height(tail, tails, rows, table, rng) if tail else 0,
        choice.pack_a,
        mode,
        choice.kc,
        choice.mc,
        nc,
    )


def _height(nv: int, form: Form, rows: int, table: CostTable, rng: np.random.Generator) -> int:
    """One of the taller kernels: low ones for many rows are never chosen and only take time."""
    possible = [h for h in table.heights(nv, form) if h <= rows]
    return int(rng.choice(possible[len(possible) // 2 :]))
