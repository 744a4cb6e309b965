"""One run: the workers, the layers, the journal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Collection, Sequence

from rich.console import Console

from bench.beside import chosen, measure_beside
from bench.conv.beside import BESIDE
from bench.conv.layer import Layer
from bench.conv.peers import LIBRARIES, OURS, PEAK, processes
from bench.conv.summary import rows_of
from bench.gemm.journal import Journal
from bench.gemm.run import Effort
from bench.gemm.threads.crew import Library
from bench.gemm.threads.passes import check_machine, crew_of, measure_twice, note_crew, to_do
from bench.goals import in_doubt

CANDIDATES = 6


def run(
    layers: Sequence[Layer],
    peers: Collection[str],
    effort: Effort,
    threads: int,
    journal: Journal,
    console: Console,
    stop: float = math.inf,
) -> bool:
    """Fill ``journal`` with ``layers``, with second runs of those that are in doubt, and with the
    peers of `bench.conv.beside` on a sample of them.

    Runs that the journal has are not made again. No layer is begun that would take longer than
    ``stop`` seconds from now; returns whether all were measured. Raises RuntimeError when this
    machine cannot do that, or when ours fails.
    """
    check_machine(threads)
    start = time.monotonic()
    whole = True
    libraries = [name for name in LIBRARIES if name in peers]

    def left() -> dict[Layer, int]:
        return to_do(layers, in_doubt(rows_of(journal, threads)), journal, threads)

    if libraries and left():
        with crew_of(workers(libraries, threads), threads, console, OURS) as crew:
            note_crew(journal, crew, threads)
            whole &= measure_twice(
                crew,
                left,
                expected_seconds,
                effort,
                threads,
                journal,
                console,
                ours=OURS,
                start=start,
                stop=stop,
            )
    return whole & measure_beside(
        chosen(BESIDE, peers),
        layers,
        lambda engine: workers([engine], threads),
        effort,
        threads,
        journal,
        console,
        ours=OURS,
        end=start + stop,
    )


def workers(names: Collection[str], threads: int) -> list[Library]:
    """Those of ``names`` and of ours, which also has the probe of the arithmetic."""
    return [
        Library(process, tuple(found), command=command(threads, found))
        for process, found in processes(names).items()
    ]


def command(threads: int, names: Sequence[str]) -> tuple[str, ...]:
    """What starts the worker of some candidates."""
    known = [*names, *([PEAK] if OURS in names else [])]
    return (sys.executable, "-m", "bench.conv.worker", str(threads), ",".join(known))


def expected_seconds(layer: Layer, effort: Effort) -> float:
    """A rough share of the time that ``layer`` will take, to divide a budget by."""
    once = layer.flops / 30e9
    timed = min(CANDIDATES * effort.rounds * max(effort.min_seconds, once), effort.case_seconds)
    return max(timed, CANDIDATES * effort.fewest * once) + 10 * once + 1.0
