"""What the command lines of the benches have in common: options, and what becomes of a run."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.gemm import environment

if TYPE_CHECKING:
    from rich.console import Console

    from bench.gemm.journal import Journal
    from bench.gemm.run import Effort


def add_run_options(add: Callable[..., Any], quick: Effort, full: Effort, what: str) -> None:
    """Those of every bench; ``what`` is measured."""
    add("--threads", metavar="N[,N]", help="threads a candidate; 1,2, with --quick 1")
    add("--rounds", type=int, help=f"{quick.rounds} with --quick, else {full.rounds}")
    add("--budget", type=float, metavar="MINUTES", help="of each number of threads; fewer rounds")
    add("--out", metavar="FOLDER", type=Path, default=Path("out"), help="of journal and JSON; out")
    add("--each", action="store_true", help=f"print a line for every {what}")
    add("--restart", action="store_true", help="start anew, whatever the journal holds")


def add_stop_options(add: Callable[..., Any]) -> None:
    """Those of a bench that can be told when to stop."""
    add("--stop", type=float, metavar="MINUTES", help="end then; the same command goes on")
    add("--remark", metavar="TEXT", help="a sentence about the run, for the document")


def checked(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    check: Callable[[argparse.Namespace], None],
) -> argparse.Namespace:
    """The options, which ``check`` may refuse by a ValueError: that ends the program."""
    options = parser.parse_args(arguments)
    try:
        check(options)
    except ValueError as wrong:
        parser.error(str(wrong))
    return options


def check_run_options(options: argparse.Namespace) -> None:
    """Put numbers in place of ``threads``; raises ValueError where an option is not what it may
    be."""
    if options.rounds is not None and options.rounds < 2:
        raise ValueError(f"--rounds must be at least 2, got {options.rounds}")
    for name in ("budget", "stop"):
        value = getattr(options, name, None)
        if value is not None and value <= 0:
            raise ValueError(f"--{name} must be positive, got {value}")
    options.threads = parse_threads(options.threads or ("1" if options.quick else "1,2"))


def effort_of(options: argparse.Namespace, usual: Effort) -> Effort:
    """``usual`` with the rounds and the minutes of the budget that are given."""
    budget = usual.budget if options.budget is None else 60 * options.budget
    return replace(usual, rounds=options.rounds or usual.rounds, budget=budget)


def parse_threads(text: str) -> list[int]:
    """Numbers of threads from ``"1,2"``."""
    numbers = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise ValueError(f"--threads takes different numbers from 1, such as 1,2, got {text!r}")
    return numbers


def parse_peers(text: str | None, usual: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Names from ``"a,b"``, the ``usual`` ones of None; raises ValueError for one not ``known``."""
    chosen = tuple(usual) if text is None else tuple(text.split(","))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"--peers: unknown {', '.join(unknown)}; known are {', '.join(known)}")
    return chosen


def journal_at(options: argparse.Namespace, bench: str, libraries: Collection[str]) -> Path:
    """The journal of a run: one of peers alone that are measured beside ours, and of none of the
    ``libraries`` that are in all rounds, has its own."""
    name = bench if set(options.peers) & set(libraries) else f"{bench}-beside"
    return options.out / f"{name}{'-quick' if options.quick else ''}.jsonl"


def run_bench(
    bench: str,
    options: argparse.Namespace,
    path: Path,
    measure: Callable[[argparse.Namespace, Path, Console], None],
) -> int:
    """The exit code of ``measure`` in the fair environment, for which this process may be started
    anew. It may raise RuntimeError or be interrupted, and then is gone on with by the journal at
    ``path``."""
    environment.restart_in_fair_environment(min(options.threads))
    from bench.console import wide_console

    console = wide_console()
    try:
        measure(options, path, console)
    except RuntimeError as reason:
        console.print(f"[red]bench.{bench}: {reason}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print(f"\nstopped; what was measured is in {path}: the same command goes on")
        return 130
    return 0


def print_resumed(journal: Journal, console: Console) -> None:
    """Whether the journal is gone on with, or why not, where there was one."""
    path = journal.path
    if journal.resumed:
        console.print(f"going on with the {len(journal.records)} runs of {path}")
    elif journal.reason is not None:
        console.print(f"{path}: not gone on with, {journal.reason}; kept as {path.name}.old")


def measure_each_threads(
    options: argparse.Namespace,
    path: Path,
    journal: Journal,
    console: Console,
    run: Callable[[int, float], bool],
    document: Callable[[Journal, int], dict[str, Any]],
    print_document: Callable[[Console, dict[str, Any], bool], None],
) -> None:
    """Fill the journal for each number of threads, print and write its document beside ``path``.

    ``run`` takes the threads and the seconds that it has, and returns whether all was measured.
    Raises RuntimeError when it stopped before anything was.
    """
    print_resumed(journal, console)
    whole = True
    for threads in options.threads:
        start = time.monotonic()
        whole &= run(threads, math.inf if options.stop is None else 60 * options.stop)
        if all(record.threads != threads for record in journal.records):
            raise RuntimeError(f"stopped before the first case of {threads} threads")
        found = document(journal, threads)
        if options.remark is not None:
            found["remark"] = options.remark
        print_document(console, found, options.each)
        console.print(f"took {time.monotonic() - start:.0f} s")
        write_json(named(path.with_suffix(".json"), threads), found)
    if whole:
        journal.finish()


def named(file: Path, threads: int) -> Path:
    """``planner.json`` becomes ``planner-1-thread.json`` or ``planner-2-threads.json``."""
    return file.with_stem(f"{file.stem}-{threads}-thread{'s' if threads > 1 else ''}")


def write_json(path: Path, found: dict[str, Any]) -> None:
    """The document as a file."""
    path.write_text(json.dumps(found, indent=1) + "\n")
