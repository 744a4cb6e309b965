"""From timed launches to what blocks cost: robust lines over the number of steps.

With ``r`` blocks on a multiprocessor, a launch of one wave over ``t`` steps takes
``launch + around + t * step(r)``. A line is fitted for each ``r``, so that the sum of the parts by
which it misses the times is least: one that is far off has no more say than one that is not.
`around` is the median of what the lines leave at no steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tvm_moonpoly.costmodel.cuda import MAX_COST, BlockCost

#: (steps, picoseconds) of a launch.
Point = tuple[int, float]


@dataclass(frozen=True)
class Line:
    """``start + slope * t`` picoseconds."""

    start: float
    slope: float


@dataclass(frozen=True)
class Fitted:
    """What blocks cost by what was measured, and how far each launch is from that, as a part."""

    cost: BlockCost
    errors: tuple[float, ...]


def line(points: Sequence[Point]) -> Line:
    """The line of which the sum of ``|missed| / time`` over ``points`` is least.

    Such a line goes through two of them, so all pairs are tried. Raises ValueError when there are
    not two different numbers of steps.
    """
    lines = [_through(p, q) for p, q in itertools.combinations(points, 2) if p[0] != q[0]]
    if not lines:
        raise ValueError("points: launches over two numbers of steps are needed at least")
    return min(lines, key=lambda each: sum(_missed(each, point) for point in points))


def fitted(usual: BlockCost, launch: int, times: Mapping[int, Sequence[Point]]) -> Fitted:
    """The cost of a micro-kernel by ``times`` for each number of blocks on a multiprocessor.

    ``usual`` is its cost so far: how many blocks fit stays as it is. Numbers of blocks between
    those that were measured are interpolated; more blocks are made not to be faster.

    Raises ValueError when a single block or as many as fit were not measured over at least two
    numbers of steps, or a launch takes no longer over more steps.
    """
    lines = {}
    for blocks, points in sorted(times.items()):
        if blocks <= usual.resident and len({steps for steps, _ in points}) >= 2:
            lines[blocks] = line(points)
    for needed in (1, usual.resident):
        if needed not in lines:
            raise ValueError(f"too few launches with {needed} blocks a multiprocessor")
    if min(each.slope for each in lines.values()) <= 0:
        raise ValueError("launches over more steps take no longer")
    rising = dict(zip(lines, _rising([each.slope for each in lines.values()]), strict=True))
    around = round(max(median(each.start for each in lines.values()) - launch, 0.0))
    steps = tuple(max(round(each), 1) for each in _between(rising, usual.resident))
    if max(around, *steps) >= MAX_COST:
        raise ValueError("launches take longer than a wave may")
    cost = BlockCost(usual.name, usual.block_m, usual.block_n, usual.block_k, around, steps)
    errors = [
        abs(launch + around + t * steps[blocks - 1] - time) / time
        for blocks in lines
        for t, time in times[blocks]
    ]
    return Fitted(cost, tuple(errors))


def _through(p: Point, q: Point) -> Line:
    slope = (q[1] - p[1]) / (q[0] - p[0])
    return Line(p[1] - slope * p[0], slope)


def _missed(line: Line, point: Point) -> float:
    steps, time = point
    return abs(line.start + line.slope * steps - time) / time


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest numbers that do not fall, by least squares: neighbours that do are averaged."""
    groups: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while groups and groups[-1][0] > mean:
            before, size = groups.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        groups.append((mean, count))
    return [mean for mean, count in groups for _ in range(count)]


def _between(known: Mapping[int, float], last: int) -> list[float]:
    """Values for 1 to ``last``, both of which are known: linear between those that are."""
    found = []
    for blocks in range(1, last + 1):
        low = max(each for each in known if each <= blocks)
        high = min(each for each in known if each >= blocks)
        part = (blocks - low) / (high - low) if high > low else 0.0
        found.append(known[low] + part * (known[high] - known[low]))
    return found
