"""All plans that the operator library can run for a product, for one core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tvm_moonpoly.costmodel.tables import BLOCKINGS, BlockSizes, CostTable
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.groups import blocks_of, main_form, sources, tail_form, tallest
from tvm_moonpoly.planner.plan import READINGS, BMode, Plan
from tvm_moonpoly.planner.spec import Product, applies, ceil_div

#: B as it lies, without micro-kernels.
STREAMED = Plan(1, 1, 0, 0, False, BMode.STREAM)


def every_plan(product: Product, machine: Machine, table: CostTable) -> list[Plan]:
    """Every blocking, reading of B, width, height, and tail.

    Of heights that cut the rows into equally many tiles only the lowest is there: balanced tiles
    are the same. A tail is narrow or joined with the last group, at the height that ``table`` says
    is cheapest and at the tallest. Micro-kernels are those of ``table``.
    """
    plans: list[Plan] = []
    for mode in READINGS[product.b_mode]:
        if mode == BMode.STREAM:
            plans.append(STREAMED)
            continue
        for sizes in BLOCKINGS:
            # A is packed only where B is packed as well
            if applies(sizes, product) and not (sizes.pack_a and mode == BMode.DIRECT):
                plans += _with_blocks(product, mode, sizes, machine, table)
    return plans


def same_work(plan: Plan, product: Product, machine: Machine) -> Plan:
    """The plan of `every_plan` that does the same, tile by tile, as ``plan``.

    Its heights are the lowest that cut the rows alike, and a tail without a main region beside it
    is the main region. Where several workers share a plan, their parts depend on these: it is
    returned as it is.
    """
    if plan.workers > 1:
        return plan
    if plan.b_mode == BMode.STREAM:
        return STREAMED
    rows = blocks_of(product, plan.kc, plan.mc).rows
    tail_mr = lowest(rows, plan.tail_mr) if plan.tail_nv else 0
    if plan.tail_nv == product.n // machine.lanes and tail_mr and not plan.pack_a:
        return replace(plan, nv=plan.tail_nv, mr=tail_mr, tail_nv=0, tail_mr=0)
    return replace(plan, mr=lowest(rows, plan.mr), tail_mr=tail_mr)


def _with_blocks(
    product: Product, mode: BMode, sizes: BlockSizes, machine: Machine, table: CostTable
) -> Iterator[Plan]:
    blocks = blocks_of(product, sizes.kc, sizes.mc)
    found = sources(product, mode, blocks, machine)
    panels = product.n // machine.lanes
    main, tails = main_form(sizes.pack_a, mode), tail_form(mode)

    def heights(tail: int) -> list[int]:
        _, cheapest = tallest(tail, tails, blocks, found, machine, table)
        highest = table.heights(tail, tails)[-1]
        return distinct(blocks.rows, (cheapest, highest))

    for nv in table.widths(main):
        if nv > panels:
            break
        narrow = panels % nv
        widths = [narrow]
        # without a group of the main region it would be the plan of another width
        if narrow and panels > narrow + nv and narrow + nv in table.widths(tails):
            widths.append(narrow + nv)
        for mr in distinct(blocks.rows, table.heights(nv, main)):
            for tail in widths:
                groups = (panels - tail) // nv
                nc, _ = spec.column_blocks(mode, groups, nv, blocks.depth, machine)
                for tail_mr in heights(tail) if tail else [0]:
                    yield Plan(
                        nv, mr, tail, tail_mr, sizes.pack_a, mode, sizes.kc, sizes.mc, nc
                    )  # fmt: skip


def distinct(rows: int, heights: Iterable[int]) -> list[int]:
    """Of ``heights`` those that cut ``rows`` differently: the lowest that cuts like each."""
    return sorted({lowest(rows, height) for height in heights})


def lowest(rows: int, height: int) -> int:
    """The least height that cuts ``rows`` into as many tiles as ``height`` does."""
    return ceil_div(rows, ceil_div(rows, height))
