"""One run: what is compiled, the workers, the cases, the journal."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.gemm.journal import QUIET, Journal
from bench.gemm.run import Effort
from bench.gemm.threads.crew import Crew, Library
from bench.gemm.threads.libraries import worker_environment
from bench.gemm.threads.passes import about, check_machine, measure_each, to_do
from bench.models.beside import Beside, chosen
from bench.models.build import COMPILED, ORT, OURS, Artifact, build_missing
from bench.models.cases import Case
from bench.models.memory import of_engine
from bench.models.summary import in_doubt, rows_of

FIRST_SHARE = 0.75  # of the budget, for the first runs


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
            console.print(f"{name}: {graphs_of(found)}", highlight=False)
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
    peers of `bench.models.beside` on few of them.

    Runs that the journal has are not made again. No case is begun that would take longer than
    ``stop`` seconds from now; returns whether all were measured. Raises RuntimeError when this
    machine cannot do that, or when ours fails.
    """
    check_machine(threads)
    start = time.monotonic()
    few = {peer: todo_beside(peer, cases, journal, threads) for peer in chosen(engines)}
    if not any(few.values()) and not left_of(cases, journal, threads):
        return True
    environment = worker_environment(os.environ, threads)
    libraries = {
        name: Library(name, (name,), command=command(threads, name, folder))
        for name in (OURS, *engines)
    }
    whole = True
    with contextlib.ExitStack() as stack:
        with console.status(f"starting the processes for {threads} threads"):
            first = [libraries[name] for name in (OURS, ORT) if name in libraries]
            crew = Crew(first, environment, threads)
            stack.enter_context(crew)
        check(crew)
        facts = {**about(crew, threads), **noted}
        journal.note(threads, facts)
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
    for peer, missing in few.items():
        if not missing:
            continue
        with Crew([libraries[OURS], libraries[peer.engine]], environment, threads) as crew:
            check(crew)
            found = about(crew, threads)
            for name in ("candidates", "absent", "pools", "versions"):
                facts[name] = {**facts[name], **found[name]}
            journal.note(threads, facts)
            whole &= measure_each(
                crew,
                {case: peer.expected_seconds(case) for case in missing},
                peer.effort(effort),
                threads,
                journal,
                console,
                ours=OURS,
                title=f"{peer.title}: ",
                mode=peer.mode,
                patience=peer.patience,
                end=start + stop,
            )
    return whole


def todo_beside(
    peer: Beside, cases: Sequence[Case], journal: Journal, threads: int
) -> dict[Case, int]:
    """The cases of a pass that the journal lacks."""
    return to_do(peer.cases(cases), (), journal, threads, peer.mode)


def graphs_of(built: Mapping[str, Any]) -> str:
    """How often torch compiled a network, in words."""
    seconds = f"{built['processor']:.0f} s of the processor"
    return f"{built['graphs']} graphs for {built['sizes']} sizes, {seconds}"


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
