"""From measured seconds to ratios, one row a layer, and to what each class reaches."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import measure
from bench.beside import parts_of
from bench.conv.beside import BESIDE
from bench.conv.layer import CLASSES, DEPTHWISE, FIRST, POINTWISE, WINDOW
from bench.conv.peers import OURS, PEAK
from bench.gemm.journal import Journal, Measured
from bench.gemm.summary import Row, fastest, mean, of_peak, ratio_to_best
from bench.goals import document_of, reached

FORMAT = 1


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
    rows = rows_of(journal, threads)
    groups = [group for name in CLASSES if (group := summed(name, rows)) is not None]
    beside = parts_of(BESIDE, journal, threads, OURS)
    return document_of(journal, threads, rows, beside, format=FORMAT, classes=groups)


def rows_of(journal: Journal, threads: int) -> list[Row]:
    """The layers measured with ``threads`` threads, summed up."""
    flops = journal.notes.get(threads, {}).get("peak_flops", 1)
    return [summarise(one, flops, threads) for one in journal.measured(threads)]


def libraries(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """What we are compared with."""
    return [name for name in seconds if name not in (OURS, PEAK)]


def summarise(measured: Measured, peak_flops: float, threads: int) -> Row:
    """One row of the document. The best library is picked on every second round and compared on
    the others."""
    layer, seconds = measured.shape, measured.seconds
    goal = GOALS[layer.group]
    ours = seconds[OURS]
    ratios = {name: measure.paired_ratio(seconds[name], ours) for name in libraries(seconds)}
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


def summed(name: str, rows: Sequence[Row]) -> dict[str, Any] | None:
    """What the rows of a class reach; None without rows."""
    members = [row for row in rows if row["class"] == name]
    if not members:
        return None
    goal = GOALS[name]
    return {
        "name": name,
        "title": goal.title,
        "layers": len(members),
        "of_peak": mean(row["of_peak"] for row in members),
        **reached(members, goal.target, goal.floor),
    }
