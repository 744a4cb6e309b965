"""The command line: options in, tables and a JSON file out."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from bench.gemm import environment
from bench.gemm.peers import PEER_NAMES
from bench.gemm.run import Effort
from bench.gemm.shapes import Shape, full_shapes, parse_shapes, quick_shapes

# The quick run must end within four minutes, of which compiling may take one on slow cores.
QUICK = Effort(rounds=8, min_seconds=0.01, budget=130)
FULL = Effort(rounds=15, min_seconds=0.02, budget=3600)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends the program with a message when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gemm", description="Matrix products against other libraries."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="about 70 shapes, at most 4 minutes")
    add("--json", metavar="FILE", type=Path, help="write all figures there")
    add("--shapes", metavar="M,N,K[,BATCH];...", help="only these shapes")
    add("--threads", type=int, default=1, help="threads a candidate; only 1 is supported")
    add("--rounds", type=int, help=f"{QUICK.rounds} with --quick, else {FULL.rounds}")
    add("--peers", metavar="NAME,...", help=f"some of {', '.join(PEER_NAMES)}; all by default")
    options = parser.parse_args(arguments)
    if options.threads != 1:
        parser.error(
            f"--threads must be 1, got {options.threads}: the thread pools of several libraries "
            "in one process disturb each other"
        )
    if options.rounds is not None and options.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {options.rounds}")
    if options.json is not None and not options.json.resolve().parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    chosen = PEER_NAMES if options.peers is None else tuple(options.peers.split(","))
    unknown = [name for name in chosen if name not in PEER_NAMES]
    if unknown:
        parser.error(f"--peers: unknown {', '.join(unknown)}; known are {', '.join(PEER_NAMES)}")
    options.peers = chosen
    try:
        options.shapes = choose_shapes(options.quick, options.shapes)
    except ValueError as wrong:
        parser.error(str(wrong))
    return options


def choose_shapes(quick: bool, text: str | None) -> list[Shape]:
    """The shapes to measure; raises ValueError when ``text`` is malformed."""
    if text is not None:
        return parse_shapes(text)
    return quick_shapes() if quick else full_shapes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench. Expects the environment of ``environment.fair_environment``."""
    options = parse(arguments)
    environment.restart_in_fair_environment(options.threads)
    start = time.monotonic()
    from bench.gemm.report import make_console, print_document
    from bench.gemm.session import run_bench

    effort = QUICK if options.quick else FULL
    if options.rounds is not None:
        effort = Effort(options.rounds, effort.min_seconds, effort.budget)
    console = make_console()
    try:
        document = run_bench(options.shapes, options.peers, effort, options.threads, console)
    except RuntimeError as reason:
        console.print(f"[red]bench.gemm: {reason}", highlight=False)
        return 1
    document["seconds"] = time.monotonic() - start
    print_document(console, document)
    console.print(
        f"took {document['seconds']:.0f} s, of which "
        f"{document['seconds_to_prepare']:.0f} s to load and to compile"
    )
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0
