"""The report of a stage, as Markdown: what was measured, found and learned, and what was not."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import tvm

import tvm_moonpoly
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Form, Record
from tvm_moonpoly.tuning.findings import Found, Tile
from tvm_moonpoly.tuning.learning.learn import Learned
from tvm_moonpoly.tuning.measuring.tasks import samples_of
from tvm_moonpoly.tuning.measuring.trials import gigaflops
from tvm_moonpoly.tuning.plan_steps import library_records
from tvm_moonpoly.tuning.progress import duration
from tvm_moonpoly.tuning.select import Selection
from tvm_moonpoly.tuning.settings import Settings


def tile_name(form: Record, lanes: int) -> str:
    """A tile in rows and columns, and its form where that is not the plain one."""
    forms = ("packed A" if form.packed_a else "") + ("B in place" if form.in_place_b else "")
    return f"{form.mr}x{form.nv * lanes}" + (f" {forms}" if forms else "")


def tile_row(tile: Tile, machine: Machine, reference: float) -> tuple[str, ...]:
    """A tile, what its default and its tuned schedule reach, their ratio, and the decisions."""
    name = tile_name(tile.default.record, machine.lanes)
    default, best = (gigaflops(t, machine, reference) for t in (tile.default, tile.best))
    if default is None or best is None:
        return name, "failed", "", "", str(tile.default.error or tile.best.error)
    decisions = ", ".join(f"{n}={choice}" for n, choice in tile.best.record.decisions.items())
    ratio = f"{best / default:.3f}"
    return name, f"{default:.1f}", f"{best:.1f}", ratio, decisions or "the default ones"


#: What the columns of `tile_row` are called.
TILE_COLUMNS = ("tile", "default GFLOP/s", "tuned GFLOP/s", "ratio", "decisions")


def report(
    found: Found,
    learned: Learned,
    machine: Machine,
    settings: Settings,
    seconds: float,
    borrowed: str | None = None,
    selection: Selection | None = None,
) -> str:
    """The report of what was ``found`` in ``seconds``, and ``learned`` from it.

    ``borrowed``: the log that the costs of traffic are from, where too few plans were measured.
    """
    parts = [
        f"# Tuning of {machine.mcpu} ({machine.isa})",
        _setting(machine, settings, seconds),
        "## What was left out",
        "\n".join(f"- {line}" for line in left_out(found, machine, settings)) or "Nothing.",
        "## What tasks cost, held out",
        "Relative errors of predictions for tasks whose kernel and trip count were not learned "
        "from.",
        _table(
            ("model", "tasks", "median", "90th percentile"),
            (
                (name, f"{e.count}", _percent(e.median), _percent(e.tenth))
                for name, e in learned.tasks.items()
            ),
        ),
        *(_plan_parts(learned) if borrowed is None else _borrowed_parts(found, borrowed)),
        "## Traffic, in picoseconds",
        _table(
            ("entry", "picoseconds"),
            ((name, f"{value}") for name, value in asdict(learned.table.traffic).items()),
        ),
        "## Tiles: the default schedule and the tuned one",
        "GFLOP/s over the situations of the search, their geometric mean.",
        _table(TILE_COLUMNS, (tile_row(t, machine, found.reference) for t in found.tiles)),
    ]
    if selection is not None:
        parts += ["## The elite set", *selection_parts(selection)]
    return "\n\n".join(parts) + "\n"


def _plan_parts(learned: Learned) -> list[str]:
    return [
        "## What plans cost, held out",
        "Relative errors of predictions for plans of products that were not learned from. Rank "
        "correlation: of the measured plans of one product. Loss: how much longer than the best of "
        "them the one takes that is predicted to be the best; the median of the products, and what "
        "a tenth of them exceed.",
        _table(
            (
                "model",
                "plans",
                "median",
                "90th percentile",
                "rank correlation",
                "loss, median",
                "loss, 90th percentile",
            ),
            (
                (
                    name,
                    f"{e.errors.count}",
                    _percent(e.errors.median),
                    _percent(e.errors.tenth),
                    f"{e.spearman:.3f}",
                    _percent(e.losses.median),
                    _percent(e.losses.tenth),
                )
                for name, e in learned.plans.items()
            ),
        ),
        f"The cost table is made with {learned.corrections} trees by plans, a number that these "
        "errors have chosen, learned from all samples.",
    ]


def _borrowed_parts(found: Found, origin: str) -> list[str]:
    count = len(found.plans.samples) if found.plans else 0
    why = f"Only {count} plans were measured" if count else "No plans were measured"
    return [
        "## What plans cost",
        f"{why}: the costs of traffic are those of another log, {origin}.",
    ]


def selection_parts(selection: Selection) -> list[str]:
    """What was left out of the elite set, what each kernel adds, and what a smaller set costs."""
    steps, dropped = selection.steps, selection.dropped
    left = ", ".join(_kernel(step.dropped) for step in steps[:dropped])
    loss = steps[dropped - 1].mean_loss if dropped else 0.0
    kept = len(selection.table.tasks)
    return [
        f"{kept} of {kept + dropped} kernels are kept, by predicted costs over "
        f"{selection.shapes} synthetic products. Left out, for {loss:.2%} on the average: "
        f"{left or 'none'}.",
        "What each kernel adds: the mean cost over the products without it and those that need it "
        "(higher ones of its width; wider ones).",
        _table(
            ("kernel", "more without it"),
            ((_kernel(record), f"{worth:.2%}") for record, worth in selection.worth.items()),
        ),
        "What a smaller set would cost: kernels left out one after the other, the cheapest first.",
        _table(
            ("kernels left", "without", "mean", "worst"),
            (
                (
                    f"{step.left}",
                    _kernel(step.dropped),
                    f"{step.mean_loss:.2%}",
                    f"{step.worst_loss:.1%}",
                )
                for step in steps
            ),
        ),
    ]


def _kernel(record: Record) -> str:
    """A kernel in a few characters: 4x3v is 4 rows by 3 vectors."""
    form = "" if record.form == Form.PLAIN else f" on {record.form.value}"
    return f"{record.mr}x{record.nv}v{form}"


def left_out(found: Found, machine: Machine, settings: Settings) -> list[str]:
    """What was not measured, and what serves in its place."""
    lines = []
    family = cpu_gemm.family(machine)
    searched = {tile.default.record for tile in found.tiles}
    missing = [tile_name(form, machine.lanes) for form in family if form not in searched]
    if missing:
        lines.append(
            f"{len(missing)} of {len(family)} tiles were not searched and have the default "
            f"schedule: {', '.join(missing)}."
        )
    records = library_records(found.best(), machine)
    wanted = set(samples_of(records, machine, thorough=True))
    missed = len(wanted - {sample.task for sample in found.samples})
    if missed:
        lines.append(f"{missed} of {len(wanted)} tasks were not measured: they are predicted.")
    plans = len(found.plans.samples) if found.plans else 0
    if plans < settings.plans:
        lines.append(f"{settings.plans - plans} of {settings.plans} plans were not measured.")
    return lines


def _setting(machine: Machine, settings: Settings, seconds: float) -> str:
    caches = (machine.l1_bytes >> 10, machine.l2_bytes >> 10, machine.l3_bytes >> 10)
    return "\n".join(
        (
            f"- machine: {machine.mcpu}, {machine.isa}, {machine.cores} cores, caches "
            f"{', '.join(f'{size} KiB' for size in caches)}, {platform.system()}",
            f"- versions: tvm_moonpoly {tvm_moonpoly.__version__}, tvm {tvm.__version__}, "
            f"xgboost {_version('xgboost')}",
            f"- time: {duration(seconds)} spent, of a budget of {duration(settings.budget)}",
            f"- seed: {settings.seed}",
        )
    )


def _version(package: str) -> str:
    return str(__import__(package).__version__)


def _percent(part: float) -> str:
    return f"{part:.1%}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
