"""Which log serves a machine: its own before the nearest, never one that it cannot execute."""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Iterator

from tvm_moonpoly.logs import places
from tvm_moonpoly.logs.document import TuningLog, lacking, same_machine
from tvm_moonpoly.machine import Machine

_log = logging.getLogger("tvm_moonpoly.logs")


def find(machine: Machine) -> TuningLog:
    """The first of `usable`.

    Raises LookupError when there is no log for the instruction set.
    """
    for log in usable(machine):
        return log
    raise LookupError(f"no tuning log for {machine.isa} (mcpu {machine.mcpu!r})")


def usable(machine: Machine) -> Iterator[TuningLog]:
    """The logs for ``machine``, best first: its own, then others of its instruction set.

    Its own are in the order of the places, `places.stored`; the others by how near they are: of
    the same line of CPUs, then with caches of similar size.
    """
    near = []
    for origin, reading in places.stored():
        log = reading.log
        if log is None:
            continue
        reason = refusal(log, machine)
        if reason is not None:
            say_once(logging.DEBUG, f"{origin}: skipped, {reason}")
        elif same_machine(log, machine):
            yield log
        else:
            near.append(log)
    yield from sorted(near, key=lambda log: distance(log, machine))


def refusal(log: TuningLog, machine: Machine) -> str | None:
    """Why ``log`` must not be used for ``machine``; None when it may."""
    if log.machine["isa"] != machine.isa:
        return f"it is for {log.machine['isa']}, not {machine.isa}"
    missing = lacking(log.needs, machine.features)
    if missing:
        return f"its kernels need {', '.join(missing)}, which {machine.mcpu} lacks"
    return None


def distance(log: TuningLog, machine: Machine) -> tuple[bool, float]:
    """How far the machine of ``log`` is: whether of another line of CPUs (``znver3`` and
    ``znver4`` are of one), and by how many factors of two the caches differ."""
    lines = [re.split(r"[\d-]", str(mcpu))[0] for mcpu in (log.machine["mcpu"], machine.mcpu)]
    levels = ("l1_bytes", "l2_bytes", "l3_bytes")
    ratios = [log.machine[level] / getattr(machine, level) for level in levels]
    return lines[0] != lines[1], sum(abs(math.log2(ratio)) for ratio in ratios)


def say_used(log: TuningLog, machine: Machine, best_isa: str) -> None:
    """Tell, once a process, which log is used, and how to get a better one where it is another
    machine's, or for less than the ``best_isa`` of this one."""
    if same_machine(log, machine) and machine.isa == best_isa:
        say_once(logging.INFO, f"tuning log of {machine.mcpu} ({machine.isa}): {log.origin}")
        return
    say_once(
        logging.WARNING,
        f"no tuning log of {machine.mcpu} ({best_isa}): the nearest is used, that of "
        f"{log.machine['mcpu']} ({log.machine['isa']}), {log.origin}; "
        "'moonpoly tune' on such a machine makes its own",
    )


@functools.cache
def say_once(level: int, message: str) -> None:
    """Once a process: the same log is looked up for every operator."""
    _log.log(level, "%s", message)
