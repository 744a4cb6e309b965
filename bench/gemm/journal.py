"""What was measured so far, in a file of JSON lines: a run that was interrupted goes on from it.

The first line is the header: the machine, the versions and the settings, whatever makes figures
comparable. Then come notes, what is the same for all cases of a number of threads (candidates, the
work of the probe), and one line for each run of each case. Every line is flushed when it is
written, so that an interruption loses the case in hand at most; a last line that was torn off is
dropped. The document is computed from the journal alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gemm.shapes import Shape

QUIET = "quiet"  # the mode of all runs with nothing else at work on purpose
BUSY = "busy core"  # the mode of runs during which another process keeps a core busy


@dataclass(frozen=True)
class Record:
    """One run of one case: seconds a call of every candidate, one entry a round.

    ``mode`` tells apart runs that must not be put together. ``absent`` says of candidates that
    were not timed why not. ``at`` is the time of day, seconds since 1970.
    """

    shape: Any
    threads: int
    rounds: dict[str, list[float]]
    absent: dict[str, str] = field(default_factory=dict)
    mode: str = QUIET
    at: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        """The line of the journal."""
        return {
            "key": self.shape.key,
            "shape": self.shape.to_json(),
            "threads": self.threads,
            "mode": self.mode,
            "rounds": self.rounds,
            "absent": self.absent,
            "at": self.at,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], kind: type[Any] = Shape) -> Record:
        """The record of ``to_json``, of a case of the given kind."""
        return cls(
            kind.from_json(data["shape"]),
            data["threads"],
            data["rounds"],
            data["absent"],
            data["mode"],
            data["at"],
        )


@dataclass(frozen=True)
class Measured:
    """All runs of one case, each with seconds a call of every candidate, one entry a round.

    ``seconds`` puts together the runs in which every candidate of the first one took part.
    """

    shape: Any
    seconds: dict[str, list[float]]
    absent: dict[str, str] = field(default_factory=dict)
    runs: tuple[dict[str, list[float]], ...] = ()

    @classmethod
    def of_runs(cls, records: list[Record]) -> Measured:
        """The runs of one case, in the order in which they were made."""
        runs = tuple(record.rounds for record in records)
        whole = [run for run in runs if runs[0].keys() <= run.keys()]
        seconds = {name: [each for run in whole for each in run[name]] for name in runs[0]}
        return cls(records[0].shape, seconds, dict(records[0].absent), runs)


class Journal:
    """The file, and what it holds. Use as a context manager, or `close` it."""

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        restart: bool = False,
        kind: type[Any] = Shape,
    ) -> None:
        """Go on with the journal at ``path`` if its header is ``header``, else start it anew.

        ``kind`` is what its cases are: something with a ``key``, ``to_json`` and ``from_json``.

        ``resumed`` says which, and ``reason`` why a journal that was there was not gone on with; it
        is kept beside the new one with the ending ``.old``. One that was finished is not gone on
        with either.
        """
        self._kind = kind
        self.path, self.header = path, json.loads(json.dumps(header))
        self.notes: dict[int, dict[str, Any]] = {}
        self.records: list[Record] = []
        lines, intact = read_lines(path)
        self.reason = reason_against(lines, self.header, restart) if lines else None
        self.resumed = bool(lines) and self.reason is None
        if self.resumed:
            for line in lines[1:]:
                self._take(line)
            with path.open("r+b") as file:
                file.truncate(intact)
        elif lines:
            path.replace(path.with_name(path.name + ".old"))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        if not self.resumed:
            self._file.truncate(0)
            self._write({"header": self.header})

    def note(self, threads: int, about: Mapping[str, Any]) -> None:
        """Keep what is the same for all cases of ``threads`` threads; the last note counts."""
        self._write({"threads": threads, "note": dict(about)})
        self.notes[threads] = dict(about)

    def add(self, record: Record) -> None:
        """Keep one run of one case, on disk before this returns."""
        self._write(record.to_json())
        self.records.append(record)

    def finish(self) -> None:
        """Say that all was measured: the next run starts anew."""
        self._write({"finished": time.time()})

    def runs(self, key: str, threads: int, mode: str = QUIET) -> list[Record]:
        """The runs of a case so far, the first one first."""
        wanted = (key, threads, mode)
        return [one for one in self.records if (one.shape.key, one.threads, one.mode) == wanted]

    def measured(self, threads: int, mode: str = QUIET) -> list[Measured]:
        """All cases measured with ``threads`` threads, in the order of their first runs."""
        found: dict[str, list[Record]] = {}
        for record in self.records:
            if (record.threads, record.mode) == (threads, mode):
                found.setdefault(record.shape.key, []).append(record)
        return [Measured.of_runs(records) for records in found.values()]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _take(self, line: dict[str, Any]) -> None:
        if "note" in line:
            self.notes[line["threads"]] = line["note"]
        else:
            self.records.append(Record.from_json(line, self._kind))

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines of a journal that are whole, up to the first that is not, and how many bytes.

    No lines when there is no such file.
    """
    lines: list[dict[str, Any]] = []
    intact = 0
    for raw in path.read_bytes().splitlines(keepends=True) if path.is_file() else []:
        try:
            line = json.loads(raw)
        except ValueError:
            break
        if not raw.endswith(b"\n") or not isinstance(line, dict):
            break
        lines.append(line)
        intact += len(raw)
    return lines, intact


def reason_against(
    lines: list[dict[str, Any]], header: Mapping[str, Any], restart: bool
) -> str | None:
    """Why a journal of these ``lines`` is not to be gone on with, None when it is."""
    found = lines[0].get("header")
    if restart:
        return "asked to start anew"
    if "finished" in lines[-1]:
        return "it was finished"
    if not isinstance(found, dict):
        return "it has no header"
    names = [name for name in {**header, **found} if header.get(name) != found.get(name)]
    return f"it is of another {', '.join(names)}" if names else None
