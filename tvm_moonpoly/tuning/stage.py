"""The tuning stage of a machine: search, measure, learn, and write the tuning log.

``python -m tvm_moonpoly.tuning.stage``. What is measured is in the stage's journal, see
`findings.read`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tvm.target import Target

from tvm_moonpoly import logs, operators, verbosity
from tvm_moonpoly.cli import targets
from tvm_moonpoly.cli.command import UserError, sentence
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning import findings, options
from tvm_moonpoly.tuning.conclusion import Files, conclude
from tvm_moonpoly.tuning.findings import Found
from tvm_moonpoly.tuning.journal import Busy, Journal, origin_of, own_path
from tvm_moonpoly.tuning.learning import learn
from tvm_moonpoly.tuning.learning.learn import Learned
from tvm_moonpoly.tuning.measuring.fleet import Fleet, FleetError
from tvm_moonpoly.tuning.measuring.lab import Lab
from tvm_moonpoly.tuning.measuring.plan_lab import PlanLab
from tvm_moonpoly.tuning.measuring.processes import WorkerError
from tvm_moonpoly.tuning.origin import machine_of, origin
from tvm_moonpoly.tuning.progress import Display, duration
from tvm_moonpoly.tuning.report import TILE_COLUMNS, tile_row
from tvm_moonpoly.tuning.searching.search import CostModel, Measure, search
from tvm_moonpoly.tuning.searching.session import Effort
from tvm_moonpoly.tuning.settings import QUICK, Settings
from tvm_moonpoly.tuning.steps import Stage

#: Exit codes: done, cannot be done, interrupted.
DONE, FAILED, INTERRUPTED = 0, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; returns the exit code."""
    arguments = options.parsed(argv)
    console = Console()
    settings = QUICK if arguments.quick else Settings()
    given = {"budget": arguments.budget, "trials": arguments.trials, "seed": arguments.seed}
    settings = replace(settings, **{k: v for k, v in given.items() if v is not None})
    if arguments.rpc is not None:
        settings = replace(settings, busy=False)
    try:
        target = targets.parsed(arguments.target)
        with _bench(arguments, target) as bench:
            return _run(arguments, settings, console, target, bench)
    except BrokenPipeError:
        raise  # of whoever called
    except (Busy, FleetError, ImportError, WorkerError) as error:
        # what these say is meant for the user
        return _failed(UserError(str(error)))
    except (OSError, UserError, ValueError) as error:
        return _failed(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def _failed(error: Exception) -> int:
    if verbosity.level() == verbosity.LEVELS["debug"]:
        traceback.print_exc()
    print(f"error: {sentence(error)}", file=sys.stderr)
    return FAILED


def journal_path(machine: Machine, rpc: bool = False) -> Path:
    """Where the journal lies by default. What was measured by ``rpc`` has one of its own."""
    return own_path(logs.of_machine(machine).parent.name + (".rpc" if rpc else ""))


def forms(machine: Machine, tiles: Sequence[tuple[int, int]] | None = None) -> list[Record]:
    """The forms to search: those of ``tiles`` (rows, columns), by default the whole family.

    Raises ValueError for a tile that is not in the family.
    """
    family = cpu_gemm.family(machine)
    if tiles is None:
        return family
    chosen = []
    for mr, nr in tiles:
        found = [r for r in family if (r.mr, r.nv * machine.lanes) == (mr, nr)]
        if not found:
            raise ValueError(f"tiles: {mr}x{nr} is not in the family of {machine.isa}")
        chosen += found
    return chosen


def _bench(arguments: argparse.Namespace, target: Target) -> Lab | Fleet:
    """What measures: this machine, or those behind a tracker."""
    if arguments.rpc is None:
        return Lab(Machine.from_target(target))
    return Fleet(arguments.rpc, arguments.key, target, same_cpu=arguments.target is None)


def _run(
    arguments: argparse.Namespace,
    settings: Settings,
    console: Console,
    target: Target,
    bench: Lab | Fleet,
) -> int:
    machine = bench.machine
    path = arguments.journal or journal_path(machine, rpc=arguments.rpc is not None)
    learn.load()
    if arguments.no_measure:
        # of whatever machine it is
        machine = machine_of(origin_of(path))
        journal = Journal(path, origin(machine), read_only=True)
    else:
        model = CostModel(arguments.cost_model)
        journal = Journal(path, origin(machine), anew=arguments.restart)
    wanted = forms(machine, arguments.tiles)
    with _interruptible(), journal:
        try:
            if arguments.no_measure:
                found = findings.read(journal, machine)
            else:
                search = _search(machine, target, model, settings, bench.width)
                found = _measured(bench, journal, settings, search, wanted, arguments, console)
            _report(console, found, machine, len(wanted), path)
            if arguments.tiles:
                _say(console, "no tuning log is written: that takes the whole family of tiles")
                return DONE
            files = Files(arguments.output or logs.of_machine(machine))
            _say(console, "learning")
            learned = conclude(found, machine, settings, journal.spent, files)
        except KeyboardInterrupt:
            _say(console, f"stopped: what was measured is kept in {path}, the same command goes on")
            return INTERRUPTED
    _say_learned(console, learned, files, target)
    return DONE


def _measured(
    bench: Lab | Fleet,
    journal: Journal,
    settings: Settings,
    search: Any,
    wanted: Sequence[Record],
    arguments: argparse.Namespace,
    console: Console,
) -> Found:
    if journal.spent_before:
        _say(console, f"{journal.path}: goes on after {duration(journal.spent_before)}")
    seconds_left: Callable[[], float] = lambda: settings.budget - journal.spent()  # noqa: E731

    def plan_lab(records: Sequence[Record], name: str) -> PlanLab:
        assert isinstance(bench, Lab)
        return PlanLab(bench.first, records, name)

    with Display(console, seconds_left) as display:
        stage = Stage(
            bench.machine,
            journal,
            settings,
            bench.many,
            bench.reference,
            search,
            display,
            plan_lab if isinstance(bench, Lab) and not arguments.tiles else None,
        )
        return stage.run(wanted)


def _search(
    machine: Machine, target: Target, model: CostModel, settings: Settings, width: int
) -> Any:
    # as many at a time as are measured at a time
    effort = Effort(settings.trials, max(settings.batch, width))

    def bound(
        form: Record,
        known: Mapping[Record, float | None],
        measure: Measure,
        stop: Callable[[], bool],
    ) -> object:
        return search(form, machine, target, known, measure, model, effort, settings.seed, stop)

    return bound


@contextmanager
def _interruptible() -> Iterator[None]:
    """A request to terminate is taken like Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(console: Console, found: Found, machine: Machine, wanted: int, path: Path) -> None:
    table = Table(*TILE_COLUMNS)
    for tile in found.tiles:
        table.add_row(*tile_row(tile, machine, found.reference))
    console.print(table)
    missing = wanted - len(found.tiles)
    left = f"; {missing} tiles were not searched, the budget is spent" if missing else ""
    plans = f" and {len(found.plans.samples)} plans" if found.plans else ""
    _say(console, f"{len(found.samples)} tasks{plans} measured{left}; written to {path}")


def _say_learned(console: Console, learned: Learned, files: Files, target: Target) -> None:
    """How good the model is, where it was written, and which log serves this machine now."""
    tasks, plans = learned.held_out
    errors = f"tasks {tasks.median:.1%} (90th percentile {tasks.tenth:.1%})"
    if plans is not None:
        errors += f", plans {plans.errors.median:.1%} ({plans.errors.tenth:.1%})"
    _say(console, f"held-out errors: {errors}; the report is {files.report}")
    try:
        _, log, _ = operators.described(target)
    except LookupError as error:
        _say(console, f"no tuning log is in use: {error}")
    else:
        _say(console, f"tuning log in use: {log.origin}")


def _say(console: Console, line: str) -> None:
    """A line as it is: a path in it is neither wrapped nor marked up."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
