"""From measured seconds to ratios, one row a size, and to what each group of sizes reaches."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench import measure
from bench.gemm.journal import Journal, Measured
from bench.gemm.summary import Row, losses, mean
from bench.models.beside import BESIDE
from bench.models.build import ORT, OURS
from bench.models.cases import GROUPS, Group

FORMAT = 1
SUSPECT = 0.97  # below this median a size is measured again


def document(journal: Journal, threads: int) -> dict[str, Any]:
    """All that was measured with ``threads`` threads; raises ValueError when that is nothing."""
    note = journal.notes.get(threads, {})
    rows = rows_of(journal, threads)
    if not rows:
        raise ValueError(f"the journal holds no size of {threads} threads")
    for peer in BESIDE:
        for one in journal.measured(threads, peer.mode):
            add_beside(rows, one, peer.engine)
    slower = losses(rows)
    lost = [row["key"] for row in slower]
    groups = [group for one in GROUPS.values() if (group := summed(one, rows, note)) is not None]
    return {
        "format": FORMAT,
        **journal.header,
        **note,
        "threads": threads,
        "groups": groups,
        "losses": lost,
        "rows": slower + [row for row in rows if row["key"] not in lost],
    }


def rows_of(journal: Journal, threads: int) -> list[Row]:
    """The sizes measured with ``threads`` threads, summed up."""
    return [summarise(one, threads) for one in journal.measured(threads)]


def summarise(measured: Measured, threads: int) -> Row:
    """One row of the document."""
    case, seconds = measured.shape, measured.seconds
    group = GROUPS[case.group]
    row: Row = {
        "key": case.key,
        **case.to_json(),
        "threads": threads,
        "rounds": len(seconds[OURS]),
        "runs": max(1, len(measured.runs)),
        "seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "best": None,
        "vs_best": None,
        "vs_best_bounds": None,
        "vs_best_first": None,
        "floor": group.floor,
        "loss": False,
        "vs": {},
        "absent": dict(measured.absent),
    }
    if ORT in seconds:
        ratio = measure.paired_ratio(seconds[ORT], seconds[OURS])
        first = measured.runs[0] if measured.runs else seconds
        row.update(best=ORT, vs_best=ratio.median, vs_best_bounds=[ratio.low, ratio.high])
        row["vs_best_first"] = measure.paired_ratio(first[ORT], first[OURS]).median
        row["loss"] = ratio.high < group.floor
        row["vs"][ORT] = ratio.median
    return row


def add_beside(rows: Sequence[Row], measured: Measured, engine: str) -> None:
    """The ratio of a peer that was measured in a pass of its own, in the row of its case."""
    for row in rows:
        if row["key"] == measured.shape.key:
            if engine in measured.seconds:
                pair = measured.seconds[engine], measured.seconds[OURS]
                row["vs"][engine] = measure.paired_ratio(*pair).median
            row["absent"].update(measured.absent)


def in_doubt(rows: Sequence[Row]) -> list[str]:
    """Keys of the sizes that deserve a second run."""
    return [
        row["key"]
        for row in losses(rows)
        if row["vs_best"] < SUSPECT or row["vs_best_bounds"][0] < row["floor"]
    ]


def summed(group: Group, rows: Sequence[Row], note: Mapping[str, Any]) -> dict[str, Any] | None:
    """Geometric means over the rows of a group, and whether its goal is met; None without rows."""
    members = [row for row in rows if row["group"] == group.name]
    if not members:
        return None
    compared = [row for row in members if row["vs_best"] is not None]
    found = mean(row["vs_best_first"] for row in compared)
    counted = sum(row["loss"] for row in compared)
    target = group.targets.get(members[0]["threads"])
    peers = dict.fromkeys(peer for row in members for peer in row["vs"])
    return {
        "name": group.name,
        "title": group.title,
        "sizes": len(members),
        "vs_best": found,
        "target": target,
        "floor": group.floor,
        "slower": len(losses(compared)),
        "losses_that_count": counted,
        "worst": min((row["vs_best"] for row in compared), default=None),
        "met": found is not None and target is not None and found >= target and not counted,
        "vs": {peer: mean(row["vs"].get(peer) for row in members) for peer in peers},
        "build_seconds": note.get("build_seconds", {}).get(f"{OURS} {group.network}"),
        "memory": note.get("memory", {}).get(group.network),
    }
