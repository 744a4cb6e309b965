"""From measured seconds to ratios: pure functions, one row a case."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bench import measure
from bench.gemm.journal import QUIET, Measured
from bench.gemm.peers import DEFAULT, DIRECT, HAND_SCHEDULES, OURS, VM
from bench.gemm.run import PEAK, PROBES, READ

Row = dict[str, Any]
FLOOR = 0.95  # a loss counts when even the upper bound of its ratio is below
SUSPECT = 0.97  # below this median a case is measured again


def peers_in(seconds: Iterable[str]) -> list[str]:
    """The names of what we are compared with."""
    return [name for name in seconds if name not in (*OURS, *PROBES)]


def best_peer(seconds: Mapping[str, Sequence[float]]) -> str | None:
    """The library with the lowest median over the rounds 0, 2, 4, ...; None when there is none.

    TVM with a schedule written by hand is no library: it is compared with, but never the best.
    """
    peers = [name for name in peers_in(seconds) if name not in HAND_SCHEDULES]
    return fastest(seconds, peers)


def fastest(seconds: Mapping[str, Sequence[float]], names: Collection[str]) -> str | None:
    """That of ``names`` with the lowest median over the rounds 0, 2, 4, ...; None of none."""
    return min(names, key=lambda name: statistics.median(seconds[name][::2]), default=None)


def later(rounds: Sequence[float]) -> Sequence[float]:
    """The rounds 1, 3, 5, ..., which have no say in what is the best peer; a single one itself."""
    return rounds[1::2] if len(rounds) > 1 else rounds


def ratio_to_best(best: Sequence[float], ours: Sequence[float]) -> measure.Ratio:
    """The ratio over the rounds that had no say in what is the best peer."""
    return measure.paired_ratio(later(best), later(ours))


def counterpart(peer: str, allocating: Collection[str]) -> str:
    """The one of our two ways that is called as ``peer`` is: with or without an output given."""
    return VM if peer in allocating else DIRECT


def timed_counterpart(peer: str, allocating: Collection[str], seconds: Collection[str]) -> str:
    """The same among those that were timed: only the virtual machine runs a chain."""
    found = counterpart(peer, allocating)
    return found if found in seconds else next(name for name in OURS if name in seconds)


def summarise(
    measured: Measured,
    allocating: Collection[str],
    peak_flops: float,
    threads: int,
    mode: str = QUIET,
) -> Row:
    """One row of the document. ``peak_flops`` are the operations of one call of the peak probe."""
    shape, seconds = measured.shape, measured.seconds
    ours = timed_counterpart("", (), seconds)
    speed = {
        name: shape.flops / statistics.median(times) / 1e9
        for name, times in seconds.items()
        if name not in PROBES
    }
    ratios = {
        name: measure.paired_ratio(
            seconds[name], seconds[timed_counterpart(name, allocating, seconds)]
        )
        for name in peers_in(seconds)
    }
    bound = fastest_possible(measured, peak_flops)
    row: Row = {
        "key": shape.key,
        **shape.to_json(),
        "right": shape.right_kind,
        "class": shape.group,
        "threads": threads,
        "mode": mode,
        "rounds": len(seconds[ours]),
        "runs": max(1, len(measured.runs)),
        "gflops": speed[ours],
        "gflops_vm": speed.get(VM),
        "of_peak": of_peak(measured, peak_flops, ours),
        "of_bandwidth": paired(seconds, READ, ours),
        "best": None,
        "vs_best": None,
        "vs_best_bounds": None,
        "vs_best_first": None,
        "loss": False,
        "vs_best_vm": None,
        "limit": None,
        "vs_default": paired(seconds, DEFAULT, ours),
        "vs": {name: ratio.median for name, ratio in ratios.items()},
        "vs_bounds": {name: [ratio.low, ratio.high] for name, ratio in ratios.items()},
        "peer_gflops": {name: speed[name] for name in ratios},
        "absent": dict(measured.absent),
    }
    best = best_peer(seconds)
    if best is not None:
        ratio = ratio_to_best(seconds[best], seconds[timed_counterpart(best, allocating, seconds)])
        row["best"], row["vs_best"] = best, ratio.median
        row["vs_best_bounds"] = [ratio.low, ratio.high]
        row["vs_best_first"] = first_ratio(measured, allocating)
        row["loss"] = ratio.high < FLOOR
        if VM in seconds:
            row["vs_best_vm"] = ratio_to_best(seconds[best], seconds[VM]).median
        if bound is not None:
            row["limit"] = measure.paired_ratio(later(seconds[best]), later(bound)).median
    return row


def first_ratio(measured: Measured, allocating: Collection[str]) -> float | None:
    """The ratio to the best peer by the first run alone.

    Only cases that look bad are measured again, which corrects low luck and not high luck: a mean
    over all cases is of first runs.
    """
    seconds = measured.runs[0] if measured.runs else measured.seconds
    best = best_peer(seconds)
    if best is None:
        return None
    ours = timed_counterpart(best, allocating, seconds)
    return ratio_to_best(seconds[best], seconds[ours]).median


def paired(seconds: Mapping[str, Sequence[float]], name: str, ours: str) -> float | None:
    """Median ratio of a candidate's time to ours, None when it was not timed."""
    return measure.paired_ratio(seconds[name], seconds[ours]).median if name in seconds else None


def of_peak(measured: Measured, peak_flops: float, ours: str) -> float | None:
    """Our operations a second over those of the probe, the median over the rounds."""
    if PEAK not in measured.seconds:
        return None
    ratio = measure.paired_ratio(measured.seconds[PEAK], measured.seconds[ours])
    return ratio.median * measured.shape.flops / peak_flops


def fastest_possible(measured: Measured, peak_flops: float) -> list[float] | None:
    """Seconds, round by round, of the arithmetic at the probe's peak and, where memory was probed,
    of reading the right operand: the longer of both. What else a product reads and writes is not in
    it, so that the ratios it gives are upper bounds."""
    if PEAK not in measured.seconds:
        return None
    times = [each * measured.shape.flops / peak_flops for each in measured.seconds[PEAK]]
    read = measured.seconds.get(READ)
    return [max(pair) for pair in zip(times, read, strict=True)] if read else times


def losses(rows: Iterable[Row]) -> list[Row]:
    """The rows on which the best peer is faster, the worst first."""
    slower = [row for row in rows if row["vs_best"] is not None and row["vs_best"] < 1]
    return sorted(slower, key=lambda row: row["vs_best"])


def in_doubt(rows: Iterable[Row]) -> list[str]:
    """Keys of the cases that deserve a second run: all losses whose ratio is below ``SUSPECT``, or
    whose lower bound is below the floor."""
    return [
        row["key"]
        for row in losses(rows)
        if row["vs_best"] < SUSPECT or row["vs_best_bounds"][0] < FLOOR
    ]


def mean(ratios: Iterable[float | None]) -> float | None:
    """Geometric mean of those that are there, None of nothing: JSON knows no NaN."""
    found = [ratio for ratio in ratios if ratio is not None]
    return measure.geomean(found) if found else None
