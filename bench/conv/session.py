"""One run: the workers, the layers, the journal."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from rich.console import Console

from bench.conv.layer import Layer
from bench.conv.peers import OURS, PEAK, processes
from bench.conv.summary import in_doubt, rows_of
from bench.gemm.journal import Journal
from bench.gemm.run import Effort
from bench.gemm.threads.crew import Crew, Library
from bench.gemm.threads.libraries import worker_environment
from bench.gemm.threads.passes import about, check_machine, measure_each, to_do

FIRST_SHARE = 0.75  # of the budget, for the first runs
CANDIDATES = 8


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
    check_machine(threads)
    if not left_of(layers, journal, threads):
        return True
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
            left = [
                layer
                for layer, runs in left_of(layers, journal, threads).items()
                if runs == earlier
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


def left_of(layers: Sequence[Layer], journal: Journal, threads: int) -> dict[Layer, int]:
    """Of `to_do`, with the layers in doubt by what the journal has."""
    return to_do(layers, in_doubt(rows_of(journal, threads)), journal, threads)


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
    work = {layer: expected_seconds(layer, effort) for layer in layers}
    return measure_each(crew, work, effort, threads, journal, console, ours=OURS, end=end)


def expected_seconds(layer: Layer, effort: Effort) -> float:
    """A rough share of the time that ``layer`` will take, to divide a budget by."""
    once = layer.flops / 30e9
    timed = min(CANDIDATES * effort.rounds * max(effort.min_seconds, once), effort.case_seconds)
    return max(timed, CANDIDATES * effort.fewest * once) + 10 * once + 1.0
