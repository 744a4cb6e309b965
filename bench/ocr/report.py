"""What the networks read and how long it took, as rich tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from bench.engines import ORT, OURS
from bench.measure import Ratio, geomean
from bench.ocr.decoding import Reading


@dataclass(frozen=True)
class Case:
    """Lines that went through a network at once: seconds a call by engine, the ratio of times
    onnxruntime / ours, the largest error relative to the largest output, and what came out."""

    network: str
    lines: int
    width: int
    seconds: Mapping[str, float]
    ratio: Ratio
    error: float
    written: tuple[str, ...]
    found: tuple[str, ...]
    expected: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.network} ({self.lines}, 3, 48, {self.width})"


def readings_table(written: Sequence[str], readings: Sequence[Reading]) -> Table:
    """What was written, what was read of it."""
    table = Table(title="Lines, as the recogniser reads them")
    table.add_column("written", overflow="fold")
    table.add_column("read", overflow="fold")
    table.add_column("confidence", justify="right")
    for text, reading in zip(written, readings, strict=True):
        colour = "green" if reading.text.strip() == text else "yellow"
        shown = f"[{colour}]{escape(reading.text.strip())}[/{colour}]"
        table.add_row(escape(text), shown, f"{reading.confidence:.3f}")
    return table


def times_table(cases: Sequence[Case]) -> Table:
    """One row a call: milliseconds, the ratio onnxruntime / ours, the error."""
    table = Table(title="Milliseconds a call; ratio: onnxruntime / ours, above 1 ours is faster")
    table.add_column("network")
    for column in ("lines", "width", OURS, ORT, "ratio", "largest error"):
        table.add_column(column, justify="right")
    for case in cases:
        colour = "red" if case.ratio.median < 1 else "green"
        table.add_row(
            case.network,
            str(case.lines),
            str(case.width),
            f"{1e3 * case.seconds[OURS]:.2f}",
            f"{1e3 * case.seconds[ORT]:.2f}",
            f"[{colour}]{case.ratio.median:.2f}[/{colour}]",
            f"{case.error:.1e}",
        )
    return table


def geomeans(cases: Sequence[Case]) -> dict[str, float]:
    """The geometric mean of the ratios of each network."""
    networks = dict.fromkeys(case.network for case in cases)
    return {
        network: geomean(case.ratio.median for case in cases if case.network == network)
        for network in networks
    }


def as_json(
    facts: Mapping[str, Any], cases: Sequence[Case], build_seconds: Mapping[str, float]
) -> dict[str, Any]:
    """All of it as plain data."""
    return {
        "machine": dict(facts),
        "build_seconds": dict(build_seconds),
        "cases": [
            {
                "network": case.network,
                "shape": [case.lines, 3, 48, case.width],
                "seconds": dict(case.seconds),
                "ratio": {
                    "median": case.ratio.median,
                    "low": case.ratio.low,
                    "high": case.ratio.high,
                },
                "error": case.error,
                "written": list(case.written),
                "found": list(case.found),
            }
            for case in cases
        ],
        "geomean": geomeans(cases),
        "reference": ORT,
    }
