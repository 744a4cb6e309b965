"""Tasks ``g(t)`` of micro-kernels, what is measured of them, and in which order.

A task is one micro-kernel over ``k`` steps with operands that come from some level of the memory,
alone on the machine or with every core doing the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning import regions

#: Trip counts from 1 to 5000, a factor of 2 apart. From 3 on they are multiples of 3: rows that are
#: a power of two apart meet in the same sets of a cache, which is a case of its own.
TRIP_COUNTS = (1, 2, 3, 6, 12, 24, 48, 96, 192, 384, 768, 1536, 3072, 5000)


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


def samples_of(records: Sequence[Record], machine: Machine, thorough: bool) -> Iterator[Task]:
    """The tasks to measure, the most telling first, so that the rest can be left out.

    Every other trip count of all records comes before those between them, and tasks on a quiet
    machine before those with every core busy. Not ``thorough``: without those between, and of those
    with all cores busy only what streams from the last cache and from memory.
    """
    passes: list[tuple[Sequence[int], bool]] = [(TRIP_COUNTS[::2], False)]
    if machine.cores > 1:
        passes.append((TRIP_COUNTS[::2] if thorough else TRIP_COUNTS[::4], True))
    if thorough:
        passes.append((TRIP_COUNTS[1::2], False))
        if machine.cores > 1:
            passes.append((TRIP_COUNTS[1::2], True))
    for counts, busy in passes:
        for placement in regions.PLACEMENTS:
            if busy and not thorough and placement not in ("b_l3", "b_memory"):
                continue
            for record in records:
                for k in counts:
                    task = Task(record, k, placement, busy)
                    if task.loop(machine) is not None:
                        yield task
