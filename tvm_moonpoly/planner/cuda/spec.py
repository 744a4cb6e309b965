"""The planner for CUDA in plain Python: the specification that the native one repeats to the bit.

A plan is one micro-kernel for the whole result, or two with a region each: full waves of blocks by
one that is fast when all multiprocessors are busy, the rest by one that wastes less of a wave.
Its cost in picoseconds is that of MikPoly for GPUs: launches, and for each region its waves times
what a wave takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from tvm_moonpoly.costmodel.cuda import BlockCost, CudaTable
from tvm_moonpoly.planner.groups import ceil_div


class Axis(IntEnum):
    """Along which dimension of the result it is cut into two regions."""

    NONE = 0
    ROWS = 1
    COLUMNS = 2


@dataclass(frozen=True)
class Product:
    """``batch`` products of (m, k) by (k, n); no size is negative."""

    m: int
    n: int
    k: int
    batch: int = 1


@dataclass(frozen=True)
class Plan:
    """Which of the table's micro-kernels compute what.

    ``first`` computes all, or what lies before row or column ``cut``; ``second`` the rest. ``cut``
    is a multiple of the first one's block; 0 where there is no second one.
    """

    first: int
    axis: Axis = Axis.NONE
    cut: int = 0
    second: int = 0


@dataclass(frozen=True)
class Region:
    """A part of the result and the micro-kernel that computes it: ``rows`` by ``columns`` from
    ``row`` and ``column`` on."""

    kernel: int
    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True)
class Choice:
    """A plan and its predicted time."""

    plan: Plan
    picoseconds: int


def plan(product: Product, table: CudaTable) -> Plan:
    """The cheapest plan of `candidates`; the first of equals."""
    return best(product, table).plan


def best(product: Product, table: CudaTable) -> Choice:
    """`plan` with its cost."""
    found: Choice | None = None
    for choice in candidates(product, table):
        if found is None or choice.picoseconds < found.picoseconds:
            found = choice
    assert found is not None
    return found


def candidates(product: Product, table: CudaTable) -> Iterator[Choice]:
    """All plans that are weighed, those of one micro-kernel first."""
    m, n, k, batch = product.m, product.n, product.k, product.batch
    for i in range(len(table.kernels)):
        yield Choice(Plan(i), single(i, product, table))
    for i, kernel in enumerate(table.kernels):
        for axis in (Axis.ROWS, Axis.COLUMNS):
            cut = full_waves(kernel, axis, product, table)
            if not cut:
                continue
            by_rows = axis == Axis.ROWS
            head = (cut, n) if by_rows else (m, cut)
            rest = (m - cut, n) if by_rows else (m, n - cut)
            first = table.launch + _region(kernel, *head, k, batch, table)
            for j, other in enumerate(table.kernels):
                if j != i:
                    second = table.launch + _region(other, *rest, k, batch, table)
                    yield Choice(Plan(i, axis, cut, j), first + second)


def single(which: int, product: Product, table: CudaTable) -> int:
    """Picoseconds of a product that one of the table's kernels computes alone."""
    sizes = product.m, product.n, product.k, product.batch
    return table.launch + _region(table.kernels[which], *sizes, table)


def full_waves(kernel: BlockCost, axis: Axis, product: Product, table: CudaTable) -> int:
    """The row or column where as many lines of blocks end as the full waves hold.

    0 where there is no such: there is less than a wave, or nothing is left.
    """
    down = ceil_div(product.m, kernel.block_m)
    across = ceil_div(product.n, kernel.block_n)
    lines, line = (down, across) if axis == Axis.ROWS else (across, down)
    line *= product.batch
    capacity = table.multiprocessors * kernel.resident
    if line == 0:
        return 0
    full = lines * line // capacity * capacity // line
    if full in (0, lines):
        return 0
    return full * (kernel.block_m if axis == Axis.ROWS else kernel.block_n)


def _region(
    kernel: BlockCost, rows: int, columns: int, k: int, batch: int, table: CudaTable
) -> int:
    """Picoseconds of a region, without its launch: full waves, and one of what is left, which is
    spread over the multiprocessors."""
    blocks = ceil_div(rows, kernel.block_m) * ceil_div(columns, kernel.block_n) * batch
    capacity = table.multiprocessors * kernel.resident
    waves, left = divmod(blocks, capacity)
    cost = waves * kernel.wave(kernel.resident, k)
    if left:
        cost += kernel.wave(ceil_div(left, table.multiprocessors), k)
    return cost


def regions(plan: Plan, product: Product) -> list[Region]:
    """What each micro-kernel of a plan computes; together the whole result, no element twice."""
    m, n = product.m, product.n
    if plan.axis == Axis.NONE:
        return [Region(plan.first, 0, 0, m, n)]
    if plan.axis == Axis.ROWS:
        return [
            Region(plan.first, 0, 0, plan.cut, n),
            Region(plan.second, plan.cut, 0, m - plan.cut, n),
        ]
    return [
        Region(plan.first, 0, 0, m, plan.cut),
        Region(plan.second, 0, plan.cut, m, n - plan.cut),
    ]
