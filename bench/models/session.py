"""One run: what is compiled, the workers, the cases, the journal."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.gemm.journal import QUIET, Journal
from bench.gemm.run import Effort
from bench.gemm.threads.crew import Crew, Library
from bench.gemm.threads.libraries import worker_environment
from bench.gemm.threads.passes import about, check_machine, measure_each, to_do
from bench.models.build import BESIDE_PLAIN, COMPILED, ORT, OURS, PLAIN, Artifact, build_missing
from bench.models.cases import Case, smallest
from bench.models.memory import of_engine
from bench.models.summary import in_doubt, rows_of

FIRST_SHARE = 0.75  # of the budget, for the first runs
PLAIN_ROUNDS = 2


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
    with console.status(f"compiling {', '.join(networks)}"):
        compiled = [name for name in COMPILED if name in engines]
        seconds = build_missing(compiled, networks, threads, folder, environment)
    for name, found in seconds.items():
        if "failed" in found:
            console.print(f"[red]{name}: {found['failed']}", highlight=False)
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
    """Fill ``journal`` with ``cases``, with second runs of those that are in doubt, and with plain
    TVM on the smallest case of each network.

    Runs that the journal has are not made again. No case is begun that would take longer than
    ``stop`` seconds from now; returns whether all were measured. Raises RuntimeError when this
    machine cannot do that, or when ours fails.
    """
    check_machine(threads)
    start = time.monotonic()
    few = smallest(cases) if PLAIN in engines else []
    slow = to_do(few, (), journal, threads, BESIDE_PLAIN)
    if not slow and not left_of(cases, journal, threads):
        return True
    libraries = [
        Library(name, (name,), command=command(threads, name, folder))
        for name in (OURS, ORT, PLAIN)
        if name in engines or name == OURS
    ]
    whole = True
    with contextlib.ExitStack() as stack:
        with console.status(f"starting the processes for {threads} threads"):
            crew = Crew(libraries[:2], worker_environment(os.environ, threads), threads)
            stack.enter_context(crew)
        check(crew)
        journal.note(threads, {**about(crew, threads), **noted})
        for earlier, share in enumerate((FIRST_SHARE, 1.0)):
            left = [
                case for case, runs in left_of(cases, journal, threads).items() if runs == earlier
            ]
            budget = share * effort.budget - (time.monotonic() - start)
            part = effort.again(budget) if earlier else replace(effort, budget=budget)
            work = {case: expected_seconds(case, part) for case in left}
            whole &= measure_each(
                crew, work, part, threads, journal, console, ours=OURS, end=start + stop
            )
    if not slow:
        return whole
    with Crew(
        [libraries[0], libraries[-1]], worker_environment(os.environ, threads), threads
    ) as crew:
        check(crew)
        part = replace(effort, rounds=PLAIN_ROUNDS, fewest=PLAIN_ROUNDS, budget=math.inf)
        work = {case: 10 + case.flops / 0.05e9 for case in slow}
        whole &= measure_each(
            crew,
            work,
            part,
            threads,
            journal,
            console,
            ours=OURS,
            title="plain TVM: ",
            mode=BESIDE_PLAIN,
            end=start + stop,
        )
    return whole


def check(crew: Crew) -> None:
    """Raises RuntimeError where ours cannot start."""
    if OURS in crew.absent:
        raise RuntimeError(f"ours cannot start: {crew.absent[OURS]}")


def command(threads: int, engine: str, folder: Path) -> tuple[str, ...]:
    """What starts the worker of an engine."""
    return (sys.executable, "-m", "bench.models.worker", str(threads), engine, str(folder))


def left_of(cases: Sequence[Case], journal: Journal, threads: int) -> dict[Case, int]:
    """Of `to_do`, with the cases in doubt by what the journal has."""
    return to_do(cases, in_doubt(rows_of(journal, threads)), journal, threads, QUIET)


def expected_seconds(case: Case, effort: Effort) -> float:
    """A rough share of the time that ``case`` will take, to divide a budget by."""
    once = case.flops / 50e9
    timed = min(2 * effort.rounds * max(effort.min_seconds, once), effort.case_seconds)
    return max(timed, 2 * effort.fewest * once) + 6 * once + 1.0
