"""Showing how far the making of a bundle is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from bench.console import progress_bar

#: Seconds between two plain lines.
_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def shown(
    console: Console, what: str, total: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], None]]:
    """What is to be called after each of `total` things, within the context."""
    if console.is_terminal:
        with progress_bar(console) as bar:
            task = bar.add_task(what, total=total)
            yield lambda: bar.advance(task)
        return
    done, last = 0, clock()

    def advance() -> None:
        nonlocal done, last
        done += 1
        if done == total or clock() - last >= _BETWEEN_LINES:
            last = clock()
            console.print(f"{what}: {done} of {total}", soft_wrap=True)

    yield advance
