"""One run: what is compiled, the workers, the cases, the journal."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.beside import chosen, measure_beside
from bench.gemm.journal import Journal
from bench.gemm.run import Effort
from bench.gemm.threads.crew import Library
from bench.gemm.threads.libraries import worker_environment
from bench.gemm.threads.passes import check_machine, crew_of, measure_twice, note_crew, to_do
from bench.goals import in_doubt
from bench.models.beside import BESIDE
from bench.models.build import COMPILED, ORT, OURS, Artifact, build_missing, graphs_of
from bench.models.cases import Case
from bench.models.memory import of_engine
from bench.models.summary import rows_of


def prepare(
    cases: Sequence[Case],
    engines: Collection[str],
    threads: int,
    folder: Path,
    calls: int,
    console: Console,
) -> dict[str, Any]:
    """Compile what is missing, and find out how much memory each engine needs; for the document.

    Raises RuntimeError where ours fails.
    """
    networks = list(dict.fromkeys(case.network for case in cases))
    environment = worker_environment(os.environ, threads)
    with console.status(f"compiling {', '.join(networks)}") as status:
        compiled = [name for name in COMPILED if name in engines]

        def show(what: str) -> None:
            status.update(f"compiling {what}")

        seconds = build_missing(compiled, networks, threads, folder, environment, show)
    for name, found in seconds.items():
        if "failed" in found:
            console.print(f"[red]{name}: {found['failed']}", highlight=False)
        elif "graphs" in found:
            seconds_of = f"{found['processor']:.0f} s of the processor"
            console.print(f"{name}: {graphs_of(found)}, {seconds_of}", highlight=False)
    failed = {
        name.split()[1] for name, found in seconds.items() if OURS in name and "failed" in found
    }
    if failed:
        raise RuntimeError(f"ours cannot be compiled: {', '.join(sorted(failed))}")
    path = folder / f"memory-{threads}-{calls}.json"
    memory = json.loads(path.read_text()) if path.exists() else {}
    for network in networks:
        if network not in memory and ORT in engines:
            with console.status(f"measuring the memory of {network}"):
                memory[network] = {
                    engine: of_engine(
                        Artifact(folder, engine, network, threads), environment, calls
                    )
                    for engine in (OURS, ORT)
                }
            path.write_text(json.dumps(memory))
    return {"build_seconds": seconds, "memory": memory}


def run(
    cases: Sequence[Case],
    engines: Collection[str],
    effort: Effort,
    threads: int,
    journal: Journal,
    folder: Path,
    noted: dict[str, Any],
    console: Console,
    stop: float = math.inf,
) -> bool:
    """Fill ``journal`` with ``cases``, with second runs of those that are in doubt, and with the
    peers of `bench.models.beside` on few of them; ``noted`` is for the document.

    Runs that the journal has are not made again. No case is begun that would take longer than
    ``stop`` seconds from now; returns whether all were measured. Raises RuntimeError when this
    machine cannot do that, or when ours fails.
    """
    check_machine(threads)
    start = time.monotonic()
    whole = True
    journal.note(threads, {**journal.notes.get(threads, {}), **noted})

    def workers(*names: str) -> list[Library]:
        return [Library(name, (name,), command=command(threads, name, folder)) for name in names]

    def left() -> dict[Case, int]:
        return to_do(cases, in_doubt(rows_of(journal, threads)), journal, threads)

    if ORT in engines and left():
        with crew_of(workers(OURS, ORT), threads, console, OURS) as crew:
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
        chosen(BESIDE, engines),
        cases,
        lambda engine: workers(OURS, engine),
        effort,
        threads,
        journal,
        console,
        ours=OURS,
        end=start + stop,
    )


def command(threads: int, engine: str, folder: Path) -> tuple[str, ...]:
    """What starts the worker of an engine."""
    return (sys.executable, "-m", "bench.models.worker", str(threads), engine, str(folder))


def expected_seconds(case: Case, effort: Effort) -> float:
    """A rough share of the time that ``case`` will take, to divide a budget by."""
    once = case.flops / 50e9
    timed = min(2 * effort.rounds * max(effort.min_seconds, once), effort.case_seconds)
    return max(timed, 2 * effort.fewest * once) + 6 * once + 1.0
