"""Writing logs: several processes at once lose nothing, and a kill leaves whole lines.

A place that cannot be written (read-only, full) costs a warning: whoever measured for it goes on.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock

from tvm_moonpoly.logs.document import MAX_FILE, header, read, same_machine
from tvm_moonpoly.logs.lines import MAX_LINE, Entry, encode
from tvm_moonpoly.machine import Machine

#: Seconds to wait for another writer, who holds the lock for milliseconds.
_PATIENCE = 30

#: A timeout of the lock is an OSError too; the other is a file system without locks.
_FAILURES = (OSError, NotImplementedError)

_log = logging.getLogger("tvm_moonpoly.logs")


def write(path: Path, machine: Machine, entries: Iterable[Entry]) -> bool:
    """Write a log, replacing ``path`` in one step; False, with a warning, when that fails.

    Raises ValueError, before anything is written, for an entry that could not be read again.
    """
    return replace(path, [header(machine), *entries])


def replace(
    path: Path, lines: Iterable[Entry], shared: bool = True, overwrite: bool = True
) -> bool:
    """As `write`, for a log that has a header already: its first line. ``shared``: others may be
    writing to it; without ``overwrite``, one that is there stays, which is a failure, too."""
    return replace_bytes(path, b"".join(map(encode, lines)), shared, overwrite)


def replace_bytes(path: Path, data: bytes, shared: bool = False, overwrite: bool = True) -> bool:
    """As `replace`, for a file of any kind."""
    # not tempfile's: those are private, and a log may be shared
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with _lock(path) if shared else contextlib.nullcontext():
                if path.exists() and not overwrite:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
                os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    except _FAILURES as error:
        return _not_written(path, error)
    return True


def append(path: Path, machine: Machine, entries: Iterable[Entry]) -> bool:
    """Add ``entries`` to the log of ``machine`` at ``path``, which is begun if there is none.

    All of them or, with a warning, none; then the result is False. A line that an earlier writer
    left torn stays torn and costs only itself.

    Raises ValueError, before anything is written, for an entry that could not be read again, and
    for a log of another machine or of a later version.
    """
    data = b"".join(map(encode, entries))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            _check_header(path, machine)
            _append(path, data, encode(header(machine)))
    except _FAILURES as error:
        return _not_written(path, error)
    return True


def remove(path: Path) -> bool:
    """Remove the log; False, with a warning, when that fails. The file for locking stays."""
    try:
        with _lock(path):
            path.unlink(missing_ok=True)
    except _FAILURES as error:
        _log.warning("%s: not removed: %s", path, error)
        return False
    return True


def lock_path(path: Path) -> Path:
    """The file that writers of ``path`` lock."""
    return path.with_name(f".{path.name}.lock")


def _lock(path: Path) -> FileLock:
    # a file of its own: the log itself is replaced
    return FileLock(lock_path(path), timeout=_PATIENCE)


def _append(path: Path, data: bytes, first: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            data = first + data
        elif os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        if size + len(data) > MAX_FILE:
            raise OSError(errno.EFBIG, "a log that large would not be read", str(path))
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _check_header(path: Path, machine: Machine) -> None:
    """Raise ValueError unless lines of ``machine`` may be added; a file whose first line is torn
    is moved aside, since nothing that is added to it would ever be read."""
    try:
        with path.open("rb") as file:
            first = file.readline(MAX_LINE + 1)
    except FileNotFoundError:
        return
    reading = read(first, str(path))
    if reading.faults:
        aside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.unusable")
        _log.warning("%s: moved to %s: %s", path, aside.name, reading.faults[0])
        path.rename(aside)
    elif reading.log is None:
        if first:
            raise ValueError(f"path: {path} is not added to: {reading.reason}")
    elif not same_machine(reading.log, machine):
        found = reading.log.machine
        raise ValueError(
            f"path: {path} is the log of {found['mcpu']} ({found['isa']}), not of "
            f"{machine.mcpu} ({machine.isa})"
        )


def _not_written(path: Path, error: BaseException) -> bool:
    _log.warning("%s: not written: %s", path, error)
    return False
