"""The command line: options in, tables and JSON files out."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.gemm.cases import all_cases, quick_cases
from bench.gemm.journal import BUSY, QUIET, Journal
from bench.gemm.options import (
    add_run_options,
    check_run_options,
    checked,
    effort_of,
    named,
    parse_peers,
    print_resumed,
    run_bench,
    write_json,
)
from bench.gemm.peers import DEFAULT_NAMES, PEER_NAMES
from bench.gemm.run import Effort
from bench.gemm.shapes import Shape, parse_shapes

# The quick run must end within four minutes, of which compiling may take one on slow cores.
QUICK = Effort(rounds=8, min_seconds=0.01, case_seconds=2, budget=150)
FULL = Effort(rounds=16, min_seconds=0.01, case_seconds=6, budget=40 * 60)
SEED = 20_005


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends the program with a message when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gemm",
        description="Matrix products against other libraries. A run that was interrupted goes on "
        "where it stopped when the same command is given again.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="about 60 small cases, at most 4 minutes")
    add("--shapes", metavar="M,N,K[,BATCH];...", help="only these")
    add("--workloads", metavar="NAME,...", help="only these, such as dynamic,row")
    add("--seed", type=int, default=SEED, help=f"of the random cases; {SEED} unless given")
    add("--peers", metavar="NAME,...", help=f"some of {', '.join(PEER_NAMES)}")
    add("--json", metavar="FILE", type=Path, help="of the figures, for one number of threads")
    add("--resume", action="store_true", help="go on with the journal there; the default")
    add_run_options(add, QUICK, FULL, "case")
    return checked(parser, arguments, check)


def check(options: argparse.Namespace) -> None:
    """Put values in place of text; raises ValueError that names the option and the rule."""
    if options.resume and options.restart:
        raise ValueError("--resume and --restart exclude each other")
    check_run_options(options)
    if options.seed < 0:
        raise ValueError(f"--seed must not be negative, got {options.seed}")
    if options.json is not None:
        if len(options.threads) > 1:
            raise ValueError("--json takes one number of threads: add --threads 1, or use --out")
        if not options.json.resolve().parent.is_dir():
            raise ValueError(f"--json: there is no folder {options.json.parent}")
    options.peers = parse_peers(options.peers, DEFAULT_NAMES, PEER_NAMES)
    options.cases = choose_cases(options)


def choose_cases(options: argparse.Namespace) -> list[Shape]:
    """The cases to measure; raises ValueError when what was asked for is malformed or empty."""
    if options.shapes is not None:
        return parse_shapes(options.shapes)
    cases = quick_cases(options.seed) if options.quick else all_cases(options.seed)
    if options.workloads is not None:
        wanted = set(options.workloads.split(","))
        cases = [case for case in cases if case.workload in wanted]
        unknown = wanted - {case.workload for case in cases}
        if unknown:
            raise ValueError(f"--workloads: there are no cases of {', '.join(sorted(unknown))}")
    return cases


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    options = parse(arguments)
    path = options.out / f"gemm{'-quick' if options.quick else ''}.jsonl"
    if options.shapes is not None:
        path = options.out / "gemm-shapes.jsonl"
    return run_bench("gemm", options, path, measure)


def measure(options: argparse.Namespace, path: Path, console: Console) -> None:
    """Measure for each number of threads, print and write its document."""
    from bench.gemm.document import document
    from bench.gemm.report import print_document
    from bench.gemm.session import header, library_versions, run_one_thread

    effort = effort_of(options, QUICK if options.quick else FULL)
    console.print(f"random cases by seed {options.seed}", highlight=False)
    chosen = {name: getattr(options, name) for name in ("threads", "workloads", "shapes", "seed")}
    about = header(effort, options.peers, chosen, library_versions(()))
    with Journal(path, about, restart=options.restart) as journal:
        print_resumed(journal, console)
        for threads in options.threads:
            start = time.monotonic()
            if threads == 1:
                run_one_thread(options.cases, options.peers, effort, journal, console)
            elif not measure_threads(options, effort, threads, journal, console):
                console.print(f"none of these cases is measured with {threads} threads")
                continue
            found = document(journal, threads)
            print_document(console, found, each=options.each)
            console.print(f"took {time.monotonic() - start:.0f} s")
            write_json(options.json or named(path.with_suffix(".json"), threads), found)
        journal.finish()


def measure_threads(
    options: argparse.Namespace, effort: Effort, threads: int, journal: Journal, console: Console
) -> bool:
    """Fill the journal with cases of several threads, the given ones or some of each workload;
    whether there are any."""
    from bench.gemm.threads.cases import busy_cases, quiet_cases
    from bench.gemm.threads.session import run_threads

    cases, busy = options.cases, []
    if options.shapes is None:
        busy = busy_cases(cases, options.quick)
        cases = quiet_cases(cases, options.quick)
    for mode, chosen in ((QUIET, cases), (BUSY, busy)):
        if chosen:
            run_threads(chosen, options.peers, effort, threads, journal, console, mode)
    return bool(cases)
