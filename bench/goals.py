"""Benches whose cases have goals by group: what is measured again, what a group reaches, and the
document of it all.

A row is that of a case: ``vs_best`` is its ratio to the best library and ``vs_best_bounds`` the
95 % bounds of that, ``vs_best_first`` the ratio by its first run alone, ``floor`` what the upper
bound must not be below, ``loss`` whether it is, ``vs`` the ratios to all libraries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.beside import Part
from bench.gemm.journal import Journal
from bench.gemm.summary import SUSPECT, Row, losses, mean


def in_doubt(rows: Sequence[Row]) -> list[str]:
    """Keys of the cases that deserve a second run."""
    return [
        row["key"]
        for row in losses(rows)
        if row["vs_best"] < SUSPECT or row["vs_best_bounds"][0] < row["floor"]
    ]


def reached(members: Sequence[Row], target: float | None, floor: float) -> dict[str, Any]:
    """Geometric means over the rows of a group, and whether its goal is met: a mean to the best
    library of at least ``target``, and no loss that counts."""
    compared = [row for row in members if row["vs_best"] is not None]
    found = mean(row["vs_best_first"] for row in compared)
    counted = sum(row["loss"] for row in compared)
    peers = dict.fromkeys(peer for row in members for peer in row["vs"])
    return {
        "vs_best": found,
        "target": target,
        "floor": floor,
        "slower": len(losses(compared)),
        "losses_that_count": counted,
        "worst": min((row["vs_best"] for row in compared), default=None),
        "met": found is not None and target is not None and found >= target and not counted,
        "vs": {peer: mean(row["vs"].get(peer) for row in members) for peer in peers},
    }


def document_of(
    journal: Journal, threads: int, rows: Sequence[Row], beside: Sequence[Part], **more: object
) -> dict[str, Any]:
    """All that was measured with ``threads`` threads, losses first, and what ``more`` has: the
    groups, and the parts of `bench.beside`. Raises ValueError when that is nothing."""
    if not rows and not beside:
        raise ValueError(f"the journal holds no case of {threads} threads")
    slower = losses(rows)
    lost = [row["key"] for row in slower]
    return {
        **journal.header,
        **journal.notes.get(threads, {}),
        "threads": threads,
        **more,
        "beside": list(beside),
        "losses": lost,
        "rows": slower + [row for row in rows if row["key"] not in lost],
    }
