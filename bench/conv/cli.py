"""The command line: options in, tables and JSON files out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.conv.cases import all_cases, in_turn, quick_cases
from bench.conv.layer import CLASSES, Layer
from bench.conv.peers import LIBRARIES, PEER_NAMES
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

QUICK = Effort(rounds=8, min_seconds=0.01, case_seconds=3, budget=200)
FULL = Effort(rounds=16, min_seconds=0.01, case_seconds=8, budget=60 * 60)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends the program with a message when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.conv",
        description="Convolutions against other libraries. A run that was interrupted goes on "
        "where it stopped when the same command is given again.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="about 28 small layers, some 4 minutes")
    add("--classes", metavar="NAME,...", help=f"only these of {', '.join(CLASSES)}")
    add("--networks", metavar="NAME,...", help="only layers of these, such as mobilenet_v1")
    add("--peers", metavar="NAME,...", help=f"some of {', '.join(PEER_NAMES)}")
    add_run_options(add, QUICK, FULL, "layer")
    add_stop_options(add)
    return checked(parser, arguments, check)


def check(options: argparse.Namespace) -> None:
    """Put values in place of text; raises ValueError that names the option and the rule."""
    check_run_options(options)
    options.peers = parse_peers(options.peers, PEER_NAMES, PEER_NAMES)
    options.cases = choose_cases(options)


def choose_cases(options: argparse.Namespace) -> list[Layer]:
    """The layers to measure; raises ValueError when there are none of what was asked for."""
    layers = quick_cases() if options.quick else all_cases()
    for option, name in (("classes", "group"), ("networks", "network")):
        given = getattr(options, option)
        if given is None:
            continue
        wanted = set(given.split(","))
        missing = wanted - {getattr(layer, name) for layer in layers}
        if missing:
            raise ValueError(f"--{option}: there are no layers of {', '.join(sorted(missing))}")
        layers = [layer for layer in layers if getattr(layer, name) in wanted]
    return in_turn(layers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    options = parse(arguments)
    return run_bench("conv", options, journal_at(options, "conv", LIBRARIES), measure)


def measure(options: argparse.Namespace, path: Path, console: Console) -> None:
    """Measure for each number of threads, print and write its document."""
    from bench.conv.report import print_document
    from bench.conv.session import run
    from bench.conv.summary import document
    from bench.gemm.session import header
    from bench.measure import installed_versions

    effort = effort_of(options, QUICK if options.quick else FULL)
    chosen = {name: getattr(options, name) for name in ("threads", "classes", "networks")}
    about = header(effort, options.peers, chosen, installed_versions())
    with Journal(path, about, restart=options.restart, kind=Layer) as journal:

        def run_one(threads: int, stop: float) -> bool:
            return run(options.cases, options.peers, effort, threads, journal, console, stop)

        measure_each_threads(options, path, journal, console, run_one, document, print_document)
