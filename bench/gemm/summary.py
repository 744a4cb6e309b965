"""From measured seconds to ratios, and to the JSON document: pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bench import measure
from bench.gemm.peers import DEFAULT, DIRECT, OURS, VM
from bench.gemm.run import PEAK, Measured
from bench.gemm.shapes import CLASSES

Row = dict[str, Any]


def best_peer(seconds: Mapping[str, Sequence[float]]) -> str | None:
    """The peer with the lowest median over the rounds 0, 2, 4, ...; None when there is no peer."""
    peers = [name for name in seconds if name not in (*OURS, PEAK)]
    if not peers:
        return None
    return min(peers, key=lambda name: statistics.median(seconds[name][::2]))


def ratio_to_best(best: Sequence[float], ours: Sequence[float]) -> measure.Ratio:
    """The ratio over the rounds 1, 3, 5, ..., which had no say in what is the best peer.

    With a single round there is no other half and that round is used.
    """
    later = slice(1, None, 2) if len(best) > 1 else slice(None)
    return measure.paired_ratio(best[later], ours[later])


def counterpart(peer: str, allocating: Collection[str]) -> str:
    """The one of our two ways that is called as ``peer`` is: with or without an output given."""
    return VM if peer in allocating else DIRECT


def summarise_shape(
    measured: Measured, allocating: Collection[str], peak_gflops: float, threads: int
) -> Row:
    """One row of the document."""
    shape, seconds = measured.shape, measured.seconds
    speed = {
        name: shape.flops / statistics.median(times) / 1e9
        for name, times in seconds.items()
        if name != PEAK
    }
    ratios = {
        name: measure.paired_ratio(seconds[name], seconds[counterpart(name, allocating)])
        for name in seconds
        if name not in (*OURS, PEAK)
    }
    row: Row = {
        "layer": shape.layer,
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "batch": shape.batch,
        "b_transposed": shape.transposed,
        "threads": threads,
        "class": shape.group,
        "rounds": len(seconds[DIRECT]),
        "gflops": speed[DIRECT],
        "gflops_vm": speed[VM],
        "of_peak": speed[DIRECT] / peak_gflops,
        "best": None,
        "vs_best": None,
        "vs_best_bounds": None,
        "vs_best_vm": None,
        "vs_default": None,
        "vs": {name: ratio.median for name, ratio in ratios.items()},
        "vs_bounds": {name: [ratio.low, ratio.high] for name, ratio in ratios.items()},
        "peer_gflops": {name: speed[name] for name in ratios},
        "absent": dict(measured.absent),
    }
    if DEFAULT in seconds:
        row["vs_default"] = measure.paired_ratio(seconds[DEFAULT], seconds[DIRECT]).median
    best = best_peer(seconds)
    if best is not None:
        ratio = ratio_to_best(seconds[best], seconds[counterpart(best, allocating)])
        row["best"], row["vs_best"] = best, ratio.median
        row["vs_best_bounds"] = [ratio.low, ratio.high]
        row["vs_best_vm"] = ratio_to_best(seconds[best], seconds[VM]).median
    return row


def peak_of(measured: Iterable[Measured], flops: int) -> float:
    """GFLOP/s of the multiply-add chains, the median over all rounds of all shapes."""
    return flops / statistics.median(t for one in measured for t in one.seconds[PEAK]) / 1e9


def group_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Geometric means over ``rows``: to the best peer, by both our ways, to each peer, and to our
    own micro-kernels without tuning."""
    compared = [row for row in rows if row["vs_best"] is not None]
    names = dict.fromkeys(name for row in rows for name in row["vs"])
    return {
        "shapes": len(rows),
        "losses": sum(row["vs_best"] < 1 for row in compared),
        "vs_best": mean(row["vs_best"] for row in compared),
        "vs_best_vm": mean(row["vs_best_vm"] for row in compared),
        "vs_default": mean(row["vs_default"] for row in rows if row["vs_default"] is not None),
        "of_peak": measure.geomean(row["of_peak"] for row in rows),
        "vs": {
            name: measure.geomean(row["vs"][name] for row in rows if name in row["vs"])
            for name in names
        },
    }


def mean(ratios: Iterable[float]) -> float | None:
    """Geometric mean, None of nothing: JSON knows no NaN."""
    found = list(ratios)
    return measure.geomean(found) if found else None


def summarise_groups(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """``group_summary`` of every class that occurs, in the order of ``CLASSES``, and of "all"."""
    groups = {name: [row for row in rows if row["class"] == name] for name in CLASSES}
    groups["all"] = list(rows)
    return {name: group_summary(members) for name, members in groups.items() if members}


def losses(rows: Iterable[Row]) -> list[Row]:
    """The rows on which the best peer is faster, the worst first."""
    slower = [row for row in rows if row["vs_best"] is not None and row["vs_best"] < 1]
    return sorted(slower, key=lambda row: row["vs_best"])


def document(
    measured: Sequence[Measured],
    *,
    facts: Mapping[str, Any],
    versions: Mapping[str, str],
    modes: Mapping[str, str],
    allocating: Collection[str],
    absent: Mapping[str, str],
    peak_flops: int,
    threads: int,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """The whole result as it is written to JSON.

    ``facts`` describe the machine, ``modes`` how each candidate is called, ``absent`` which peers
    are missing altogether and why; ``extra`` is added as it is.
    """
    peak = peak_of(measured, peak_flops)
    rows = [summarise_shape(one, allocating, peak, threads) for one in measured]
    return {
        "machine": dict(facts),
        "versions": dict(versions),
        "threads": threads,
        "peak_gflops": peak,
        "candidates": dict(modes),
        "compared_with_vm": sorted(allocating),
        "absent": dict(absent),
        "geomean": summarise_groups(rows),
        "rows": rows,
        **extra,
    }
