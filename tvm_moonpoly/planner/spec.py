"""The planner in plain Python: the specification that the native planner repeats to the bit.

All arithmetic is on non-negative integers. Cost of a plan, in picoseconds, is the sum over its
regions of groups times row tiles times ``g(k)``, plus what the caches, packing and the partial
panel add (MikPoly's form, with waves = tiles on one core).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_moonpoly.costmodel.tables import BLOCKINGS, BlockSizes, CostTable
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.planner.plan import READINGS, BMode, Plan

#: Larger than any cost.
INFINITE = 1 << 62


@dataclass(frozen=True)
class Product:
    """The shape at hand: ``batch`` products of (m, k) by (k, n).

    ``b_mode`` PREPACKED: B is a packed constant. DIRECT: rows of B are contiguous, so it may be
    read in place or packed. PACKED: its columns are contiguous and it must be packed.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    b_mode: BMode = BMode.PREPACKED


@dataclass(frozen=True)
class Choice:
    """A plan and its predicted cost on one core, for one batch entry."""

    plan: Plan
    picoseconds: int


def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b


def balanced(rows: int, tallest: int) -> tuple[int, int, int]:
    """``rows`` in tiles of at most ``tallest``, one row apart: (small, large, tiles).

    ``large`` of the ``tiles`` have ``small + 1`` rows and come first, the others ``small``.
    """
    tiles = ceil_div(rows, tallest)
    small = rows // tiles
    return small, rows - small * tiles, tiles


