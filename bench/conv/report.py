"""The document as tables on a terminal: losses first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from bench.cells import NOTHING, bounds, number, percent, ratio
from bench.gemm.summary import Row
from bench.report import Report


def rows_table(rows: Sequence[Row]) -> Table:
    """One line a layer: our speed, the best library, and the ratio to every candidate."""
    peers = list(dict.fromkeys(name for row in rows for name in row["vs"]))
    table = Table(title="Ratio = time of the other / ours; above 1 ours is faster")
    for title in ("counts", "layer", "network", "class"):
        table.add_column(title, no_wrap=True)
    for title in ("GFLOP/s", "of peak", "vs best", "bounds", "best", *peers):
        table.add_column(title.replace("_", " "), justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            "[red]yes[/]" if row["loss"] else "",
            row["key"],
            row["network"],
            row["class"],
            f"{row['gflops']:.1f}",
            percent(row["of_peak"]),
            ratio(row["vs_best"]),
            bounds(row["vs_best_bounds"]),
            row["best"] or NOTHING,
            *(ratio(row["vs"].get(name)) for name in peers),
        )
    return table


def classes_table(groups: Sequence[dict[str, Any]]) -> Table:
    """Geometric means and goals, one line a class."""
    peers = list(dict.fromkeys(name for group in groups for name in group["vs"]))
    table = Table(title="Ratio = time of the best library / ours")
    table.add_column("layers of", no_wrap=True)
    for title in ("", "vs best", "target", "met", "slower", "count", "worst", "of peak", *peers):
        table.add_column(title.replace("_", " "), justify="right", overflow="fold")
    for group in groups:
        table.add_row(
            group["title"],
            str(group["layers"]),
            ratio(group["vs_best"]),
            f"{group['target']:.2f}, none < {group['floor']:.2f}",
            "yes" if group["met"] else "no",
            str(group["slower"]),
            str(group["losses_that_count"]),
            number(group["worst"]),
            percent(group["of_peak"]),
            *(ratio(group["vs"].get(name)) for name in peers),
        )
    return table


print_document = Report(
    "layer", "the best library", "classes", rows_table, classes_table
).print_document
