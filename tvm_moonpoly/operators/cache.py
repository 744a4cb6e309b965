"""The cache of what was compiled (operator libraries as LLVM modules, kernels for GPUs), private to
the user.

A file is named by what it was built from and by the hash of what it holds, and is only used when
its content has that hash. Files are renamed into place, so a killed or a second process does no
harm; a folder that others may write to, or that cannot be written, is not used.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs

from tvm_moonpoly import logs

#: Bytes that must be free before a library (about 1 MB) is written.
_NEEDED_SPACE = 32 << 20

_log = logging.getLogger("tvm_moonpoly")


def folder() -> Path:
    """Where libraries are cached: below ``MOONPOLY_HOME``, or the user's cache folder."""
    if home := os.environ.get("MOONPOLY_HOME"):
        return Path(home) / "libraries"
    return platformdirs.user_cache_path("tvm_moonpoly", appauthor=False) / "libraries"


def key_of(parts: Any) -> str:
    """A name for what is compiled out of ``parts``, which JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def load(key: str, suffix: str = ".bc") -> Path | None:
    """The intact file cached under ``key``, if there is one in a folder that is ours alone."""
    root = folder()
    if not _is_private(root):
        return None
    for path in sorted(root.glob(f"{key}-*{suffix}")):
        if not _is_private(path):
            _log.warning("%s: skipped, others may write to it", path)
            continue
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            _log.warning("%s: skipped: %s", path, error)
            continue
        if path.name == f"{key}-{digest}{suffix}":
            return path
        _log.warning("%s: removed, its content does not match its name", path)
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def store(key: str, write: Callable[[Path], object], suffix: str = ".bc") -> Path | None:
    """Cache what ``write`` puts into the path it is given; None when that is not possible."""
    root = folder()
    try:
        _need_space(root)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(root):
            _log.warning("%s: not used, others may write to it", root)
            return None
        # a path of our own until it is complete; mkstemp makes it private
        handle, name = tempfile.mkstemp(suffix=suffix, prefix=".new-", dir=root)
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
            path = root / f"{key}-{digest}{suffix}"
            os.chmod(temporary, 0o600)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        logs.say_once(logging.WARNING, f"the compiled library is not cached: {error}")
        return None
    return path


def _need_space(path: Path) -> None:
    """Raise OSError when the disk is full: LLVM would end the process."""
    existing = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
    if shutil.disk_usage(existing).free < _NEEDED_SPACE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _is_private(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return status.st_uid == os.getuid() and not status.st_mode & others
