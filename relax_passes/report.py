"""What the pass did, and did not do, to each operator, with the reason."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tvm_moonpoly.arguments import require

logger = logging.getLogger("tvm_moonpoly")

Action = Literal["rewritten", "left"]


@dataclass(frozen=True)
class Entry:
    """One decision: `detail` names what was fused, or why the operator was left as it was."""

    function: str
    operator: str
    shapes: str
    action: Action
    detail: str

    def __str__(self) -> str:
        return f"{self.function}: {self.operator} {self.shapes}: {self.action} ({self.detail})"


@dataclass
class Report:
    """Collects the entries of one or more runs of the passes, in program order.

    There is one for each matmul, convolution and attention that a pass looked at. Operators that
    none looks at (softmax, norms, transposes) are in none of the totals, nor are those that became
    part of another one: a bias or an activation (in `detail`), the products of an attention.
    """

    entries: list[Entry] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Append `entry`, and log it as one line at level info to the logger `tvm_moonpoly`."""
        self.entries.append(entry)
        logger.info("%s", entry)

    @property
    def rewritten(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.action == "rewritten"]

    @property
    def left(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.action == "left"]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        """True, as an empty report is one to collect entries in."""
        return True

    def __str__(self) -> str:
        """Equal decisions of one function share a line, with their number in front."""
        lines = [f"{len(self.rewritten)} rewritten, {len(self.left)} left as they were"]
        counts = Counter(
            (e.action, e.function, e.operator, e.shapes, e.detail) for e in self.entries
        )
        for (action, function, operator, shapes, detail), count in counts.items():
            lines.append(f"{count:4d} x {action:9} {function}: {operator} {shapes}: {detail}")
        return "\n".join(lines)


def report_of(report: Report | None) -> Report:
    """`report`, or a new one for None; raises ValueError for anything else."""
    require(report is None or isinstance(report, Report), "report", "a Report", report)
    return Report() if report is None else report
