"""Where the operands of timed tasks lie, so that they come from a given level of the memory.

Tasks walk through an area of memory again and again. An area that fits a cache, but not the one
above it, is read from that cache each time. An operand that all tasks share stays in the smallest
cache that holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvm_moonpoly.emit import LINE
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Record

SHARED, L2, L3, MEMORY = 1, 2, 3, 4

#: Floats between rows of B in place that all tasks share: a matrix of usual width, and no power of
#: two, which would bring all rows into the same places of the caches.
_APART = 1040

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
    # the first of the tiles that share columns of B
    "a_l2_b_l3": Placement(L2, L3, L2),
    "a_l2_b_memory": Placement(L2, MEMORY, L2),
    "a_l3_b_memory": Placement(L3, MEMORY, L3),
}


@dataclass(frozen=True)
class Area:
    """``count`` operands ``step`` floats apart, from float ``begin`` on.

    ``beyond`` are the floats that the last one reaches beyond its step: rows of B in place.
    """

    begin: int
    step: int
    count: int
    beyond: int = 0

    @property
    def end(self) -> int:
        """Where the tasks begin anew."""
        return self.begin + self.step * self.count

    @property
    def memory_end(self) -> int:
        return self.end + self.beyond


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
        return max(area.memory_end for area in (self.a, self.b, self.c))

    @property
    def strides(self) -> tuple[int, int, int, int]:
        return self.lda, self.b_vector, self.b_row, self.ldc

    @property
    def round(self) -> int:
        """Tasks until each area was walked through."""
        return max(area.count for area in (self.a, self.b, self.c))

    @property
    def walk(self) -> list[int]:
        """For each area where the first task is, the step to the next, and the area's bounds; and
        whose turn it is, see `kernel_loop.TURNS`.

        Tasks go on from where the last ones have come: memory is only met anew by walking on.
        """
        areas = (self.a, self.b, self.c)
        return [*(number for a in areas for number in (a.begin, a.step, a.begin, a.end)), 0]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Loop:
        areas = {name: Area(**data[name]) for name in ("a", "b", "c")}
        return cls(**{**data, **areas})


def place(
    record: Record, k: int, placement: Placement, machine: Machine, busy: int = 1
) -> Loop | None:
    """Tasks of ``record`` over ``k`` steps with operands at ``placement``.

    ``busy`` cores do the same at the same time and share the last cache. None where a placement
    cannot be: an operand does not fit its level, or the level is no larger than the one above it.
    """
    row = record.nv * machine.lanes
    in_place = record.in_place_b
    sizes = {
        "a": _lines(record.mr * k),
        # of B in place, what each row touches
        "b": _lines(row) * k if in_place else _lines(row * k),
        "c": _lines(record.mr * row),
    }
    levels = asdict(placement)
    shared = 4 * sum(size for name, size in sizes.items() if levels[name] == SHARED)
    if shared > _room(max(levels.values()), machine):
        return None
    areas, begin, apart = {}, 0, _APART
    for name, level in levels.items():
        step, count, beyond = sizes[name], 1, 0
        if level != SHARED:
            sharing = sum(each == level for each in levels.values())
            bounds = _bounds(level, machine, busy)
            if bounds is None:
                return None
            least, most = bounds
            count = most // sharing // (4 * step)
            if name == "b" and in_place:
                # tasks walk along the rows of one matrix
                count = most // sharing // (4 * row * k)
                apart = row * count
            if count < 2 or 4 * step * count * sharing < least:
                return None
        if name == "b" and in_place:
            step, beyond = row, _lines(apart * (k - 1))
        areas[name] = Area(begin, step, count, beyond)
        begin = begin + _lines(step * count + beyond)
    return Loop(
        k=k,
        lda=k,
        b_vector=machine.lanes if in_place else k * machine.lanes,
        b_row=apart if in_place else machine.lanes,
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
    return max(-(-floats // LINE), 1) * LINE
