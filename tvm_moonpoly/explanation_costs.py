"""What the cost of a plan is made of: micro-kernels, reading operands again, packing, loops."""

from __future__ import annotations

from collections import Counter

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.costmodel.tasks import Level, Residency
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.counts import Task, counts, price
from tvm_moonpoly.planner.plan import BMode, Plan

#: Of a task: what it takes on operands in the first-level cache, and what more where they are not.
KERNELS, READING_A, READING_B = "micro-kernels", "reading A again", "reading B"

#: What is done around the tasks, by the entries of the cost table.
PARTS = {
    "b_direct": "reading B",
    "c_block": "adding blocks of k",
    "pack_a": "packing A",
    "pack_rows": "packing B",
    "pack_columns": "packing B",
    "edge_row": "the partial panel",
    "tile": "loops",
    "group": "loops",
    "axpy_start": "streaming B",
    "axpy_step": "streaming B",
    "axpy_rest": "streaming B",
    "dot_start": "streaming B",
    "dot_step": "streaming B",
    "dot_rest": "streaming B",
    "a_memory": READING_A,
}


def parts(
    product: spec.Product, choice: spec.Choice, machine: Machine, table: CostTable
) -> Counter[str]:
    """Picoseconds of ``choice`` by what they are spent on."""
    spent: Counter[str] = Counter()
    for entry, count in counts(product, choice.plan, machine, table).items():
        if isinstance(entry, Task):
            for part, picoseconds in _task_parts(entry, table).items():
                spent[part] += count * picoseconds
        else:
            spent[_part_of(entry, choice.plan)] += count * price(entry, table)
    return +spent


def _part_of(entry: str, plan: Plan) -> str:
    """What an entry of the traffic is, in words; crowded rows that are read in place are charged as
    if they were packed."""
    return READING_B if plan.b_mode == BMode.DIRECT and entry == "pack_rows" else PARTS[entry]


def _task_parts(task: Task, table: CostTable) -> dict[str, int]:
    cost = table.task(task.mr, task.nv, task.form)
    near, with_a = (
        cost.at(Residency(a, Level.L1), task.depth) for a in (Level.L1, task.residency.a)
    )
    all_of_it = price(task, table)
    reading_a, reading_b = max(with_a - near, 0), max(all_of_it - with_a, 0)
    return {
        KERNELS: all_of_it - reading_a - reading_b,
        READING_A: reading_a,
        READING_B: reading_b,
    }
