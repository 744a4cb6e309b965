"""A GPU that micro-kernels are measured on: this machine's, or one behind a TVM RPC tracker."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tvm.tirx.build import tir_to_runtime

from tvm_moonpoly.costmodel.cuda_log import Kernel
from tvm_moonpoly.microkernels.cuda import Gpu, build, lower_parts
from tvm_moonpoly.microkernels.cuda.lowering import device_target
from tvm_moonpoly.operators.cuda import device_modules
from tvm_moonpoly.tuning.cuda.results import difference
from tvm_moonpoly.tuning.cuda.tasks import Task
from tvm_moonpoly.tuning.measuring.processes import Worker, WorkerError

COMMAND = (sys.executable, "-m", "tvm_moonpoly.tuning.cuda.device_worker")

#: Seconds that a request may take.
LIMIT = 120.0

#: A kernel whose measuring ends the worker is tried so many times.
_TRIES = 2


class DeviceError(RuntimeError):
    """There is no such GPU, or it cannot be used any more: in one sentence."""


class Device:
    """Measures kernels for ``gpu``; see `bench.Runner`.

    ``address`` and ``key`` of a tracker and its servers, or this machine's GPU. Raises DeviceError
    when there is no GPU, or another one.
    """

    def __init__(
        self, gpu: Gpu, first: Kernel, address: tuple[str, int] | None = None, key: str = ""
    ) -> None:
        self._gpu, self._first = gpu, first
        self._folder = tempfile.TemporaryDirectory(prefix="moonpoly-gpu-")
        described = {"address": address, "key": key, "folder": self._folder.name}
        self._worker = Worker([*COMMAND, json.dumps(described)])
        try:
            told = self._worker.ask({"op": "describe"}, LIMIT)
            if not told["exists"]:
                raise DeviceError("no CUDA device was found")
            self.name, clock = str(told["name"]), told["clock_mhz"]
            #: what a log says of it
            self.about: dict[str, Any] = {"clock_mhz": clock}
            _check(self.name, str(told["arch"]), int(told["multiprocessors"]), gpu)
        except WorkerError as error:
            self.close()
            where = f"of key {key!r} " if address else ""
            raise DeviceError(f"no GPU {where}can be used: {error}") from error
        except DeviceError:
            self.close()
            raise

    def launch(self) -> float:
        """Seconds of a launch with next to nothing to do."""
        path = self._library(self._first)
        return float(self._worker.ask(self._request("launch", self._first, path), LIMIT)["seconds"])

    def measure(self, kernel: Kernel, wanted: Sequence[Task]) -> tuple[bool, list[float | None]]:
        """Whether the kernel's results are right, and the seconds of each task, or None."""
        request = self._request("measure", kernel, self._library(kernel))
        request["tasks"] = [task.to_json() for task in wanted]
        for _ in range(_TRIES):
            try:
                answer = self._worker.ask(request, LIMIT)
            except WorkerError:
                # a fault breaks the context of its process: the next one has another
                self._worker.close()
                continue
            return bool(answer["right"]), list(answer["seconds"])
        if not self._alive():
            raise DeviceError(
                f"the GPU cannot be used any more, since {kernel.name} was measured; what was "
                "measured before is kept, the same command goes on"
            )
        return True, [None] * len(wanted)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()
        self._folder.cleanup()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alive(self) -> bool:
        try:
            return bool(self._worker.ask({"op": "describe"}, LIMIT)["exists"])
        except WorkerError:
            return False

    def _request(self, job: str, kernel: Kernel, path: Path) -> dict[str, Any]:
        return {
            "op": job,
            "kernel": kernel.name,
            "form": asdict(kernel.form),
            "tile": asdict(kernel.tile),
            "library": str(path),
        }

    def _library(self, kernel: Kernel) -> Path:
        """The kernel as a shared library with machine code."""
        path = Path(self._folder.name, f"{kernel.name}.so")
        if not path.exists():
            export(kernel, self._gpu, path)
        return path


def _check(name: str, arch: str, multiprocessors: int, gpu: Gpu) -> None:
    if difference(name, arch, multiprocessors, gpu) is not None:
        raise DeviceError(
            f"the GPU is a {name} ({arch}, {multiprocessors} multiprocessors), and {gpu.name} "
            f"({gpu.arch}, {gpu.multiprocessors}) was asked for"
        )


def export(kernel: Kernel, gpu: Gpu, path: Path) -> None:
    """Write a kernel as a shared library, compiled for ``gpu`` where there is a compiler."""
    limit = gpu.architecture.block_shared_bytes
    function = build(kernel.tile, kernel.form, shared_limit=limit)
    with device_modules.as_source():
        launches, devices = lower_parts({kernel.name: function}, gpu.arch)
    module = tir_to_runtime(launches, {}, device_target(gpu.arch).host)
    for each in device_modules.with_machine_code(devices, gpu.arch) or devices:
        module.import_module(each)
    module.export_library(str(path))
