"""The document as tables on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.planner.metrics import HIT, LARGE, Target, judged
from bench.planner.variants import LEARNED
from tvm_moonpoly.explanation import name
from tvm_moonpoly.planner.plan import BMode, Plan

_FIGURES = ("mean", "median", "p90", "worst", "top1", "top3")


def print_document(console: Console, doc: dict[str, Any]) -> None:
    """Everything that a reader needs to judge the figures, the losses first."""
    print_losses(console, doc["shapes"])
    print_setting(console, doc)
    console.print(planners_table(doc))
    console.print(groups_table(doc))
    console.print(mistakes_table(doc))
    if "decision" in doc:
        print_decision(console, doc["decision"])
    own = doc["summary"]["all"][LEARNED]
    console.print(
        f"[bold]{threads(doc)}, {own['shapes']} shapes: mean loss to the oracle {own['mean']:.1%}, "
        f"90th percentile {own['p90']:.1%}, worst {own['worst']:.1%}; within {HIT:.0%} of it: "
        f"{own['top1']:.0%} of the choices, {own['top3']:.0%} with the best of three"
    )
    print_targets(console, doc)
    console.print(f"took {doc['seconds']:.0f} s")


def print_targets(console: Console, doc: dict[str, Any]) -> None:
    """Which targets are met and which are missed."""
    own = doc["summary"]["all"][LEARNED]
    for word, targets in zip(("met", "missed"), judged(own), strict=True):
        if targets:
            colour = "green" if word == "met" else "red"
            figures = "; ".join(reached(each, own) for each in targets)
            console.print(f"targets {word}, {threads(doc)}: [{colour}]{figures}", highlight=False)


def reached(target: Target, own: dict[str, Any]) -> str:
    """A target's figure and what was to be reached."""
    return f"{target.title} {fine(own[target.figure])} ({wanted(target)})"


def wanted(target: Target) -> str:
    """``at most 2%``."""
    return f"{'at least' if target.at_least else 'at most'} {target.limit:.0%}"


def print_setting(console: Console, doc: dict[str, Any]) -> None:
    """Machine, versions, log, and how steady the machine was."""
    machine, log, rows = doc["machine"], doc["log"], doc["shapes"]
    caches = ", ".join(f"{level} {size}" for level, size in machine.get("caches", {}).items())
    console.print(f"[bold]{machine.get('cpu')}[/], {machine.get('cores')} cores, {caches}")
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    console.print(versions, highlight=False)
    console.print(
        f"costs from the log of {log['header'].get('machine', {}).get('mcpu')} ({log['origin']}), "
        f"digest {log['digest']}; random shapes by seed {doc['seed']}",
        highlight=False,
    )
    plans = sum(len(row["plans"]) for row in rows)
    rounds = [row["rounds"] for row in rows]
    drifts = sorted(row["drift"] for row in rows)
    console.print(
        f"{len(rows)} shapes, {plans} plans timed; {min(rounds)} to {max(rounds)} rounds of the "
        f"finalists; within them the speed of the machine moved by {drifts[len(drifts) // 2]:.1%} "
        f"(median over shapes), by {drifts[-1]:.1%} at worst (quartiles of a probe)",
        highlight=False,
    )


def planners_table(doc: dict[str, Any]) -> Table:
    """The planner and the others, over all shapes."""
    table = Table(title="Loss to the oracle: time of the chosen plan / of the fastest timed - 1")
    for title in ("planner", "what it is"):
        table.add_column(title, no_wrap=title == "planner")
    titles = (*_FIGURES, f"above {LARGE:.0%}", "Spearman", "Kendall")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for planner, about in doc["about"].items():
        own = doc["summary"]["all"][planner]
        table.add_row(
            planner,
            about,
            *(percent(own[figure]) for figure in _FIGURES),
            str(own["large"]),
            number(own["spearman"]),
            number(own["kendall"]),
        )
    return table


