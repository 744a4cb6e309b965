"""The command line: options in, tables and a JSON file out."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.gemm.environment import restart_in_fair_environment
from bench.gemm.options import named

#: Shapes of a full run and of a quick one, by threads.
FULL, QUICK = {1: 72, 2: 48}, {1: 24, 2: 16}

#: Of the random shapes, none of which is used to make a tuning log.
SEED = 20_004


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends the program with a message when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.planner",
        description="The planner's choices against the best of all plans, which are all measured.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="smaller shapes, fewer of them, at most 3 minutes")
    add("--json", metavar="FILE", type=Path, help="write all figures there; without --threads to "
        "FILE-1-thread and FILE-2-threads")  # fmt: skip
    add("--shapes", metavar="N", type=int, help=f"how many; {listed(QUICK)} with --quick, else "
        f"{listed(FULL)} for 1 and 2 threads")  # fmt: skip
    add("--seed", metavar="N", type=int, default=SEED, help=f"of the random shapes; {SEED}")
    add("--threads", metavar="N", type=int, choices=tuple(FULL), help="1 or 2; else one after the "
        "other, as far as there are cores")  # fmt: skip
    options = parser.parse_args(arguments)
    if (options.threads or 1) > cores():
        parser.error(f"--threads must be at most {cores()}, the cores that there are, got "
                     f"{options.threads}")  # fmt: skip
    if options.shapes is not None and options.shapes < 2:
        parser.error(f"--shapes must be at least 2, got {options.shapes}")
    if options.seed < 0:
        parser.error(f"--seed must not be negative, got {options.seed}")
    if options.json is not None and not options.json.resolve().parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    return options


def listed(numbers: dict[int, int]) -> str:
    return " and ".join(map(str, numbers.values()))


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench."""
    options = parse(arguments)
    if options.threads is None:
        given = list(sys.argv[1:] if arguments is None else arguments)
        return max([run_apart(given, options.json, threads) for threads in FULL
                    if threads <= cores()])  # fmt: skip
    return run(options)


def run_apart(given: Sequence[str], file: Path | None, threads: int) -> int:
    """Run the bench for so many threads in a process of its own: tvm's pool keeps its threads."""
    command = [sys.executable, "-m", "bench.planner", *given, "--threads", str(threads)]
    if file is not None:
        command += ["--json", str(named(file, threads))]
    return subprocess.run(command, check=False).returncode


def run(options: argparse.Namespace) -> int:
    """The bench for ``options.threads`` threads, in this process."""
    restart_in_fair_environment(options.threads)
    from bench.console import wide_console
    from bench.planner import shapes
    from bench.planner.judge import Effort
    from bench.planner.report import print_document
    from bench.planner.session import run_bench

    console = wide_console()
    effort = Effort(budget=1.5) if options.quick else Effort(budget=4.0 / options.threads)
    largest = shapes.QUICK_LARGEST if options.quick else shapes.LARGEST
    count = options.shapes or (QUICK if options.quick else FULL)[options.threads]
    chosen = shapes.chosen_shapes(count, options.seed, largest)
    console.print(
        f"{len(chosen)} shapes, the random ones by seed {options.seed}, threads: {options.threads}",
        highlight=False,
    )
    try:
        document = run_bench(chosen, effort, options.seed, console, options.threads)
    except RuntimeError as reason:
        console.print(f"[red]bench.planner: {reason}", highlight=False)
        return 1
    print_document(console, document)
    if options.json is not None:
        options.json.write_text(json.dumps(document) + "\n")
    return 0
