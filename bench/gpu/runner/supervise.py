"""A process that measures, started again where it died or hangs: one bad kernel is one failure."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

from bench.gpu.runner.journal import Journal

#: Exit codes of a process that measures: all done; nothing can be measured here; only a new process
#: can go on. Others mean that it died.
DONE, IMPOSSIBLE, LOST = 0, 2, 3

#: Seconds without a line in the journal after which a process hangs.
STALL = 90.0

_STARTS = 10


def supervise(
    command: Callable[[float], Sequence[str]],
    journal: Journal,
    seconds: float,
    stall: float = STALL,
    say: Callable[[str], None] = print,
) -> int:
    """Run ``command(seconds left)`` until it is done or the time is over; its exit code.

    The item that a process died of is written down as failed, so that the next one leaves it out.
    """
    end, code = time.monotonic() + seconds, DONE
    for _ in range(_STARTS):
        code, hangs = _run(command(max(0.0, end - time.monotonic())), journal, stall)
        if code in (DONE, IMPOSSIBLE):
            return code
        journal.refresh()
        pending = journal.pending()
        if pending is not None:
            reason = f"no answer in {stall:.0f} s" if hangs else f"the process died ({code})"
            journal.failed(*pending, reason)
            say(f"{pending[0]}: {pending[1]}: {reason}")
        elif code != LOST:
            say(f"the measuring process ended with {code} outside of any measurement")
            return code
        if time.monotonic() >= end:
            return DONE
        say("the measuring process is started again")
    say(f"given up after {_STARTS} starts")
    return code


def _run(command: Sequence[str], journal: Journal, stall: float) -> tuple[int, bool]:
    """The exit code, and whether it was ended because nothing came any more."""
    process = subprocess.Popen(command)
    size, since = _size(journal), time.monotonic()
    try:
        while True:
            try:
                return process.wait(timeout=min(0.5, stall / 4)), False
            except subprocess.TimeoutExpired:
                pass
            now = _size(journal)
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > stall:
                process.kill()
                return process.wait(), True
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _size(journal: Journal) -> int:
    return journal.path.stat().st_size
