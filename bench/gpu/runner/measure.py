"""The parts one after the other, each within its time, every item written down when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench.gpu.runner.calls import Setting
from bench.gpu.runner.device import DeviceLost
from bench.gpu.runner.journal import Journal
from bench.gpu.runner.parts import PARTS, Part

#: Between two lines of progress.
_SECONDS = 10.0

Say = Callable[[str], None]


def measure(
    setting: Setting,
    journal: Journal,
    names: Sequence[str],
    seconds: float,
    say: Say = print,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Measure what is left of the named parts; whether nothing is left.

    The time is shared out by the parts' shares, and what one does not need goes to those after it.

    Raises DeviceLost, after it was written down, where only a new process can go on.
    """
    end, complete = clock() + seconds, True
    for place, name in enumerate(names):
        left = sum(PARTS[later].share for later in names[place:])
        until = clock() + max(0.0, end - clock()) * PARTS[name].share / left
        complete &= _part(setting, journal, PARTS[name], until, say, clock)
    return complete


def _part(
    setting: Setting,
    journal: Journal,
    part: Part,
    until: float,
    say: Say,
    clock: Callable[[], float],
) -> bool:
    items = part.items(setting)
    if not items and part.name == "speed" and setting.no_peer:
        say(f"speed: left out: {setting.no_peer}")
    done = journal.done(part.name)
    todo = [item for item in items if item["key"] not in done]
    told = clock()
    for count, item in enumerate(todo):
        if clock() > until:
            say(f"{part.name}: {len(todo) - count} of {len(items)} left; run again to go on")
            return False
        if clock() - told > _SECONDS:
            told = clock()
            say(f"{part.name}: {len(items) - len(todo) + count} of {len(items)}")
        _item(setting, journal, part, item, say)
    if items:
        say(f"{part.name}: all {len(items)} done")
    return True


def _item(setting: Setting, journal: Journal, part: Part, item: dict, say: Say) -> None:
    key = item["key"]
    journal.begin(part.name, key)
    try:
        result = part.measure(setting, item)
    except MemoryError as error:
        journal.failed(part.name, key, f"no room: {error}")
        return
    except Exception as error:
        journal.failed(part.name, key, f"{type(error).__name__}: {_first_line(error)}")
        say(f"{part.name}: {key}: {_first_line(error)}")
        # this raises where nothing works any more in this process
        setting.device.synchronize()
        if isinstance(error, DeviceLost):
            raise
        return
    journal.found(part.name, key, result)
    if result.get("right") is False:
        say(f"WRONG: {key}: {result['reason']}")


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else ""