def plan(product: Product, machine: Machine, table: CostTable) -> Plan:
    """The cheapest plan of `candidates` for ``product``, shared out over the machine's cores."""
    return shared_out(best(product, machine, table), product, machine, table)


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
    the best heights, and the tail region narrow or joined with the last group."""
    choices = []
    for blocks in BLOCKINGS:
        if not applies(blocks, product):
            continue
        for mode in READINGS[product.b_mode]:
            # A is packed only where B is packed as well
            if mode != BMode.STREAM and not (blocks.pack_a and mode == BMode.DIRECT):
                choices += _with_blocks(product, mode, blocks, machine, table)
    if BMode.STREAM in READINGS[product.b_mode]:
        choices.append(_streamed(product, machine, table))
    return choices


def _streamed(product: Product, machine: Machine, table: CostTable) -> Choice:
    """B as it lies: multiples of its rows, or dot products along its columns."""
    m, n, k, traffic = product.m, product.n, product.k, table.traffic
    if product.b_mode == BMode.DIRECT:
        cost = m * (traffic.axpy_start + traffic.axpy_step * k * ceil_div(n, machine.lanes))
    else:
        cost = m * n * (traffic.dot_start + traffic.dot_step * ceil_div(k, machine.lanes))
    return Choice(Plan(1, 1, 0, 0, False, BMode.STREAM), cost)


def applies(blocks: BlockSizes, product: Product) -> bool:
    """Blocks as large as the shape are those of another entry."""
    return (blocks.kc == 0 or product.k > blocks.kc) and (blocks.mc == 0 or product.m > blocks.mc)


def _with_blocks(
    product: Product, mode: BMode, blocks: BlockSizes, machine: Machine, table: CostTable
) -> list[Choice]:
    m, n, k, lanes = product.m, product.n, product.k, machine.lanes
    traffic = table.traffic
    panels = n // lanes
    k_blocks = max(ceil_div(k, blocks.kc), 1) if blocks.kc else 1
    depth = ceil_div(k, k_blocks)
    m_blocks = ceil_div(m, blocks.mc) if blocks.mc else 1
    rows = ceil_div(m, m_blocks)
    block_count = k_blocks * m_blocks

    # what every group of panels adds per vector of B and per block, and for reading A again
    b_once = k * _first_touch(n * k * 4, mode, machine, table)
    if n * depth * 4 > machine.l2_bytes // 2:
        b_once *= m_blocks
    a_bytes = rows * depth * 4
    a_again = 0
    if a_bytes > machine.l2_bytes // 2:
        a_again = m * k * traffic.a_l3
    elif a_bytes > machine.l1_bytes // 2:
        a_again = m * k * traffic.a_l2

    # the best rows of tiles for each width: (cost of one group of panels, tallest tile)
    groups = {}
    for packed in (False, True) if blocks.pack_a else (False,):
        for nv in table.widths(packed):
            cost, mr, tiles = tallest(rows, depth, nv, packed, table)
            # packed A streams at full speed from wherever it lies
            cost = cost * block_count + b_once * nv + (0 if packed else a_again)
            if nv * lanes * depth * 4 > machine.l1_bytes // 2:
                cost += nv * depth * tiles * block_count * traffic.b_l2
            groups[packed, nv] = cost, mr

    common = traffic.c_block * panels * m * (k_blocks - 1)
    if n % lanes:
        common += groups[False, 1][0] + traffic.edge_row * m * k_blocks
    choices = []
    for nv in table.widths(blocks.pack_a):
        main_cost, mr = groups[blocks.pack_a, nv]
        narrow = panels % nv
        for tail in (narrow, narrow + nv):
            # a wider tail only in place of a narrow one, and only if there is such a kernel
            joined = tail != narrow
            if joined and (narrow == 0 or panels < tail or (False, tail) not in groups):
                continue
            count = (panels - tail) // nv
            tail_cost, tail_mr = groups[False, tail] if tail else (0, 0)
            nc, n_blocks = column_blocks(mode, count, nv, depth, machine)
            cost = common + main_cost * count + tail_cost
            if blocks.pack_a:
                cost += traffic.pack_a * m * k * n_blocks
            if mode == BMode.PACKED:
                per_vector = (
                    traffic.pack_rows if product.b_mode == BMode.DIRECT else traffic.pack_columns
                )
                cost += per_vector * k * ceil_div(n, lanes)
            plan = Plan(
                nv,
                mr,
                tail,
                tail_mr,
                blocks.pack_a,
                mode,
                blocks.kc,
                blocks.mc,
                nc,
            )
            choices.append(Choice(plan, cost))
    return choices


def tallest(rows: int, depth: int, nv: int, packed: bool, table: CostTable) -> tuple[int, int, int]:
    """The cheapest height for ``rows`` rows of one group: its cost, the height, the tiles.

    Tiles of at most ``mr`` rows are balanced: ``ceil(rows / mr)`` of them, one row apart.
    """
    found = (INFINITE, 1, 1)
    costs = {h: table.task(h, nv, packed) for h in table.heights(nv, packed)}
    for mr in costs:
        small, large, tiles = balanced(rows, mr)
        cost = (tiles - large) * (costs[small].start + costs[small].step * depth)
        if large:
            cost += large * (costs[small + 1].start + costs[small + 1].step * depth)
        if cost < found[0]:
            found = (cost, mr, tiles)
    return found


def _first_touch(size: int, mode: BMode, machine: Machine, table: CostTable) -> int:
    """Picoseconds for a vector of B that comes from where all of B (``size`` bytes) lies."""
    traffic = table.traffic
    touch = traffic.b_direct if mode == BMode.DIRECT else 0
    if mode == BMode.PACKED:
        return touch  # packing has brought it near
    if size > machine.l3_bytes // 2:
        return touch + traffic.b_memory
    if size > machine.l2_bytes // 2:
        return touch + traffic.b_l3
    return touch


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


def shared_out(choice: Choice, product: Product, machine: Machine, table: CostTable) -> Plan:
    """The plan over the machine's cores, when the work is worth more than the launch.

    Whole batch entries are shared out first; within one, the longer of groups and row tiles.
    """
    plan = choice.plan
    cores = min(machine.cores, 63)
    if cores == 1 or choice.picoseconds * product.batch < 2 * table.traffic.launch:
        return plan
    splits = ceil_div(cores, product.batch)
    groups = (product.n // machine.lanes - plan.tail_nv) // plan.nv
    tiles = ceil_div(product.m, plan.mr)
    # the largest part of each split, relative to an even one
    uneven_n = ceil_div(max(groups, 1), splits) * tiles
    uneven_m = ceil_div(tiles, splits) * max(groups, 1)
    by_rows = uneven_m < uneven_n
    return Plan(
        plan.nv,
        plan.mr,
        plan.tail_nv,
        plan.tail_mr,
        plan.pack_a,
        plan.b_mode,
        plan.kc,
        plan.mc,
        plan.nc,
        splits if by_rows else 1,
        1 if by_rows else splits,
        min(cores, splits * product.batch),
    )
