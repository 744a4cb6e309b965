"""The JSON document of one number of threads, computed from the journal alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.gemm.groups import summarise_classes, summarise_groups
from bench.gemm.journal import QUIET, Journal, Measured
from bench.gemm.linear_cases import left_out
from bench.gemm.run import PEAK
from bench.gemm.summary import Row, summarise

FORMAT = 2


def document(journal: Journal, threads: int) -> dict[str, Any]:
    """Everything that was measured with ``threads`` threads.

    Raises ValueError when the journal holds nothing of them. The note of these threads must have
    ``allocating`` (names of candidates), ``candidates`` (how each is called) and ``peak_flops``
    (the operations of one call of the probe); all it has becomes part of the document, and so does
    the header.
    """
    note = journal.notes.get(threads, {})
    modes = dict.fromkeys(one.mode for one in journal.records if one.threads == threads)
    if not modes:
        raise ValueError(f"the journal holds no case of {threads} threads")
    rows = [row for mode in modes for row in rows_of(journal, threads, mode)]
    return {
        "format": FORMAT,
        **journal.header,
        **note,
        "threads": threads,
        "peak_gflops": peak_of(journal.measured(threads), note.get("peak_flops", 1)),
        "seconds_measured": seconds_in(journal, threads),
        "groups": summarise_groups(rows),
        "classes": summarise_classes(rows),
        "left_out": [f"{one.name} ({one.n}, {one.k})" for one in left_out()],
        "rows": rows,
    }


def rows_of(journal: Journal, threads: int, mode: str = QUIET) -> list[Row]:
    """The cases measured with ``threads`` threads in ``mode``, summed up."""
    note = journal.notes.get(threads, {})
    allocating, peak_flops = note.get("allocating", []), note.get("peak_flops", 1)
    return [
        summarise(one, allocating, peak_flops, threads, mode)
        for one in journal.measured(threads, mode)
    ]


def peak_of(measured: Sequence[Measured], flops: float) -> float | None:
    """GFLOP/s of the multiply-add chains, the median over all rounds of all cases."""
    times = [each for one in measured for each in one.seconds.get(PEAK, [])]
    return flops / statistics.median(times) / 1e9 if times else None


def seconds_in(journal: Journal, threads: int) -> float:
    """Seconds between the first and the last case of these threads, breaks included."""
    times = [one.at for one in journal.records if one.threads == threads]
    return max(times) - min(times)
