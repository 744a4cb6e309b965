"""Micro-kernels and launches that are to be measured elsewhere, as a file.

A JSON object: ``format`` 1, the ``gpu``'s name, ``kernels`` as entries of a log, and ``tasks`` as
in `tasks.Task`. What is measured comes back as `results` tells.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tvm_moonpoly import logs
from tvm_moonpoly.costmodel import cuda_log
from tvm_moonpoly.costmodel.cuda_log import Kernel
from tvm_moonpoly.microkernels.cuda import Gpu
from tvm_moonpoly.tuning.cuda.measured import check_task
from tvm_moonpoly.tuning.cuda.results import parse_task
from tvm_moonpoly.tuning.cuda.tasks import Task

FORMAT = 1


def write(path: Path, gpu: Gpu, kernels: Iterable[Kernel], wanted: Iterable[Task]) -> bool:
    """Write or replace the file in one step; False, with a warning, when that fails."""
    document = {
        "format": FORMAT,
        "gpu": gpu.name,
        "kernels": [kernel.to_entry() for kernel in kernels],
        "tasks": [task.to_json() for task in wanted],
    }
    return logs.replace_bytes(path, (json.dumps(document, indent=1) + "\n").encode())


def read(path: Path, gpu: Gpu) -> tuple[list[Kernel], list[Task]]:
    """What `write` wrote.

    Raises OSError, and ValueError where it is not that, or of another GPU.
    """
    try:
        document: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: it is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path}: it holds no proposals of format {FORMAT}")
    if document.get("gpu") != gpu.name:
        raise ValueError(f"{path}: it is for {document.get('gpu')!r}, not for {gpu.name}")
    entries, listed = document.get("kernels"), document.get("tasks")
    if not isinstance(entries, list) or not isinstance(listed, list):
        raise ValueError(f"{path}: kernels, tasks: lists are needed")
    try:
        kernels = [cuda_log.kernel(entry, gpu.arch) for entry in entries]
        wanted = [parse_task(entry, f"tasks[{i}]") for i, entry in enumerate(listed)]
        _check(kernels, wanted, gpu)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return kernels, wanted


def _check(kernels: Sequence[Kernel], wanted: Sequence[Task], gpu: Gpu) -> None:
    by_name = {kernel.name: kernel for kernel in kernels}
    for task in wanted:
        if task.kernel not in by_name:
            raise ValueError(f"tasks: {task.kernel} is none of the kernels")
        check_task(task, by_name[task.kernel], gpu)
