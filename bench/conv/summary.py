"""From measured seconds to ratios, one row a layer, and to what each class reaches."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import measure
from bench.conv.layer import CLASSES, DEPTHWISE, FIRST, POINTWISE, WINDOW
from bench.conv.peers import OURS, PEAK, SCHEDULES
from bench.gemm.journal import Journal, Measured
from bench.gemm.summary import Row, fastest, losses, mean, of_peak, ratio_to_best

FORMAT = 1
SUSPECT = 0.97  # below this median a layer is measured again


@dataclass(frozen=True)
class Goal:
    """What is to be reached: the geometric mean against the best library, and the floor that the
    upper 95 % bound of no layer may be below."""

    title: str
    target: float
    floor: float


GOALS = {
    WINDOW: Goal("3x3, 5x5, 7x7 and other windows", 1.12, 0.92),
    POINTWISE: Goal("1x1", 1.10, 0.92),
    DEPTHWISE: Goal("depthwise", 1.10, 0.90),
    FIRST: Goal("first layers", 1.15, 0.90),
}


def document(journal: Journal, threads: int) -> dict[str, Any]:
    """All that was measured with ``threads`` threads; raises ValueError when that is nothing."""
    note = journal.notes.get(threads, {})
    rows = rows_of(journal, threads)
    if not rows:
        raise ValueError(f"the journal holds no layer of {threads} threads")
    slower = losses(rows)
    lost = [row["key"] for row in slower]
    return {
        "format": FORMAT,
        **journal.header,
        **note,
        "threads": threads,
        "classes": [group for name in CLASSES if (group := summed(name, rows)) is not None],
        "losses": lost,
        "rows": slower + [row for row in rows if row["key"] not in lost],
    }


def rows_of(journal: Journal, threads: int) -> list[Row]:
    """The layers measured with ``threads`` threads, summed up."""
    flops = journal.notes.get(threads, {}).get("peak_flops", 1)
    return [summarise(one, flops, threads) for one in journal.measured(threads)]


def libraries(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """What we are compared with and can be the best."""
    return [name for name in seconds if name not in (OURS, PEAK, *SCHEDULES)]


def summarise(measured: Measured, peak_flops: float, threads: int) -> Row:
    """One row of the document. The best library is picked on every second round and compared on
    the others."""
    layer, seconds = measured.shape, measured.seconds
    goal = GOALS[layer.group]
    ours = seconds[OURS]
    ratios = {
        name: measure.paired_ratio(times, ours)
        for name, times in seconds.items()
        if name not in (OURS, PEAK)
    }
    row: Row = {
        "key": layer.key,
        **layer.to_json(),
        "output": list(layer.output),
        "flops": layer.flops,
        "class": layer.group,
        "threads": threads,
        "rounds": len(ours),
        "runs": max(1, len(measured.runs)),
        "seconds": statistics.median(ours),
        "gflops": layer.flops / statistics.median(ours) / 1e9,
        "of_peak": of_peak(measured, peak_flops, OURS),
        "best": None,
        "vs_best": None,
        "vs_best_bounds": None,
        "vs_best_first": None,
        "floor": goal.floor,
        "loss": False,
        "vs": {name: ratio.median for name, ratio in ratios.items()},
        "vs_bounds": {name: [ratio.low, ratio.high] for name, ratio in ratios.items()},
        "absent": dict(measured.absent),
    }
    best = best_library(seconds)
    if best is not None:
        ratio = ratio_to_best(seconds[best], ours)
        row.update(best=best, vs_best=ratio.median, vs_best_bounds=[ratio.low, ratio.high])
        row["vs_best_first"] = first_ratio(measured)
        row["loss"] = ratio.high < goal.floor
    return row


def best_library(seconds: Mapping[str, Sequence[float]]) -> str | None:
    """The library with the lowest median over the rounds 0, 2, 4, ...; None when there is none."""
    return fastest(seconds, libraries(seconds))


def first_ratio(measured: Measured) -> float | None:
    """The ratio to the best library by the first run alone: only layers that look bad are measured
    again, which corrects low luck and not high luck."""
    seconds = measured.runs[0] if measured.runs else measured.seconds
    best = best_library(seconds)
    return None if best is None else ratio_to_best(seconds[best], seconds[OURS]).median


def in_doubt(rows: Sequence[Row]) -> list[str]:
    """Keys of the layers that deserve a second run."""
    return [
        row["key"]
        for row in losses(rows)
        if row["vs_best"] < SUSPECT or row["vs_best_bounds"][0] < row["floor"]
    ]


def summed(name: str, rows: Sequence[Row]) -> dict[str, Any] | None:
    """Geometric means over the rows of a class, and whether its goal is met; None without rows."""
    members = [row for row in rows if row["class"] == name]
    compared = [row for row in members if row["vs_best"] is not None]
    if not members:
        return None
    goal = GOALS[name]
    found = mean(row["vs_best_first"] for row in compared)
    counted = sum(row["loss"] for row in compared)
    peers = dict.fromkeys(peer for row in members for peer in row["vs"])
    return {
        "name": name,
        "title": goal.title,
        "layers": len(members),
        "vs_best": found,
        "target": goal.target,
        "floor": goal.floor,
        "slower": len(losses(compared)),
        "losses_that_count": counted,
        "worst": min((row["vs_best"] for row in compared), default=None),
        "of_peak": mean(row["of_peak"] for row in members),
        "met": found is not None and found >= goal.target and not counted,
        "vs": {peer: mean(row["vs"].get(peer) for row in members) for peer in peers},
    }
