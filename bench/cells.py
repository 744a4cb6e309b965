"""Cells of tables, and what the benches print of their documents alike."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console

NOTHING = "-"


def number(value: float | None) -> str:
    """A ratio without colour."""
    return NOTHING if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A fraction."""
    return NOTHING if value is None else f"{100 * value:.0f} %"


def ratio(value: float | None) -> str:
    """A ratio, red when it is a loss."""
    text = number(value)
    return f"[red]{text}[/]" if value is not None and value < 1 else text


def bounds(limits: list[float] | None) -> str:
    """The bounds of a ratio."""
    return NOTHING if limits is None else f"{limits[0]:.2f}..{limits[1]:.2f}"


def print_setting(console: Console, doc: dict[str, Any], what: str) -> None:
    """Machine and versions, how each candidate was called, and what is missing; ``what``, one or
    many, was measured."""
    print_machine(console, doc, what)
    versions = ", ".join(f"{name} {value}" for name, value in doc["versions"].items())
    console.print(f"{versions}; target {doc.get('target')}", highlight=False)
    for name, mode in doc.get("candidates", {}).items():
        console.print(f"{name}: {mode}", highlight=False)
    print_absent(console, doc, f"{what}s")


def print_machine(console: Console, doc: dict[str, Any], what: str) -> None:
    """The machine, the threads, the clock, and how many rounds each of what was measured got."""
    machine = doc["machine"]
    caches = ", ".join(f"{name} {size}" for name, size in machine.get("caches", {}).items())
    console.print(f"[bold]{machine.get('cpu')}[/], {machine.get('cores')} cores, {caches}")
    rounds = [row["rounds"] for row in doc["rows"]]
    text = f"threads: {doc['threads']}; clock: {doc.get('clock')}"
    if rounds:
        text += f"; rounds: {min(rounds)} to {max(rounds)} a {what}"
    console.print(text)


def print_absent(console: Console, doc: dict[str, Any], what: str) -> None:
    """Candidates that are missing everywhere, and those missing at some of ``what`` was measured,
    with the reasons."""
    for name, reason in doc.get("absent", {}).items():
        console.print(f"[yellow]absent: {name}: {reason}", highlight=False)
    reasons = Counter(item for row in doc["rows"] for item in row["absent"].items())
    for (name, reason), count in reasons.items():
        console.print(f"[yellow]absent at {count} {what}: {name}: {reason}", highlight=False)
