"""One run: the workers, the layers, the journal."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

import tvm_moonpoly as mp
from bench import measure
from bench.conv.layer import Layer
from bench.conv.peers import OURS, PEAK, processes
from bench.conv.summary import in_doubt, rows_of
from bench.gemm.environment import removed_variables
from bench.gemm.journal import Journal, Record
from bench.gemm.run import Effort
from bench.gemm.session import progress_bar, sources_digest
from bench.gemm.threads.crew import Crew, Library
from bench.gemm.threads.libraries import worker_environment
from bench.gemm.threads.rounds import measure_case
from tvm_moonpoly import operators
from tvm_moonpoly.operators.operator_library import cache_key

FIRST_SHARE = 0.75  # of the budget, for the first runs
CANDIDATES = 8


def header(effort: Effort, peers: Sequence[str], chosen: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for figures to be put together.

    Raises RuntimeError when this machine has no micro-kernels.
    """
    target = mp.detect_target(cores=1)
    unsupported = operators.supported(target)
    if unsupported is not None:
        raise RuntimeError(f"tvm_moonpoly has no micro-kernels for this machine: {unsupported}")
    facts = measure.machine_facts()
    del facts["blas"]
    machine, _, table = operators.described(target)
    settings = {"rounds": effort.rounds, "min_seconds": effort.min_seconds, "peers": list(peers)}
    return {
        "machine": facts,
        "versions": measure.installed_versions(),
        "library": cache_key(target, machine, table),
        "code": sources_digest(),
        "target": str(target),
        "settings": {**settings, "case_seconds": effort.case_seconds, **chosen},
    }


def run(
    layers: Sequence[Layer],
    peers: Collection[str],
    effort: Effort,
    threads: int,
    journal: Journal,
    console: Console,
    stop: float = math.inf,
) -> bool:
    """Fill ``journal`` with ``layers``, and with second runs of those that are in doubt.

    Runs that the journal has are not made again. No layer is begun that would take longer than
    ``stop`` seconds from now; returns whether all were measured. Raises RuntimeError when this
    machine cannot do that, or when ours fails.
    """
    if not sys.platform.startswith("linux"):
        raise RuntimeError("the bench works on Linux only: it stops other processes")
    if len(os.sched_getaffinity(0)) < threads:
        raise RuntimeError(f"{threads} threads need as many CPUs")
    start = time.monotonic()
    found = [
        Library(name, tuple(names), command=command(threads, names))
        for name, names in processes(peers).items()
    ]
    with contextlib.ExitStack() as stack:
        with console.status(f"starting the processes for {threads} threads"):
            crew = Crew(found, worker_environment(os.environ, threads), threads)
            stack.enter_context(crew)
        if OURS in crew.absent:
            raise RuntimeError(f"ours cannot start: {crew.absent[OURS]}")
        journal.note(threads, about(crew, threads))
        whole = True
        for earlier, share in enumerate((FIRST_SHARE, 1.0)):
            doubt = set(in_doubt(rows_of(journal, threads))) if earlier else None
            left = [
                layer
                for layer in layers
                if len(journal.runs(layer.key, threads)) == earlier
                and (doubt is None or layer.key in doubt)
            ]
            budget = share * effort.budget - (time.monotonic() - start)
            part = effort.again(budget) if earlier else replace(effort, budget=budget)
            end = start + share * stop
            whole &= measure_layers(crew, left, part, threads, journal, console, end)
    return whole


def command(threads: int, names: Sequence[str]) -> tuple[str, ...]:
    """What starts the worker of some candidates; ours also has the probe."""
    known = [*names, *([PEAK] if OURS in names else [])]
    return (sys.executable, "-m", "bench.conv.worker", str(threads), ",".join(known))


def measure_layers(
    crew: Crew,
    layers: Sequence[Layer],
    effort: Effort,
    threads: int,
    journal: Journal,
    console: Console,
    end: float,
) -> bool:
    """One more run of each of ``layers``, unless it would last beyond ``end`` of the clock."""
    work = [expected_seconds(layer, effort) for layer in layers]
    start = time.monotonic()
    with progress_bar(console) as progress:
        bar = progress.add_task("", total=len(layers))
        for at, layer in enumerate(layers):
            progress.update(bar, completed=at, description=layer.key)
            spent = time.monotonic() - start
            if time.monotonic() + work[at] > end:
                return False
            rounds = effort.rounds_left(spent, sum(work[:at]), sum(work[at:]))
            seconds, absent = measure_case(
                crew,
                layer,
                rounds,
                effort.min_seconds,
                effort.case_seconds,
                fewest=effort.fewest,
            )
            if OURS not in seconds:
                raise RuntimeError(f"{OURS} failed at {layer}: {absent.get(OURS)}")
            journal.add(Record(layer, threads, seconds, absent))
    return True


def expected_seconds(layer: Layer, effort: Effort) -> float:
    """A rough share of the time that ``layer`` will take, to divide a budget by."""
    once = layer.flops / 30e9
    timed = min(CANDIDATES * effort.rounds * max(effort.min_seconds, once), effort.case_seconds)
    return max(timed, CANDIDATES * effort.fewest * once) + 10 * once + 1.0


def about(crew: Crew, threads: int) -> dict[str, Any]:
    """What is the same for all layers, for the document."""
    described = list(crew.described.values())
    return {
        "machine": measure.machine_facts(),
        "target": str(mp.detect_target(cores=threads)),
        "clock": measure.clock_for(threads)[1],
        "removed_environment": removed_variables(),
        "candidates": {name: mode for one in described for name, mode in one.modes.items()},
        "absent": dict(crew.absent),
        "versions": {key: value for one in described for key, value in one.versions.items()},
        "pools": {name: list(one.pools) for name, one in crew.described.items()},
        "peak_flops": next(one.flops for one in described if one.flops is not None),
    }
