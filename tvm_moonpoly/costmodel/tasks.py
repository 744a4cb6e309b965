"""What a task of a micro-kernel costs: integers in picoseconds.

A task over ``k`` steps costs ``g(k)``, which depends on the caches that its operands come from.
``g`` is given at a few trip counts and is linear between them, with whole numbers as slopes, so
that a plan's cost, a sum of counts times entries of the table, is the same integer in Python and in
native code.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """Where an operand comes from."""

    L1 = 1
    L2 = 2
    L3 = 3
    MEMORY = 4


class Residency(NamedTuple):
    """The levels that a task's rows of A and its columns of B come from."""

    a: Level
    b: Level


#: Rows of A that do not fit the caches are read in the order in which they lie, and arrive from
#: memory as from the third-level cache.
RESIDENCIES = tuple(
    itertools.starmap(Residency, itertools.product((Level.L1, Level.L2, Level.L3), Level))
)

#: The trip counts at which tasks have a cost of their own. From the second on each is twice the one
#: before, so that the bits of ``k // TRIPS[1]`` find a trip count's place among them.
TRIPS = (1, *(3 << i for i in range(12)))

#: Segments between two neighbouring trip counts; the first reaches down to 0, the last has no end.
SEGMENTS = len(TRIPS) - 1

#: Larger than any cost of one task, which native code keeps in 32 bits.
MAX_TASK = 1 << 30


def segment(k: int) -> int:
    """Which of the `SEGMENTS` holds trip count ``k``."""
    return min((k // TRIPS[1]).bit_length(), SEGMENTS - 1)


class Line(NamedTuple):
    """``start + step * k`` picoseconds; ``start`` may be negative."""

    start: int
    step: int


@dataclass(frozen=True)
class TaskCost:
    """What a task costs: for each residency the picoseconds at each of `TRIPS`, not falling."""

    knots: Mapping[Residency, tuple[int, ...]]

    @classmethod
    def of(cls, cost: Callable[[Residency, int], float]) -> TaskCost:
        """The table of a function of residency and trip count: whole numbers, made not to fall."""
        knots = {}
        for residency in RESIDENCIES:
            values = (max(round(cost(residency, k)), 1) for k in TRIPS)
            knots[residency] = tuple(itertools.accumulate(values, max))
        return cls(knots)

    @classmethod
    def linear(cls, start: int, step: int) -> TaskCost:
        """``start + step * k``, wherever the operands come from."""
        return cls(dict.fromkeys(RESIDENCIES, tuple(start + step * k for k in TRIPS)))

    @functools.cached_property
    def lines(self) -> Mapping[Residency, tuple[Line, ...]]:
        """The cost in each of the segments: what both planners compute with."""
        return {residency: _lines(values) for residency, values in self.knots.items()}

    def at(self, residency: Residency, k: int) -> int:
        """Picoseconds of a task over ``k`` steps."""
        line = self.lines[residency][segment(k)]
        return line.start + line.step * k

    def times(self, numerator: int, denominator: int) -> TaskCost:
        """So many times as much, rounded down."""
        return self._each(lambda _, value: value * numerator // denominator)

    def at_most(self, *others: TaskCost) -> TaskCost:
        """The least of this and ``others``, at each residency and trip count."""
        every = (self, *others)
        return TaskCost(
            {r: tuple(map(min, *(cost.knots[r] for cost in every))) for r in RESIDENCIES}
        )

    def with_farther_b(self, part: int) -> TaskCost:
        """The same, with one in ``part`` added where B comes from beyond the first-level cache."""
        return self._each(lambda r, value: value + value // part * (r.b > Level.L1))

    def _each(self, change: Callable[[Residency, int], int]) -> TaskCost:
        return TaskCost(
            {r: tuple(change(r, value) for value in values) for r, values in self.knots.items()}
        )

    def to_lists(self) -> list[list[int]]:
        """The picoseconds of each residency, as a tuning log holds them."""
        return [list(self.knots[residency]) for residency in RESIDENCIES]

    @classmethod
    def from_lists(cls, rows: object, name: str) -> TaskCost:
        """Inverse of `to_lists`; raises ValueError, with ``name``, when something is malformed."""
        if not isinstance(rows, list) or len(rows) != len(RESIDENCIES):
            raise ValueError(f"log: {name} must be {len(RESIDENCIES)} lists, one a residency")
        knots = {}
        for residency, row in zip(RESIDENCIES, rows, strict=True):
            if (
                not isinstance(row, list)
                or len(row) != len(TRIPS)
                or not all(type(value) is int and 0 <= value < MAX_TASK for value in row)
                or row != sorted(row)
            ):
                raise ValueError(
                    f"log: {name} must list the picoseconds of {len(TRIPS)} trip counts, not "
                    "falling"
                )
            knots[residency] = tuple(row)
        return cls(knots)


def _lines(values: Sequence[int]) -> tuple[Line, ...]:
    found: list[Line] = []
    for (low, high), (first, last) in zip(
        itertools.pairwise(TRIPS), itertools.pairwise(values), strict=True
    ):
        step = (last - first) // (high - low)
        if not found:
            step = min(step, first)  # or no steps at all would cost less than nothing
        found.append(Line(first - step * low, step))
    return tuple(found)
