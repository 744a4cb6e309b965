"""What was measured on a GPU, as a file tells it: read with care, as it comes from another machine.

A JSON object: ``format`` 1; ``gpu`` with ``name``, ``arch``, ``multiprocessors``, ``driver``;
``launch_seconds``; ``tasks``, each as in `tasks.Task` with ``seconds``, or ``samples`` of them; and
``correct``, in which each ``{"kernel": NAME, "right": false}`` tells of a wrong micro-kernel. What
else there is, is not looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tvm_moonpoly.microkernels.cuda import GPUS, Gpu, is_named
from tvm_moonpoly.tuning.cuda.tasks import Task, misfit

FORMAT = 1

#: Bytes of a file that are read at most.
_MOST_BYTES = 64 << 20

#: Seconds of a task or a launch at most.
_LONGEST = 60.0

#: What follows a tile in the name of a kernel; one that is wrong with an epilogue is wrong.
_EPILOGUE = re.compile(r"(_r\d+)_.*$")

_COUNTS = ("blocks", "steps", "m", "n", "k")


@dataclass(frozen=True)
class Results:
    """Seconds by task. ``wrong`` micro-kernels by name, ``failed`` tasks that have no time.

    ``device`` is the GPU's name as its driver tells it, ``about`` what else a log says of it.
    """

    device: str
    arch: str
    multiprocessors: int
    launch_seconds: float | None
    seconds: Mapping[Task, float]
    wrong: frozenset[str]
    failed: tuple[Task, ...]
    about: Mapping[str, Any]


def read(path: Path) -> Results:
    """The results in a file.

    Raises OSError, and ValueError that says what is wrong with it.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{path}: it is larger than {_MOST_BYTES >> 20} MiB")
    try:
        document = json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: it is not JSON: {error}") from None
    try:
        return parse(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse(document: Any) -> Results:
    """The results in a JSON document.

    Raises ValueError, naming the field and the rule.
    """
    _require(isinstance(document, dict), "it is no JSON object")
    version = document.get("format")
    known = type(version) is int and version == FORMAT
    _require(known, f"format: must be {FORMAT}, not {version!r:.40}")
    gpu = document.get("gpu")
    _require(isinstance(gpu, dict), "gpu: it describes no GPU")
    launch = document.get("launch_seconds")
    if launch is not None:
        launch = _seconds(launch, "launch_seconds")
    tasks = document.get("tasks")
    _require(isinstance(tasks, list) and bool(tasks), "tasks: it holds none")
    seconds, failed = {}, []
    for number, entry in enumerate(tasks):
        task = parse_task(entry, f"tasks[{number}]")
        time = _time_of(entry, f"tasks[{number}]")
        if time is None:
            failed.append(task)
        else:
            seconds[task] = time
    about = {name: gpu[name] for name in ("clock_mhz", "driver") if _is_plain(gpu.get(name))}
    return Results(
        _word(gpu, "name"),
        _word(gpu, "arch").removesuffix("a"),
        _count(gpu.get("multiprocessors"), "gpu.multiprocessors"),
        launch,
        seconds,
        frozenset(_EPILOGUE.sub(r"\1", name) for name in _wrong(document.get("correct"))),
        tuple(failed),
        about,
    )


def fitting(results: Results, gpu: Gpu) -> tuple[Results, dict[Task, str]]:
    """``results`` without the tasks that are none that a stage for ``gpu`` times, and why each of
    these is none."""
    known = dict.fromkeys((*results.seconds, *results.failed))
    reasons = {task: reason for task in known if (reason := misfit(task, gpu)) is not None}
    seconds = {task: time for task, time in results.seconds.items() if task not in reasons}
    failed = tuple(task for task in results.failed if task not in reasons)
    return replace(results, seconds=seconds, failed=failed), reasons


def check_gpu(results: Results, gpu: Gpu) -> None:
    """Raise ValueError unless ``results`` are of ``gpu``."""
    reason = difference(results.device, results.arch, results.multiprocessors, gpu)
    if reason is not None:
        raise ValueError(reason)


def difference(device: str, arch: str, multiprocessors: int, gpu: Gpu) -> str | None:
    """What tells the GPU that a driver describes so from ``gpu``; None where it may be that."""
    if not is_named(gpu, device):
        return f"gpu.name: the results are of a {device!r}, not of {gpu.name}"
    for name, told in (("arch", arch), ("multiprocessors", multiprocessors)):
        wanted = getattr(gpu, name)
        if told != wanted:
            return f"gpu.{name}: the results are of a GPU with {told}, {gpu.name} has {wanted}"
    return None


def gpu_of(results: Results) -> Gpu:
    """The GPU that ``results`` are of; raises ValueError where it is none that is known."""
    for gpu in GPUS.values():
        if difference(results.device, results.arch, results.multiprocessors, gpu) is None:
            return gpu
    raise ValueError(
        f"gpu: the results are of a {results.device!r} ({results.arch}, {results.multiprocessors} "
        f"multiprocessors), which is none of {', '.join(GPUS)}"
    )


def parse_task(entry: Any, where: str) -> Task:
    """A task as JSON; raises ValueError that names the field below ``where``."""
    _require(isinstance(entry, dict), f"{where}: it is no JSON object")
    kernel, form = (_word(entry, name, f"{where}.") for name in ("kernel", "form"))
    return Task(kernel, form, *(_count(entry.get(n), f"{where}.{n}") for n in _COUNTS))


def _time_of(entry: Mapping[str, Any], where: str) -> float | None:
    """The seconds of a task, the median of its samples where they are told alone."""
    seconds, samples = entry.get("seconds"), entry.get("samples")
    if entry.get("error") or (seconds is None and not samples):
        return None
    if seconds is not None:
        return _seconds(seconds, f"{where}.seconds")
    _require(isinstance(samples, list), f"{where}.samples: must be a list of seconds")
    assert isinstance(samples, list)
    return median(_seconds(each, f"{where}.samples") for each in samples)


def _wrong(found: Any) -> Iterator[str]:
    """Names of kernels that are told to be wrong, anywhere in ``found``; without recursion, as it
    may be nested to any depth."""
    pending = [found]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if value.get("right") is False and isinstance(value.get("kernel"), str):
                yield value["kernel"]
            for name, inner in value.items():
                told = inner.get("right") if isinstance(inner, dict) else inner
                if told is False and name.startswith("moonpoly_"):
                    yield name
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _seconds(value: Any, name: str) -> float:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    right = plain and 0 < value <= _LONGEST  # NaN is not
    _require(right, f"{name}: must be seconds in 0..{_LONGEST:g}, not {value!r:.40}")
    return float(value)


def _count(value: Any, name: str) -> int:
    right = type(value) is int and 0 < value < 1 << 31
    _require(right, f"{name}: must be a positive number, not {value!r:.40}")
    return int(value)


def _word(fields: Mapping[str, Any], name: str, where: str = "gpu.") -> str:
    value = fields.get(name)
    right = isinstance(value, str) and value.isprintable() and 0 < len(value) <= 128
    _require(right, f"{where}{name}: must be a short text")
    return str(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return value.isprintable() and len(value) <= 128
    return type(value) is int and 0 <= value < 1 << 31


def _require(right: bool, said: str) -> None:
    if not right:
        raise ValueError(said)


def _refuse(text: str) -> float:
    raise ValueError(f"it holds {text}")
