"""What a decision costs: the native planner, for shapes that it has not seen before."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from bench.instruction_calls import Job
from bench.instructions import measure
from bench.planner.shapes import KINDS, Shape, random_shapes, spread
from tvm_moonpoly import native
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.emit import INT, Functions, loop
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner import native as native_planner
from tvm_moonpoly.planner.plan import BMode

#: Nanoseconds that a decision may take.
LIMIT = 1000

#: Random shapes that are planned for, one after the other, and how often all of them.
SHAPES, ROUNDS = 2000, 21

#: Shapes whose instructions are counted: valgrind is slow.
COUNTED = 24

#: What a shape is called in `bench.instructions`.
_JOBS = {BMode.PREPACKED: "linear", BMode.DIRECT: "values", BMode.PACKED: "scores"}

#: Plans the first shape, the second, ...: (shapes, plans) as int64 tensors.
PlanMany = Callable[[Any, Any], object]


def decision_cost(
    machine: Machine, table: CostTable, target: Target, shapes: Sequence[Shape], seed: int
) -> dict[str, Any]:
    """Nanoseconds of one decision by how B is stored, over random shapes; and the instructions of
    one over ``shapes``."""
    plan_many = native_planner_of(machine, table, target)
    drawn = random_shapes(SHAPES, seed)
    groups = {"all": drawn} | {
        kind: [shape for shape in drawn if shape.b_mode == mode]
        for mode, (kind, _) in KINDS.items()
    }
    found: dict[str, Any] = {
        "limit_ns": LIMIT,
        "shapes": SHAPES,
        "ns": {name: nanoseconds(plan_many, members) for name, members in groups.items()},
    }
    try:
        found["instructions"] = spread_of(instructions(shapes))
    except RuntimeError as reason:
        found["no_instructions"] = str(reason)
    return found


def native_planner_of(machine: Machine, table: CostTable, target: Target) -> PlanMany:
    """The native planner, compiled as in the operator library, called for shape after shape."""
    defined = Functions()
    native_planner.emit(defined, machine, table)

    @defined.public("moonpoly_bench_plans", shapes="handle", out="handle")
    def _(shapes: Any, out: Any) -> None:
        given, plans = Tensor(shapes, "shapes", INT), Tensor(out, "out", INT)
        with loop(given.shape[0]) as i:
            sizes = [given.data[i * 5 + j] for j in range(5)]
            defined["moonpoly_plan"](*sizes, plans.data.at(i))

    return native.build(defined.module(), target, defined.marks)["moonpoly_bench_plans"]


def nanoseconds(plan_many: PlanMany, shapes: Sequence[Shape]) -> float:
    """Of one decision, on average over ``shapes``; the median of several times.

    Each shape is another than the one before, so that the branch predictor has little to go by.
    """
    sizes = [(each.m, each.n, each.k, each.batch, each.product.stored) for each in shapes]
    given = tvm.runtime.tensor(np.array(sizes, np.int64))
    out = tvm.runtime.tensor(np.zeros(len(sizes), np.int64))
    times = []
    for _ in range(ROUNDS):
        start = time.thread_time_ns()
        plan_many(given, out)
        times.append((time.thread_time_ns() - start) / len(sizes))
    return statistics.median(times)


def instructions(shapes: Sequence[Shape]) -> list[float]:
    """Of one decision, for up to `COUNTED` of ``shapes``, by valgrind.

    Raises RuntimeError where that cannot be had.
    """
    some = spread(shapes, min(COUNTED, len(shapes)))
    jobs = [Job(_JOBS[each.b_mode], each.m, each.n, each.k, each.batch) for each in some]
    counts, _ = measure(list(dict.fromkeys(jobs)))
    return [count.planner for count in counts]


def spread_of(values: Sequence[float]) -> dict[str, float]:
    """The median and the extremes."""
    return {
        "shapes": len(values),
        "median": float(np.median(values)),
        "least": float(min(values)),
        "most": float(max(values)),
    }
