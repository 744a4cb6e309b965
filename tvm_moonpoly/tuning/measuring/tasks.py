"""Tasks ``g(t)`` of micro-kernels, what is measured of them, and in which order.

A task is one micro-kernel over ``k`` steps with operands that come from some level of the memory,
alone on the machine or with every core doing the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm_moonpoly.costmodel.tasks import Level, Residency
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.planner.groups import level
from tvm_moonpoly.tuning.measuring import regions

#: Trip counts from 1 to 5000, a factor of 2 apart. From 3 on they are multiples of 3: rows that are
#: a power of two apart meet in the same sets of a cache, which is a case of its own.
TRIP_COUNTS = (1, 2, 3, 6, 12, 24, 48, 96, 192, 384, 768, 1536, 3072, 5000)

#: Of how many records one is measured with every core busy, where time is short: all of their
#: kernels are then built a second time.
_QUICK_BUSY = 6


@dataclass(frozen=True)
class Task:
    """``k`` steps of a record's kernel; ``placement`` is a name of `regions.PLACEMENTS`."""

    record: Record
    k: int
    placement: str
    busy: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "record": self.record.to_json(),
            "k": self.k,
            "placement": self.placement,
            "busy": self.busy,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """Inverse of `to_json`; raises ValueError on anything else."""
        record = Record.from_json(data.get("record"))
        k, placement, busy = data.get("k"), data.get("placement"), data.get("busy")
        if type(k) is not int or k < 1:
            raise ValueError(f"task: k must be a positive integer, not {k!r}")
        if placement not in regions.PLACEMENTS:
            raise ValueError(f"task: placement {placement!r} is none of {list(regions.PLACEMENTS)}")
        if type(busy) is not bool:
            raise ValueError(f"task: busy must be true or false, not {busy!r}")
        return cls(record, k, placement, busy)

    def loop(self, machine: Machine) -> regions.Loop | None:
        """Where its operands lie; None where the placement cannot be."""
        busy = machine.cores if self.busy else 1
        return regions.place(self.record, self.k, regions.PLACEMENTS[self.placement], machine, busy)

    def residency(self, machine: Machine) -> Residency:
        """Where the planner would say that its operands come from."""
        placed = regions.PLACEMENTS[self.placement]
        floats = {"a": self.record.mr * self.k, "b": self.record.nv * machine.lanes * self.k}
        levels = {
            name: level(4 * count, machine)
            if getattr(placed, name) == regions.SHARED
            else Level(getattr(placed, name))
            for name, count in floats.items()
        }
        return Residency(min(levels["a"], Level.L3), levels["b"])

    def flops(self, machine: Machine) -> int:
        """Floating-point operations: each multiply-add counts as two."""
        return 2 * self.record.mr * self.record.nv * machine.lanes * self.k


@dataclass(frozen=True)
class Timing:
    """What a task takes, in steps of the probe, so that the machine's speed at that time drops out.

    ``spread`` is the distance between the quartiles of the timings, as a part of their median;
    ``calm``, whether nothing else slowed the core (see `robust`).
    """

    steps: float
    spread: float
    timings: int
    calm: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timing:
        """Inverse of `to_json`; raises ValueError on anything else."""
        kinds = {"steps": float, "spread": float, "timings": int, "calm": bool}
        if {name: type(data.get(name)) for name in kinds} != kinds:
            raise ValueError(f"timing: {dict(data)!r} has not exactly {', '.join(kinds)}")
        return cls(**{name: data[name] for name in kinds})


@dataclass(frozen=True)
class Sample:
    """A measured task. ``picoseconds``: at the undisturbed speed of the machine."""

    task: Task
    timing: Timing
    picoseconds: int


def samples_of(
    records: Sequence[Record], machine: Machine, thorough: bool, busy: bool = True
) -> Iterator[Task]:
    """The tasks to measure, the most telling first, so that the rest can be left out.

    Every other trip count comes before those between them. Within a pass the order is mixed: what
    is left out when time is up is then a little of everything. Not ``thorough``: one pass, in which
    every core is busy for a few of the records only. Not ``busy``: none with every core busy.
    """
    some, others = TRIP_COUNTS[::2], TRIP_COUNTS[1::2]
    busy_records = records if thorough else records[::_QUICK_BUSY]
    passes = [[(records, some, False), (busy_records, some[::2], True)]]
    if thorough:
        passes += [[(records, others, False), (records, some[1::2], True)]]
        passes += [[(records, others, True)]]
    for number, parts in enumerate(passes):
        tasks = [
            Task(record, k, placement, loaded)
            for chosen, counts, loaded in parts
            if not loaded or (busy and machine.cores > 1)
            for placement in regions.PLACEMENTS
            for record in chosen
            for k in counts
        ]
        random.Random(number).shuffle(tasks)
        yield from (task for task in tasks if task.loop(machine) is not None)
