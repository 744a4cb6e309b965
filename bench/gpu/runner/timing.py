"""How long calls take on the device, with its clock, whatever the host does in the meantime.

Before what is timed the device gets something long to do, so that the host is ahead of it and its
own time does not count. ``warm`` calls follow one another and find in L2 what the one before left;
before a ``cold`` one L2 is filled with something else.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.gpu.runner.device import Device

Call = Callable[[], object]

#: A warm sample is as many calls as fill this time, between these bounds.
_SAMPLE_SECONDS, _FEWEST, _MOST = 2e-4, 2, 20

_WAKE_SECONDS, _MOST_FILLS = 0.3, 5000

#: The host's time for one call, as far as the device is kept busy for.
_HOST_SECONDS = 30e-6


@dataclass(frozen=True)
class Timer:
    """``scratch`` is the address of ``size`` bytes, more than L2 holds; ``fill_seconds`` what it
    takes to fill them."""

    device: Device
    scratch: int
    size: int
    fill_seconds: float

    @classmethod
    def of(cls, device: Device) -> Timer:
        """One for a device, with memory of its own."""
        size = max(4 * device.facts.l2_bytes, 64 << 20)
        scratch = device.allocate(size)
        seconds = 0.0
        for _ in range(3):
            before = device.mark()
            device.fill(scratch, 0, size)
            seconds = max(device.between(before, device.mark()), 1e-7)
        timer = cls(device, scratch, size, seconds)
        # an idle GPU takes a while to raise its clocks
        timer.busy(_WAKE_SECONDS)
        return timer

    def busy(self, seconds: float) -> None:
        """Give the device something to do for about so long; L2 then holds nothing else."""
        for _ in range(min(int(seconds / self.fill_seconds) + 1, _MOST_FILLS)):
            self.device.fill(self.scratch, 0, self.size)

    def cold(self, call: Call) -> float:
        """Seconds of one call that finds nothing in L2."""
        self.busy(2 * _HOST_SECONDS)
        before = self.device.mark()
        call()
        return self.device.between(before, self.device.mark())

    def warm(self, call: Call, count: int) -> float:
        """Seconds of one of ``count`` calls in a row, after one that is not counted."""
        self.busy((count + 2) * _HOST_SECONDS)
        call()
        before = self.device.mark()
        for _ in range(count):
            call()
        return self.device.between(before, self.device.mark()) / count

    def count(self, call: Call) -> int:
        """How many calls make a warm sample."""
        estimate = max(self.cold(call), 1e-7)
        return max(_FEWEST, min(int(_SAMPLE_SECONDS / estimate), _MOST))

    def warm_samples(self, call: Call, samples: int) -> list[float]:
        """Several of `warm`."""
        count = self.count(call)
        return [self.warm(call, count) for _ in range(samples)]

    def host(self, call: Call, count: int = 50) -> float:
        """Seconds of the host's own for one call, the device being busy."""
        self.device.synchronize()
        self.busy(count * _HOST_SECONDS)
        begin = time.perf_counter()
        for _ in range(count):
            call()
        seconds = (time.perf_counter() - begin) / count
        self.device.synchronize()
        return seconds

    def rounds(
        self, calls: Mapping[str, Call], count: int, cold: bool = True
    ) -> dict[str, dict[str, list[float]]]:
        """Samples of several calls, ``cold`` ones too and warm ones, by their names: in each of
        ``count`` rounds all take their turn, in alternating order."""
        names = list(calls)
        repeats = {name: self.count(calls[name]) for name in names}
        found: dict[str, dict[str, list[float]]] = {n: {"cold": [], "warm": []} for n in names}
        for number in range(count):
            for name in names if number % 2 == 0 else reversed(names):
                if cold:
                    found[name]["cold"].append(self.cold(calls[name]))
                found[name]["warm"].append(self.warm(calls[name], repeats[name]))
        return found


def paired_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds of their time by ours: above 1 we are faster."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
