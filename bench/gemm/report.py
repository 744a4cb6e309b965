"""The document as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cells import (
    NOTHING,
    bounds,
    number,
    percent,
    print_absent,
    print_machine,
    ratio,
)
from bench.gemm.groups import Group
from bench.gemm.peers import DIRECT, OURS, VM
from bench.gemm.run import PROBES
from bench.gemm.summary import FLOOR, Row, losses, peers_in

IN_CALLER = 0.95


def print_document(console: Console, doc: dict[str, Any], each: bool = False) -> None:
    """Losses first, then what was measured and how, then the sums; ``each``: every case too."""
    print_losses(console, doc["rows"])
    print_setting(console, doc)
    if each:
        console.print(rows_table(doc["rows"], list(doc["candidates"])))
    print_doubts(console, doc)
    if doc["classes"]:
        console.print(groups_table("Constant weights by size", doc["classes"], peers_of(doc)))
    console.print(groups_table("Ratio = time of the best peer / ours", doc["groups"]))
    peak = doc["peak_gflops"]
    console.print(
        f"[bold]{len(doc['rows'])} cases, {doc['threads']} thread{'s' * (doc['threads'] > 1)}, "
        f"{sum(row['loss'] for row in doc['rows'])} losses that count"
        + ("" if peak is None else f", FMA peak {peak:.1f} GFLOP/s")
    )


def print_setting(console: Console, doc: dict[str, Any]) -> None:
    """Machine, versions, and how each candidate was called."""
    print_machine(console, doc, "case")
    for pool in doc["machine"].get("blas", []):
        console.print("loaded: " + ", ".join(f"{key} {value}" for key, value in pool.items()))
    for name, version in doc["versions"].items():
        console.print(f"{name}: {version}", highlight=False)
    console.print(f"target: {doc.get('target')}", highlight=False)
    if doc.get("removed_environment"):
        console.print(f"taken out of the environment: {' '.join(doc['removed_environment'])}")
    table = Table("candidate", "called as", "compared with", title="Candidates")
    for name, mode in doc["candidates"].items():
        against = VM if name in doc["allocating"] else DIRECT
        table.add_row(name, mode, "" if name in (*OURS, *PROBES) else against)
    console.print(table)


def rows_table(rows: Iterable[Row], candidates: list[str]) -> Table:
    """One line a case: our speed, the best peer, and the ratio to every peer."""
    peers = peers_in(candidates)
    table = Table(title="Ratio = time of the peer / ours; above 1 ours is faster")
    add = table.add_column
    add("case", no_wrap=True)
    for title in ("GFLOP/s", "of peak", "vs best", "bounds", "limit"):
        add(title, justify="right", no_wrap=True)
    add("best peer")
    for title in ("vm vs best", *peers):
        add(title.replace("_", " "), justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            row["key"],
            f"{row['gflops']:.1f}",
            percent(row["of_peak"]),
            ratio(row["vs_best"]),
            bounds(row["vs_best_bounds"]),
            number(row["limit"]),
            row["best"] or NOTHING,
            ratio(row["vs_best_vm"]),
            *(ratio(row["vs"].get(name)) for name in peers),
        )
    return table


def peers_of(doc: dict[str, Any]) -> list[str]:
    """The candidates that multiply and are not ours."""
    timed = {name for group in doc["classes"] for name in group["vs"]}
    return [name for name in doc["candidates"] if name in timed]


def groups_table(title: str, groups: list[Group], peers: Sequence[str] = ()) -> Table:
    """Geometric means and targets, one line a group; with the ratios to ``peers``."""
    table = Table(title=title)
    table.add_column("cases of", no_wrap=True)
    for name in ("", "vs best", "target", "met", "slower", f"< {FLOOR}", "worst", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("of peak", "of bandwidth", "vm vs best", *peers):
        table.add_column(name.replace("_", " "), justify="right", overflow="fold")
    for group in groups:
        worst = group["worst"]
        table.add_row(
            group["title"],
            str(group["cases"]),
            ratio(group["vs_best"]),
            target(group),
            met(group),
            str(group["losses"]),
            str(group["losses_that_count"]),
            NOTHING if worst is None else ratio(worst["vs_best"]),
            number(group["limit"]),
            percent(group["of_peak"]),
            percent(group["of_bandwidth"]),
            ratio(group["vs_best_vm"]),
            *(ratio(group["vs"].get(peer)) for peer in peers),
        )
    return table


def target(group: Group) -> str:
    """What is to be reached, in a few words."""
    words = [] if group["target"] is None else [f"{group['target']:.2f}"]
    for name, what in (("of_peak_target", "of peak"), ("of_bandwidth_target", "of bandwidth")):
        if group[name] is not None:
            words.append(f"{percent(group[name])} {what}")
    return ", ".join(words) or NOTHING


def met(group: Group) -> str:
    """Whether it is reached, and if not what is missing."""
    if group["missed"] is None:
        return NOTHING
    return f"no: {', '.join(group['missed'])}" if group["missed"] else "yes"


def print_doubts(console: Console, doc: dict[str, Any]) -> None:
    """Peers that are missing, with the reason, and work that is done outside the calling thread."""
    print_absent(console, doc, "cases")
    if doc["left_out"]:
        console.print(f"too large, not measured: {'; '.join(doc['left_out'])}", highlight=False)
    shares = doc.get("share_in_calling_thread", {})
    for name, share in shares.items():
        if share < IN_CALLER:
            console.print(f"[yellow]{name} spends only {share:.0%} of its time in the caller")
    if shares and min(shares.values()) >= IN_CALLER:
        console.print(f"all {len(shares)} candidates do their work in the calling thread")


def print_losses(console: Console, rows: list[Row]) -> None:
    """Every case in which the best peer is faster, the worst first, those that count marked."""
    slower = losses(rows)
    if all(row["vs_best"] is None for row in rows):
        console.print("[red]no peer was measured: there is nothing to compare with")
        return
    if not slower:
        console.print("no losses: ours is at least as fast as the best peer in every case")
        return
    counted = sum(row["loss"] for row in slower)
    title = f"All losses: {len(slower)} of {len(rows)} cases; {counted} count: even the upper bound"
    table = Table(title=f"{title} is below {FLOOR}")
    for name in ("counts", "case", "layer", "vs best", "bounds", "runs", "limit", "best peer"):
        table.add_column(name, no_wrap=True)
    for row in slower:
        table.add_row(
            "[red]yes[/]" if row["loss"] else "",
            row["key"] if row["mode"] == "quiet" else f"{row['key']} ({row['mode']})",
            row["layer"],
            ratio(row["vs_best"]),
            bounds(row["vs_best_bounds"]),
            str(row["runs"]),
            number(row["limit"]),
            row["best"],
        )
    console.print(table)
