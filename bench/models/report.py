"""The document as tables on a terminal: losses first."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gemm.report import NOTHING, bounds, number, print_absent, print_machine, ratio
from bench.gemm.summary import losses
from bench.models.build import ORT, OURS

MEBI = 1 << 20


def print_document(console: Console, doc: dict[str, Any], each: bool = False) -> None:
    """Losses, the setting, the groups; ``each``: every size too."""
    rows = doc["rows"]
    slower = losses(rows)
    counted = sum(row["loss"] for row in slower)
    console.print(
        f"[bold]{len(slower)} of {len(rows)} sizes are slower than onnxruntime; {counted} count: "
        "even the upper bound is below the floor of the network"
    )
    if slower:
        console.print(rows_table(slower))
    print_machine(console, doc, "size")
    versions = ", ".join(f"{name} {value}" for name, value in doc["versions"].items())
    console.print(f"{versions}; target {doc.get('target')}", highlight=False)
    for name, mode in doc.get("candidates", {}).items():
        console.print(f"{name}: {mode}", highlight=False)
    print_absent(console, doc, "sizes")
    if each:
        console.print(rows_table(rows))
    console.print(groups_table(doc["groups"]))


def rows_table(rows: list[dict[str, Any]]) -> Table:
    """One line a size: milliseconds of both, and the ratios."""
    peers = list(dict.fromkeys(name for row in rows for name in row["vs"] if name != ORT))
    table = Table(title="Ratio = time of the other / ours; above 1 ours is faster")
    for title in ("counts", "size"):
        table.add_column(title, no_wrap=True)
    for title in ("ms", "onnxruntime ms", "ratio", "bounds", "rounds", *peers):
        table.add_column(title.replace("_", " "), justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            "[red]yes[/]" if row["loss"] else "",
            row["key"],
            milliseconds(row, OURS),
            milliseconds(row, ORT),
            ratio(row["vs_best"]),
            bounds(row["vs_best_bounds"]),
            str(row["rounds"]),
            *(ratio(row["vs"].get(name)) for name in peers),
        )
    return table


def milliseconds(row: dict[str, Any], engine: str) -> str:
    """The median time of an engine."""
    seconds = row["seconds"].get(engine)
    return NOTHING if seconds is None else f"{1e3 * seconds:.2f}"


def groups_table(groups: list[dict[str, Any]]) -> Table:
    """Geometric means and goals, one line a group."""
    peers = list(dict.fromkeys(name for group in groups for name in group["vs"] if name != ORT))
    table = Table(title="Ratio = time of onnxruntime / ours")
    table.add_column("network", no_wrap=True)
    titles = ("sizes", "vs onnxruntime", "target", "met", "slower", "count", "worst", *peers)
    for title in (*titles, "build s", "MiB", "onnxruntime MiB"):
        table.add_column(title.replace("_", " "), justify="right", overflow="fold")
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
            *(ratio(group["vs"].get(name)) for name in peers),
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
