"""What a plan does, as counts of the cost table's entries.

The predicted cost of a plan is the dot product of these counts and the table. Fitting a table to
measured plans needs the counts; the planner sums the same terms without forming them.
"""

from __future__ import annotations

from collections import Counter

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.spec import Product, balanced, ceil_div

#: ("start" | "step", rows, vectors, packed_a) for a task, or (field of Traffic,).
Entry = tuple[object, ...]


def counts(product: Product, plan: Plan, machine: Machine) -> Counter[Entry]:
    """How often each entry of the cost table enters the cost of ``plan``, for one batch entry.

    Raises ValueError when the last panel is partial: the planner charges it by an estimate.
    """
    if product.n % machine.lanes and plan.b_mode != BMode.STREAM:
        raise ValueError(f"product: n = {product.n} must be whole panels of {machine.lanes} lanes")
    m, n, k, lanes = product.m, product.n, product.k, machine.lanes
    if plan.b_mode == BMode.STREAM:
        if product.b_mode == BMode.DIRECT:
            return Counter({("axpy_start",): m, ("axpy_step",): m * k * ceil_div(n, lanes)})
        return Counter({("dot_start",): m * n, ("dot_step",): m * n * ceil_div(k, lanes)})
    panels = n // lanes
    k_blocks = max(ceil_div(k, plan.kc), 1) if plan.kc else 1
    depth = ceil_div(k, k_blocks)
    m_blocks = ceil_div(m, plan.mc) if plan.mc else 1
    rows = ceil_div(m, m_blocks)
    blocks = k_blocks * m_blocks
    total: Counter[Entry] = Counter()

    def group(nv: int, mr: int, packed: bool, times: int) -> None:
        """``times`` groups of ``nv`` panels over all rows and the whole reduction."""
        small, large, tiles = balanced(rows, mr)
        for height, number in ((small, tiles - large), (small + 1, large)):
            if number:
                total["start", height, nv, packed] += times * blocks * number
                total["step", height, nv, packed] += times * blocks * number * depth
        once = times * nv * k * (m_blocks if n * depth * 4 > machine.l2_bytes // 2 else 1)
        if plan.b_mode == BMode.DIRECT:
            total["b_direct",] += once
        if plan.b_mode != BMode.PACKED:
            if n * k * 4 > machine.l3_bytes // 2:
                total["b_memory",] += once
            elif n * k * 4 > machine.l2_bytes // 2:
                total["b_l3",] += once
        # packed A streams at full speed from wherever it lies
        if not packed and rows * depth * 4 > machine.l2_bytes // 2:
            total["a_l3",] += times * m * k
        elif not packed and rows * depth * 4 > machine.l1_bytes // 2:
            total["a_l2",] += times * m * k
        if nv * lanes * depth * 4 > machine.l1_bytes // 2:
            total["b_l2",] += times * nv * depth * tiles * blocks

    main = (panels - plan.tail_nv) // plan.nv
    group(plan.nv, plan.mr, plan.pack_a, main)
    if plan.tail_nv:
        group(plan.tail_nv, plan.tail_mr, False, 1)
    total["c_block",] += panels * m * (k_blocks - 1)
    if plan.pack_a:
        total["pack_a",] += m * k * (ceil_div(main, plan.nc) if plan.nc else 1)
    if plan.b_mode == BMode.PACKED:
        packing = "pack_rows" if product.b_mode == BMode.DIRECT else "pack_columns"
        total[packing,] += k * ceil_div(n, lanes)
    return total
