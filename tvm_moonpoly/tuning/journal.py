"""The journal of the tuning stage: what was measured is written down at once, and never again.

A file of JSON lines, each with a checksum of its other fields. `Journal.once` measures what is not
there yet and appends it, synced to the disk, before it returns. A stage that was killed is simply
run again: it takes the same steps, and those that are in the journal take no time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tvm_moonpoly.logs import encode, folders
from tvm_moonpoly.logs.lines import MAX_LINE, decode

VERSION = 1

_HEADER = b'{"kind": "header", "origin": {'

_TOLD = 3  # damaged lines that are told one by one

_log = logging.getLogger("tvm_moonpoly.tuning")

#: What tells one entry from another of its kind: JSON values.
Key = Mapping[str, Any]


class Busy(RuntimeError):
    """Another process writes the journal."""


class Journal:
    """Entries by kind and key, kept in a file.

    ``origin`` describes what the measurements depend on (the machine, the package). A file with
    another origin is set aside, as ``.old`` or, where there is one, ``.old.1`` and so on; one that
    is to begin ``anew`` is emptied. Raises `Busy` when the file is in use, and ValueError when it
    is no journal. Where it cannot be written, there is a warning, and entries live as long as the
    process.

    ``read_only``: the file is left alone, whoever writes it. Raises OSError when there is none,
    ValueError when it has another origin.
    """

    def __init__(
        self,
        path: Path,
        origin: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
        anew: bool = False,
        read_only: bool = False,
    ) -> None:
        self.path, self._clock, self._read_only = path, clock, read_only
        self._entries: dict[tuple[str, str], Any] = {}
        #: seconds of all sessions but this one, from its start to its last entry
        self.spent_before = 0.0
        self._started = clock()
        self._last = self._started
        self._file: IO[bytes] | None = None
        # as it is read back: JSON has no tuples
        header = json.loads(
            json.dumps({"kind": "header", "version": VERSION, "origin": dict(origin)})
        )
        if path.exists() and not path.is_file():
            raise ValueError(f"journal: {path} is no regular file")
        if read_only:
            entries, faults = _parsed(path.read_bytes())
            _tell(faults, path)
            if entries[:1] != [header]:
                raise ValueError(f"journal: {path} is of another machine or version")
            self._take(entries[1:])
            return
        try:
            self._file = _opened(path)
            self._read(header, anew)
        except OSError as error:
            self._give_up(error)
            self._read_what_there_is(header)

    def once(self, kind: str, key: Key, measure: Callable[[], Any]) -> Any:
        """The entry's value; measured by ``measure`` and written down when it is not there yet.

        The value must be JSON.
        """
        entry = kind, _canonical(key)
        if entry in self._entries:
            return self._entries[entry]
        value = measure()
        self.put(kind, key, value)
        return value

    def get(self, kind: str, key: Key) -> Any | None:
        return self._entries.get((kind, _canonical(key)))

    def has(self, kind: str, key: Key) -> bool:
        """Whether the entry is there; its value may be null."""
        return (kind, _canonical(key)) in self._entries

    def put(self, kind: str, key: Key, value: Any) -> None:
        """Write an entry down; it is on the disk when this returns."""
        now = self._clock()
        self._append(
            {
                "kind": kind,
                "key": dict(key),
                "value": value,
                "seconds": round(now - self._last, 3),
            }
        )
        self._last = now
        self._entries[kind, _canonical(key)] = value

    def all(self, kind: str) -> Iterator[tuple[dict[str, Any], Any]]:
        """Keys and values of a kind, in the order in which they were written."""
        for (each, key), value in self._entries.items():
            if each == kind:
                yield json.loads(key), value

    def spent(self) -> float:
        """Seconds that all sessions have taken, this one until now; one that only reads none."""
        if self._read_only:
            return self.spent_before
        return self.spent_before + self._clock() - self._started

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, header: dict[str, Any], anew: bool) -> None:
        assert self._file is not None
        text = self._file.read()
        whole = text[: text.rfind(b"\n") + 1]
        entries, faults = _parsed(whole)
        if text and not any(map(_is_ours, entries)) and not _begins_with_a_header(text):
            self.close()
            raise ValueError(f"journal: {self.path} holds something else, and is left alone")
        if anew:
            self._file.truncate(0)
            entries, faults, text, whole = [], [], b"", b""
        _tell(faults, self.path)
        if entries and entries[0] != header:
            aside = _free_name(self.path)
            _log.warning("%s: of another machine or version, kept as %s", self.path, aside.name)
            # still locked: another process must not take what comes instead for this one
            os.replace(self.path, aside)
            self._file.close()
            self._file = _opened(self.path)
            entries, text, whole = [], b"", b""
        if len(whole) < len(text):
            # the line that a kill cut off; what comes next must not be glued to it
            self._file.truncate(len(whole))
        self._file.seek(0, os.SEEK_END)
        if not entries:
            if whole:
                self._file.truncate(0)
                self._file.seek(0)
            self._append(header)
        self._take(entries[1:])

    def _read_what_there_is(self, header: dict[str, Any]) -> None:
        """The entries of a file that cannot be written, where it can be read."""
        try:
            entries, _ = _parsed(self.path.read_bytes())
        except OSError:
            return
        if entries[:1] == [header]:
            self._take(entries[1:])

    def _take(self, entries: Iterable[Mapping[str, Any]]) -> None:
        for entry in entries:
            try:
                key = (str(entry["kind"]), _canonical(entry["key"]))
                value, seconds = entry["value"], float(entry["seconds"])
            except (KeyError, TypeError, ValueError) as error:
                _log.warning("%s: an entry is skipped: %r", self.path, error)
                continue
            self._entries[key] = value
            self.spent_before += max(seconds, 0.0)

    def _append(self, entry: dict[str, Any]) -> None:
        if self._file is None:
            return
        left = memoryview(encode(entry))
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning("%s: cannot be written (%s): this run cannot be resumed", self.path, error)
        with contextlib.suppress(OSError):
            self.close()


def own_path(name: str) -> Path:
    """Where the journal of a machine of this ``name`` lies by default: beside the folder of the
    user's tuning logs."""
    return folders()[0].parent / "tuning" / f"{name}.journal.jsonl"


