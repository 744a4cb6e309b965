"""Measure random plans on this machine and fit the cost table to them.

``python -m tvm_moonpoly.tuning.calibrate OUT`` writes the tuning log ``OUT``. The table is the
non-negative least-squares fit of relative errors, so that small and large products weigh alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.console import Console
from rich.progress import track

from tvm_moonpoly import logs, native
from tvm_moonpoly.costmodel.tables import BLOCKINGS, CostTable, TaskCost, Traffic
from tvm_moonpoly.machine import Machine, detect_target
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.operators import encode_axes
from tvm_moonpoly.operators.linear import LINEAR
from tvm_moonpoly.operators.matmul import MATMUL_PLANNED
from tvm_moonpoly.operators.operator_library import functions
from tvm_moonpoly.planner.counts import Entry, counts
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.spec import Product, applies, column_blocks
from tvm_moonpoly.tuning import stage, steps
from tvm_moonpoly.tuning.journal import Journal

#: Largest product that is measured, in multiply-adds.
_LARGEST = 1 << 28

#: Largest weight that is measured, in elements: beyond the third-level cache.
_LARGEST_WEIGHT = 1 << 24


@dataclass(frozen=True)
class Sample:
    """A plan for a product, and how long it took: picoseconds on one core."""

    product: Product
    plan: Plan
    picoseconds: float


def placeholder(machine: Machine, best: Iterable[Record] = ()) -> CostTable:
    """A table for a library that is only ever given its plans.

    ``best`` are records of which each takes the place of the default one of its form.
    """
    chosen = {replace(record, decisions={}): record for record in best}
    records = [chosen.get(form, form) for form in cpu_gemm.family(machine)]
    tasks = {r: TaskCost(1000, 10 * r.mr * r.nv) for r in records}
    return CostTable(tasks, Traffic(*(1 for _ in fields(Traffic))))


def random_plans(machine: Machine, table: CostTable, seed: int) -> Iterator[tuple[Product, Plan]]:
    """Products and plans for them, small and large alike, without end."""
    rng = np.random.default_rng(seed)

    def size(low: int, high: int) -> int:
        return int(round(np.exp(rng.uniform(np.log(low), np.log(high)))))

    while True:
        m, k = size(1, 1024), size(16, 6144)
        n = max(size(64, 6144) // machine.lanes, 1) * machine.lanes
        if m * n * k > _LARGEST or n * k > _LARGEST_WEIGHT:
            continue
        stored, mode = _PLACES[int(rng.choice(len(_PLACES), p=_SHARES))]
        product = Product(m, n, k, b_mode=stored)
        if mode == BMode.STREAM:
            # a path for few rows
            if m <= 8:
                yield product, Plan(1, 1, 0, 0, False, mode)
            continue
        packable = mode != BMode.DIRECT
        blocks = [b for b in BLOCKINGS if applies(b, product) and (packable or not b.pack_a)]
        choice = blocks[rng.integers(len(blocks))]
        nv = int(rng.choice(table.widths(choice.pack_a)))
        # low tiles of many rows are never chosen and would only take time
        heights = table.heights(nv, choice.pack_a)
        mr = int(rng.choice(heights[len(heights) // 2 :])) if m > 16 else int(rng.choice(heights))
        tail = n // machine.lanes % nv
        tail_mr = min(max(table.heights(tail, False)), m) if tail else 0
        k_blocks = max(-(-k // choice.kc), 1) if choice.kc else 1
        nc, _ = column_blocks(mode, n // machine.lanes // nv, nv, -(-k // k_blocks), machine)
        yield (
            product,
            Plan(nv, mr, tail, tail_mr, choice.pack_a, mode, choice.kc, choice.mc, nc),
        )


#: How B is stored, and how a plan reads it; and how often each is measured.
_PLACES = (
    (BMode.PREPACKED, BMode.PREPACKED),
    (BMode.DIRECT, BMode.DIRECT),
    (BMode.DIRECT, BMode.PACKED),
    (BMode.PACKED, BMode.PACKED),
    (BMode.PACKED, BMode.STREAM),
    (BMode.DIRECT, BMode.STREAM),
)
_SHARES = (0.62, 0.08, 0.07, 0.07, 0.08, 0.08)


def measure(
    module: Any,
    product: Product,
    plan: Plan,
    lanes: int,
    timed: Callable[[Callable[[], object]], float] | None = None,
) -> float:
    """Picoseconds of ``plan``: the least of several runs, or as ``timed`` takes them."""
    timed = timed or shortest
    m, n, k = product.m, product.n, product.k
    panels = -(-n // lanes)
    # the values do not matter, only that they are normal numbers
    x = tvm.runtime.tensor(np.full((m, k), 0.5, np.float32))
    out = tvm.runtime.tensor(np.empty((m, n), np.float32))
    if product.b_mode != BMode.PREPACKED:
        by_rows = product.b_mode == BMode.DIRECT
        b = tvm.runtime.tensor(np.full((k, n) if by_rows else (n, k), 0.5, np.float32))
        as_is, b_axes = encode_axes((0, 1)), encode_axes((0, 1) if by_rows else (1, 0))
        matmul, word = module[MATMUL_PLANNED], plan.encode()
        return timed(lambda: matmul(x, b, as_is, b_axes, as_is, None, word, out))
    packed = tvm.runtime.tensor(np.full((panels, k, lanes), 0.5, np.float32))
    bias = tvm.runtime.tensor(np.zeros(panels * lanes, np.float32))
    table = tvm.runtime.tensor(np.full(m + 1, plan.encode(), np.int64))
    linear = module[LINEAR]
    return timed(lambda: linear(x, packed, bias, table, None, 0, out))


def after_a_pause(call: Callable[[], object], rounds: int = 200) -> float:
    """Picoseconds of one call by the wall clock, other work in between: the median.

    A thread pool answers faster when it is called again at once than it does in a model.
    """
    call()
    times = []
    for _ in range(rounds):
        time.sleep(0.0002)
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e12


def shortest(
    call: Callable[[], object],
    seconds: float = 0.003,
    rounds: int = 4,
) -> float:
    """Picoseconds of one call in this thread: the least over ``rounds`` of ``seconds`` each."""
    clock = time.thread_time
    call()
    start = clock()
    call()
    once = max(clock() - start, 1e-7)
    repeat = max(1, int(seconds / once))
    best = float("inf")
    for _ in range(rounds):
        start = clock()
        for _ in range(repeat):
            call()
        best = min(best, (clock() - start) / repeat)
    return best * 1e12


def shared(counted: Counter[Entry]) -> Counter[Entry]:
    """Kernels on packed A count as those on plain A: what differs is traffic, not the tile."""
    merged: Counter[Entry] = Counter()
    for entry, count in counted.items():
        merged[(*entry[:3], False) if len(entry) == 4 else entry] += count
    return merged


def call_overhead(module: Any, lanes: int) -> float:
    """Picoseconds of an empty call from Python, which samples hold besides the product."""
    x = tvm.runtime.tensor(np.zeros((0, 8), np.float32))
    packed = tvm.runtime.tensor(np.zeros((1, 8, lanes), np.float32))
    bias = tvm.runtime.tensor(np.zeros(lanes, np.float32))
    table = tvm.runtime.tensor(np.zeros(2, np.int64))
    out = tvm.runtime.tensor(np.zeros((0, lanes), np.float32))
    linear = module[LINEAR]
    return shortest(lambda: linear(x, packed, bias, table, None, 0, out))


def fit(samples: list[Sample], overhead: float, machine: Machine) -> dict[Entry, float]:
    """Picoseconds of each entry of the cost table that the samples hold."""
    from scipy.optimize import nnls

    rows = [shared(counts(s.product, s.plan, machine)) for s in samples]
    entries = sorted({entry for row in rows for entry in row}, key=str)
    column = {entry: j for j, entry in enumerate(entries)}
    matrix = np.zeros((len(rows), len(entries)))
    for i, (row, sample) in enumerate(zip(rows, samples, strict=True)):
        for entry, count in row.items():
            matrix[i, column[entry]] = count / max(sample.picoseconds - overhead, 1.0)
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    solution, _ = nnls(matrix / scale, np.ones(len(rows)))
    return dict(zip(entries, solution / scale, strict=True))


def predicted(
    sample: Sample, fitted: dict[Entry, float], overhead: float, machine: Machine
) -> float:
    """Picoseconds of the sample's plan by the fitted entries."""
    counted = shared(counts(sample.product, sample.plan, machine))
    return overhead + sum(count * fitted.get(entry, 0.0) for entry, count in counted.items())


