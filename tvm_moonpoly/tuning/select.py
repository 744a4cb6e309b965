"""The elite set: the few micro-kernels that are kept, ranked by what synthetic shapes lose without.

Plans need every height below a greatest one, and every width below a widest one, so what can be
left out is the tallest kernel of a width, and the last kernel of the widest. Those whose loss costs
the least are left out one after the other, by predicted costs, until it costs more than is allowed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.costmodel.tasks import TaskCost
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form, Record
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.groups import main_form, tail_form
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.spec import Choice, Product

#: What the elite set may cost on the average over the shapes, and on any of them.
MEAN_LOSS, WORST_LOSS = 0.001, 0.02

#: The smallest set that is looked at, as a part of all kernels.
_SMALLEST = 0.3

#: Multiply-adds of the largest synthetic product.
_LARGEST = 1 << 33


@dataclass(frozen=True)
class Step:
    """``left`` kernels remain without ``dropped``; what that costs, over the synthetic shapes."""

    dropped: Record
    left: int
    mean_loss: float
    worst_loss: float


@dataclass(frozen=True)
class Selection:
    """The elite set: ``table`` holds the costs of its kernels alone.

    ``worth`` is, of each kernel of the whole set that can be left out, the mean loss over the
    synthetic ``shapes`` without it and those that need it. ``steps`` is how the set shrinks, kernel
    by kernel, to fewer than are kept: the first ``dropped`` of them were taken.
    """

    table: CostTable
    shapes: int
    worth: Mapping[Record, float]
    steps: Sequence[Step]
    dropped: int


def elite(
    table: CostTable,
    machine: Machine,
    shapes: int = 240,
    seed: int = 0,
    mean_loss: float = MEAN_LOSS,
    worst_loss: float = WORST_LOSS,
) -> Selection:
    """Reduce ``table`` to its elite set, over ``shapes`` synthetic products.

    Raises ValueError when ``shapes`` is not positive.
    """
    if shapes < 1:
        raise ValueError(f"shapes: must be at least 1, not {shapes}")
    ranking = _Ranking(table, machine, synthetic(shapes, seed))
    worth = {
        record: ranking.loss(above)[0]
        for record in sorted_by_tile(table.tasks)
        if (above := needing(record, table.tasks)) is not None
    }
    steps: list[Step] = []
    while len(ranking.kept) > _SMALLEST * len(table.tasks):
        options = [r for r in ranking.kept if needing(r, ranking.kept) == {r}]
        if not options:
            break
        losses = {r: ranking.loss({r}) for r in options}
        # of those that cost the same, the largest: it is the most code
        record = min(options, key=lambda r: (losses[r][0], -r.mr * r.nv))
        ranking.drop(record)
        steps.append(Step(record, len(ranking.kept), *losses[record]))
    taken = itertools.takewhile(
        lambda step: step.mean_loss <= mean_loss and step.worst_loss <= worst_loss, steps
    )
    gone = {step.dropped for step in taken}
    return Selection(_without(table, gone), shapes, worth, steps, len(gone))


class _Ranking:
    """What products lose when kernels are left out, one after the other."""

    def __init__(self, table: CostTable, machine: Machine, products: Sequence[Product]) -> None:
        self._machine = replace(machine, cores=1)
        self._table = table.for_cores(machine.cores)
        self._products = products
        self._choices = [spec.best(p, self._machine, self._table) for p in products]
        self._first = [choice.picoseconds for choice in self._choices]

    @property
    def kept(self) -> list[Record]:
        return list(self._table.tasks)

    def loss(self, gone: Set[Record]) -> tuple[float, float]:
        """The mean and the worst loss without the kernels in ``gone`` and all that was dropped."""
        choices = self._without(_without(self._table, gone), gone)
        losses = [
            choice.picoseconds / first - 1
            for choice, first in zip(choices, self._first, strict=True)
        ]
        return float(np.mean(losses)), float(np.max(losses))

    def drop(self, record: Record) -> None:
        """Leave a kernel out for good."""
        smaller = _without(self._table, {record})
        self._choices = self._without(smaller, {record})
        self._table = smaller

    def _without(self, table: CostTable, gone: Set[Record]) -> list[Choice]:
        """The choices from ``table``, planned anew where one of the ``gone`` was used."""
        return [
            spec.best(product, self._machine, table)
            if self._uses(product, choice.plan, gone)
            else choice
            for product, choice in zip(self._products, self._choices, strict=True)
        ]

    def _uses(self, product: Product, plan: Plan, gone: Set[Record]) -> bool:
        """Whether a kernel of the plan, or a lower one of its width, is ``gone``."""
        if plan.b_mode == BMode.STREAM:
            return False
        tallest = {(main_form(plan.pack_a, plan.b_mode), plan.nv): plan.mr}
        if plan.tail_nv:
            tallest[tail_form(plan.b_mode), plan.tail_nv] = plan.tail_mr
        if product.n % self._machine.lanes:
            tallest[Form.PLAIN, 1] = self._table.edge_height(self._machine.lanes)
        return any(record.mr <= tallest.get((record.form, record.nv), 0) for record in gone)


def needing(record: Record, records: Iterable[Record]) -> set[Record] | None:
    """The kernel and all that cannot be used without it; None where nothing works without it.

    Those as wide and higher; and without the lowest one of a width, all that are wider, which
    would leave columns for it.
    """
    found = {r for r in records if (r.form, r.nv) == (record.form, record.nv) and r.mr >= record.mr}
    if record.mr == 1 and record.form != Form.PACKED_A:
        # what packed A leaves is computed on plain A
        forms = {Form.PLAIN, Form.PACKED_A} if record.form == Form.PLAIN else {record.form}
        found |= {r for r in records if r.form in forms and r.nv > record.nv}
    left = {r.form for r in set(records) - found}
    return found if left == set(Form) else None


def synthetic(count: int, seed: int) -> list[Product]:
    """Products of sizes that are uniform on a logarithmic scale: rows from 1 to 4096, columns from
    8 and steps from 16 on; mostly with constant weights, the others with a B of either order."""
    rng = np.random.default_rng(seed)
    found: list[Product] = []
    modes = (BMode.PREPACKED, BMode.DIRECT, BMode.PACKED)
    while len(found) < count:
        m, n, k = (int(2 ** rng.uniform(low, 12)) for low in (0, 3, 4))
        if m * n * k <= _LARGEST:
            mode = modes[int(rng.choice(3, p=(0.6, 0.25, 0.15)))]
            found.append(Product(m, n, k, b_mode=mode))
    return found


def sorted_by_tile(records: Iterable[Record]) -> list[Record]:
    forms = list(Form)
    return sorted(records, key=lambda r: (forms.index(r.form), r.nv, r.mr))


def _without(table: CostTable, gone: Set[Record]) -> CostTable:
    def left(tasks: Mapping[Record, TaskCost]) -> dict[Record, TaskCost]:
        return {record: cost for record, cost in tasks.items() if record not in gone}

    return CostTable(left(table.tasks), table.traffic, left(table.busy))
