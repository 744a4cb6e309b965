"""A figure of one run: ``python -m bench.planner.figure results.json figure.svg``.

On the left the output of one product, cut into regions and tiles; in the middle what all plans of
that product were predicted to take and took; on the right how far each planner is from the oracle
over all shapes. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.planner.report import plan_name
from bench.planner.variants import LEARNED
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.spec import balanced

#: Colours that people with any colour vision tell apart (Okabe and Ito).
_MAIN, _TAIL, _PARTIAL, _BEST = "#56B4E9", "#E69F00", "#CC79A7", "#D55E00"
_CURVES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#666666")

#: Groups and row tiles that a drawing shows clearly, and the least share of the tail.
_CLEAR, _LEAST_TAIL = range(3, 31), 0.02


def example(document: dict[str, Any]) -> dict[str, Any]:
    """The shape that is drawn: one with constant weights, tiles that can be told apart and a tail
    that can be seen, as far as there are such; of these the one with the most plans."""
    lanes = document["planned_for"]["lanes"]

    def worth(row: dict[str, Any]) -> tuple[bool, bool, bool, int]:
        plan = Plan.decode(row["planners"][LEARNED]["plan"])
        return (
            plan.b_mode == BMode.PREPACKED,
            row["n"] // (plan.nv * lanes) in _CLEAR and row["m"] // plan.mr in _CLEAR,
            plan.tail_nv * lanes >= _LEAST_TAIL * row["n"],
            len(row["plans"]),
        )

    rows: list[dict[str, Any]] = document["shapes"]
    return max(rows, key=worth)


def of_shape(rows: Sequence[dict[str, Any]], text: str) -> dict[str, Any]:
    """The row of the shape ``"M,N,K"``; raises ValueError when there is none."""
    for row in rows:
        if text.replace(" ", "") == f"{row['m']},{row['n']},{row['k']}":
            return row
    raise ValueError(f"--shape: the results hold no shape {text}")


def draw(document: dict[str, Any], row: dict[str, Any], path: Path) -> None:
    """Write the figure to ``path``, as its suffix says."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "moonpoly", "font.size": 9, "axes.titlesize": 10}):
        figure, (left, middle, right) = pyplot.subplots(
            1, 3, figsize=(14, 4.4), layout="constrained"
        )
        draw_plane(left, row, document["planned_for"]["lanes"])
        draw_plans(middle, row)
        draw_losses(right, document)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=110)
        pyplot.close(figure)


