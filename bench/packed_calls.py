"""The measured calls: the library with names, the driver, and its run under callgrind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.callgrind import Profile, read_dumps

#: The private functions whose entry begins a new part.
PLAN, REGION = "_internal_moonpoly_plan", "_internal_moonpoly_region"

#: The file names of the two objects whose instructions are told apart from those of others.
LIBRARY, DRIVER = "library.so", "driver"

_SOURCE = Path(__file__).with_suffix(".cc")
_ILLEGAL_INSTRUCTION = (-4, 128 + 4)


class UnknownInstruction(Exception):
    """The library holds an instruction that valgrind cannot run."""


@dataclass(frozen=True)
class NamedLibrary:
    """The operator library as a shared object whose private functions have symbols."""

    path: Path
    lanes: int
    table_rows: int


def measurable_target() -> Any:
    """The target of this CPU, for one core, without the features that valgrind cannot run."""
    from tvm.target import Target

    from tvm_moonpoly.machine import cpu_features, detect_target

    target = detect_target()
    config = json.loads(str(target)) | {"num-cores": 1}
    unknown = sorted(f"-{name}" for name in cpu_features(target) if name.startswith("avx512"))
    if unknown:
        config["mattr"] = [*config.get("mattr", []), *unknown]
    return Target(config)


def baseline_target() -> Any:
    """The least CPU with AVX2, which valgrind runs in any case; one core."""
    from tvm.target import Target

    from tvm_moonpoly.machine import default_triple

    return Target(
        {"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": default_triple(), "num-cores": 1}
    )


def named_library(target: Any, folder: Path) -> NamedLibrary:
    """The plans and the products of the operator library as a shared object. Its private functions
    have symbols already.

    Raises RuntimeError when there are no micro-kernels for ``target``.
    """
    from tvm_moonpoly import operators
    from tvm_moonpoly.operators.operator_library import TABLE_ROWS

    reason = operators.supported(target)
    if reason is not None:
        raise RuntimeError(reason)
    library = operators.library(target)
    path = folder / LIBRARY
    library.module.export_library(["plans", "gemm"], path)
    return NamedLibrary(path, library.machine.lanes, TABLE_ROWS)


def build_driver(folder: Path) -> Path:
    """Compile the driver against tvm_ffi's headers and TVM's runtime library.

    Raises RuntimeError when there is no compiler, or it fails.
    """
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    compiler = next((found for name in names if name and (found := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError("no C++ compiler found; install one, for example: apt-get install g++")

    def ffi(option: str) -> list[str]:
        command = [sys.executable, "-m", "tvm_ffi.config", option]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    spec = find_spec("tvm")
    assert spec is not None and spec.submodule_search_locations
    libraries = [f"{spec.submodule_search_locations[0]}/lib", *ffi("--libdir")]
    driver = folder / DRIVER
    done = subprocess.run(
        [
            *(compiler, "-O1", *ffi("--cxxflags"), str(_SOURCE), "-o", str(driver)),
            *(f"-L{libraries[0]}", *ffi("--ldflags"), "-Wl,--no-as-needed", "-ltvm_runtime"),
            *(*ffi("--libs"), "-ldl", *(f"-Wl,-rpath,{library}" for library in libraries)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise RuntimeError(f"the driver does not compile: {errors[0] if errors else done.stderr}")
    return driver


def run(
    driver: Path,
    folder: Path,
    library: NamedLibrary,
    jobs: list[str],
    parts: bool,
) -> tuple[list[Profile], list[str]]:
    """The profiles of all ``jobs`` in turn, and the memory that ended each count.

    ``parts``: also dump when the planner and a region's loops are entered.
    """
    stem = "calls" if parts else "plans"
    for old in folder.glob(f"{stem}*"):
        old.unlink()
    done = subprocess.run(
        [
            *("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder / stem}"),
            *("--instr-atstart=no", "--vex-guest-max-insns=1"),
            *("--compress-strings=no", "--compress-pos=no"),
            "--toggle-collect=__tvm_ffi_moonpoly_*",
            *(f"--dump-before={name}" for name in (PLAN, REGION) if parts),
            *(str(driver), str(library.path), str(library.lanes), str(library.table_rows), *jobs),
        ],
        capture_output=True,
        text=True,
        check=False,
        # TVM's pool of threads would be another source of instructions
        env=os.environ | {"TVM_NUM_THREADS": "1"},
    )
    if done.returncode in _ILLEGAL_INSTRUCTION:
        raise UnknownInstruction
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise RuntimeError(f"the driver failed: {said[-1] if said else done.returncode}")
    return read_dumps(folder, stem), [line.split()[1] for line in done.stdout.splitlines()]
