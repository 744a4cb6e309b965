"""Where logs lie: below ``MOONPOLY_HOME``, in the user's data folder, and in the package.

Each machine has a folder there. The log of a CPU is one file, that of a GPU is one for each dtype.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path

import platformdirs

from tvm_moonpoly.logs.document import MAX_FILE, Reading, read, tell
from tvm_moonpoly.machine import Machine

FILE_NAME = "gemm_f32.jsonl"

#: The file of a GPU's log, by the dtype of the operands.
GPU_FILE_NAMES = {"float16": "gemm_f16.jsonl", "bfloat16": "gemm_bf16.jsonl"}

_FOLDER = "tuning_logs"

_log = logging.getLogger("tvm_moonpoly.logs")


def folders() -> list[Path]:
    """The folders of the user's logs, the preferred first: new ones are written there."""
    user = platformdirs.user_data_path("tvm_moonpoly", appauthor=False) / _FOLDER
    home = os.environ.get("MOONPOLY_HOME")
    return [Path(home) / _FOLDER, user] if home else [user]


def own_path(isa: str, mcpu: str) -> Path:
    """Where the log of such a machine is written, to be found again."""
    return _own_folder(f"{isa}-{mcpu}") / FILE_NAME


def own_gpu_path(gpu: str, dtype: str) -> Path:
    """Where the log of a GPU for operands of ``dtype`` is written, to be found again."""
    return _own_folder(gpu) / GPU_FILE_NAMES[dtype]


def _own_folder(name: str) -> Path:
    return folders()[0] / re.sub(r"[^\w.+-]", "_", name)


def of_machine(machine: Machine) -> Path:
    """`own_path` of ``machine``."""
    return own_path(machine.isa, machine.mcpu)


def stored() -> Iterator[tuple[str, Reading]]:
    """All logs of CPUs in the order in which they are preferred: where, and what was read there.

    What is skipped is told once for each state of a file.
    """
    yield from _stored(FILE_NAME, of_gpu=False)


def stored_gpu(dtype: str) -> Iterator[tuple[str, Reading]]:
    """As `stored`, the logs of GPUs for operands of ``dtype``."""
    yield from _stored(GPU_FILE_NAMES[dtype], of_gpu=True)


def _stored(name: str, of_gpu: bool) -> Iterator[tuple[str, Reading]]:
    for folder in folders():
        for origin, reading in _below(folder, name):
            yield origin, _of_kind(reading, of_gpu)
    packaged = resources.files("tvm_moonpoly.tuning_logs")
    for entry in sorted(packaged.iterdir(), key=lambda item: item.name):
        candidate = entry / name
        if entry.is_dir() and candidate.is_file():
            origin = f"packaged {entry.name}" + (f"/{name}" if of_gpu else "")
            yield origin, _of_kind(_packaged(origin, candidate.read_bytes())[1], of_gpu)


def _of_kind(reading: Reading, of_gpu: bool) -> Reading:
    """A reading without its log where that is of the other kind of machine."""
    if reading.log is None or reading.log.of_gpu == of_gpu:
        return reading
    kind = "GPU" if reading.log.of_gpu else "CPU"
    return replace(reading, log=None, reason=f"it is of a {kind}")


@functools.lru_cache(maxsize=64)
def _packaged(origin: str, data: bytes) -> tuple[str, Reading]:
    return origin, tell(read(data, origin), origin)


def _below(folder: Path, name: str) -> Iterator[tuple[str, Reading]]:
    try:
        paths = sorted(folder.glob(f"*/{name}"))
    except OSError as error:
        _log.warning("%s: skipped: %s", folder, error)
        return
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            _log.warning("%s: skipped: %s", path, error)
            continue
        state = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode)
        yield str(path), _read_file(path, state)


@functools.lru_cache(maxsize=64)
def _read_file(path: Path, state: tuple[int, ...]) -> Reading:
    """The log at ``path`` as long as the file is in this state."""
    *_, size, mode = state
    # a pipe or a device would not end
    if not stat.S_ISREG(mode):
        reading = Reading(None, "it is no regular file")
    elif size > MAX_FILE:
        reading = Reading(None, f"it is larger than {MAX_FILE >> 20} MiB")
    else:
        try:
            reading = read(path.read_bytes(), str(path))
        except OSError as error:
            reading = Reading(None, str(error))
    return tell(reading, str(path))
