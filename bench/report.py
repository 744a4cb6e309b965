"""What benches whose cases have goals by group print of their documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.beside_text import sentence
from bench.cells import print_setting
from bench.gemm.summary import Row, losses


@dataclass(frozen=True)
class Report:
    """How a bench calls ``what`` it measures, such as "layer", and the ``best`` that ours is
    compared with; ``groups`` is their name in the document. Tables of rows and of groups."""

    what: str
    best: str
    groups: str
    rows_table: Callable[[Sequence[Row]], Table]
    groups_table: Callable[[Sequence[dict[str, Any]]], Table]

    def print_document(self, console: Console, doc: dict[str, Any], each: bool = False) -> None:
        """Losses, the setting, the groups, peers measured beside ours; ``each``: all rows too."""
        rows = doc["rows"]
        if rows:
            self.print_losses(console, rows)
        print_setting(console, doc, self.what)
        if rows and each:
            console.print(self.rows_table(rows))
        if rows:
            console.print(self.groups_table(doc[self.groups]))
        for part in doc.get("beside", []):
            console.print(sentence(part, self.what), highlight=False)

    def print_losses(self, console: Console, rows: Sequence[Row]) -> None:
        """Every row in which the best is faster, the worst first, those that count marked."""
        slower = losses(rows)
        if all(row["vs_best"] is None for row in rows):
            console.print("[red]no library was measured: there is nothing to compare with")
            return
        counted = sum(row["loss"] for row in slower)
        console.print(
            f"[bold]{len(slower)} of {len(rows)} {self.what}s are slower than {self.best}; "
            f"{counted} count: even the upper bound is below the floor of its group"
        )
        if slower:
            console.print(self.rows_table(slower))
