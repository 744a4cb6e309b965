"""The console that benches print their tables on, and their bar."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def wide_console(width: int = 240) -> Console:
    """One that does not squeeze the tables when the output goes to a file: it then has ``width``
    columns."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def progress_bar(console: Console, auto_refresh: bool = True) -> Progress:
    """A bar with the case in hand, how many are done, and an estimate of the time left.

    A thread redraws it, unless without ``auto_refresh`` the caller does.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        auto_refresh=auto_refresh,
    )
