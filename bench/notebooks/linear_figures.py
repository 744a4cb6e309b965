"""Figures and tables of a linear layer over the number of its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib import ticker
from matplotlib.figure import Figure

from bench import measure
from bench.notebooks import buckets, curves, drawing
from bench.notebooks.candidates import (
    BUCKETS,
    DLIGHT,
    EXACT,
    HAND,
    OURS,
    PADDED,
    PLAIN,
    Candidate,
)
from bench.notebooks.curves import PEAK, Point
from bench.notebooks.metaschedule import Tuned

COLOUR = {
    OURS: drawing.BLUE,
    BUCKETS: drawing.RED,
    EXACT: drawing.ORANGE,
    PADDED: drawing.GREEN,
    HAND: drawing.PINK,
    DLIGHT: drawing.SKY,
    PLAIN: drawing.GREY,
}

#: Those that are timed at a few rows, or on small images, only: other calls take them seconds.
SLOW = (PLAIN, DLIGHT)


def speed_figure(points: Sequence[Point], slow: Sequence[Point], what: str) -> Figure:
    """GFLOP/s of every candidate; ``slow`` holds those that are measured at few rows only."""
    figure, axes = drawing.canvas(width=10.5, height=5.4)
    ends = {}
    for name, found in [(n, points) for n in curves.names(points)] + [
        (n, slow) for n in curves.names(slow) if n != OURS
    ]:
        rows, speed = curves.line(found, name)
        style = (
            {"ls": "none", "marker": "o", "ms": 7} if name == EXACT else {"marker": ".", "ms": 4}
        )
        axes.plot(rows, speed, color=COLOUR[name], lw=2.6 if name == OURS else 1.4,
                  zorder=4 if name == EXACT else 3, **style)  # fmt: skip
        ends[name] = (rows[-1], speed[-1], COLOUR[name])
    peak = measure.geomean(point.gflops(PEAK) for point in points)
    axes.axhline(peak, color="black", lw=1, ls="--")
    ends[f"FMA peak of one core: {peak:.0f}"] = (points[-1].rows, peak, "black")
    drawing.doubling(axes, 1, points[-1].rows)
    fastest = max(point.gflops(name) for point in points for name in curves.names([point]))
    axes.set(xlim=(0.93, points[-1].rows * 1.05), ylim=(0, max(peak, fastest) * 1.06))
    axes.set(xlabel="M, rows of the input (known only when the layer is called)")
    axes.set_ylabel("GFLOP/s, one thread (higher is better)")
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    low = curves.mean_slowdown(points, BUCKETS)
    hand = min(curves.mean_slowdown(points, name) for name in (HAND, PADDED))
    axes.set_title(
        f"{what}: buckets tuned by MetaSchedule take {low:.2f} times as long as tvm_moonpoly,\n"
        f"the better hand schedule {hand:.2f} times, plain TVM "
        f"{curves.mean_slowdown(slow, PLAIN):.0f} times (geometric means over M)",
        loc="left", fontsize=11,
    )  # fmt: skip
    drawing.label_lines(axes, ends)
    return figure


def padding_figure(points: Sequence[Point], sizes: Sequence[int], what: str) -> Figure:
    """What padding costs: the time of buckets and exact kernels relative to ours."""
    figure, axes = drawing.canvas(width=10.5, height=4.8)
    first = 1
    for place, size in enumerate(sizes):
        axes.axvspan(first, size, color="#000000", alpha=0.05 if place % 2 else 0.0, lw=0)
        axes.text(math.sqrt(first * size), 0.985, f"bucket {size}", ha="center", va="top",
                  fontsize=9, transform=axes.get_xaxis_transform())  # fmt: skip
        first = size
    last = points[-1].rows
    if last > sizes[-1]:
        axes.axvspan(sizes[-1], last * 1.05, color=drawing.RED, alpha=0.10, lw=0)
        axes.text(math.sqrt(sizes[-1] * last), 0.985, "beyond:\nin pieces", ha="center", va="top",
                  fontsize=9, color=drawing.RED, transform=axes.get_xaxis_transform())  # fmt: skip
    ends = {}
    for name in (BUCKETS, EXACT):
        rows, ratio = curves.slowdowns(points, name)
        style = (
            {"ls": "none", "marker": "o", "ms": 7} if name == EXACT else {"marker": ".", "ms": 5}
        )
        axes.plot(rows, ratio, color=COLOUR[name], lw=1.6, zorder=4 if name == EXACT else 3,
                  **style)  # fmt: skip
        ends[name] = (rows[-1], ratio[-1], COLOUR[name])
    pure = [1 / (1 - buckets.wasted(point.rows, sizes)) for point in points]
    axes.plot([point.rows for point in points], pure, color=drawing.GREY, lw=1, ls=":")
    ends["rows computed / rows asked for"] = (last, pure[-1], drawing.GREY)
    axes.axhline(1, color=drawing.BLUE, lw=2.2)
    ends["tvm_moonpoly = 1"] = (last, 1, drawing.BLUE)
    drawing.doubling(axes, 1, last)
    top = max(*curves.slowdowns(points, BUCKETS)[1], *pure) * 1.25
    axes.set_yscale("log")
    axes.set(xlim=(0.93, last * 1.05), ylim=(0.7, top))
    ticks = [tick for tick in (0.7, 1, 1.5, 2, 3, 5, 8, 12, 20) if tick <= top]
    axes.set_yticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set(xlabel="M, rows of the input")
    axes.set_ylabel("time / time of tvm_moonpoly (lower is better)")
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    at_size = [point.slowdown(BUCKETS) for point in points if point.rows in sizes]
    worst = worst_padding(points, sizes)
    axes.set_title(
        f"{what}: where M is a bucket's size its kernel takes {min(at_size):.2f} to "
        f"{max(at_size):.2f} of our time;\nbetween them padding costs up to "
        f"{worst.slowdown(BUCKETS):.1f} times our time (M = {worst.rows})",
        loc="left", fontsize=11,
    )  # fmt: skip
    drawing.label_lines(axes, ends, 0.07)
    return figure


def worst_padding(points: Sequence[Point], sizes: Sequence[int]) -> Point:
    """Where padding costs most: of the points that are padded, neither a bucket's size nor beyond
    the largest bucket. Raises ValueError when there is none."""
    padded = [point for point in points if point.rows not in sizes and point.rows < sizes[-1]]
    return max(padded, key=lambda point: point.slowdown(BUCKETS))


def offline_figure(
    points: Sequence[Point], slow: Sequence[Point], candidates: Sequence[Candidate]
) -> Figure:
    """What is spent on a layer before its first call, against the time of its calls."""
    figure, axes = drawing.canvas(width=10.5, height=4.6)
    for each in candidates:
        found = slow if each.name in SLOW else points
        ratio = curves.mean_slowdown(found, each.name)
        colour = COLOUR[each.name]
        axes.scatter([each.seconds], [ratio], s=90, color=colour, zorder=3)
        note = {EXACT: "\n(each M; only where it was tuned)"}.get(each.name, "")
        above = each.name in (DLIGHT, HAND, PADDED)
        axes.annotate(f"{each.name}: {duration(each.seconds)}{note}", (each.seconds, ratio),
                      (9, 9 if above else -5), textcoords="offset points", color=colour,
                      va="bottom" if above else "top", fontsize=9.5)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(0.05, 3600 * 3))
    axes.set_xticks([0.1, 1, 10, 60, 600, 3600], ["0.1 s", "1 s", "10 s", "1 min", "10 min", "1 h"])
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.7, high * 1.7)
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if tick < high * 1.7]
    axes.set_yticks(ticks, [f"{tick}x" for tick in ticks])
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.grid(color="#dddddd", lw=0.6)
    axes.set(xlabel="processor time spent on this layer before its first call (compiling, tuning)")
    axes.set_ylabel("time of a call / ours, mean over M")
    spent = {each.name: each.seconds for each in candidates}
    axes.set_title(
        f"The buckets of a layer cost {duration(spent[BUCKETS])} of tuning; tvm_moonpoly compiles "
        f"it in {duration(spent[OURS])}\nfrom micro-kernels that are tuned once for each kind of "
        "processor", loc="left", fontsize=11,
    )  # fmt: skip
    return figure


def search_figure(tuned: Sequence[Tuned]) -> Figure:
    """The best kernel found after each trial."""
    figure, axes = drawing.canvas(width=10.5, height=4.2)
    ends = {}
    cycle = [*drawing.COLOURS, "black", "#8B4513"]
    for each, colour in zip(sorted(tuned, key=lambda t: t.m), cycle, strict=False):
        speed = [2e-9 * each.m * each.n * each.k / seconds for seconds in each.best]
        axes.plot(range(1, len(speed) + 1), speed, color=colour, drawstyle="steps-post", lw=1.5)
        minutes = each.processor_seconds / 60
        ends[f"M = {each.m}: {minutes:.1f} min"] = (len(speed), speed[-1], colour)
    axes.set(xlim=(1, max(each.trials for each in tuned)), ylim=(0, None))
    axes.set(xlabel="trial of the search")
    axes.set_ylabel("GFLOP/s of the best kernel so far")
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    total = sum(each.processor_seconds for each in tuned)
    axes.set_title(
        f"{len(tuned)} numbers of rows of one layer took MetaSchedule {duration(total)} of "
        "processor time;\neach search stands for one M only", loc="left", fontsize=11,
    )  # fmt: skip
    drawing.label_lines(axes, ends, 0.075)
    return figure


def duration(seconds: float) -> str:
    """Seconds as a reader says them."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def speed_table(points: Sequence[Point], slow: Sequence[Point], rows: Sequence[int]) -> Any:
    """Microseconds, GFLOP/s and the ratio to ours at a few numbers of rows."""
    shown = [(point, name) for point in points for name in curves.names([point])]
    shown += [(point, name) for point in slow for name in curves.names([point]) if name != OURS]
    lines = [
        (
            m,
            name,
            f"{point.median(name) * 1e6:.1f}",
            f"{point.gflops(name):.1f}",
            f"{point.slowdown(name):.2f}",
        )
        for m in rows
        for point, name in shown
        if point.rows == m
    ]
    return drawing.table(("M", "candidate", "us a call", "GFLOP/s", "time / ours"), lines)


def summary_table(
    points: Sequence[Point],
    slow: Sequence[Point],
    candidates: Sequence[Candidate],
    sizes: Sequence[int],
) -> Any:
    """One line a candidate: speed, what it costs ahead, and which rows it takes."""
    outside = {
        BUCKETS: f"pieces of {sizes[-1]}; as many packed copies of the weight as buckets",
        EXACT: "none: the call is refused",
    }
    lines = []
    for each in candidates:
        found = slow if each.name in SLOW else points
        ratios = curves.slowdowns(found, each.name)[1]
        rows = curves.line(found, each.name)[0]
        lines.append((each.name, f"{measure.geomean(ratios):.2f}", f"{min(ratios):.2f}",
                      f"{max(ratios):.2f}", f"{len(rows)} of M = {rows[0]}..{rows[-1]}",
                      duration(each.seconds), outside.get(each.name, "the same code")))  # fmt: skip
    header = ("candidate", "time / ours, mean", "least", "most", "measured at",
              "processor time before the first call", "rows that it was not made for")  # fmt: skip
    return drawing.table(header, lines)