def around(module: Any, machine: Machine, fitted: dict[Entry, float]) -> dict[str, int]:
    """Picoseconds of what the samples do not hold: the partial panel, and a parallel launch."""
    lanes, k, m = machine.lanes, 256, 16
    n = 32 * lanes

    def linear(width: int) -> float:
        plan = Plan(2, 4, 0, 0, False, BMode.PREPACKED)
        return measure(module, Product(m, width, k), plan, lanes)

    def tiny(workers: int) -> float:
        plan = Plan(1, 1, 0, 0, False, BMode.PREPACKED, splits_n=workers, workers=workers)
        return measure(module, Product(1, 2 * lanes, 1), plan, lanes, timed=after_a_pause)

    edge = (linear(n + 3) - linear(n)) / m
    panel = fitted["start", 8, 1, False] + fitted["step", 8, 1, False] * k
    return {
        "edge_row": max(round(edge - panel / 8), 1),
        "launch": max(round(tiny(workers=2) - tiny(workers=1)), 1),
    }


def to_table(
    fitted: dict[Entry, float], placeholder_table: CostTable, extra: dict[str, int]
) -> CostTable:
    """The fitted entries as a table."""
    tasks = {}
    for record in placeholder_table.tasks:
        start, step = (fitted[name, record.mr, record.nv, False] for name in ("start", "step"))
        tasks[record] = TaskCost(max(round(start), 1), max(round(step), 1))
    values = {f.name: round(fitted.get((f.name,), 0.0)) for f in fields(Traffic)}
    return CostTable(tasks, Traffic(**{**values, **extra}))


