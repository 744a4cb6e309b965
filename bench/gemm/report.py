"""The document as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gemm.peers import DEFAULT, DIRECT, OURS, VM
from bench.gemm.summary import Row, losses

FILE_WIDTH = 240
IN_CALLER = 0.95


def make_console() -> Console:
    """A console that does not squeeze the tables when the output goes to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def print_document(console: Console, doc: dict[str, Any]) -> None:
    """Everything that a reader needs to judge the figures, the losses last."""
    print_setting(console, doc)
    console.print(rows_table(doc["rows"], list(doc["candidates"])))
    console.print(groups_table(doc["geomean"]))
    print_doubts(console, doc)
    print_losses(console, doc["rows"])
    overall = doc["geomean"]["all"]
    defaults = [row["vs_default"] for row in doc["rows"] if row["vs_default"] is not None]
    console.print(
        f"[bold]{overall['shapes']} shapes, {doc['threads']} thread: "
        f"{number(overall['vs_best'])} of the best peer shape by shape (geometric mean; "
        f"{number(overall['vs_best_vm'])} through the virtual machine), "
        f"{overall['losses']} losses, {overall['of_peak']:.0%} of the FMA peak "
        f"({doc['peak_gflops']:.1f} GFLOP/s)"
    )
    if overall["vs_default"] is not None:
        console.print(
            f"[bold]tuned micro-kernels against the default schedule, same plans: "
            f"{number(overall['vs_default'])} (geometric mean of {DEFAULT} / {DIRECT}; "
            f"from {number(min(defaults))} to {number(max(defaults))})"
        )


def print_setting(console: Console, doc: dict[str, Any]) -> None:
    """Machine, versions, and how each candidate was called."""
    machine = doc["machine"]
    caches = ", ".join(f"{name} {size}" for name, size in machine.get("caches", {}).items())
    console.print(f"[bold]{machine.get('cpu')}[/], {machine.get('cores')} cores, {caches}")
    rounds = [row["rounds"] for row in doc["rows"]]
    console.print(
        f"threads: {doc['threads']}; clock: {doc.get('clock')}; "
        f"rounds: {min(rounds)} to {max(rounds)} a shape"
    )
    for pool in machine.get("blas", []):
        console.print("loaded: " + ", ".join(f"{key} {value}" for key, value in pool.items()))
    for name, version in doc["versions"].items():
        console.print(f"{name}: {version}", highlight=False)
    console.print(f"target: {doc.get('target')}", highlight=False)
    if doc.get("removed_environment"):
        console.print(f"taken out of the environment: {' '.join(doc['removed_environment'])}")
    table = Table("candidate", "called as", "compared with", title="Candidates")
    for name, mode in doc["candidates"].items():
        against = VM if name in doc["compared_with_vm"] else DIRECT
        table.add_row(name, mode, "" if name in OURS else against)
    console.print(table)


def rows_table(rows: Iterable[Row], candidates: list[str]) -> Table:
    """One line a shape: our speed, the best peer, and the ratio to every peer."""
    peers = [name for name in candidates if name not in OURS]
    table = Table(title="Ratio = time of the peer / ours; above 1 ours is faster")
    table.add_column("layer", no_wrap=True)
    for title in ("m", "n", "k", "batch"):
        table.add_column(title, justify="right")
    table.add_column("class", no_wrap=True)
    for title in ("GFLOP/s", "of peak", "vs best", "bounds"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("best peer")
    for title in ("vm vs best", "default kernels", *peers):
        table.add_column(title.replace("_", " "), justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            row["layer"],
            *(str(row[name]) for name in ("m", "n", "k", "batch")),
            row["class"],
            f"{row['gflops']:.1f}",
            f"{row['of_peak']:.0%}",
            ratio(row["vs_best"]),
            bounds(row["vs_best_bounds"]),
            row["best"] or "-",
            ratio(row["vs_best_vm"]),
            ratio(row["vs_default"]),
            *(ratio(row["vs"].get(name)) for name in peers),
        )
    return table


def groups_table(groups: dict[str, dict[str, Any]]) -> Table:
    """Geometric means, one line a class."""
    peers = list(groups["all"]["vs"])
    table = Table(title="Geometric means")
    table.add_column("class", no_wrap=True)
    titles = ("shapes", "losses", "of peak", "vs best", "vm vs best", "default kernels", *peers)
    for title in titles:
        table.add_column(title.replace("_", " "), justify="right", overflow="fold")
    for name, group in groups.items():
        table.add_row(
            name,
            str(group["shapes"]),
            str(group["losses"]),
            f"{group['of_peak']:.0%}",
            ratio(group["vs_best"]),
            ratio(group["vs_best_vm"]),
            ratio(group["vs_default"]),
            *(ratio(group["vs"].get(peer)) for peer in peers),
        )
    return table


def print_doubts(console: Console, doc: dict[str, Any]) -> None:
    """Peers that are missing, with the reason, and work that is done outside the calling thread."""
    for name, reason in doc["absent"].items():
        console.print(f"[yellow]absent: {name}: {reason}", highlight=False)
    reasons: dict[tuple[str, str], int] = {}
    for row in doc["rows"]:
        for item in row["absent"].items():
            reasons[item] = reasons.get(item, 0) + 1
    for (name, reason), count in reasons.items():
        console.print(f"[yellow]absent at {count} shapes: {name}: {reason}", highlight=False)
    shares = doc.get("share_in_calling_thread", {})
    for name, share in shares.items():
        if share < IN_CALLER:
            console.print(f"[yellow]{name} spends only {share:.0%} of its time in the caller")
    if shares and min(shares.values()) >= IN_CALLER:
        console.print(f"all {len(shares)} candidates do their work in the calling thread")


def print_losses(console: Console, rows: list[Row]) -> None:
    """Every shape on which the best peer is faster, the worst first."""
    slower = losses(rows)
    if all(row["vs_best"] is None for row in rows):
        console.print("[red]no peer was measured: there is nothing to compare with")
        return
    if not slower:
        console.print("no losses: ours is at least as fast as the best peer at every shape")
        return
    table = Table(title=f"All losses: {len(slower)} of {len(rows)} shapes")
    for title in ("layer", "(batch, m, n, k)", "class", "vs best", "bounds", "best peer"):
        table.add_column(title, no_wrap=True)
    for row in slower:
        size = f"({row['batch']}, {row['m']}, {row['n']}, {row['k']})"
        limits = bounds(row["vs_best_bounds"])
        table.add_row(row["layer"], size, row["class"], ratio(row["vs_best"]), limits, row["best"])
    console.print(table)


def number(value: float | None) -> str:
    """A ratio without colour."""
    return "-" if value is None else f"{value:.2f}"


def ratio(value: float | None) -> str:
    """A ratio, red when it is a loss."""
    text = number(value)
    return f"[red]{text}[/]" if value is not None and value < 1 else text


def bounds(limits: list[float] | None) -> str:
    """The bounds of a ratio."""
    return "-" if limits is None else f"{limits[0]:.2f}..{limits[1]:.2f}"
