"""The document as tables on a terminal: losses first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from bench.cells import NOTHING, bounds, number, ratio
from bench.gemm.summary import Row
from bench.models.build import ORT, OURS
from bench.report import Report

MEBI = 1 << 20


def rows_table(rows: Sequence[Row]) -> Table:
    """One line a size: milliseconds of both, and the ratios."""
    table = Table(title="Ratio = time of the other / ours; above 1 ours is faster")
    for title in ("counts", "size"):
        table.add_column(title, no_wrap=True)
    for title in ("ms", "onnxruntime ms", "ratio", "bounds", "rounds"):
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            "[red]yes[/]" if row["loss"] else "",
            row["key"],
            milliseconds(row, OURS),
            milliseconds(row, ORT),
            ratio(row["vs_best"]),
            bounds(row["vs_best_bounds"]),
            str(row["rounds"]),
        )
    return table


def milliseconds(row: dict[str, Any], engine: str) -> str:
    """The median time of an engine."""
    seconds = row["seconds"].get(engine)
    return NOTHING if seconds is None else f"{1e3 * seconds:.2f}"


def groups_table(groups: Sequence[dict[str, Any]]) -> Table:
    """Geometric means and goals, one line a group."""
    table = Table(title="Ratio = time of onnxruntime / ours")
    table.add_column("network", no_wrap=True)
    titles = ("sizes", "vs onnxruntime", "target", "met", "slower", "count", "worst")
    for title in (*titles, "build s", "MiB", "onnxruntime MiB"):
        table.add_column(title, justify="right", overflow="fold")
    for group in groups:
        table.add_row(
            group["title"],
            str(group["sizes"]),
            ratio(group["vs_best"]),
            goal(group),
            "yes" if group["met"] else "no",
            str(group["slower"]),
            str(group["losses_that_count"]),
            number(group["worst"]),
            build_seconds(group),
            *(mebibytes(group, engine) for engine in (OURS, ORT)),
        )
    return table


def goal(group: dict[str, Any]) -> str:
    """What is to be reached."""
    return f"{number(group['target'])}, none < {group['floor']:.2f}"


def build_seconds(group: dict[str, Any]) -> str:
    """Processor seconds to import and compile the network."""
    found = group["build_seconds"]
    return NOTHING if found is None else f"{found['processor']:.1f}"


def mebibytes(group: dict[str, Any], engine: str) -> str:
    """Most memory of an engine's process, less what it had before the network was loaded."""
    found = (group["memory"] or {}).get(engine)
    return NOTHING if found is None else f"{(found['peak'] - found['before']) / MEBI:.0f}"


print_document = Report("size", "onnxruntime", "groups", rows_table, groups_table).print_document
