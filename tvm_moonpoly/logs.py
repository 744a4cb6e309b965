"""The log store: tuning logs are read, validated and written here.

A log is a file of JSON lines. The first line is a header: the format's version and the machine.
Each line carries a checksum of its other fields; a torn or foreign line is skipped with a warning.
Logs are data: nothing in them is executed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import platformdirs

from tvm_moonpoly.machine import Machine

VERSION = 1
FILE_NAME = "gemm_f32.jsonl"

_log = logging.getLogger("tvm_moonpoly.logs")


@dataclass(frozen=True)
class TuningLog:
    """The entries of one log, the machine that they were measured on, and where it came from."""

    machine: Mapping[str, Any]
    entries: tuple[Mapping[str, Any], ...]
    origin: str


def find(machine: Machine) -> TuningLog:
    """The first of `usable`.

    Raises LookupError when there is no log for the instruction set.
    """
    for log in usable(machine):
        return log
    raise LookupError(f"no tuning log for {machine.isa} (mcpu {machine.mcpu!r})")


def usable(machine: Machine) -> Iterator[TuningLog]:
    """The logs for ``machine``, best first: its own, then others of its instruction set.

    Looked for in ``MOONPOLY_HOME``, in the user's data folder, and among the packaged logs.
    """
    near = []
    for origin, text in _stored():
        log = parse(text, origin)
        if log is None or log.machine.get("isa") != machine.isa:
            continue
        if log.machine.get("mcpu") == machine.mcpu:
            yield log
        else:
            near.append(log)
    for log in near:
        _say_nearest(machine.mcpu, str(log.machine.get("mcpu")), log.origin)
        yield log


@functools.cache
def _say_nearest(wanted: str, used: str, origin: str) -> None:
    """Once a process: the same log is looked up for every operator."""
    _log.info("no tuning log of %s: the one of %s is used (%s)", wanted, used, origin)


def parse(text: str, origin: str) -> TuningLog | None:
    """The log in ``text``; None, with a warning, when its header cannot be used."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or entry.pop("sum", None) != checksum(entry):
                raise ValueError("its checksum does not match")
        except ValueError as error:
            _log.warning("%s: line %d is skipped: %s", origin, number, error)
            continue
        entries.append(entry)
    if not entries or entries[0].get("kind") != "header":
        _log.warning("%s: skipped, it does not begin with a header", origin)
        return None
    header = entries[0]
    if header.get("version") != VERSION or not isinstance(header.get("machine"), dict):
        _log.warning("%s: skipped, version %r is not %d", origin, header.get("version"), VERSION)
        return None
    return TuningLog(header["machine"], tuple(entries[1:]), origin)


def write(path: Path, machine: Machine, entries: Iterable[Mapping[str, Any]]) -> None:
    """Write a log, replacing ``path`` in one step."""
    described = {
        "isa": machine.isa,
        "mcpu": machine.mcpu,
        "cores": machine.cores,
        "l1_bytes": machine.l1_bytes,
        "l2_bytes": machine.l2_bytes,
        "l3_bytes": machine.l3_bytes,
    }
    header = {"kind": "header", "version": VERSION, "machine": described}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
    ) as file:
        for entry in [header, *entries]:
            line = {**entry, "sum": checksum(entry)}
            file.write(json.dumps(line, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def checksum(entry: Mapping[str, Any]) -> str:
    """A short digest of an entry's fields."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stored() -> Iterable[tuple[str, str]]:
    """All logs, in the order in which they are preferred: (where, text)."""
    folders = []
    if home := os.environ.get("MOONPOLY_HOME"):
        folders.append(Path(home) / "tuning_logs")
    folders.append(platformdirs.user_data_path("tvm_moonpoly", appauthor=False) / "tuning_logs")
    for folder in folders:
        try:
            paths = sorted(folder.glob(f"*/{FILE_NAME}"))
        except OSError as error:
            _log.warning("%s: skipped: %s", folder, error)
            continue
        for path in paths:
            try:
                yield str(path), path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                _log.warning("%s: skipped: %s", path, error)
    packaged = resources.files("tvm_moonpoly.tuning_logs")
    for entry in sorted(packaged.iterdir(), key=lambda item: item.name):
        candidate = entry / FILE_NAME
        if entry.is_dir() and candidate.is_file():
            yield f"packaged {entry.name}", candidate.read_text(encoding="utf-8")
