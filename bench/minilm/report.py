"""What the main job measured, as rich tables and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from bench.measure import Ratio, geomean
from bench.minilm.engines import ORT, OURS, PEERS


@dataclass(frozen=True)
class Case:
    """One size: seconds a call and largest absolute error (against onnxruntime) by engine."""

    batch: int
    seq: int
    seconds: Mapping[str, float]
    errors: Mapping[str, float]
    ratios: Mapping[str, Ratio] = field(default_factory=dict)

    @property
    def error(self) -> float:
        return max(self.errors.values())

    def __str__(self) -> str:
        return f"({self.batch}, {self.seq})"


def times_table(cases: Sequence[Case]) -> Table:
    """One row a size: milliseconds of every engine, ratios peer / ours, largest error."""
    table = Table(title="Milliseconds a call; x: times slower than tvm_moonpoly (below 1: faster)")
    for column in ("batch", "seq", OURS):
        table.add_column(column, justify="right")
    for peer in PEERS:
        table.add_column(peer, justify="right")
        table.add_column("x", justify="right")
    table.add_column("largest error", justify="right")
    for case in cases:
        row = [str(case.batch), str(case.seq), f"{1e3 * case.seconds[OURS]:.2f}"]
        for peer in PEERS:
            if peer in case.seconds:
                ratio = case.ratios[peer].median
                colour = "red" if ratio < 1 else "green"
                row += [f"{1e3 * case.seconds[peer]:.2f}", f"[{colour}]{ratio:.2f}[/{colour}]"]
            else:
                row += ["-", "-"]
        table.add_row(*row, f"{case.error:.1e}")
    return table


def geomeans(cases: Iterable[Case]) -> dict[str, float]:
    """Geometric mean, over the sizes measured, of the ratio to each peer."""
    found = list(cases)
    return {
        peer: geomean(case.ratios[peer].median for case in found if peer in case.ratios)
        for peer in PEERS
        if any(peer in case.ratios for case in found)
    }


def loss_lines(cases: Iterable[Case]) -> list[str]:
    """A line for every size at which a peer is faster, the worst first."""
    slower = [
        (ratio.median, f"{case} {peer}: {ratio}")
        for case in cases
        for peer, ratio in case.ratios.items()
        if ratio.median < 1
    ]
    return [line for _, line in sorted(slower)]


def operators_table(entries: Iterable[Any]) -> Table:
    """Which operators the pass rewrote and which it left, equal ones counted together."""
    table = Table(title="Operators as the pass saw them")
    for column in ("action", "operator", "shapes", "detail"):
        table.add_column(column, overflow="fold")
    table.add_column("count", justify="right")
    for row, count in group(entries):
        table.add_row(*map(escape, row), str(count))
    return table


def group(entries: Iterable[Any]) -> list[tuple[tuple[str, str, str, str], int]]:
    """Rows (action, operator, shapes, detail) of a pass report with their counts.

    Rewritten operators come first, then those left as they were; within each the most frequent.
    """
    counts = Counter(
        (each.action, each.operator, str(each.shapes), each.detail) for each in entries
    )
    return sorted(counts.items(), key=lambda item: (item[0][0] != "rewritten", -item[1], item[0]))


def cosines_table(texts: Sequence[str], similarities: np.ndarray) -> Table:
    """Similarities of the embeddings of ``texts``."""
    table = Table(title="Cosine similarity of embeddings")
    table.add_column("sentence")
    for at in range(len(texts)):
        table.add_column(str(at + 1), justify="right")
    for at, text in enumerate(texts):
        table.add_row(f"{at + 1} {text}", *(f"{value:.2f}" for value in similarities[at]))
    return table


def facts_table(facts: Mapping[str, Any]) -> Table:
    """The machine and the versions."""
    table = Table(title="Machine", show_header=False)
    for key, value in facts.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {each}" for name, each in value.items())
        elif isinstance(value, list):
            value = "; ".join(" ".join(map(str, each.values())) for each in value)
        table.add_row(key, escape(str(value)))
    return table


def as_json(
    facts: Mapping[str, Any],
    cases: Sequence[Case],
    entries: Iterable[Any],
    build_seconds: Mapping[str, float],
) -> dict[str, Any]:
    """All of it as plain data."""
    return {
        "machine": dict(facts),
        "build_seconds": dict(build_seconds),
        "cases": [
            {
                "batch": case.batch,
                "seq": case.seq,
                "seconds": dict(case.seconds),
                "vs": {
                    peer: {"median": ratio.median, "low": ratio.low, "high": ratio.high}
                    for peer, ratio in case.ratios.items()
                },
                "errors": dict(case.errors),
            }
            for case in cases
        ],
        "geomean": geomeans(cases),
        "reference": ORT,
        "losses": loss_lines(cases),
        "operators": [
            {"action": a, "operator": o, "shapes": s, "detail": d, "count": count}
            for (a, o, s, d), count in group(entries)
        ],
    }
