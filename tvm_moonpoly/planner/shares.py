"""How a plan for one core is cut into chunks for several: by rows, by columns, and how many.

Its twin in native code is `native_shares`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.planner.groups import Product, ceil_div, packing
from tvm_moonpoly.planner.plan import BMode, Plan, largest

#: Chunks for each worker that are weighed. With more than one, others take over from a worker that
#: is held up; odd numbers serve where the entries of a batch do not divide evenly.
CHUNKS = (1, 2, 3, 5, 8)

#: A chunk takes this part of a launch more than its share of the work.
CHUNK_PART = 16

#: Picoseconds a row of a chunk that others continue to its right: both write a cache line of C
#: there, which moves between their cores. Fitted on 115 products with all their cuts.
SHARED_LINE = 2000

#: The part of a chunk that all wait for the last one, on a machine that does other things too.
LATE_PART = 8

#: Chunks of rows read B anew, mostly while they compute: they are to be cheaper by this part.
ROWS_PART = 16

#: Chunks of rows, or of columns, that a plan can name.
MOST = min(largest("splits_m"), largest("splits_n"))


class Cut(NamedTuple):
    """How each batch entry is cut, and the picoseconds that all chunks take the workers."""

    splits_m: int
    splits_n: int
    picoseconds: int


def most_workers(machine: Machine) -> int:
    """The most workers of a plan."""
    return min(machine.cores, largest("workers"))


def shared_out(
    plan: Plan, picoseconds: int, product: Product, machine: Machine, table: CostTable
) -> Plan:
    """``plan``, which takes one core ``picoseconds`` for a batch entry, over the machine's cores.

    As it is where the work is not worth a launch.
    """
    workers, serial = most_workers(machine), picoseconds * product.batch
    if workers == 1 or serial < 2 * table.traffic.launch:
        return plan
    best = cheapest_cut(plan, picoseconds, product, machine, table)
    if best.picoseconds + table.traffic.launch >= serial:
        return plan
    return replace(
        plan,
        splits_m=best.splits_m,
        splits_n=best.splits_n,
        workers=min(workers, best.splits_m * best.splits_n * product.batch),
    )


def cheapest_cut(
    plan: Plan, picoseconds: int, product: Product, machine: Machine, table: CostTable
) -> Cut:
    """The cheapest way to cut ``plan`` into chunks for all cores, the first of equals.

    Whole batch entries are shared out first. Within one, chunks are whole row tiles and whole
    groups of columns. Each packs what it needs of A and of B.
    """
    traffic, workers = table.traffic, most_workers(machine)
    m, n, k, batch = product.m, product.n, product.k, product.batch
    tiles = ceil_div(m, plan.mr)
    groups = max((n // machine.lanes - plan.tail_nv) // plan.nv + (plan.tail_nv > 0), 1)
    pack_a = traffic.pack_a * m * k if plan.pack_a else 0
    pack_b = packing(product, machine, traffic) if plan.b_mode == BMode.PACKED else 0
    work = max(picoseconds - pack_a - pack_b, 0)
    tile = work // (tiles * groups)
    # narrow chunks of rows that are read as they lie leave the order of memory
    by_memory = plan.b_mode == BMode.STREAM and product.b_mode == BMode.DIRECT

    best = None
    for number in CHUNKS[:1] if by_memory else CHUNKS:
        wanted = ceil_div(workers * number, batch)
        for by_rows in (False, True):
            # where one side is too short for so many chunks, the other one is cut as well
            if by_rows:
                splits_m = min(wanted, tiles, MOST)
                splits_n = min(ceil_div(wanted, splits_m), groups, MOST)
            else:
                splits_n = min(wanted, groups, MOST)
                splits_m = min(ceil_div(wanted, splits_n), tiles, MOST)
            largest_part = ceil_div(tiles, splits_m) * ceil_div(groups, splits_n)
            more = pack_a // splits_m + pack_b // splits_n + traffic.launch // CHUNK_PART
            more += SHARED_LINE * m // splits_m if splits_n > 1 else 0
            usual = work // (splits_m * splits_n) + more
            largest_chunk = tile * largest_part + more
            turns = ceil_div(splits_m * splits_n * batch, workers)
            # whoever is done first takes the next one, so that the largest counts once
            price = (turns - 1) * usual + largest_chunk + largest_chunk // LATE_PART
            price += price // ROWS_PART if by_rows else 0
            if best is None or price < best.picoseconds:
                best = Cut(splits_m, splits_n, price)
    assert best is not None
    return best
