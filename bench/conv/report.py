"""The document as tables on a terminal: losses first."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gemm.report import (
    NOTHING,
    bounds,
    number,
    percent,
    print_absent,
    print_machine,
    ratio,
)
from bench.gemm.summary import losses


def print_document(console: Console, doc: dict[str, Any], each: bool = False) -> None:
    """Losses, the setting, the classes; ``each``: every layer too."""
    print_losses(console, doc["rows"])
    print_machine(console, doc, "layer")
    versions = ", ".join(f"{name} {value}" for name, value in doc["versions"].items())
    console.print(f"{versions}; target {doc.get('target')}", highlight=False)
    for name, mode in doc.get("candidates", {}).items():
        console.print(f"{name}: {mode}", highlight=False)
    print_absent(console, doc, "layers")
    if each:
        console.print(rows_table(doc["rows"]))
    console.print(classes_table(doc["classes"]))


def print_losses(console: Console, rows: list[dict[str, Any]]) -> None:
    """Every layer in which the best library is faster, the worst first, those that count marked."""
    slower = losses(rows)
    if all(row["vs_best"] is None for row in rows):
        console.print("[red]no library was measured: there is nothing to compare with")
        return
    counted = sum(row["loss"] for row in slower)
    console.print(
        f"[bold]{len(slower)} of {len(rows)} layers are slower than the best library; {counted} "
        "count: even the upper bound is below the floor of the class"
    )
    if slower:
        console.print(rows_table(slower))


def rows_table(rows: list[dict[str, Any]]) -> Table:
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


def classes_table(groups: list[dict[str, Any]]) -> Table:
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
