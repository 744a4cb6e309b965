"""Waiting and measuring in tests, on a machine that may be ten times slower than usual.

Deadlines only end what hangs. What noise disturbs is measured again: a fault stays in every
measurement, noise does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

#: Seconds after which something hangs.
DEADLINE = 600.0


def wait_until(holds: Callable[[], object], seconds: float = DEADLINE) -> bool:
    """Whether ``holds()`` becomes true in time."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def undisturbed(
    measure: Callable[[], Found], holds: Callable[[Found], bool], attempts: int = 5
) -> Found:
    """The first of ``attempts`` measurements that ``holds``; fails, and shows them all, where there
    is none."""
    found: list[Found] = []
    for _ in range(attempts):
        found.append(measure())
        if holds(found[-1]):
            return found[-1]
    raise AssertionError(f"none of {attempts} measurements holds: {found}")