def searched(machine: Machine, journal: Path) -> list[Record]:
    """The best record of each form that the stage with this journal has searched.

    Raises OSError when there is no such file, ValueError when it is of another machine.
    """
    stored = Journal(journal, stage.origin(machine), read_only=True)
    return [tile.best.record for tile in steps.read(stored).tiles if tile.best.error is None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the tuning log to write")
    parser.add_argument("--samples", type=int, default=1500, help="plans to measure")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--records", type=Path, help="journal of the tuning stage: its best records are used"
    )
    arguments = parser.parse_args()
    console = Console()
    if importlib.util.find_spec("scipy") is None:
        parser.error("scipy is missing: pip install '.[tune]' brings it")
    target = detect_target()
    machine = Machine.from_target(target)
    best = searched(machine, arguments.records) if arguments.records else []
    table = placeholder(machine, best)
    console.print(f"compiling {len(table.tasks)} micro-kernels for {machine.mcpu}")
    defined = functions(machine, table)
    module = native.build(defined.module(), target, defined.marks)
    plans = random_plans(machine, table, arguments.seed)
    samples = []
    for _ in track(range(arguments.samples), "measuring", console=console):
        product, plan = next(plans)
        samples.append(Sample(product, plan, measure(module, product, plan, machine.lanes)))
    held_out = samples[::10]
    kept = [s for i, s in enumerate(samples) if i % 10]
    overhead = call_overhead(module, machine.lanes)
    fitted = fit(kept, overhead, machine)
    errors = [
        abs(predicted(s, fitted, overhead, machine) - s.picoseconds) / s.picoseconds
        for s in held_out
    ]
    console.print(
        f"held-out error: median {np.median(errors):.1%}, 90th percentile "
        f"{np.quantile(errors, 0.9):.1%} over {len(errors)} plans"
    )
    result = to_table(fitted, table, around(module, machine, fitted))
    for record, cost in result.tasks.items():
        flops = 2 * record.mr * record.nv * machine.lanes
        console.print(
            f"{record.name:28} start {cost.start:6} step {cost.step:5} ps, "
            f"{flops / cost.step * 1e3:5.1f} GFLOP/s"
        )
    console.print(result.traffic)
    logs.write(arguments.out, machine, result.to_entries())


if __name__ == "__main__":
    main()
