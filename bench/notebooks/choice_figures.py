"""Figures of plans: one drawn, the candidates as the number of rows varies, and both ways timed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from bench import measure
from bench.notebooks import choices, drawing
from bench.notebooks.choices import Costs, Times
from bench.planner import figure as planner_figure
from bench.planner.variants import LEARNED

#: The most that is drawn of a distance to the best, in per cent.
TOP = 30


def plan_figure(row: dict[str, Any], lanes: int) -> Figure:
    """The output of one product cut into regions and tiles, and all its plans timed."""
    figure, axes = drawing.canvas(width=12.5, height=4.8, columns=2)
    planner_figure.draw_plane(axes[0, 0], row, lanes)
    planner_figure.draw_plans(axes[0, 1], row)
    lost = row["planners"][LEARNED]["loss"]
    how = f"{lost:.1%} slower than the fastest" if lost > 0 else "as fast as the fastest"
    axes[0, 1].set_title(f"The chosen plan is {how} of all {len(row['plans'])} plans")
    return figure


def change_figure(costs: Sequence[Costs], times: Sequence[Times], what: str) -> Figure:
    """By how much each pair of widths is above the best, predicted and measured, and the choice."""
    names = choices.winners(costs)
    colours = dict(zip(names, drawing.COLOURS, strict=False))
    figure = Figure(figsize=(10.5, 7.2), layout="constrained")
    above, middle, strip = figure.subplots(
        3, 1, sharex=True, gridspec_kw={"height_ratios": (5, 5, 1)}
    )
    rows = [each.m for each in costs]
    for axes, found, title in (
        (above, costs, "predicted: above the cheapest, %"),
        (middle, times, "measured: above the fastest, %"),
    ):
        ends = {}
        for name in names:
            known = [each for each in found if name in _names(each)]
            values, colour = [each.above(name) * 100 for each in known], colours[name]
            axes.plot([each.m for each in known], values, color=colour, lw=1.6,
                      marker=".", ms=4)  # fmt: skip
            if values[-1] > TOP:
                name = f"{name} (beyond)"
            ends[name] = (known[-1].m, min(values[-1], TOP), colour)
        axes.set(xlim=(rows[0] - 0.5, rows[-1] + 0.5), ylim=(-1, TOP), ylabel=title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", lw=0.6)
        drawing.label_lines(axes, ends, 0.085)
    for first, last, name in choices.stretches(costs):
        strip.axvspan(first - 0.5, last + 0.5, color=colours[name], lw=0)
        if last - first >= 3:
            strip.text((first + last) / 2, 0.5, name, ha="center", va="center", color="white",
                       fontsize=9, fontweight="bold")  # fmt: skip
    strip.set(yticks=[], ylim=(0, 1), xlabel="M, rows of the input")
    strip.set_ylabel("chosen", rotation=0, ha="right", va="center")
    strip.spines[["top", "right", "left"]].set_visible(False)
    lost = choices.price_of_choice(costs, times)
    changes = len(choices.stretches(costs)) - 1
    above.set_title(
        f"{what}: the choice changes {changes} times between M = {rows[0]} and {rows[-1]}; "
        f"it is the fastest or\nwithin 2 % of it for {share(lost, 0.02):.0%} of M, and "
        f"{statistics.mean(lost):.1%} slower on average, {max(lost):.0%} at worst",
        loc="left", fontsize=11,
    )  # fmt: skip
    return figure


def _names(each: Costs | Times) -> Mapping[str, Any]:
    return each.choices if isinstance(each, Costs) else each.seconds


def share(losses: Sequence[float], limit: float) -> float:
    """The part of ``losses`` that are at most ``limit``."""
    return sum(each <= limit for each in losses) / len(losses)


def prediction_figure(
    costs: Sequence[Costs], times: Sequence[Times], n: int, k: int, what: str
) -> Figure:
    """GFLOP/s of the chosen plan over M, predicted and measured."""
    figure, axes = drawing.canvas(width=10.5, height=4.6)
    rows = [each.m for each in costs]
    predicted = [2e3 * c.m * n * k / c.choices[c.chosen].picoseconds for c in costs]
    found = [2e-9 * t.m * n * k / t.median(c.chosen) for c, t in zip(costs, times, strict=True)]
    axes.plot(rows, predicted, color=drawing.BLUE, lw=2)
    axes.plot(rows, found, color=drawing.RED, marker="o", ms=4, ls="none")
    drawing.doubling(axes, rows[0], rows[-1])
    top = max(*predicted, *found) * 1.08
    axes.set(xlim=(rows[0] * 0.93, rows[-1] * 1.05), ylim=(0, top))
    axes.set(xlabel="M, rows of the input", ylabel="GFLOP/s of the chosen plan, one core")
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    ratios = [f / p for f, p in zip(found, predicted, strict=True)]
    within = sum(0.9 <= ratio <= 1.1 for ratio in ratios) / len(ratios)
    axes.set_title(
        f"{what}: measured speed is {measure.geomean(ratios):.2f} of the predicted one on average, "
        f"from {min(ratios):.2f} to {max(ratios):.2f};\n{within:.0%} of the predictions are within "
        "10 %", loc="left", fontsize=11,
    )  # fmt: skip
    drawing.label_lines(
        axes,
        {
            "predicted by the cost table": (rows[-1], predicted[-1], drawing.BLUE),
            "measured": (rows[-1], found[-1], drawing.RED),
        },
        0.07,
    )
    return figure


def stretches_table(costs: Sequence[Costs]) -> Any:
    """Where the choice changes, and what the next best would cost there."""
    by_rows = {each.m: each for each in costs}
    lines = []
    for first, last, name in choices.stretches(costs):
        here = by_rows[first]
        others = [(here.above(other), other) for other in here.choices if other != name]
        plan = here.choices[name].plan
        tiles = f"{plan.mr}x{plan.nv}v" + f" + {plan.tail_mr}x{plan.tail_nv}v" * bool(plan.tail_nv)
        more, other = min(others) if others else (0.0, "-")
        lines.append((first, last, name, tiles, f"{other} at {more:+.1%}"))
    header = ("from M", "to M", "chosen", "micro-kernels at the first M", "next best there")
    return drawing.table(header, lines)
