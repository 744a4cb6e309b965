"""What is known of each candidate: compiled once, measured once, and written down at once.

The journal holds what the compiler told (``compiled``), the time of each launch (``task``; null
where it failed), that of an empty one (``launch``), whether results are right (``right``), and of
which ``device`` all this is. What it holds is not done again, whichever way it was measured: on a
device, or elsewhere (`replay`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import tvm

from tvm_moonpoly.costmodel import cuda_analytic
from tvm_moonpoly.costmodel.cuda import BlockCost
from tvm_moonpoly.costmodel.cuda_log import Kernel
from tvm_moonpoly.microkernels.cuda import (
    CudaTile,
    Form,
    Gpu,
    Resources,
    build,
    kernel_name,
    lower_parts,
)
from tvm_moonpoly.tuning.cuda import computed, dry_run, fit
from tvm_moonpoly.tuning.cuda.dry_run import Candidate
from tvm_moonpoly.tuning.cuda.results import Results
from tvm_moonpoly.tuning.cuda.tasks import Task, tasks
from tvm_moonpoly.tuning.journal import Journal

_PICOSECONDS = 1e12

#: To be raised when something changes in how launches are timed.
PROTOCOL = 1

#: Kernels whose sources stand for all.
_SAMPLES = (
    (CudaTile(64, 64, 32, 2, 2, 3), Form()),
    (CudaTile(64, 64, 32, 2, 2, 3, False, "shared"), Form("bfloat16", "float32", True)),
    (CudaTile(64, 64, 32, 2, 2, 2, epilogue="elements"), Form(aligned=False)),
)


class Runner(Protocol):
    """Measures on a device."""

    def launch(self) -> float:
        """Seconds of a launch with next to nothing to do."""

    def measure(self, kernel: Kernel, wanted: Sequence[Task]) -> tuple[bool, list[float | None]]:
        """Whether the kernel's results are right, and the seconds of each task, or None."""


@dataclass(frozen=True)
class Value:
    """A kernel with its measured cost; None where it cannot be used, and ``reason`` says why."""

    kernel: Kernel | None
    reason: str = ""


