"""What was measured, a line each, so that nothing is lost and a second run goes on.

A line says that an item has begun, what was found, or that it failed. An item that has begun and
did not end is one that the process died of.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Journal:
    """A file of JSON lines; ``bundle`` is the digest of the bundle that all lines are of.

    Raises ValueError where the file is of another bundle.
    """

    def __init__(self, path: Path, bundle: str) -> None:
        self.path = path
        self.records: list[Record] = []
        if path.exists():
            self._mend()
        if not self.records:
            self._append({"bundle": bundle})
        found = self.records[0].get("bundle")
        if found != bundle:
            raise ValueError(f"{path}: it is of another bundle; move it away or use --out")

    def done(self, part: str) -> set[str]:
        """The items that are not to be measured again: found or failed."""
        return {r["key"] for r in self.records if r.get("part") == part and "begin" not in r}

    def begin(self, part: str, key: str) -> None:
        """An item begins."""
        self._append({"part": part, "key": key, "begin": True})

    def found(self, part: str, key: str, result: Record) -> None:
        """An item was measured."""
        self._append({"part": part, "key": key, "result": result})

    def failed(self, part: str, key: str, reason: str) -> None:
        """An item could not be measured."""
        self._append({"part": part, "key": key, "failed": reason})

    def note(self, name: str, value: Any) -> None:
        """A fact of the machine; the last one counts."""
        self._append({"note": name, "value": value})

    def pending(self) -> tuple[str, str] | None:
        """The part and key of an item that has begun and did not end."""
        last = self.records[-1] if self.records else {}
        return (last["part"], last["key"]) if "begin" in last else None

    def refresh(self) -> None:
        """Read what another process wrote."""
        self.records = read(self.path)

    def _append(self, record: Record) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.records.append(record)

    def _mend(self) -> None:
        """Read the file, and drop a line that was cut off."""
        self.records = read(self.path)
        if not self.path.read_text(encoding="utf-8").endswith("\n"):
            lines = "".join(json.dumps(record) + "\n" for record in self.records)
            self.path.write_text(lines, encoding="utf-8")


def read(path: Path) -> list[Record]:
    """The lines of a journal; the last one may be cut off and is then left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records
