"""What a plan does, as counts of the cost table's entries.

The predicted cost of a plan is the dot product of these counts and the table. Fitting a table to
measured plans needs the counts; the planner sums the same terms without forming them.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.costmodel.tasks import Level, Residency
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form
from tvm_moonpoly.planner.groups import (
    EIGHTHS,
    Product,
    a_again,
    arriving,
    b_anew,
    balanced,
    blocks_of,
    brought,
    ceil_div,
    fetched_share,
    main_form,
    near,
    sources,
    tail_form,
)
from tvm_moonpoly.planner.plan import BMode, Plan


class Task(NamedTuple):
    """A task of a micro-kernel, over ``depth`` steps.

    ``share`` eighths of what the task saves with columns of B from ``fetched`` are saved, see
    `groups.arriving`.
    """

    mr: int
    nv: int
    form: Form
    residency: Residency
    depth: int
    share: int = 0
    fetched: Level = Level.L2

    def mixed(self) -> list[tuple[Task, float]]:
        """The tasks with columns of B from one place that this one is between, and the weight of
        each."""
        if not self.share:
            return [(self, 1.0)]
        near = self._replace(residency=Residency(self.residency.a, self.fetched))
        weight = self.share / EIGHTHS
        plain = (each._replace(share=0, fetched=Level.L2) for each in (self, near))
        return list(zip(plain, (1 - weight, weight), strict=True))


#: A task, or the name of a field of `Traffic`.
Entry = Task | str


def counts(product: Product, plan: Plan, machine: Machine, table: CostTable) -> Counter[Entry]:
    """How often each entry of the cost table enters the cost of ``plan``, for one batch entry.

    ``table`` only tells how high the tiles of the partial panel are.
    """
    m, n, k, lanes = product.m, product.n, product.k, machine.lanes
    if plan.b_mode == BMode.STREAM:
        if product.b_mode == BMode.DIRECT:
            vectors, rest = divmod(n, lanes)
            steps: dict[Entry, int] = {"axpy_step": m * k * vectors, "axpy_rest": m * k * rest}
            return Counter({"axpy_start": m * k, **steps})
        vectors, rest = divmod(k, lanes)
        steps = {"dot_step": m * n * vectors, "dot_rest": m * n * rest}
        return Counter({"dot_start": m * n, **steps})
    panels = n // lanes
    blocks = blocks_of(product, plan.kc, plan.mc)
    found = sources(product, plan.b_mode, blocks, machine)
    block_count = blocks.k_blocks * blocks.m_blocks
    total: Counter[Entry] = Counter()

    def group(mr: int, nv: int, form: Form, times: int) -> None:
        """``times`` groups of ``nv`` panels over all rows and the whole reduction."""
        near_b = near(nv, blocks.depth, found.far, machine)
        small, large, tiles = balanced(blocks.rows, mr)

        def tasks(height: int, b: Level, number: int, share: int = 0) -> None:
            task = Task(height, nv, form, Residency(found.a, b), blocks.depth)
            if share:
                task = task._replace(share=share, fetched=brought(b, near_b))
            total[task] += times * number

        if large:
            tasks(small + 1, near_b, block_count * large)
        tasks(small, near_b, block_count * (tiles - large))
        first = small + 1 if large else small
        repeated = blocks.k_blocks * (blocks.m_blocks - 1)
        share = fetched_share(first, tiles, nv, form)
        for b, number in ((found.far, blocks.k_blocks), (found.again, repeated)):
            tasks(first, b, number, share)
            tasks(first, near_b, -number)
        total["tile"] += times * block_count * tiles
        total["group"] += times * block_count

    main = (panels - plan.tail_nv) // plan.nv
    group(plan.mr, plan.nv, main_form(plan.pack_a, plan.b_mode), main)
    if plan.tail_nv:
        group(plan.tail_mr, plan.tail_nv, tail_form(plan.b_mode), 1)
    if n % lanes:
        group(table.edge_height(lanes), 1, Form.PLAIN, 1)
        total["edge_row"] += m * blocks.k_blocks
    all_groups = main + (plan.tail_nv > 0) + (n % lanes > 0)
    total["a_memory"] += a_again(product, blocks, all_groups, machine)
    total["c_block"] += panels * m * (blocks.k_blocks - 1)
    if plan.b_mode == BMode.DIRECT:
        total["b_direct"] += panels * k
        total["pack_rows"] += b_anew(product, panels * k)
    if plan.pack_a:
        total["pack_a"] += m * k * (ceil_div(main, plan.nc) if plan.nc else 1)
    if plan.b_mode == BMode.PACKED:
        packing = "pack_rows" if product.b_mode == BMode.DIRECT else "pack_columns"
        total[packing] += k * ceil_div(n, lanes) * (1 + product.crowded)
    return Counter({entry: count for entry, count in total.items() if count})


def price(entry: Entry, table: CostTable) -> int:
    """Picoseconds of one entry."""
    if isinstance(entry, Task):
        far, fetched = (
            table.task(entry.mr, entry.nv, entry.form).at(residency, entry.depth)
            for residency in (entry.residency, Residency(entry.residency.a, entry.fetched))
        )
        return arriving(far, fetched, entry.share)
    return int(getattr(table.traffic, entry))


def priced(product: Product, plan: Plan, machine: Machine, table: CostTable) -> int:
    """Picoseconds of any valid plan, on one core and for one batch entry."""
    entered = counts(product, plan, machine, table)
    return sum(count * price(entry, table) for entry, count in entered.items())
