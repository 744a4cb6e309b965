"""Passes over cases by a crew, whatever is measured: what is left to do, each case once more, and
what the document says of the crew."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

import tvm_moonpoly as mp
from bench import measure
from bench.console import progress_bar
from bench.gemm.environment import removed_variables
from bench.gemm.journal import QUIET, Journal, Record
from bench.gemm.run import Effort
from bench.gemm.session import FIRST_SHARE
from bench.gemm.threads.crew import Crew, Library
from bench.gemm.threads.libraries import worker_environment
from bench.gemm.threads.rounds import PATIENCE, measure_case


def check_machine(threads: int) -> set[int]:
    """The CPUs that this process may use; raises RuntimeError when they are too few."""
    if not sys.platform.startswith("linux"):
        raise RuntimeError(
            "libraries are measured by turns on Linux only: it stops those that wait"
        )
    cpus = os.sched_getaffinity(0)
    if len(cpus) < threads:
        raise RuntimeError(f"{threads} threads need as many CPUs, this process may use {len(cpus)}")
    return cpus


@contextlib.contextmanager
def crew_of(
    libraries: Sequence[Library], threads: int, console: Console, *ours: str
) -> Iterator[Crew]:
    """The workers of ``libraries``, all started; raises RuntimeError where one of the candidates
    ``ours`` cannot be had."""
    with contextlib.ExitStack() as stack:
        with console.status(f"starting the processes for {threads} threads"):
            environment = worker_environment(os.environ, threads)
            crew = stack.enter_context(Crew(libraries, environment, threads))
        missing = [crew.absent[name] for name in ours if name in crew.absent]
        if missing:
            raise RuntimeError(f"a process of ours cannot start: {missing[0]}")
        yield crew


def to_do(
    cases: Sequence[Any],
    doubt: Collection[str],
    journal: Journal,
    threads: int,
    mode: str = QUIET,
) -> dict[Any, int]:
    """The cases that still lack a run, each with how many it has: none, or one where its key is
    among those in ``doubt``."""
    doubt = set(doubt)
    runs = {case: len(journal.runs(case.key, threads, mode)) for case in cases}
    return {
        case: count
        for case, count in runs.items()
        if count == 0 or (count == 1 and case.key in doubt)
    }


def measure_twice(
    crew: Crew,
    left: Callable[[], Mapping[Any, int]],
    expected: Callable[[Any, Effort], float],
    effort: Effort,
    threads: int,
    journal: Journal,
    console: Console,
    *,
    ours: str,
    start: float,
    stop: float = math.inf,
    title: str = "",
    mode: str = QUIET,
) -> bool:
    """First runs of the cases that are ``left`` with none, then second ones of those left with one;
    whether none was left out.

    The effort's budget, and ``stop`` seconds after which nothing begins, count from ``start`` of
    the monotonic clock. ``expected`` are the seconds that a case will take, or so.
    """
    whole = True
    for earlier, share in enumerate((FIRST_SHARE, 1.0)):
        budget = share * effort.budget - (time.monotonic() - start)
        part = effort.again(budget) if earlier else replace(effort, budget=budget)
        work = {case: expected(case, part) for case, runs in left().items() if runs == earlier}
        whole &= measure_each(
            crew,
            work,
            part,
            threads,
            journal,
            console,
            ours=ours,
            title=title,
            mode=mode,
            end=start + share * stop,
        )
    return whole


def measure_each(
    crew: Crew,
    work: Mapping[Any, float],
    effort: Effort,
    threads: int,
    journal: Journal,
    console: Console,
    *,
    ours: str,
    title: str = "",
    mode: str = QUIET,
    patience: float = PATIENCE,
    end: float = math.inf,
) -> bool:
    """One more run of each case of ``work``, which has the seconds that it will take or so; whether
    none was left out because it would have lasted beyond ``end`` of the monotonic clock.

    Raises RuntimeError where the candidate ``ours`` fails. ``title`` is shown before the cases,
    ``patience`` seconds are granted to any call.
    """
    start, done = time.monotonic(), 0.0
    total = sum(work.values())
    # Drawn between cases only: a thread that redraws it would take time from what is measured.
    with progress_bar(console, auto_refresh=False) as progress:
        bar = progress.add_task("", total=len(work))
        for at, (case, seconds_expected) in enumerate(work.items()):
            progress.update(bar, completed=at, description=title + case.key, refresh=True)
            now = time.monotonic()
            if now + seconds_expected > end:
                return False
            rounds = effort.rounds_left(now - start, done, total - done)
            seconds, absent = measure_case(
                crew,
                case,
                rounds,
                effort.min_seconds,
                effort.case_seconds,
                patience,
                fewest=effort.fewest,
            )
            if ours not in seconds:
                raise RuntimeError(f"{ours} failed at {case}: {absent.get(ours)}")
            journal.add(Record(case, threads, seconds, absent, mode))
            done += seconds_expected
    return True


def modes_of(crew: Crew) -> dict[str, str]:
    """How each candidate is called."""
    return {name: mode for one in crew.described.values() for name, mode in one.modes.items()}


def note_crew(journal: Journal, crew: Crew, threads: int, **more: object) -> None:
    """Note what there is to say `about` the crew, and ``more``, beside what was noted of the crews
    of earlier passes."""
    noted, found = journal.notes.get(threads, {}), about(crew, threads)
    names = ("candidates", "absent", "pools", "versions")
    both = {name: {**noted.get(name, {}), **found[name]} for name in names}
    journal.note(threads, {**noted, **found, **both, **more})


def about(crew: Crew, threads: int) -> dict[str, Any]:
    """What is the same for all cases, for the document."""
    described = list(crew.described.values())
    return {
        "machine": measure.machine_facts(),
        "target": str(mp.detect_target(cores=threads)),
        "clock": measure.clock_for(threads)[1],
        "removed_environment": removed_variables(),
        "candidates": modes_of(crew),
        "absent": dict(crew.absent),
        "versions": {key: value for one in described for key, value in one.versions.items()},
        "pools": {name: list(one.pools) for name, one in crew.described.items()},
        "peak_flops": next((one.flops for one in described if one.flops is not None), None),
    }