def groups_table(doc: dict[str, Any]) -> Table:
    """The planner itself by groups of shapes, and the mean loss of the others."""
    others = [planner for planner in doc["about"] if planner != LEARNED]
    table = Table(title="By groups of shapes; on the right the mean loss of the other planners")
    table.add_column("shapes", no_wrap=True)
    for title in ("", *_FIGURES, *others):
        table.add_column(title, justify="right", no_wrap=True)
    for group, planners in doc["summary"].items():
        own = planners[LEARNED]
        table.add_row(
            group,
            str(own["shapes"]),
            *(percent(own[figure]) for figure in _FIGURES),
            *(percent(planners[planner]["mean"]) for planner in others),
        )
    return table


def mistakes_table(doc: dict[str, Any]) -> Table:
    """What it costs to be told something wrong about the machine."""
    table = Table(title="The planner, told something wrong about the machine")
    table.add_column("told", no_wrap=True)
    titles = ("another plan for", *_FIGURES[:-1], "mean above the planner's")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for mistake, about in doc["mistakes"].items():
        own = doc["sensitivity"][mistake]
        figures = (own["differs"], *(own[figure] for figure in _FIGURES[:-1]))
        table.add_row(about, *map(percent, figures), points(own["more"]))
    return table


def print_decision(console: Console, decision: dict[str, Any]) -> None:
    """What a decision costs, against the limit."""
    ns, limit = decision["ns"], decision["limit_ns"]
    colour = "green" if max(ns.values()) <= limit else "red"
    kinds = ", ".join(f"{kind} {value:.0f}" for kind, value in ns.items() if kind != "all")
    console.print(
        f"a decision for a new shape, native: [{colour}]{ns['all']:.0f} ns[/] (mean over "
        f"{decision['shapes']} random shapes; B {kinds}); the limit is {limit} ns"
    )
    counted = decision.get("instructions")
    if counted is None:
        console.print(f"[yellow]its instructions: {decision['no_instructions']}")
    else:
        console.print(
            f"its instructions: {counted['median']:.0f} (median of {counted['shapes']} shapes; "
            f"{counted['least']:.0f} to {counted['most']:.0f})"
        )


def print_losses(console: Console, rows: list[dict[str, Any]]) -> None:
    """Every shape on which the planner loses much, the worst first."""
    found = [row for row in rows if row["planners"][LEARNED]["loss"] > LARGE]
    if not found:
        console.print(f"no shape with a loss above {LARGE:.0%}")
        return
    found.sort(key=lambda row: -row["planners"][LEARNED]["loss"])
    table = Table(title=f"All losses above {LARGE:.0%}: {len(found)} of {len(rows)} shapes")
    table.add_column("shape")
    for title in ("batch", "m", "n", "k", "loss", "chosen us", "predicted us"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("chosen")
    for title in ("best us", "predicted us"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("best")
    for row in found:
        own = row["planners"][LEARNED]
        predicted = {word: cost for word, cost, _ in row["plans"]}
        table.add_row(
            f"{row['name']}, {row['kind']}",
            *(str(row[size]) for size in ("batch", "m", "n", "k")),
            percent(own["loss"]),
            microseconds(own["measured_ps"]),
            microseconds(own["predicted_ps"]),
            plan_name(own["plan"]),
            microseconds(row["best_ps"]),
            microseconds(predicted[row["best"]]),
            plan_name(row["best"]),
        )
    console.print(table)


def plan_name(word: int) -> str:
    """An encoded plan in a few characters."""
    plan = Plan.decode(word)
    in_place = ", B in place" if plan.b_mode == BMode.DIRECT else ""
    shared = f", {plan.splits_m} x {plan.splits_n} parts" if plan.workers > 1 else ""
    return name(plan) + in_place + shared


def threads(doc: dict[str, Any]) -> str:
    """``1 thread``, ``2 threads``."""
    count = doc["threads"]
    return f"{count} thread{'s' if count > 1 else ''}"


def points(value: float) -> str:
    """A difference of percentages."""
    return f"{100 * value:+.2f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def fine(value: float | None) -> str:
    """As a target needs it: not rounded to the limit that it misses."""
    return "-" if value is None else f"{value:.2%}"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def microseconds(picoseconds: float) -> str:
    return f"{picoseconds / 1e6:.2f}"
