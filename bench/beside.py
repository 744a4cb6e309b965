"""Peers that are measured beside ours on few cases, in passes of their own: their calls, or
compiling them, take so long.

The document has them as parts of their own: whose they are, on which cases, and a row a case with
the ratio of their time to ours. They say nothing about who is the best library.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from bench import measure
from bench.gemm.journal import Journal, Measured
from bench.gemm.run import Effort
from bench.gemm.threads.crew import Library
from bench.gemm.threads.passes import crew_of, measure_each, note_crew, to_do

Part = dict[str, Any]


@dataclass(frozen=True)
class Beside:
    """A pass of ours and ``engine``, which makes ``flops`` a second or so, after ``starting``
    seconds of loading or compiling: ``rounds`` rounds a case, ``fewest`` where calls are long.
    Its runs have ``mode`` in the journal. ``pick`` takes its cases of those that are chosen."""

    engine: str
    title: str
    package: str  # whose version it has
    where: str  # it is measured, in words
    pick: Callable[[Sequence[Any]], list[Any]]
    rounds: int
    fewest: int
    flops: float
    starting: float
    patience: float  # seconds that a call may take

    @property
    def mode(self) -> str:
        return f"beside {self.title}"

    def effort(self, usual: Effort) -> Effort:
        """That of its pass."""
        rounds = min(self.rounds, usual.rounds)
        return replace(usual, rounds=rounds, fewest=min(self.fewest, rounds), budget=math.inf)

    def expected_seconds(self, case: Any) -> float:
        """Those that a case will take, or so."""
        return self.starting + case.flops * (2 + self.fewest) / self.flops

    def left_of(self, cases: Sequence[Any], journal: Journal, threads: int) -> list[Any]:
        """Its cases that the journal lacks."""
        return list(to_do(self.pick(cases), (), journal, threads, self.mode))


def measure_beside(
    passes: Sequence[Beside],
    cases: Sequence[Any],
    libraries_of: Callable[[str], Sequence[Library]],
    effort: Effort,
    threads: int,
    journal: Journal,
    console: Console,
    *,
    ours: str,
    end: float = math.inf,
) -> bool:
    """Fill ``journal`` with the ``passes`` over what they take of ``cases``; whether none was left
    out because it would have lasted beyond ``end`` of the monotonic clock.

    ``libraries_of`` has the workers of an engine and of ours. Raises RuntimeError where ours fails.
    """
    whole = True
    for peer in passes:
        left = peer.left_of(cases, journal, threads)
        if not left:
            continue
        if time.monotonic() > end:
            return False
        with crew_of(libraries_of(peer.engine), threads, console, ours) as crew:
            note_crew(journal, crew, threads)
            whole &= measure_each(
                crew,
                {case: peer.expected_seconds(case) for case in left},
                peer.effort(effort),
                threads,
                journal,
                console,
                ours=ours,
                title=f"{peer.title}: ",
                mode=peer.mode,
                patience=peer.patience,
                end=end,
            )
    return whole


def parts_of(passes: Sequence[Beside], journal: Journal, threads: int, ours: str) -> list[Part]:
    """What the document has of each pass that was made."""
    versions = {**journal.header["versions"], **journal.notes.get(threads, {}).get("versions", {})}
    return [
        {
            "engine": peer.engine,
            "title": peer.title,
            "version": versions.get(peer.package, ""),
            "where": peer.where,
            "rows": [row_of(one, peer.engine, ours) for one in measured],
        }
        for peer in passes
        if (measured := journal.measured(threads, peer.mode))
    ]


def row_of(measured: Measured, engine: str, ours: str) -> dict[str, Any]:
    """Seconds of both, and the ratio with its bounds, or why it is absent."""
    case, seconds = measured.shape, measured.seconds
    row: dict[str, Any] = {
        "key": case.key,
        "group": case.group,
        "rounds": len(seconds[ours]),
        "seconds": {
            name: statistics.median(seconds[name]) for name in (ours, engine) if name in seconds
        },
        "ratio": None,
        "bounds": None,
        "absent": measured.absent.get(engine, "its process did not start"),
    }
    if engine in seconds:
        ratio = measure.paired_ratio(seconds[engine], seconds[ours])
        row.update(ratio=ratio.median, bounds=[ratio.low, ratio.high], absent=None)
    return row


def chosen(passes: Sequence[Beside], engines: Collection[str]) -> list[Beside]:
    """Those of ``engines``."""
    return [peer for peer in passes if peer.engine in engines]
