"""One run with several threads: the workers, the cases, the journal."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import tvm_moonpoly as mp
from bench import measure
from bench.gemm.document import rows_of
from bench.gemm.environment import removed_variables
from bench.gemm.journal import BUSY, QUIET, Journal, Record
from bench.gemm.peers import DIRECT, STATIC
from bench.gemm.run import PEAK, PROBES, Effort, expected_seconds
from bench.gemm.shapes import Shape
from bench.gemm.summary import in_doubt
from bench.gemm.threads.busy import busy_core
from bench.gemm.threads.crew import Crew
from bench.gemm.threads.libraries import libraries_for, worker_environment
from bench.gemm.threads.link import Link
from bench.gemm.threads.rounds import measure_case

# Of the effort's budget, for each mode; of that, for first runs.
SHARES = {QUIET: 0.65, BUSY: 0.15}
FIRST_SHARE = 0.7


def run_threads(
    shapes: Sequence[Shape],
    peer_names: Collection[str],
    effort: Effort,
    threads: int,
    journal: Journal,
    console: Console,
    mode: str = QUIET,
) -> None:
    """Fill ``journal`` with ``shapes``, and with second runs of the cases that are in doubt.

    Runs that the journal has are not made again. With ``mode`` BUSY another process keeps a core
    busy meanwhile. Raises RuntimeError when this machine cannot do that, or when ours fails.
    """
    cpus = check_machine(threads)
    if not to_do(shapes, journal, threads, mode):
        return
    start = time.monotonic()
    environment = worker_environment(os.environ, threads)
    with ExitStack() as stack:
        with console.status(f"starting the processes for {threads} threads"):
            crew = stack.enter_context(Crew(libraries_for(peer_names, mode), environment, threads))
        missing = [crew.absent[name] for name in (DIRECT, PEAK) if name in crew.absent]
        if missing:
            raise RuntimeError(f"a process of ours cannot start: {missing[0]}")
        journal.note(threads, journal.notes.get(threads, {}) | about(crew, threads))
        watch = stack.enter_context(busy_core(max(cpus), environment)) if mode == BUSY else None
        begun = time.monotonic(), processor_time(watch)
        for earlier, share in enumerate((FIRST_SHARE, 1.0)):
            left = to_do(shapes, journal, threads, mode)
            budget = share * SHARES[mode] * effort.budget - (time.monotonic() - start)
            part = effort.again(budget) if earlier else replace(effort, budget=budget)
            cases = [shape for shape, runs in left.items() if runs == earlier]
            measure_cases(crew, cases, part, threads, mode, journal, console)
        if watch is not None:
            spent, used = time.monotonic() - begun[0], processor_time(watch) - begun[1]
            found = effects(journal, threads) | {"busy_share": used / spent}
            journal.note(threads, journal.notes[threads] | {"busy": found})
            print_effects(console, found)


def to_do(shapes: Sequence[Shape], journal: Journal, threads: int, mode: str) -> dict[Shape, int]:
    """The cases that still lack a run, each with how many it has: none, or one that is in doubt."""
    doubt = set(in_doubt(rows_of(journal, threads, mode)))
    runs = {shape: len(journal.runs(shape.key, threads, mode)) for shape in shapes}
    return {
        shape: count
        for shape, count in runs.items()
        if count == 0 or (count == 1 and shape.key in doubt)
    }


def measure_cases(
    crew: Crew,
    cases: Sequence[Shape],
    effort: Effort,
    threads: int,
    mode: str,
    journal: Journal,
    console: Console,
) -> None:
    """One more run of each of ``cases``."""
    work = [expected_seconds(shape, effort, len(modes_of(crew))) for shape in cases]
    start = time.monotonic()
    # Drawn between cases only: a thread that redraws it would take time from what is measured.
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
    ) as progress:
        bar = progress.add_task("", total=len(cases))
        for at, shape in enumerate(cases):
            title = f"{threads} threads, {mode}: {shape.key}"
            progress.update(bar, completed=at, description=title, refresh=True)
            rounds = effort.rounds_left(time.monotonic() - start, sum(work[:at]), sum(work[at:]))
            seconds, absent = measure_case(
                crew,
                shape,
                rounds,
                effort.min_seconds,
                effort.case_seconds,
                fewest=effort.fewest,
            )
            if DIRECT not in seconds:
                raise RuntimeError(f"{DIRECT} failed at {shape}: {absent.get(DIRECT)}")
            journal.add(Record(shape, threads, seconds, absent, mode))


def effects(journal: Journal, threads: int) -> dict[str, Any]:
    """What a busy core does: ``slowdown``, how many times longer each candidate takes than on the
    quiet machine, and ``static``, how many times longer ours takes with the work split once.

    Geometric means over the cases measured in both modes, and over those with such a plan.
    """
    quiet = {one.shape.key: one.seconds for one in journal.measured(threads)}
    times: dict[str, list[float]] = {}
    split = []
    for one in journal.measured(threads, BUSY):
        for name in one.seconds.keys() & quiet.get(one.shape.key, {}).keys() - {*PROBES}:
            before = statistics.median(quiet[one.shape.key][name])
            times.setdefault(name, []).append(statistics.median(one.seconds[name]) / before)
        if STATIC in one.seconds:
            split.append(measure.paired_ratio(one.seconds[STATIC], one.seconds[DIRECT]).median)
    return {
        "slowdown": {name: measure.geomean(found) for name, found in sorted(times.items())},
        "static": measure.geomean(split) if split else None,
        "static_cases": len(split),
    }


def print_effects(console: Console, found: Mapping[str, Any]) -> None:
    """The figures of `effects`, in sentences."""
    console.print(
        f"the process that kept a core busy had it {found['busy_share']:.0%} of the time",
        highlight=False,
    )
    slower = ", ".join(f"{name} {times:.2f}" for name, times in found["slowdown"].items())
    if slower:
        console.print(f"times longer than on the quiet machine: {slower}", highlight=False)
    if found["static"] is not None:
        console.print(
            f"work split once takes {found['static']:.2f} times as long as chunks that are handed "
            f"out (geometric mean of {found['static_cases']} cases)",
            highlight=False,
        )


def processor_time(link: Link | None) -> float:
    """Seconds of processor time that the busy process has used so far."""
    return 0.0 if link is None else link.ask("processor time", 30)


def about(crew: Crew, threads: int) -> dict[str, Any]:
    """What is the same for all cases, for the document."""
    described = list(crew.described.values())
    return {
        "machine": measure.machine_facts(),
        "target": str(mp.detect_target(cores=threads)),
        "clock": measure.clock_for(threads)[1],
        "removed_environment": removed_variables(),
        "candidates": modes_of(crew),
        "allocating": [name for one in described for name in one.allocating],
        "absent": dict(crew.absent),
        "versions": {key: value for one in described for key, value in one.versions.items()},
        "pools": {name: list(one.pools) for name, one in crew.described.items()},
        "peak_flops": next(one.flops for one in described if one.flops is not None),
    }


def modes_of(crew: Crew) -> dict[str, str]:
    """How each candidate is called."""
    return {name: mode for one in crew.described.values() for name, mode in one.modes.items()}


def check_machine(threads: int) -> set[int]:
    """The CPUs that this process may use; raises RuntimeError when they are too few."""
    if not sys.platform.startswith("linux"):
        raise RuntimeError("several threads are measured on Linux only: it stops other processes")
    cpus = os.sched_getaffinity(0)
    if len(cpus) < threads:
        raise RuntimeError(f"{threads} threads need as many CPUs, this process may use {len(cpus)}")
    return cpus