class Bench:
    """Candidates for ``gpu``. Without a ``runner`` what the journal does not hold stays unknown."""

    def __init__(
        self,
        gpu: Gpu,
        journal: Journal,
        compile: computed.Compile,
        runner: Runner | None = None,
        done: Callable[[Kernel], object] = lambda kernel: None,
    ) -> None:
        self.gpu, self._journal, self._compile = gpu, journal, compile
        self._runner, self._done = runner, done
        self._kernels: dict[str, Kernel | str] = {}

    @property
    def launch(self) -> int:
        """Picoseconds of a launch: measured where that is possible, else a usual figure."""
        seconds = self._journal.get("launch", {})
        if seconds is None and self._runner is not None:
            seconds = self._journal.once("launch", {}, self._runner.launch)
        return cuda_analytic.LAUNCH if seconds is None else round(seconds * _PICOSECONDS)

    def kernels(self, form: Form, tiles: Sequence[CudaTile]) -> list[Kernel | str]:
        """Each tile compiled, with a computed cost; or why it is rejected."""
        names = [kernel_name(tile, form) for tile in tiles]
        new = [
            tile
            for tile, name in zip(tiles, names, strict=True)
            if name not in self._kernels and self._journal.get("compiled", {"kernel": name}) is None
        ]
        for candidate in self._compile(form, new) if new else []:
            told = {
                name: asdict(getattr(candidate, name)) for name in ("tile", "form", "resources")
            }
            self._journal.put("compiled", {"kernel": candidate.name}, told)
        for tile, name in zip(tiles, names, strict=True):
            if name not in self._kernels:
                told = self._journal.get("compiled", {"kernel": name}) or {}
                taken = Resources(**told["resources"])
                judged = dry_run.judged(tile, form, self.gpu, taken)
                self._kernels[name] = _kernel(judged, self.gpu)
        return [self._kernels[name] for name in names]

    def tiles(self, form: Form) -> list[CudaTile]:
        """Those that were compiled before, in order, with whatever came of it."""
        entries = (told for _, told in self._journal.all("compiled"))
        return [CudaTile(**told["tile"]) for told in entries if Form(**told["form"]) == form]

    def wanted(self, kernel: Kernel) -> list[Task]:
        """The tasks of a kernel that are not measured yet."""
        return [task for task in self._tasks(kernel) if not self._told(task)]

    def values(self, form: Form, tiles: Sequence[CudaTile]) -> dict[CudaTile, Value]:
        """What is known of tiles, measured where there is a runner; without those that are yet to
        be measured elsewhere."""
        found: dict[CudaTile, Value] = {}
        for tile, kernel in zip(tiles, self.kernels(form, tiles), strict=True):
            if isinstance(kernel, str):
                found[tile] = Value(None, kernel)
                continue
            if self._runner is not None:
                self._measure(kernel, self._runner)
            value = self._value(kernel)
            if value is not None:
                found[tile] = value
                if value.kernel is not None:
                    self._done(value.kernel)
        return found

    def results(self, kernels: Sequence[Kernel]) -> Results:
        """All that is known of ``kernels``, as if it had been read from a file."""
        device = self._journal.get("device", {}) or {"name": self.gpu.name, "about": {}}
        seconds = {}
        wrong = [k.name for k in kernels if self._journal.get("right", {"kernel": k.name}) is False]
        for kernel in kernels:
            for task in self._tasks(kernel):
                time = self._journal.get("task", task.to_json())
                if time is not None:
                    seconds[task] = time
        return Results(
            device["name"],
            self.gpu.arch,
            self.gpu.multiprocessors,
            self._journal.get("launch", {}),
            seconds,
            frozenset(wrong),
            (),
            device["about"],
        )

    def _tasks(self, kernel: Kernel) -> list[Task]:
        return tasks(kernel.tile, kernel.form, self.gpu, kernel.static.blocks)

    def _told(self, task: Task) -> bool:
        return self._journal.has("task", task.to_json())

    def _measure(self, kernel: Kernel, runner: Runner) -> None:
        wanted = self.wanted(kernel)
        if not wanted or self._journal.get("right", {"kernel": kernel.name}) is False:
            return
        right, seconds = runner.measure(kernel, wanted)
        self._journal.put("right", {"kernel": kernel.name}, right)
        for task, time in zip(wanted, seconds, strict=True):
            self._journal.put("task", task.to_json(), time)

    def _value(self, kernel: Kernel) -> Value | None:
        """None while something is not known yet."""
        if self._journal.get("right", {"kernel": kernel.name}) is False:
            return Value(None, "its results were wrong")
        if self.wanted(kernel):
            return None
        times: dict[int, list[fit.Point]] = {}
        for task in self._tasks(kernel):
            seconds = self._journal.get("task", task.to_json())
            if seconds is not None:
                times.setdefault(task.blocks, []).append((task.steps, seconds * _PICOSECONDS))
        try:
            told = fit.fitted(kernel.cost, self.launch, times)
        except ValueError as error:
            return Value(None, str(error))
        return Value(Kernel(kernel.form, kernel.tile, kernel.static, told.cost, measured=True))


def replay(journal: Journal, results: Results) -> int:
    """Write down what was measured elsewhere; how many launches there are."""
    is_of(journal, results.device, results.about)
    if results.launch_seconds is not None:
        journal.put("launch", {}, results.launch_seconds)
    for task, seconds in results.seconds.items():
        journal.put("task", task.to_json(), seconds)
    for task in results.failed:
        if not journal.has("task", task.to_json()):
            journal.put("task", task.to_json(), None)
    for name in sorted(results.wrong):
        journal.put("right", {"kernel": name}, False)
    return len(results.seconds)


def is_of(journal: Journal, device: str, about: Mapping[str, Any]) -> None:
    """Write down which device is measured, and what else a log says of it."""
    told = {"name": device, "about": dict(about)}
    if journal.get("device", {}) != told:
        journal.put("device", {}, told)


def origin(gpu: Gpu) -> dict[str, Any]:
    """What measurements depend on: the GPU, and the kernels as they are written."""
    parts = []
    for tile, form in _SAMPLES:
        name = kernel_name(tile, form)
        _, modules = lower_parts({name: build(tile, form)}, gpu.arch)
        parts += [str(module.inspect_source("cuda")) for module in modules]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return {
        "gpu": gpu.name,
        "arch": gpu.arch,
        "multiprocessors": gpu.multiprocessors,
        "tvm": tvm.__version__,
        "kernels": digest,
        "protocol": PROTOCOL,
    }


def score(cost: BlockCost, gpu: Gpu) -> float:
    """GFLOP/s of deep blocks that fill the GPU, to be shown."""
    depth = 4096
    flops = 2 * cost.block_m * cost.block_n * depth * cost.resident * gpu.multiprocessors
    return flops / (cost.wave(cost.resident, depth) * 1e-12) / 1e9


def _kernel(candidate: Candidate, gpu: Gpu) -> Kernel | str:
    return candidate.reason or computed.kernel(candidate, gpu)