def origin_of(path: Path) -> dict[str, Any]:
    """The origin that the journal at ``path`` is of.

    Raises OSError when there is none, ValueError when it does not begin with a header.
    """
    with path.open("rb") as file:
        first = file.readline(MAX_LINE + 1)
    try:
        origin = decode(first.rstrip(b"\n")).get("origin")
    except ValueError as error:
        raise ValueError(f"journal: {path} is none: {error}") from error
    if not isinstance(origin, dict):
        raise ValueError(f"journal: {path} does not begin with a header")
    return origin


def _opened(path: Path) -> IO[bytes]:
    """The file, locked for this process; the lock goes with the process, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = open(path, "a+b", buffering=0)  # noqa: SIM115
        try:
            _lock(file)
        except OSError as error:
            file.close()
            if not isinstance(error, BlockingIOError):  # a file system without locks
                raise
            raise Busy(f"journal: another process is tuning with {path}") from error
        # what was locked may have been set aside meanwhile
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            file.seek(0)
            return file
        file.close()


def _lock(file: IO[bytes]) -> None:
    try:
        import fcntl
    except ImportError:  # not on every system
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _parsed(text: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """The entries, and the lines that are none."""
    entries, faults = [], []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entries.append(decode(line))
        except ValueError as error:
            faults.append(f"line {number} is skipped: {error}")
    return entries, faults


def _tell(faults: list[str], path: Path) -> None:
    for fault in faults[:_TOLD]:
        _log.warning("%s: %s", path, fault)
    if len(faults) > _TOLD:
        _log.warning("%s: %d more lines are skipped", path, len(faults) - _TOLD)


def _is_ours(entry: Mapping[str, Any]) -> bool:
    """Whether a journal may hold it: its header or what `Journal.put` writes."""
    fields = {"origin"} if entry.get("kind") == "header" else {"key", "value", "seconds"}
    return fields <= entry.keys()


def _begins_with_a_header(text: bytes) -> bool:
    """Whether ``text`` may be what a kill or a fault left of a header."""
    return text.startswith(_HEADER[: len(text)])


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.old" + f".{i}" * bool(i)) for i in itertools.count())
    return next(name for name in names if not name.exists())


def _canonical(key: Key) -> str:
    return json.dumps(key, sort_keys=True)
