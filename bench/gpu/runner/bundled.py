"""The bundle: what is in it, whether it is whole, and its libraries with TVM's runtime alone."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.gpu.runner.device import CUDART, CudaDevice, GpuFacts, NoGpu, find_cudart, find_driver

MANIFEST = "manifest.json"

#: Folders of a bundle: shared libraries, and packages for Python.
LIBRARIES, PACKAGES = "lib", "python"

#: The function of a baseline's library: ``matmul(x, weight, out)``.
BASELINE = "matmul"

RUNTIME, RUNTIME_CUDA = "libtvm_runtime.so", "libtvm_runtime_cuda.so"

_RUNTIMES = (RUNTIME, RUNTIME_CUDA, CUDART)


@dataclass(frozen=True)
class Bundle:
    """A folder made by ``python -m bench.gpu``, and its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Bundle:
        """Raises NoGpu, with what to do, where there is no bundle or a part of it is damaged."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise NoGpu(f"{folder}: no bundle, {MANIFEST} cannot be read: {error}") from None
        for name, expected in manifest["files"].items():
            path = folder / name
            if not path.is_file() or file_digest(path) != expected:
                raise NoGpu(f"{folder}: {name} is missing or damaged; unpack the bundle again")
        return cls(folder, manifest)

    @property
    def digest(self) -> str:
        """A digest of all files."""
        return str(self.manifest["digest"])

    @cached_property
    def tasks(self) -> list[dict[str, Any]]:
        """What is to be measured for the tuning log."""
        return self._read("tasks.json")

    @cached_property
    def cases(self) -> dict[str, Any]:
        """The shapes of the parts."""
        return self._read("cases.json")

    def library(self, name: str) -> dict[str, Any]:
        """The manifest's entry of a library."""
        return next(entry for entry in self.manifest["libraries"] if entry["name"] == name)

    def _read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def check_gpu(self, facts: GpuFacts) -> None:
        """Raise NoGpu where the machine code is for other GPUs."""
        made, found = self.manifest["gpu"]["arch"], facts.arch
        same_family = made[:-1] == found[:-1]
        if not same_family or int(found[-1]) < int(made[-1]):
            raise NoGpu(
                f"the bundle is for {made}, this GPU ({facts.name}) is {found}: make one for it "
                "with `make gpu-bundle GPU=...`"
            )

    def open_device(self) -> CudaDevice:
        """The GPU, with what it needs loaded; raises NoGpu with what is missing."""
        find_driver()
        device = CudaDevice(find_cudart(self.folder / LIBRARIES))
        self.check_gpu(device.facts)
        return device

    def load(self) -> Functions:
        """All libraries; CUDA's runtime must be loaded. Raises NoGpu with what is missing."""
        tvm_ffi = import_ffi(self.folder)
        for name in (RUNTIME, RUNTIME_CUDA):
            try:
                ctypes.CDLL(str(self.folder / LIBRARIES / name), ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise NoGpu(f"{name} cannot be loaded: {error}") from None
        modules = {
            Path(name).stem: tvm_ffi.load_module(str(self.folder / name))
            for name in self.manifest["files"]
            if name.startswith(f"{LIBRARIES}/") and Path(name).name not in _RUNTIMES
        }

        def call(library: str, function: str) -> Callable[..., Any]:
            return modules[library][function]

        return Functions(call, tvm_ffi.from_dlpack)


@dataclass(frozen=True)
class Functions:
    """``find(library, function)`` is a host function that plans or launches; ``take`` makes of a
    device's tensor what it takes."""

    find: Callable[[str, str], Callable[..., Any]]
    take: Callable[[Any], Any]


def import_ffi(folder: Path) -> Any:
    """tvm_ffi: an installed one, or the bundle's.

    Raises NoGpu where neither can be imported by this Python.
    """
    # or else it compiles an extension for torch
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    packages = str(folder / PACKAGES)
    if packages not in sys.path:
        # at the front: an installed one may be of another version
        sys.path.insert(0, packages)
    try:
        return importlib.import_module("tvm_ffi")
    except ImportError as error:
        sys.path.remove(packages)
        for name in [name for name in sys.modules if name.split(".")[0] == "tvm_ffi"]:
            del sys.modules[name]
        reason = str(error)
    try:
        return importlib.import_module("tvm_ffi")
    except ImportError:
        version = ".".join(map(str, sys.version_info[:2]))
        raise NoGpu(
            f"tvm_ffi cannot be imported by this Python {version} ({reason}): make the bundle with "
            f"--python {version}, or pip install apache-tvm-ffi"
        ) from None


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
