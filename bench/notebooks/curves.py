"""Candidates timed over the number of rows: interleaved rounds at each, medians, paired ratios."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from bench import measure
from bench.notebooks.candidates import OURS, Candidate, Run

#: The chain of multiply-adds that is timed among the candidates.
PEAK = "FMA peak"

#: Sets of operands that are timed one after the other: the place in memory that a set happens to
#: have makes some kernels half as fast.
SETS = 3

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Point:
    """One number of rows: seconds of each candidate in each round, of equal rounds. A call does
    ``flops`` operations, the chain of multiply-adds ``peak_flops``."""

    rows: int
    flops: int
    seconds: Mapping[str, tuple[float, ...]]
    peak_flops: int = 0

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def gflops(self, name: str) -> float:
        flops = self.peak_flops if name == PEAK else self.flops
        return flops / self.median(name) / 1e9

    def slowdown(self, name: str) -> float:
        """How many times longer than ours it takes: the median of the rounds' ratios."""
        return measure.paired_ratio(self.seconds[name], self.seconds[OURS]).median


def timed(
    candidates: Sequence[Candidate],
    weight: np.ndarray,
    rows: Iterable[int],
    *,
    rounds: int,
    min_seconds: float = 0.005,
    peak: tuple[Run, int] | None = None,
) -> list[Point]:
    """Time all ``candidates`` that take them at each of ``rows``, and the ``peak`` among them, as
    `bench.gemm.peak.peak_runner` returns it.

    There are ``rounds`` for each of ``SETS`` sets of rows. Each result is compared with numpy's
    first. The clock is the processor time of one thread.
    Raises AssertionError for a wrong result.
    """
    clock, _ = measure.clock_for(1)
    k, n = weight.shape
    random = np.random.default_rng(0)
    points = []
    for m in rows:
        kept: dict[str, list[float]] = {}
        places: list[object] = []  # kept, so that the next set lies elsewhere
        for _ in range(SETS):
            x = tvm.runtime.tensor(random.standard_normal((m, k), dtype=np.float32))
            expected = np.from_dlpack(x) @ weight
            runs = {each.name: each.prepare(x) for each in candidates if each.takes(m)}
            for name, run in runs.items():
                check(name, m, run(), expected)
            if peak is not None:
                runs[PEAK] = peak[0]
            own = measure.interleave(runs, rounds=rounds, min_seconds=min_seconds, clock=clock)
            for name, seconds in own.items():
                kept.setdefault(name, []).extend(seconds)
            places.append(runs)
        seconds_of = {name: tuple(each) for name, each in kept.items()}
        points.append(Point(m, 2 * m * n * k, seconds_of, peak[1] if peak else 0))
    return points


def row_counts(last: int, include: Iterable[int] = (), steps: int = 2) -> list[int]:
    """Numbers of rows from 1 to ``last``, ``steps`` to a doubling, and those of ``include``."""
    count = steps * (last.bit_length() - 1)
    spaced = {round(2 ** (step / steps)) for step in range(count + 1)}
    return sorted(m for m in spaced | {*include, last} if m <= last)


def check(name: str, rows: int, result: Any, expected: np.ndarray) -> None:
    """Raise AssertionError unless ``result`` is ``expected`` up to rounding."""
    found = np.from_dlpack(result) if not isinstance(result, np.ndarray) else result
    error = np.abs(found - expected).max() / np.abs(expected).max()
    if found.shape != expected.shape or not error < TOLERANCE:
        raise AssertionError(f"{name}: wrong result for {rows} rows, relative error {error:.1e}")


def line(points: Iterable[Point], name: str) -> tuple[list[int], list[float]]:
    """Rows and GFLOP/s of a candidate where it was timed."""
    found = [(point.rows, point.gflops(name)) for point in points if name in point.seconds]
    return [rows for rows, _ in found], [speed for _, speed in found]


def slowdowns(points: Iterable[Point], name: str) -> tuple[list[int], list[float]]:
    """Rows and times relative to ours of a candidate where it was timed."""
    found = [(point.rows, point.slowdown(name)) for point in points if name in point.seconds]
    return [rows for rows, _ in found], [ratio for _, ratio in found]


def mean_slowdown(points: Iterable[Point], name: str) -> float:
    """Geometric mean of `slowdowns`; NaN when it was timed nowhere."""
    return measure.geomean(slowdowns(points, name)[1])


def names(points: Iterable[Point]) -> list[str]:
    """All that was timed, in order, without the peak."""
    found = dict.fromkeys(name for point in points for name in point.seconds)
    return [name for name in found if name != PEAK]
