"""The tuning stage of this machine: search every tile's schedule, then measure its tasks.

``python -m tvm_moonpoly.tuning.stage``. What is found is in the stage's journal, see `steps.read`.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tvm
from rich.console import Console
from rich.table import Table
from tvm.target import Target

import tvm_moonpoly
from tvm_moonpoly import logs, microkernels
from tvm_moonpoly.machine import Machine, detect_target
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning import kernel_loop, lab, regions, trials
from tvm_moonpoly.tuning.journal import Busy, Journal
from tvm_moonpoly.tuning.lab import Lab
from tvm_moonpoly.tuning.processes import WorkerError
from tvm_moonpoly.tuning.progress import Display, duration
from tvm_moonpoly.tuning.search import CostModel, Effort, Measure, search
from tvm_moonpoly.tuning.steps import QUICK, Found, Settings, Stage, Tile

#: Exit codes: done, cannot be done, interrupted.
DONE, FAILED, INTERRUPTED = 0, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; returns the exit code."""
    arguments = _parser().parse_args(argv)
    console = Console()
    settings = QUICK if arguments.quick else Settings()
    given = {"budget": arguments.budget, "trials": arguments.trials, "seed": arguments.seed}
    settings = replace(settings, **{k: v for k, v in given.items() if v is not None})
    try:
        return _run(arguments, settings, console)
    except (Busy, ImportError, OSError, ValueError, WorkerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED


def journal_path(machine: Machine) -> Path:
    """Where the journal lies by default: beside the folder of the user's tuning logs."""
    name = logs.of_machine(machine).parent.name
    return logs.folders()[0].parent / "tuning" / f"{name}.journal.jsonl"


def origin(machine: Machine) -> dict[str, Any]:
    """What measurements depend on: the machine, the kernels' sources, what is timed and how."""
    digest = hashlib.sha256()
    kernels = sorted(Path(microkernels.__path__[0]).glob("*.py"))
    for path in [*kernels, *(Path(str(m.__file__)) for m in (kernel_loop, lab, regions, trials))]:
        digest.update(path.read_bytes())
    described = asdict(machine)
    return {
        **{name: described[name] for name in ("mcpu", "isa", "cores")},
        **{name: described[name] for name in ("l1_bytes", "l2_bytes", "l3_bytes")},
        "features": sorted(machine.features),
        "tvm": tvm.__version__,
        "package": tvm_moonpoly.__version__,
        "sources": digest.hexdigest()[:16],
    }


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


def _run(arguments: argparse.Namespace, settings: Settings, console: Console) -> int:
    target = detect_target()
    machine = Machine.from_target(target)
    wanted = forms(machine, arguments.tiles)
    path = arguments.journal or journal_path(machine)
    model = CostModel(arguments.cost_model)
    journal = Journal(path, origin(machine), anew=arguments.restart)
    with _interruptible(), journal:
        seconds_left: Callable[[], float] = lambda: settings.budget - journal.spent()  # noqa: E731
        if journal.spent_before:
            _say(console, f"{path}: goes on after {duration(journal.spent_before)}")
        try:
            with Lab(machine) as bench, Display(console, seconds_left) as display:
                stage = Stage(
                    machine,
                    journal,
                    settings,
                    bench,
                    bench.reference,
                    _search(machine, target, model, settings),
                    display,
                )
                found = stage.run(wanted)
        except KeyboardInterrupt:
            _say(console, f"stopped: what was measured is kept in {path}, the same command goes on")
            return INTERRUPTED
        _report(console, found, stage, len(wanted), path)
    return DONE


def _search(machine: Machine, target: Target, model: CostModel, settings: Settings) -> Any:
    effort = Effort(settings.trials, settings.batch)

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


def _report(console: Console, found: Found, stage: Stage, wanted: int, path: Path) -> None:
    table = Table("tile", "default GFLOP/s", "tuned GFLOP/s", "ratio", "decisions")
    for tile in found.tiles:
        table.add_row(*_row(tile, stage))
    console.print(table)
    missing = wanted - len(found.tiles)
    left = f"; {missing} tiles were not searched, the budget is spent" if missing else ""
    _say(console, f"{len(found.samples)} tasks measured{left}; written to {path}")


def _say(console: Console, line: str) -> None:
    """A line as it is: a path in it is neither wrapped nor marked up."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _row(tile: Tile, stage: Stage) -> tuple[str, ...]:
    form = tile.default.record
    name = f"{form.mr}x{form.nv * stage.machine.lanes}" + (" packed A" if form.packed_a else "")
    default, best = stage.gigaflops(tile.default), stage.gigaflops(tile.best)
    if default is None or best is None:
        return name, "failed", "", "", str(tile.default.error or tile.best.error)
    decisions = ", ".join(f"{n}={choice}" for n, choice in tile.best.record.decisions.items())
    return (
        name,
        f"{default:.1f}",
        f"{best:.1f}",
        f"{best / default:.3f}",
        decisions or "the default ones",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="moonpoly tune",
        description="Search the schedules of this machine's micro-kernels and measure their tasks.",
        epilog="A stage that was stopped goes on where it was: run the same command again.",
    )
    parser.add_argument(
        "--budget",
        type=seconds,
        metavar="TIME",
        help="time for all sessions together, like 90s, 10m or 1h (default: 45m)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a rough result in less than 3 minutes"
    )
    parser.add_argument(
        "--tiles",
        type=_tiles,
        metavar="MxN,...",
        help="only these tiles, in rows x columns (default: the whole family)",
    )
    parser.add_argument("--trials", type=_positive, help="schedules measured for each tile")
    parser.add_argument("--seed", type=int, help="of the search")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="where measurements are kept")
    parser.add_argument(
        "--restart", action="store_true", help="forget what was measured before, and begin anew"
    )
    parser.add_argument(
        "--cost-model",
        choices=("xgb", "random"),
        default="xgb",
        help="what chooses the schedules to measure; random: to see what the model is worth",
    )
    return parser


def seconds(text: str) -> float:
    """Seconds of a time like ``90s``, ``10m``, ``1.5h`` or ``600``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time like 90s, 10m or 1h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _tiles(text: str) -> list[tuple[int, int]]:
    tiles = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)x(\d+)", part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"{part!r} is no tile like 4x24")
        tiles.append((int(match[1]), int(match[2])))
    return tiles


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
