"""One run with several threads: the workers, the cases, the journal."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rich.console import Console

from bench import measure
from bench.gemm.document import rows_of
from bench.gemm.journal import BUSY, QUIET, Journal
from bench.gemm.peers import DIRECT, STATIC
from bench.gemm.run import PEAK, PROBES, Effort, expected_seconds
from bench.gemm.shapes import Shape
from bench.gemm.summary import in_doubt
from bench.gemm.threads.busy import busy_core
from bench.gemm.threads.libraries import libraries_for, worker_environment
from bench.gemm.threads.link import Link
from bench.gemm.threads.passes import (
    check_machine,
    crew_of,
    measure_twice,
    modes_of,
    note_crew,
    to_do,
)

SHARES = {QUIET: 0.65, BUSY: 0.15}  # of the effort's budget, for each mode


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
    if not left_of(shapes, journal, threads, mode):
        return
    start = time.monotonic()
    with ExitStack() as stack:
        libraries = libraries_for(peer_names, mode)
        crew = stack.enter_context(crew_of(libraries, threads, console, DIRECT, PEAK))
        allocating = [name for one in crew.described.values() for name in one.allocating]
        note_crew(journal, crew, threads, allocating=allocating)
        environment = worker_environment(os.environ, threads)
        watch = stack.enter_context(busy_core(max(cpus), environment)) if mode == BUSY else None
        begun = time.monotonic(), processor_time(watch)
        measure_twice(
            crew,
            lambda: left_of(shapes, journal, threads, mode),
            lambda shape, part: expected_seconds(shape, part, len(modes_of(crew))),
            replace(effort, budget=SHARES[mode] * effort.budget),
            threads,
            journal,
            console,
            ours=DIRECT,
            start=start,
            title=f"{threads} threads, {mode}: ",
            mode=mode,
        )
        if watch is not None:
            spent, used = time.monotonic() - begun[0], processor_time(watch) - begun[1]
            found = effects(journal, threads) | {"busy_share": used / spent}
            journal.note(threads, journal.notes[threads] | {"busy": found})
            print_effects(console, found)


def left_of(shapes: Sequence[Shape], journal: Journal, threads: int, mode: str) -> dict[Shape, int]:
    """Of `to_do`, with the cases in doubt by what the journal has."""
    return to_do(shapes, in_doubt(rows_of(journal, threads, mode)), journal, threads, mode)


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
