"""The command line: options in, tables and a JSON file out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from bench.gemm.environment import restart_in_fair_environment

#: Shapes of a full run and of a quick one.
FULL, QUICK = 72, 24

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
    add("--json", metavar="FILE", type=Path, help="write all figures there")
    add("--shapes", metavar="N", type=int, help=f"how many; {QUICK} with --quick, else {FULL}")
    add("--seed", metavar="N", type=int, default=SEED, help=f"of the random shapes; {SEED}")
    add("--threads", metavar="N", type=int, default=1, help="only 1 is supported")
    options = parser.parse_args(arguments)
    if options.threads != 1:
        parser.error(f"--threads must be 1, got {options.threads}: plans are timed on one core")
    if options.shapes is None:
        options.shapes = QUICK if options.quick else FULL
    if options.shapes < 2:
        parser.error(f"--shapes must be at least 2, got {options.shapes}")
    if options.seed < 0:
        parser.error(f"--seed must not be negative, got {options.seed}")
    if options.json is not None and not options.json.resolve().parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench."""
    options = parse(arguments)
    restart_in_fair_environment(options.threads)
    from bench.gemm.report import make_console
    from bench.planner import shapes
    from bench.planner.judge import Effort
    from bench.planner.report import print_document
    from bench.planner.session import run_bench

    console = make_console()
    effort = Effort(budget=1.5) if options.quick else Effort()
    largest = shapes.QUICK_LARGEST if options.quick else shapes.LARGEST
    chosen = shapes.chosen_shapes(options.shapes, options.seed, largest)
    console.print(f"{len(chosen)} shapes, the random ones by seed {options.seed}", highlight=False)
    try:
        document = run_bench(chosen, effort, options.seed, console)
    except RuntimeError as reason:
        console.print(f"[red]bench.planner: {reason}", highlight=False)
        return 1
    print_document(console, document)
    if options.json is not None:
        options.json.write_text(json.dumps(document) + "\n")
    return 0
