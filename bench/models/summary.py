"""From measured seconds to ratios, one row a size, and to what each group of sizes reaches."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench import measure
from bench.beside import parts_of
from bench.gemm.journal import Journal, Measured
from bench.gemm.summary import Row
from bench.goals import document_of, reached
from bench.models.beside import BESIDE
from bench.models.build import ORT, OURS
from bench.models.cases import GROUPS, Group

FORMAT = 1


def document(journal: Journal, threads: int) -> dict[str, Any]:
    """All that was measured with ``threads`` threads; raises ValueError when that is nothing."""
    note = journal.notes.get(threads, {})
    rows = rows_of(journal, threads)
    groups = [group for one in GROUPS.values() if (group := summed(one, rows, note)) is not None]
    beside = [
        part | {"built": builds_of(note, part["engine"])}
        for part in parts_of(BESIDE, journal, threads, OURS)
    ]
    return document_of(journal, threads, rows, beside, format=FORMAT, groups=groups)


def builds_of(note: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """What compiling for an engine took, by network."""
    both = {tuple(key.split()): built for key, built in note.get("build_seconds", {}).items()}
    return {network: built for (name, network), built in both.items() if name == engine}


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


def summed(group: Group, rows: Sequence[Row], note: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the rows of a group reach, and what its network takes; None without rows."""
    members = [row for row in rows if row["group"] == group.name]
    if not members:
        return None
    return {
        "name": group.name,
        "title": group.title,
        "sizes": len(members),
        **reached(members, group.targets.get(members[0]["threads"]), group.floor),
        "build_seconds": note.get("build_seconds", {}).get(f"{OURS} {group.network}"),
        "memory": note.get("memory", {}).get(group.network),
    }
