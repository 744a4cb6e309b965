"""Where the operands of timed tasks lie, so that they come from a given level of the memory.

Tasks walk through an area of memory again and again. An area that fits a cache, but not the one
above it, is read from that cache each time. An operand that all tasks share stays in the smallest
cache that holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Record

SHARED, L2, L3, MEMORY = 1, 2, 3, 4

_LINE = 16  # floats

#: Bytes that one process may take for its operands; caches larger than half of that are not
#: exceeded, and nothing is measured from the memory behind them.
_LARGEST = 1 << 30


@dataclass(frozen=True)
class Placement:
    """The level that each operand comes from: 2 and 3 for caches, 4 for memory, 1 when shared."""

    a: int
    b: int
    c: int


#: The placements that are measured, by name.
PLACEMENTS = {
    # all in the first cache
    "l1": Placement(SHARED, SHARED, SHARED),
    # B streams while A stays: the only tile of its rows
    "b_l2": Placement(SHARED, L2, L2),
    "b_l3": Placement(SHARED, L3, L2),
    "b_memory": Placement(SHARED, MEMORY, L2),
    # rows of A stream past columns of B that stay
    "a_l2": Placement(L2, SHARED, L2),
    "a_l3": Placement(L3, SHARED, L3),
    # neither stays
    "ab_l2": Placement(L2, L2, L2),
    "ab_l3": Placement(L3, L3, L3),
}


@dataclass(frozen=True)
class Area:
    """``count`` operands of ``step`` floats each, from float ``begin`` on."""

    begin: int
    step: int
    count: int

    @property
    def end(self) -> int:
        return self.begin + self.step * self.count


@dataclass(frozen=True)
class Loop:
    """Tasks of ``k`` steps over areas of A, B and C; strides are in floats."""

    k: int
    lda: int
    b_vector: int
    b_row: int
    ldc: int
    a: Area
    b: Area
    c: Area

    @property
    def floats(self) -> int:
        """The size of the memory that holds the areas."""
        return max(area.end for area in (self.a, self.b, self.c))

    @property
    def strides(self) -> tuple[int, int, int, int]:
        return self.lda, self.b_vector, self.b_row, self.ldc

    @property
    def round(self) -> int:
        """Tasks until each area was walked through."""
        return max(area.count for area in (self.a, self.b, self.c))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Loop:
        areas = {name: Area(**data[name]) for name in ("a", "b", "c")}
        return cls(**{**data, **areas})


class Walk:
    """How far tasks have come in the areas of a loop: memory is only met anew by walking on."""

    def __init__(self, loop: Loop) -> None:
        self._areas, self._done = (loop.a, loop.b, loop.c), 0

    def next(self, tasks: int) -> list[int]:
        """For each area where the next ``tasks`` begin, the step, and the area's bounds."""
        numbers = []
        for area in self._areas:
            at = area.begin + self._done % area.count * area.step
            numbers += [at, area.step, area.begin, area.end]
        self._done += tasks
        return numbers


def place(
    record: Record, k: int, placement: Placement, machine: Machine, busy: int = 1
) -> Loop | None:
    """Tasks of ``record`` over ``k`` steps with operands at ``placement``.

    ``busy`` cores do the same at the same time and share the last cache. None where a placement
    cannot be: an operand does not fit its level, or the level is no larger than the one above it.
    """
    lanes = machine.lanes
    sizes = {
        "a": _lines(record.mr * k),
        "b": _lines(record.nv * lanes * k),
        "c": _lines(record.mr * record.nv * lanes),
    }
    levels = asdict(placement)
    shared = 4 * sum(size for name, size in sizes.items() if levels[name] == SHARED)
    if shared > _room(max(levels.values()), machine):
        return None
    areas, begin = {}, 0
    for name, level in levels.items():
        count = 1
        if level != SHARED:
            sharing = sum(each == level for each in levels.values())
            bounds = _bounds(level, machine, busy)
            if bounds is None:
                return None
            least, most = bounds
            count = most // sharing // (4 * sizes[name])
            if count < 2 or 4 * sizes[name] * count * sharing < least:
                return None
        areas[name] = Area(begin, sizes[name], count)
        begin = areas[name].end
    in_place = record.in_place_b
    row = record.nv * lanes
    return Loop(
        k=k,
        lda=k,
        b_vector=lanes if in_place else k * lanes,
        b_row=row if in_place else lanes,
        ldc=row,
        **areas,
    )


def _room(level: int, machine: Machine) -> int:
    """Bytes that shared operands may take when the others come from ``level``."""
    if level == SHARED:
        return machine.l1_bytes * 3 // 4
    return machine.l2_bytes // (4 if level == L2 else 2)


def _bounds(level: int, machine: Machine, busy: int) -> tuple[int, int] | None:
    """Bytes of the least and the largest area at a level: (least, most)."""
    above = {L2: machine.l1_bytes, L3: machine.l2_bytes, MEMORY: machine.l3_bytes // busy}
    least = 2 * above[level]
    if level == MEMORY:
        # what no cache of any core may hold
        most = max(least, 4 * machine.l2_bytes)
        return (least, most + most // 4) if most <= _LARGEST // 2 else None
    cache = machine.l2_bytes if level == L2 else machine.l3_bytes // busy
    most = min(cache // 2, 8 * machine.l2_bytes)
    return (least, most) if least <= most else None


def _lines(floats: int) -> int:
    """Rounded up to whole cache lines, and at least one."""
    return max(-(-floats // _LINE), 1) * _LINE
