"""The planner in plain Python: the specification that the native planner repeats to the bit.

All arithmetic is on integers. Cost of a plan, in picoseconds, is the sum over its regions of groups
times row tiles times ``g(k)`` (MikPoly's form, with waves = tiles on one core), where ``g`` depends
on the caches that a tile's operands come from, plus what packing, the partial panel and later
blocks of the reduction add.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_moonpoly.costmodel.tables import BLOCKINGS, BlockSizes, CostTable
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form
from tvm_moonpoly.planner.groups import (
    Product,
    a_again,
    balanced,
    blocks_of,
    ceil_div,
    group_cost,
    in_place,
    main_form,
    packing,
    sources,
    tail_form,
    tallest,
)
from tvm_moonpoly.planner.plan import READINGS, BMode, Plan
from tvm_moonpoly.planner.shares import shared_out

__all__ = [
    "Choice",
    "Product",
    "applies",
    "balanced",
    "best",
    "candidates",
    "ceil_div",
    "column_blocks",
    "plan",
    "shared_out",
    "suits",
]


@dataclass(frozen=True)
class Choice:
    """A plan and its predicted cost on one core, for one batch entry."""

    plan: Plan
    picoseconds: int


def plan(product: Product, machine: Machine, table: CostTable) -> Plan:
    """The cheapest plan of `candidates` for ``product``, shared out over the machine's cores."""
    choice = best(product, machine, table)
    return shared_out(choice.plan, choice.picoseconds, product, machine, table)


def best(product: Product, machine: Machine, table: CostTable) -> Choice:
    """The cheapest of `candidates`; the first of equals."""
    found = None
    for choice in candidates(product, machine, table):
        if found is None or choice.picoseconds < found.picoseconds:
            found = choice
    assert found is not None
    return found


def candidates(product: Product, machine: Machine, table: CostTable) -> list[Choice]:
    """All plans that are weighed: for each blocking, reading of B and width of the main region,
    the best heights, and the tail region narrow or joined with the last group.

    For one row of A, a B that changes is only streamed: no tile was measured to read it faster, and
    weighing tiles takes longer than many such products.
    """
    if product.m == 1 and BMode.STREAM in READINGS[product.b_mode]:
        return [_streamed(product, machine, table)]
    choices = []
    for blocks in BLOCKINGS:
        if not applies(blocks, product):
            continue
        for mode in READINGS[product.b_mode]:
            if mode != BMode.STREAM and suits(blocks, mode):
                choices += with_blocks(product, mode, blocks, machine, table)
    if BMode.STREAM in READINGS[product.b_mode]:
        choices.append(_streamed(product, machine, table))
    return choices


def _streamed(product: Product, machine: Machine, table: CostTable) -> Choice:
    """B as it lies: multiples of its rows, or dot products along its columns."""
    m, n, k, traffic = product.m, product.n, product.k, table.traffic
    if product.b_mode == BMode.DIRECT:
        vectors, rest = divmod(n, machine.lanes)
        each = traffic.axpy_start + traffic.axpy_step * vectors + traffic.axpy_rest * rest
        cost = m * k * each
    else:
        vectors, rest = divmod(k, machine.lanes)
        each = traffic.dot_step * vectors + traffic.dot_rest * rest
        cost = m * n * (traffic.dot_start + each)
    return Choice(Plan(1, 1, 0, 0, False, BMode.STREAM), cost)


def applies(blocks: BlockSizes, product: Product) -> bool:
    """Blocks as large as the shape are those of another entry."""
    return (blocks.kc == 0 or product.k > blocks.kc) and (blocks.mc == 0 or product.m > blocks.mc)


def suits(blocks: BlockSizes, mode: BMode) -> bool:
    """Whether a blocking is weighed where B is read in ``mode``.

    A is packed only where B is packed as well. The reduction alone is cut only where B is read in
    place, so that a group touches fewer rows of it. Panels that are packed are read as they lie:
    doing so in parts was measured to take up to a tenth longer, hardly ever less.
    """
    if mode == BMode.DIRECT:
        return not blocks.pack_a
    return blocks.mc > 0 or blocks.kc == 0


def with_blocks(
    product: Product, mode: BMode, sizes: BlockSizes, machine: Machine, table: CostTable
) -> list[Choice]:
    m, n, k, traffic = product.m, product.n, product.k, table.traffic
    panels = n // machine.lanes
    blocks = blocks_of(product, sizes.kc, sizes.mc)
    found = sources(product, mode, blocks, machine)
    main, tails = main_form(sizes.pack_a, mode), tail_form(mode)

    # the best rows of tiles for each width: (cost of one group of panels, tallest tile)
    groups = {
        (form, nv): tallest(nv, form, blocks, found, machine, table)
        for form in dict.fromkeys((tails, main))
        for nv in table.widths(form)
    }
    common = traffic.c_block * panels * m * (blocks.k_blocks - 1)
    if mode == BMode.DIRECT:
        common += in_place(product, machine, traffic)
    if mode == BMode.PACKED:
        common += packing(product, machine, traffic)
    if n % machine.lanes:
        height = table.edge_height(machine.lanes)
        common += group_cost(height, 1, Form.PLAIN, blocks, found, machine, table)
        common += traffic.edge_row * m * blocks.k_blocks
    choices = []
    for nv in table.widths(main):
        main_cost, mr = groups[main, nv]
        narrow = panels % nv
        for tail in (narrow, narrow + nv):
            # a wider tail only in place of a narrow one, and only if there is such a kernel
            joined = tail != narrow
            if joined and (narrow == 0 or panels < tail or (tails, tail) not in groups):
                continue
            count = (panels - tail) // nv
            tail_cost, tail_mr = groups[tails, tail] if tail else (0, 0)
            nc, n_blocks = column_blocks(mode, count, nv, blocks.depth, machine)
            cost = common + main_cost * count + tail_cost
            all_groups = count + (tail > 0) + (n % machine.lanes > 0)
            cost += traffic.a_memory * a_again(product, blocks, all_groups, machine)
            if sizes.pack_a:
                cost += traffic.pack_a * m * k * n_blocks
            plan = Plan(nv, mr, tail, tail_mr, sizes.pack_a, mode, sizes.kc, sizes.mc, nc)
            choices.append(Choice(plan, cost))
    return choices


def column_blocks(
    mode: BMode, groups: int, nv: int, depth: int, machine: Machine
) -> tuple[int, int]:
    """Groups in a block of columns (0: all) and the number of blocks.

    A block of B that is packed during the call fills half of the second-level cache at most.
    """
    if mode != BMode.PACKED:
        return 0, 1
    group_bytes = max(nv * machine.lanes * depth * 4, 1)
    nc = min(max(machine.l2_bytes // 2 // group_bytes, 1), 1023)
    if groups <= nc:
        return 0, 1
    return nc, ceil_div(groups, nc)
