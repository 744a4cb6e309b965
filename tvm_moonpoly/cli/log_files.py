"""What ``moonpoly logs`` finds, checks and removes."""

from __future__ import annotations

import itertools
from importlib import resources
from pathlib import Path
from typing import Any

from tvm.target import Target

from tvm_moonpoly import logs, machine, operators
from tvm_moonpoly.cli import gpu_log_files
from tvm_moonpoly.cli.command import UserError
from tvm_moonpoly.logs.document import lacking
from tvm_moonpoly.machine import VECTOR_UNITS, Machine
from tvm_moonpoly.operators.operator_library import costs


def listed() -> list[dict[str, Any]]:
    """All logs in the order of their places, each with a ``verdict``: used, or why not."""
    target = machine.detect_target()
    used = _used(target)
    rows = []
    for origin, reading in logs.stored():
        log = reading.log
        row = {"origin": origin, "mcpu": None, "isa": None, "kernels": 0, "package": None}
        if log is None:
            rows.append({**row, "usable": False, "verdict": f"skipped: {reading.reason}"})
            continue
        row |= {
            "mcpu": log.machine["mcpu"],
            "isa": log.machine["isa"],
            "kernels": sum(entry.get("kind") == "kernel" for entry in log.entries),
            "package": log.versions.get("package"),
        }
        reason = refusal(log, target)
        if reason is not None:
            verdict = f"skipped: {reason}"
        elif used is not None and used.origin == origin:
            verdict = "used"
        else:
            verdict = "not used: another is nearer or comes first"
        rows.append({**row, "usable": reason is None, "verdict": verdict})
    return rows + gpu_log_files.listed()


def refusal(log: logs.TuningLog, target: Target) -> str | None:
    """Why ``log`` cannot serve ``target``; None when it can."""
    features = machine.cpu_features(target)
    isa = log.machine["isa"]
    if isa not in machine.vector_units(features):
        missing = lacking(log.needs, features)
        return f"this CPU lacks {', '.join(missing)}" if missing else f"{isa} is unknown"
    described = Machine.from_target(target, isa)
    reason = logs.refusal(log, described)
    if reason is None:
        try:
            costs(log, described)
        except ValueError as error:
            return str(error).removeprefix("log: ")
    return reason


def chosen(name: str | None) -> logs.TuningLog:
    """The log in use, or that of the place or file ``name``. Raises UserError, or OSError."""
    if name is None:
        used = _used(machine.detect_target())
        if used is None:
            raise UserError(f"no log is in use: {operators.supported(machine.detect_target())}")
        return used
    of_gpus = ((origin, reading) for _, origin, reading in gpu_log_files.stored())
    for origin, reading in itertools.chain(logs.stored(), of_gpus):
        if name in (origin, origin.removeprefix("packaged ")):
            return _usable(reading, origin)
    reading = logs.read(contents(Path(name)), name)
    log = _usable(reading, name)
    logs.tell(reading, name)  # what is skipped in it
    return log


def _usable(reading: logs.Reading, origin: str) -> logs.TuningLog:
    if reading.log is None:
        raise UserError(f"{origin}: {_first(reading)}")
    return reading.log


def stored_bytes(name: str) -> bytes:
    """What is in the log of the place ``name``, or in the file."""
    for parent in resources.files("tvm_moonpoly.tuning_logs").iterdir():
        for file in (logs.FILE_NAME, *logs.GPU_FILE_NAMES.values()):
            place = parent.name if file == logs.FILE_NAME else f"{parent.name}/{file}"
            if name.removeprefix("packaged ") == place and (parent / file).is_file():
                return (parent / file).read_bytes()
    return contents(Path(name))


def contents(path: Path) -> bytes:
    """What is in a file or pipe that the user names, as much as `logs.read` looks at."""
    with path.open("rb") as file:
        return logs.bounded(file)


def checked(data: bytes, origin: str) -> tuple[logs.TuningLog, Path]:
    """The log in ``data`` when all of it is in order, for whatever machine, and where it is to lie;
    raises UserError."""
    reading = logs.read(data, origin)
    if reading.log is None or reading.faults:
        raise UserError(f"{origin}: {_first(reading)}")
    log = reading.log
    if log.of_gpu:
        return log, gpu_log_files.checked(log, origin)
    isa = log.machine["isa"]
    if isa not in VECTOR_UNITS:
        raise UserError(f"{origin}: there are no micro-kernels for {isa!r}")
    try:
        costs(log, _as_machine(log))
    except ValueError as error:
        raise UserError(f"{origin}: {str(error).removeprefix('log: ')}") from error
    return log, logs.own_path(isa, log.machine["mcpu"])


def own_files() -> tuple[Path, list[Path]]:
    """The folder that logs are written to, and the logs there."""
    folder = logs.folders()[0]
    return folder, sorted([*folder.glob(f"*/{logs.FILE_NAME}"), *gpu_log_files.own_files(folder)])


def _used(target: Target) -> logs.TuningLog | None:
    try:
        _, log, _ = operators.described(target)
    except (LookupError, ValueError):
        return None
    return log


def _first(reading: logs.Reading) -> str:
    """The first thing that is wrong with it, without the words of a warning."""
    if reading.faults:
        return reading.faults[0].replace(" is skipped", "", 1)
    return reading.reason


def _as_machine(log: logs.TuningLog) -> Machine:
    """The machine of the log's header, as far as micro-kernels are concerned."""
    isa = log.machine["isa"]
    needed, lanes, registers = VECTOR_UNITS[isa]
    here = {name: log.machine[name] for name in ("cores", "l1_bytes", "l2_bytes", "l3_bytes")}
    return Machine(
        triple="",
        mcpu=log.machine["mcpu"],
        features=frozenset(needed),
        isa=isa,
        lanes=lanes,
        vector_registers=registers,
        **here,
    )
