"""One run of the bench: everything put together."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

import tvm_moonpoly as mp
from bench import measure
from bench.gemm.peak import peak_runner
from bench.gemm.session import progress_bar
from bench.planner import calls, metrics
from bench.planner.decision import decision_cost
from bench.planner.judge import Effort, Row, field_of, judged
from bench.planner.shapes import Shape
from bench.planner.variants import Variant, variants
from tvm_moonpoly import operators
from tvm_moonpoly.logs import TuningLog
from tvm_moonpoly.machine import Machine


def run_bench(shapes: Sequence[Shape], effort: Effort, seed: int, console: Console) -> Row:
    """Judge the planners on ``shapes``; returns the document that is written to JSON.

    Raises RuntimeError on a machine without micro-kernels.
    """
    start = time.monotonic()
    target = mp.detect_target(cores=1)
    unsupported = operators.supported(target)
    if unsupported is not None:
        raise RuntimeError(f"tvm_moonpoly has no micro-kernels for this machine: {unsupported}")
    machine, log, table = operators.described(target)
    table = table.for_cores(machine.cores)
    with console.status("compiling the operator library"):
        module = operators.library(target).module
        peak, peak_flops = peak_runner(target, machine.lanes)
    prepared = time.monotonic() - start
    planners = variants(machine, table)
    rows = []
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(shapes))
        for at, shape in enumerate(shapes):
            size = f"{shape.name} {shape.m}x{shape.n}x{shape.k} {shape.kind}"
            progress.update(task, completed=at, description=size)
            probe = Probe(peak)
            begin = time.monotonic()
            field = field_of(shape.product, machine, table, planners)
            row = judged(
                field, planners, watch_of(field.plans, shape, module, machine),
                effort, seed + at, probe,
            )  # fmt: skip
            rows.append(described(shape) | row | probe.figures(peak_flops))
            rows[-1]["seconds"] = round(time.monotonic() - begin, 2)
    with console.status("the cost of a decision"):
        decision = decision_cost(machine, table, target, shapes, seed)
    return {
        "machine": measure.machine_facts(),
        "target": str(target),
        "planned_for": machine_json(machine),
        "log": log_json(log),
        "seed": seed,
        "operand_sets": calls.SETS,
        "about": {planner.name: planner.about for planner in planners},
        "summary": summarised(rows, planners),
        "decision": decision,
        "shapes": rows,
        "seconds_to_prepare": round(prepared, 1),
        "seconds": round(time.monotonic() - start, 1),
    }


def watch_of(plans: Sequence[Any], shape: Shape, module: Any, machine: Machine) -> calls.Watch:
    """What times the plans of ``shape``, on operands made now."""
    product = shape.product
    sets = [calls.make_operands(product, machine.lanes) for _ in range(calls.SETS)]
    runs = [[calls.call(module, operands, plan) for plan in plans] for operands in sets]
    return calls.Watch(runs, calls.empty_call(module, product, machine.lanes))


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


def kinds(rows: Sequence[Row]) -> list[str]:
    """How B is stored, of the kinds that occur."""
    return list(dict.fromkeys(row["kind"] for row in rows))
