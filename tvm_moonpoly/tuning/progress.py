"""Showing how far the stage is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

#: Seconds between two plain lines.
_BETWEEN_LINES = 10.0


class Display:
    """Progress of a stage of ``total`` measurements that may take ``seconds_left()`` at most."""

    def __init__(
        self,
        console: Console,
        seconds_left: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._seconds_left, self._clock = console, seconds_left, clock
        self._done, self._total, self._new = 0, 0, 0
        self._best = 0.0
        self._what = "starting"
        self._started = self._last_line = clock()
        self._bar: Progress | None = None
        self._task: Any = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rest]}"),
                console=console,
            )
            self._task = self._bar.add_task("starting", rest="")
            self._bar.start()

    def phase(self, what: str, total: int) -> None:
        """What is being done now, and how many measurements there are in all."""
        self._what, self._total = what, total
        self._show()

    def more(self, what: str, count: int) -> None:
        """What is being done now, ``count`` measurements more than there are."""
        self.phase(what, self._done + count)

    def measured(self, gigaflops: float | None, new: bool) -> None:
        """One more measurement is there; ``new`` unless it was so before this session."""
        self._done += 1
        self._new += new
        self._best = max(self._best, gigaflops or 0.0)
        self._show()

    def skipped(self, count: int) -> None:
        """Measurements that are not to be made after all."""
        self._total -= count
        self._show()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def left(self) -> float:
        """Seconds left: by the pace of this session, and at most until the budget is spent."""
        until_the_budget = max(self._seconds_left(), 0.0)
        if not self._new:
            return until_the_budget
        pace = (self._clock() - self._started) / self._new
        return min(pace * max(self._total - self._done, 0), until_the_budget)

    def _show(self) -> None:
        rest = f"best {self._best:.1f} GFLOP/s, {duration(self.left())} left"
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=self._what,
                completed=self._done,
                total=max(self._total, self._done),
                rest=rest,
            )
        elif self._clock() - self._last_line >= _BETWEEN_LINES:
            self._last_line = self._clock()
            self.say(f"{self._done}/{self._total} {self._what}: {rest}")


def duration(seconds: float) -> str:
    """``1h 05m``, ``4m 10s`` or ``12s``."""
    whole = max(round(seconds), 0)
    minutes, rest = divmod(whole, 60)
    if minutes >= 60:
        return f"{minutes // 60}h {minutes % 60:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{rest}s"
