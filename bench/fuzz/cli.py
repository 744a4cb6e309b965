"""The command line: deal out the cases, show progress, print the faults and a table."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.fuzz.execute import Outcome
    from bench.fuzz.worker import Options

#: Printed in full; what is more is counted.
MAX_FAULTS = 100

#: Columns of the table when it does not go to a terminal.
FILE_WIDTH = 160


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m bench.fuzz",
        description="Random forms and shapes of matmul, judged against numpy.",
    )
    add = found.add_argument
    add("--cases", type=_positive, default=10_000, help="how many (default: %(default)s)")
    add("--seed", type=int, default=0, help="of all that is drawn (default: %(default)s)")
    add("--case", type=int, help="run this one alone and print its module")
    add("--together", action="store_true", help="with --case: compile its whole module")
    cores = len(os.sched_getaffinity(0))
    add("--jobs", type=_positive, default=cores, help="processes (default: one a core)")
    add(
        "--inject",
        choices=("value", "leak", "beyond", "read", "beside", "operand", "hang", "all"),
        default="",
        help="make this fault in each case (all: all but hang, in turn), to see it is found",
    )
    add("--patience", type=float, default=60.0, help="seconds after which a case hangs")
    return found


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when no fault was found (with ``--inject``: when all that were made were found), else 1."""
    chosen = parser().parse_args(arguments)
    # Read once each, when the libraries start. Two threads, so that parallel code runs in parallel.
    os.environ.setdefault("TVM_NUM_THREADS", "2")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    from bench.fuzz.worker import Options

    alone = chosen.case is not None
    options = Options(chosen.seed, chosen.inject, chosen.patience, quiet=not alone)
    if alone:
        from bench.fuzz.alone import run_alone

        return run_alone(chosen.case, options, chosen.together)
    return run_all(chosen.cases, chosen.jobs, options)


def run_all(cases: int, jobs: int, options: Options) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from bench.fuzz import report
    from bench.fuzz.crew import run_tasks, tasks_of

    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH  # the table is not squeezed
    start = time.monotonic()
    outcomes: list[Outcome] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    stopped = False
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task("cases", total=cases)
        faults = 0

        def emit(outcome: Outcome) -> None:
            nonlocal faults
            outcomes.append(outcome)
            faults += outcome.verdict.is_fault
            progress.update(bar, advance=1, description=f"cases ({faults} faults)")

        try:
            run_tasks(tasks_of(cases), jobs, options, emit)
        except KeyboardInterrupt:
            stopped = True
    console.print(report.table(outcomes), soft_wrap=False)
    seconds = time.monotonic() - start
    console.print(f"{len(outcomes)} cases of seed {options.seed} in {seconds:.0f} s")
    if options.inject:
        injected, missed = report.injected_table(outcomes)
        console.print(injected)
        faulty = missed
    else:
        faulty = [each for each in outcomes if each.verdict.is_fault]
    for outcome, count in report.one_of_each_form(faulty)[:MAX_FAULTS]:
        more = f" (and {count - 1} more cases of this form)" if count > 1 else ""
        console.print(report.fault_line(options.seed, outcome) + more, markup=False)
    for line in report.refused_lines(options.seed, outcomes):
        console.print(line, markup=False)
    return 1 if faulty or stopped else 0
