"""One run of the bench: everything put together."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

import tvm_moonpoly as mp
from bench import measure
from bench.console import progress_bar
from bench.gemm.peak import peak_runner
from bench.planner import calls, metrics
from bench.planner.decision import decision_cost
from bench.planner.judge import Effort, Row, field_of, judged
from bench.planner.sensitivity import mistaken
from bench.planner.shapes import Shape
from bench.planner.threads import one_core_plans, sharings, worth_sharing
from bench.planner.variants import LEARNED, Variant, variants
from tvm_moonpoly import operators
from tvm_moonpoly.logs import TuningLog
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.planner.plan import Plan


def run_bench(
    shapes: Sequence[Shape], effort: Effort, seed: int, console: Console, threads: int = 1
) -> Row:
    """Judge the planners on ``shapes``, for so many threads; returns the document that is written
    to JSON.

    Raises RuntimeError on a machine without micro-kernels.
    """
    start = time.monotonic()
    target = mp.detect_target(cores=threads)
    unsupported = operators.supported(target)
    if unsupported is not None:
        raise RuntimeError(f"tvm_moonpoly has no micro-kernels for this machine: {unsupported}")
    machine, log, costs = operators.described(target)
    table = costs.for_cores(machine.cores)
    with console.status("compiling the operator library"):
        module = operators.library(target).module
        peak, peak_flops = peak_runner(mp.detect_target(cores=1), machine.lanes)
    prepared = time.monotonic() - start
    compared, misled = variants(machine, table), mistaken(machine, costs)
    planners = [*compared, *misled]
    rows = []
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(shapes))
        for at, shape in enumerate(shapes):
            size = f"{shape.name} {shape.m}x{shape.n}x{shape.k} {shape.kind}"
            progress.update(task, completed=at, description=size)
            probe = Probe(peak)
            begin = time.monotonic()
            lab = Lab(shape, module, machine)
            plans = one_core_plans(shape.product, machine, table, planners)
            if threads > 1:
                best = worth_sharing(plans, lab.watch(plans, time.thread_time))
                plans = [each for plan in best for each in sharings(plan, shape.product, machine)]
            field = field_of(shape.product, machine, plans, planners)
            clock = time.thread_time if threads == 1 else time.perf_counter
            row = judged(
                field, planners, lab.watch(field.plans, clock), effort, seed + at, probe
            )  # fmt: skip
            rows.append(described(shape) | row | probe.figures(peak_flops))
            rows[-1]["seconds"] = round(time.monotonic() - begin, 2)
    document = {
        "machine": measure.machine_facts(),
        "target": str(target),
        "threads": threads,
        "planned_for": machine_json(machine),
        "log": log_json(log),
        "seed": seed,
        "operand_sets": calls.SETS,
        "about": {planner.name: planner.about for planner in compared},
        "mistakes": {planner.name: planner.about for planner in misled},
        "summary": summarised(rows, compared),
        "sensitivity": {planner.name: sensitivity(rows, planner.name) for planner in misled},
        "shapes": rows,
        "seconds_to_prepare": round(prepared, 1),
    }
    if threads == 1:
        with console.status("the cost of a decision"):
            document["decision"] = decision_cost(machine, table, target, shapes, seed)
    return document | {"seconds": round(time.monotonic() - start, 1)}


class Lab:
    """Operands of one shape, made now, and what times plans on them."""

    def __init__(self, shape: Shape, module: Any, machine: Machine) -> None:
        self._module, product = module, shape.product
        self._sets = [calls.make_operands(product, machine.lanes) for _ in range(calls.SETS)]
        self._overhead = calls.empty_call(module, product, machine.lanes)

    def watch(self, plans: Sequence[Plan], clock: Callable[[], float]) -> calls.Watch:
        """What times ``plans`` by ``clock``."""
        runs = [[calls.call(self._module, each, plan) for plan in plans] for each in self._sets]
        return calls.Watch(runs, self._overhead, clock)


class Probe:
    """A chain of multiply-adds that tells how fast the machine is, called between the rounds."""

    def __init__(self, peak: calls.Run) -> None:
        self._peak = peak
        self._seconds: list[float] = []

    def __call__(self) -> None:
        self._seconds.append(measure.sample(self._peak, 1, 0, time.thread_time)[0])

    def figures(self, flops: int) -> Row:
        """The peak in GFLOP/s, and how far its quartiles are apart, relative to the median."""
        low, middle, high = statistics.quantiles(self._seconds, n=4)
        return {"peak_gflops": flops / middle / 1e9, "drift": (high - low) / middle}


def described(shape: Shape) -> Row:
    """The shape as plain data."""
    return {
        "name": shape.name,
        "kind": shape.kind,
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "batch": shape.batch,
    }


def machine_json(machine: Machine) -> Row:
    """What the planner is told of the machine."""
    names = ("mcpu", "isa", "lanes", "cores", "l1_bytes", "l2_bytes", "l3_bytes")
    return {name: getattr(machine, name) for name in names}


def log_json(log: TuningLog) -> Row:
    """Which log the costs are from: its header, and a digest of all its entries."""
    text = json.dumps([dict(entry) for entry in log.entries], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {"origin": log.origin, "header": dict(log.header), "digest": digest}


def summarised(rows: Sequence[Row], planners: Sequence[Variant]) -> Row:
    """`metrics.summary` of each planner, over all shapes and by groups of them."""
    groups = {
        "all": list(rows),
        "listed": [row for row in rows if row["name"] != "random"],
        "random": [row for row in rows if row["name"] == "random"],
        "at most 16 rows": [row for row in rows if row["m"] <= 16],
        **{kind: [row for row in rows if row["kind"] == kind] for kind in kinds(rows)},
    }
    return {
        name: {
            planner.name: metrics.summary([row["planners"][planner.name] for row in members])
            for planner in planners
        }
        for name, members in groups.items()
        if members
    }


def sensitivity(rows: Sequence[Row], name: str) -> Row:
    """`metrics.summary` of the planner that was told something wrong; for which share of the shapes
    it ``differs`` from the one that knows, and how much it loses ``more`` on average."""
    pairs = [(row["planners"][LEARNED], row["planners"][name]) for row in rows]
    found = metrics.summary([told for _, told in pairs])
    return found | {
        "differs": sum(told["plan"] != own["plan"] for own, told in pairs) / len(pairs),
        "more": sum(told["loss"] - own["loss"] for own, told in pairs) / len(pairs),
    }


def kinds(rows: Sequence[Row]) -> list[str]:
    """How B is stored, of the kinds that occur."""
    return list(dict.fromkeys(row["kind"] for row in rows))
