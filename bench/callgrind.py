"""Callgrind's profile files, read: what ended a profile, and each function's own instructions.

Expects the options --compress-strings=no and --compress-pos=no.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TRIGGER = re.compile(r"^desc: Trigger: (?:Client Request: |--dump-before=)?(.*)$")
# Subposition and cost: lines are numbers, or hexadecimal addresses with --dump-instr=yes.
_COST = re.compile(r"^(?:[+-]?(?:0x[0-9a-f]+|\d+)|\*) (?:.* )?(\d+)$")


@dataclass(frozen=True)
class Profile:
    """What ran between two dumps.

    ``trigger`` is the text of the client request that wrote the file, or the function that was
    about to be entered. ``own`` has the instructions of each (object file, function), without
    those of the functions that it calls.
    """

    trigger: str
    own: Counter[tuple[str, str]]

    @property
    def total(self) -> int:
        """All instructions."""
        return sum(self.own.values())


def parse(text: str) -> Profile:
    """Read one profile.

    Raises ValueError when the text is no complete profile of instruction counts alone, or when
    the functions do not add up to callgrind's own total.
    """
    trigger: str | None = None
    total: int | None = None
    events = obj = function = ""
    own: Counter[tuple[str, str]] = Counter()
    called = False
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if found := _TRIGGER.match(line):
            trigger = found[1]
        elif line.startswith("events:"):
            events = line.partition(":")[2].strip()
        elif line.startswith("totals:"):
            total = int(line.partition(":")[2])
        elif key == "ob":
            obj = value
        elif key == "fn":
            function = value
        elif key == "calls":
            called = True
        elif cost := _COST.match(line):
            # the line after a call has what the callee took, which the callee's own lines hold
            if not called:
                own[obj, function] += int(cost[1])
            called = False
    if trigger is None or total is None:
        raise ValueError("text: no complete profile of callgrind")
    if events != "Ir":
        raise ValueError(f"text: events must be Ir alone, got {events or 'none'}")
    profile = Profile(trigger, own)
    if profile.total != total:
        raise ValueError(f"text: the functions add up to {profile.total}, not to {total}")
    return profile


def read_dumps(folder: Path, stem: str) -> list[Profile]:
    """All files ``stem.1``, ``stem.2``, ... of ``folder`` in the order they were written."""
    paths = [path for path in folder.glob(f"{stem}.*") if path.suffix[1:].isdigit()]
    return [parse(path.read_text()) for path in sorted(paths, key=lambda p: int(p.suffix[1:]))]


def total_own(profiles: Iterable[Profile]) -> Counter[tuple[str, str]]:
    """The functions' own instructions over several profiles."""
    return sum((profile.own for profile in profiles), Counter())
