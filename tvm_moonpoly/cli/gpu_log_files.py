"""What ``moonpoly logs`` and ``moonpoly info`` tell of the tuning logs of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvm_moonpoly import logs
from tvm_moonpoly.cli import output
from tvm_moonpoly.cli.command import UserError
from tvm_moonpoly.costmodel import cuda_log
from tvm_moonpoly.costmodel.cuda_log import Contents
from tvm_moonpoly.microkernels.cuda import ARCHITECTURES

COLUMNS = (
    "form", "tile", "registers", "shared", "blocks", "limited by", "around, ps", "step of 1, ps",
    "step of all, ps", "cost",
)  # fmt: skip


def stored() -> Iterator[tuple[str, str, logs.Reading]]:
    """All logs of GPUs, by dtype and in the order of their places: dtype, place, what is there."""
    for dtype in logs.GPU_FILE_NAMES:
        for origin, reading in logs.stored_gpu(dtype):
            yield dtype, origin, reading


def listed() -> list[dict[str, Any]]:
    """A row for each log, as `log_files.listed` has them: ``verdict`` says what was measured."""
    rows = []
    served: set[tuple[str, str]] = set()
    for dtype, origin, reading in stored():
        log = reading.log
        row: dict[str, Any] = {"origin": origin, "mcpu": None, "isa": None, "kernels": 0}
        row |= {"package": None, "usable": False}
        if log is None:
            rows.append({**row, "verdict": f"skipped: {reading.reason}"})
            continue
        name = log.machine_name
        row |= {"mcpu": name, "isa": log.instructions, "package": log.versions.get("package")}
        try:
            found = contents_of(log)
        except ValueError as error:
            rows.append({**row, "verdict": f"skipped: {str(error).removeprefix('log: ')}"})
            continue
        first = (name, dtype) not in served
        served.add((name, dtype))
        use = f"used for {name}" if first else "not used: another comes first"
        row |= {"kernels": len(found.kernels), "usable": True}
        rows.append({**row, "verdict": f"{use}; {found.status}"})
    return rows


def contents_of(log: logs.TuningLog) -> Contents:
    """What is in the log of a GPU. Raises ValueError when it cannot be used."""
    arch = log.instructions
    if arch not in ARCHITECTURES:
        raise ValueError(f"log: there are no micro-kernels for {arch!r}")
    return cuda_log.contents(log.entries, arch)


def checked(log: logs.TuningLog, origin: str) -> Path:
    """Where the log is to lie, when all of it is in order; raises UserError."""
    found = _sound(log, origin)
    if found.faults:
        raise UserError(f"{origin}: {found.faults[0]}")
    dtypes = {kernel.form.dtype_in for kernel in found.kernels}
    if len(dtypes) > 1:
        raise UserError(f"{origin}: its kernels must be for one dtype, not {sorted(dtypes)}")
    return logs.own_gpu_path(log.machine_name, dtypes.pop())


def own_files(folder: Path) -> list[Path]:
    """The logs of GPUs below the folder that logs are written to."""
    return [path for name in logs.GPU_FILE_NAMES.values() for path in folder.glob(f"*/{name}")]


def status(log: logs.TuningLog) -> str:
    """Whether its costs were measured; raises UserError when it cannot be used."""
    return _sound(log, log.origin).status


def rows_of(log: logs.TuningLog) -> list[list[Any]]:
    """The kernels as rows of a table with `COLUMNS`."""
    return [
        [
            kernel.form.name,
            kernel.tile.name,
            "?" if kernel.static.registers is None else kernel.static.registers,
            output.size(kernel.static.shared_bytes),
            kernel.cost.resident,
            kernel.static.limit,
            kernel.cost.around,
            kernel.cost.steps[0],
            kernel.cost.steps[-1],
            "measured" if kernel.measured else "not measured",
        ]
        for kernel in contents_of(log).kernels
    ]


def summary() -> list[dict[str, Any]]:
    """The log that serves each GPU and dtype, and what of it was measured."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for dtype, origin, reading in stored():
        if reading.log is None or (reading.log.machine_name, dtype) in found:
            continue
        try:
            told = contents_of(reading.log).status
        except ValueError:
            continue
        name = reading.log.machine_name
        found[name, dtype] = {"gpu": name, "dtype": dtype, "origin": origin, "status": told}
    return list(found.values())


def _sound(log: logs.TuningLog, origin: str) -> Contents:
    """What is in the log of a GPU; raises UserError when it cannot be used."""
    try:
        return contents_of(log)
    except ValueError as error:
        raise UserError(f"{origin}: {str(error).removeprefix('log: ')}") from error
