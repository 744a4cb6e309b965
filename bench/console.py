"""The console that benches print their tables on."""

from __future__ import annotations

from rich.console import Console


def wide_console(width: int = 240) -> Console:
    """One that does not squeeze the tables when the output goes to a file: it then has ``width``
    columns."""
    console = Console()
    return console if console.is_terminal else Console(width=width)