def draw_plane(axes: Any, row: dict[str, Any], lanes: int) -> None:
    """The output, rows downwards, by the chosen plan."""
    m, n = row["m"], row["n"]
    plan = Plan.decode(row["planners"][LEARNED]["plan"])
    main = (n // lanes - plan.tail_nv) * lanes
    regions = [(0, main, plan.nv, plan.mr, _MAIN), (main, plan.tail_nv * lanes, plan.tail_nv,
                plan.tail_mr, _TAIL)]  # fmt: skip
    for number, (first, width, vectors, height, colour) in enumerate(regions, 1):
        if not width:
            continue
        axes.axvspan(first, first + width, color=colour, alpha=0.35, lw=0)
        small, large, tiles = balanced(m, height)
        ends = [t * (small + 1) if t <= large else m - (tiles - t) * small for t in range(tiles)]
        axes.hlines(ends[1:], first, first + width, color="black", lw=0.5)
        columns = range(first, first + width, vectors * lanes)
        axes.vlines(list(columns)[1:], 0, m, color="black", lw=0.5)
        axes.axvline(first + width, color="black", lw=1.5)
        rows = " and ".join(
            f"{count} of {tall} rows"
            for count, tall in ((large, small + 1), (tiles - large, small))
            if count
        )
        axes.text(
            first + width / 2, m * (0.3 if number == 1 else 0.7),
            f"region {number}: {len(columns)} x {vectors * lanes} columns\nmicro-kernel "
            f"{height}x{vectors}v\nrow tiles: {rows}",
            ha="center" if number == 1 else "right", va="center", multialignment="center",
            bbox={"facecolor": "white", "edgecolor": colour, "boxstyle": "round"},
        )  # fmt: skip
    if n % lanes:
        axes.axvspan(n - n % lanes, n, color=_PARTIAL, alpha=0.7, lw=0)
    axes.set(xlim=(0, n), ylim=(m, 0), xlabel=f"columns of the output, n = {n}")
    axes.set_ylabel(f"rows of the output, m = {m}")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_title(f"The chosen plan for k = {row['k']}: {plan_name(plan.encode())}")


def draw_plans(axes: Any, row: dict[str, Any]) -> None:
    """All plans: predicted and measured."""
    from matplotlib import ticker

    predicted = {word: cost / 1e6 for word, cost, _ in row["plans"]}
    measured = {word: cost / 1e6 for word, _, cost in row["plans"]}
    axes.scatter(predicted.values(), measured.values(), s=9, color="#888888", lw=0,
                 label=f"all {len(predicted)} plans")  # fmt: skip
    chosen, best = row["planners"][LEARNED]["plan"], row["best"]
    for word, marker, colour, size, label in (
        (best, "o", _BEST, 110, f"oracle: {plan_name(best)}"),
        (chosen, "*", "#0072B2", 90, f"chosen: {plan_name(chosen)}"),
    ):
        hollow = {"facecolors": "none", "edgecolors": colour} if marker == "o" else {"c": colour}
        axes.scatter([predicted[word]], [measured[word]], s=size, marker=marker, lw=1.5, zorder=3,
                     label=label, **hollow)  # fmt: skip
    ends = [min(measured.values()) * 0.9, max(measured.values()) * 1.1]
    axes.plot(ends, ends, color="black", lw=0.7, ls="--", label="predicted = measured")
    axes.set(xscale="log", yscale="log", xlabel="predicted, microseconds")
    axes.set_ylabel("measured, microseconds")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(ticker.NullLocator())
    axes.set_title(f"Every plan of that product ({row['m']} x {row['n']} x {row['k']})")
    axes.legend(loc="upper left", fontsize=8)


def draw_losses(axes: Any, document: dict[str, Any]) -> None:
    """The losses of each planner, sorted."""
    rows = document["shapes"]
    for (planner, own), colour in zip(document["summary"]["all"].items(), _CURVES, strict=False):
        losses = sorted(max(row["planners"][planner]["loss"], 0) * 100 for row in rows)
        share = [100 * (i + 0.5) / len(losses) for i in range(len(losses))]
        width = 2.4 if planner == LEARNED else 1.2
        label = f"{planner} (mean {own['mean']:.1%})"
        axes.plot(share, losses, color=colour, lw=width, label=label)
    axes.axhline(2, color="black", lw=0.6, ls=":")
    axes.set_yscale("symlog", linthresh=5)
    ticks = [0, 2, 5, 10, 20, 50, 100, 200, 500]
    top = max(axes.get_ylim()[1], 10)
    axes.set_yticks([t for t in ticks if t <= top], [f"{t} %" for t in ticks if t <= top])
    axes.minorticks_off()
    axes.set(xlim=(0, 100), ylim=(-0.2, top), xlabel="shapes, % (each curve sorted)")
    axes.set_ylabel("slower than the best of all plans")
    axes.set_title(f"Loss to the oracle over {len(rows)} shapes, by planner")
    axes.legend(loc="upper left", fontsize=8)


def read(results: Path, shape: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document in a file of results, and its row of the ``shape`` or else of the example.

    Raises OSError, ValueError or KeyError when there are none.
    """
    document = json.loads(results.read_text())
    return document, of_shape(document["shapes"], shape) if shape else example(document)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the figure of a results file."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.planner.figure", description="A figure of a run of bench.planner."
    )
    parser.add_argument("results", type=Path, help="what --json wrote")
    parser.add_argument("figure", type=Path, help="the file to write: .svg or .png")
    parser.add_argument("--shape", metavar="M,N,K", help="the shape to draw")
    options = parser.parse_args(arguments)
    try:
        document, row = read(options.results, options.shape)
    except (OSError, ValueError, KeyError) as reason:
        parser.error(str(reason))
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    draw(document, row, options.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
