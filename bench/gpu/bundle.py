"""Make a bundle: a folder and a tar of it that a machine with a GPU needs, and nothing else.

It holds the libraries with machine code, TVM's and CUDA's runtime libraries, tvm_ffi for one
version of Python, what is to be measured, and ``run.py`` with the modules it imports.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import tvm

import tvm_moonpoly
from bench.gpu import baseline, cases, contents, packages
from bench.gpu.contents import Library
from bench.gpu.runner.bundled import (
    LIBRARIES,
    MANIFEST,
    PACKAGES,
    RUNTIME,
    RUNTIME_CUDA,
    Bundle,
    file_digest,
)
from bench.gpu.runner.device import CUDART
from tvm_moonpoly.costmodel.cuda_log import Kernel
from tvm_moonpoly.microkernels.cuda import Gpu, find_nvcc
from tvm_moonpoly.operators.cuda import machine_code
from tvm_moonpoly.tuning.cuda.tasks import tasks as kernel_tasks

FORMAT = 1

#: Bytes of the folder, and of the tar.
LARGEST = 60 << 20

_HERE = Path(__file__).resolve().parent

#: Of this repository: what runs there.
_SOURCES = ("bench/__init__.py", "bench/gpu/__init__.py", "bench/gpu/runner/*.py")


def make(
    folder: Path,
    gpu: Gpu,
    libraries: Sequence[Library],
    asked: Mapping[str, Any],
    tasks: Sequence[Mapping[str, Any]],
    python: str = platform.python_version(),
    baselines: Sequence[tuple[int, int]] = (),
) -> Path:
    """Write the bundle into ``folder``, which is replaced, and the tar beside it; the tar's path.

    ``asked`` and ``tasks`` are what is measured there: see `case_lists` and `task_list`.
    ``python``: the version of Python there, as "3.12". Only for another one than this is something
    downloaded. ``baselines``: weights (n, k) of layers that TVM's own kernel is measured on too.

    Raises RuntimeError where nvcc is missing, or what was made is not a whole bundle.
    """
    with tempfile.TemporaryDirectory(prefix="moonpoly-bundle-") as temporary:
        made = Path(temporary) / folder.name
        (made / LIBRARIES).mkdir(parents=True)
        listed = contents.export(libraries, gpu, made / LIBRARIES)
        for library in listed:
            library["file"] = f"{LIBRARIES}/{library['file']}"
        for n, k in baselines:
            baseline.export(n, k, gpu, made / LIBRARIES / f"{cases.baseline_name(n, k)}.so")
        copy_runtime(made / LIBRARIES)
        packages.collect(made / PACKAGES, python)
        copy_sources(made)
        _write(made / "tasks.json", list(tasks))
        _write(made / "cases.json", dict(asked))
        _write(made / MANIFEST, manifest(made, gpu, listed, python))
        check(made)
        tar = folder.with_suffix(".tar")
        with tarfile.open(tar, "w") as file:
            file.add(made, folder.name)
        if folder.exists():
            shutil.rmtree(folder)
        shutil.move(str(made), folder)
    if tar.stat().st_size > LARGEST:
        raise RuntimeError(f"{tar}: {tar.stat().st_size} bytes, at most {LARGEST} are intended")
    return tar


def task_list(gpu: Gpu, kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """What is measured for the tuning log, the most useful kernels first."""
    listed = [kernel_tasks(k.tile, k.form, gpu, k.static.blocks) for k in kernels]
    return [task.to_json() for each in listed for task in each]


def case_lists(
    libraries: Sequence[Library], baselines: Sequence[tuple[int, int]] = ()
) -> dict[str, Any]:
    """What the other parts measure; ``baselines`` as `make` takes them."""
    return {
        "correct": cases.correct_cases(libraries),
        "speed": cases.speed_cases(libraries, baselines),
        "planner": cases.planner_cases(libraries),
    }


def wanted_lists(libraries: Sequence[Library]) -> dict[str, Any]:
    """What is measured besides the tasks where micro-kernels are only tried: whether each is
    right."""
    return {"correct": cases.kernel_cases(libraries), "speed": [], "planner": []}


def copy_runtime(folder: Path) -> None:
    """TVM's runtime libraries out of the installed package, and CUDA's out of the toolkit.

    Without the latter, the machine with the GPU must have it.
    """
    installed = Path(tvm.__file__).parent / "lib"
    for name in (RUNTIME, RUNTIME_CUDA):
        shutil.copy2(installed / name, folder / name)
    nvcc = find_nvcc()
    if nvcc is None:
        return
    toolkit = Path(nvcc).resolve().parents[1]
    for found in sorted(toolkit.glob(f"**/{CUDART}")):
        shutil.copy2(found.resolve(), folder / CUDART)
        break


def copy_sources(folder: Path) -> None:
    """``run.py`` and the modules it imports."""
    root = _HERE.parents[1]
    for pattern in _SOURCES:
        for path in root.glob(pattern):
            target = folder / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    shutil.copy2(_HERE / "run.py", folder / "run.py")


def manifest(
    folder: Path, gpu: Gpu, libraries: Sequence[dict[str, Any]], python: str
) -> dict[str, Any]:
    """What the bundle is of; ``digest`` is one of all files."""
    files = {
        str(path.relative_to(folder)): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    whole = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return {
        "format": FORMAT,
        "digest": whole,
        "gpu": {**asdict(gpu), "peak_tflops": gpu.peak_tflops},
        "versions": {
            "tvm_moonpoly": tvm_moonpoly.__version__,
            "tvm": metadata.version("apache-tvm"),
            "tvm_ffi": metadata.version("apache-tvm-ffi"),
            "nvcc": machine_code.compiler(),
            "python": ".".join(python.split(".")[:2]),
        },
        "libraries": list(libraries),
        "files": files,
    }


def check(folder: Path) -> None:
    """Raise RuntimeError where a bundle is not whole: files, kernels of tasks and cases, no source
    that would have to be compiled, and the size."""
    bundle = Bundle.read(folder)
    held = {k["name"] for library in bundle.manifest["libraries"] for k in library["kernels"]}
    asked = {task["kernel"] for task in bundle.tasks}
    for case in (
        *bundle.cases["correct"],
        *(p for c in bundle.cases["planner"] for p in c["plans"]),
    ):
        asked |= {name for name, *_ in case.get("launches", ())}
    missing = sorted(asked - held)
    if missing:
        raise RuntimeError(f"{folder}: no library has {missing[0]}")
    for library in bundle.manifest["libraries"]:
        if b"__global__" in (folder / library["file"]).read_bytes():
            raise RuntimeError(f"{library['file']}: it holds CUDA source, not machine code")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > LARGEST:
        raise RuntimeError(f"{folder}: {size} bytes, at most {LARGEST} are intended")


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
