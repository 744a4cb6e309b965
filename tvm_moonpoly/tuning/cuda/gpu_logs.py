"""Writing the tuning log of a GPU: a file for each dtype of the operands, in one step each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_moonpoly import logs
from tvm_moonpoly.costmodel import cuda_log
from tvm_moonpoly.costmodel.cuda_log import Contents
from tvm_moonpoly.microkernels.cuda import Gpu
from tvm_moonpoly.operators.cuda.assemblies import with_contents

#: Of the operands: each has a file of its own.
DTYPES = tuple(logs.GPU_FILE_NAMES)


def path_of(gpu: Gpu, dtype: str, folder: Path | None = None) -> Path:
    """Where the log lies: below ``folder``, by default where it is found again."""
    if folder is None:
        return logs.own_gpu_path(gpu.name, dtype)
    return folder / gpu.name / logs.GPU_FILE_NAMES[dtype]


def lines_of(gpu: Gpu, contents: Contents, told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of a log, its header first, which also says what is ``told``: with what the
    costs were found."""
    return [{**logs.gpu_header(gpu), **told}, *contents.to_entries()]


def write(path: Path, gpu: Gpu, contents: Contents, told: Mapping[str, Any]) -> bool:
    """Write or replace a log; False, with a warning, when that fails."""
    return logs.replace(path, lines_of(gpu, contents, told))


def contents_of(gpu: Gpu, dtype: str, folder: Path | None = None) -> list[Contents]:
    """What is in the logs of exactly ``gpu``, the preferred first; one below ``folder`` before all.

    Raises ValueError when there is none.
    """
    found = []
    if folder is not None and path_of(gpu, dtype, folder).exists():
        path = path_of(gpu, dtype, folder)
        reading = logs.tell(logs.read(path.read_bytes(), str(path)), str(path))
        found += [reading.log] if reading.log is not None and reading.log.of_gpu else []
    found += logs.usable_gpu(gpu.arch, [gpu.name], dtype)
    own = [log for log in found if log.machine_name == gpu.name]
    contents = [each for _, each in with_contents(own, gpu.arch)]
    if not contents:
        raise ValueError(f"there is no tuning log of {gpu.name} for {dtype}")
    return contents


def is_measured(path: Path, gpu: Gpu) -> bool:
    """Whether there is a log with measured costs at ``path``."""
    try:
        reading = logs.read(path.read_bytes(), str(path))
        if reading.log is None:
            return False
        return any(k.measured for k in cuda_log.contents(reading.log.entries, gpu.arch).kernels)
    except (OSError, ValueError):
        return False
