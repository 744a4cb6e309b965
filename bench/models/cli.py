"""The command line: options in, tables and JSON files out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.gemm.journal import Journal
from bench.gemm.options import (
    add_run_options,
    add_stop_options,
    check_run_options,
    checked,
    effort_of,
    journal_at,
    measure_each_threads,
    parse_peers,
    run_bench,
)
from bench.gemm.run import Effort
from bench.models.beside import PEERS, installed
from bench.models.build import ORT
from bench.models.cases import GROUPS, Case, all_cases

QUICK = Effort(rounds=6, min_seconds=0.01, case_seconds=4, budget=180)
FULL = Effort(rounds=12, min_seconds=0.02, case_seconds=12, budget=60 * 60)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends the program with a message when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.models",
        description="Whole networks against onnxruntime. A run that was interrupted goes on where "
        "it stopped when the same command is given again.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="three sizes of each network")
    add("--models", metavar="NAME,...", help=f"only these of {', '.join(GROUPS)}")
    add("--peers", metavar="NAME,...", help=f"some of {', '.join(PEERS)}; those installed")
    add_run_options(add, QUICK, FULL, "size")
    add_stop_options(add)
    add("--build-only", action="store_true", help="compile, measure the memory, and end")
    add("--calls", type=int, default=0, help="more calls of sizes at random, for the memory")
    return checked(parser, arguments, check)


def check(options: argparse.Namespace) -> None:
    """Put values in place of text; raises ValueError that names the option and the rule."""
    check_run_options(options)
    if options.calls < 0:
        raise ValueError(f"--calls must not be negative, got {options.calls}")
    options.peers = parse_peers(options.peers, installed(), PEERS)
    options.cases = choose_cases(options)


def choose_cases(options: argparse.Namespace) -> list[Case]:
    """The sizes to measure; raises ValueError for a network that there is not."""
    chosen = list(GROUPS) if options.models is None else options.models.split(",")
    unknown = [name for name in chosen if name not in GROUPS]
    if unknown:
        raise ValueError(f"--models: unknown {', '.join(unknown)}; known are {', '.join(GROUPS)}")
    return all_cases(chosen, options.quick)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    options = parse(arguments)
    return run_bench("models", options, journal_at(options, "models", [ORT]), measure)


def measure(options: argparse.Namespace, path: Path, console: Console) -> None:
    """Measure for each number of threads, print and write its document."""
    from bench.gemm.session import header
    from bench.measure import installed_versions
    from bench.models.build import OURS, folder_for
    from bench.models.report import print_document
    from bench.models.session import prepare, run
    from bench.models.summary import document

    effort = effort_of(options, QUICK if options.quick else FULL)
    chosen = {"threads": options.threads, "models": options.models}
    about = header(effort, options.peers, chosen, installed_versions())
    folder = folder_for(options.out, about)
    engines = (OURS, *options.peers)
    noted = {
        threads: prepare(options.cases, engines, threads, folder, options.calls, console)
        for threads in options.threads
    }
    if options.build_only:
        return
    with Journal(path, about, restart=options.restart, kind=Case) as journal:

        def run_one(threads: int, stop: float) -> bool:
            return run(
                options.cases,
                engines,
                effort,
                threads,
                journal,
                folder,
                noted[threads],
                console,
                stop,
            )

        measure_each_threads(options, path, journal, console, run_one, document, print_document)
