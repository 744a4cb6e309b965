"""Small logs of GPUs, and results as a GPU with costs of its own would have measured them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tvm_moonpoly.costmodel import cuda_analytic
from tvm_moonpoly.costmodel.cuda_log import Contents, Kernel, Static
from tvm_moonpoly.microkernels.cuda import GPUS, CudaTile, Form, Gpu
from tvm_moonpoly.tuning.cuda import gpu_logs
from tvm_moonpoly.tuning.cuda.tasks import Task, tasks

A100, H100, H200 = (GPUS[f"nvidia-{name}"] for name in ("a100", "h100", "h200"))

#: What drivers call the products.
DRIVER_NAMES = {
    "nvidia-a100": "NVIDIA A100-SXM4-80GB",
    "nvidia-h100": "NVIDIA H100 80GB HBM3",
    "nvidia-h200": "NVIDIA H200",
    "nvidia-rtx4090": "NVIDIA GeForce RTX 4090",
    "nvidia-rtx3090": "NVIDIA GeForce RTX 3090",
}

TILES = (
    CudaTile(64, 64, 32, 2, 2, 3),
    CudaTile(128, 128, 32, 2, 2, 3, True, "shared"),
    CudaTile(16, 64, 64, 1, 2, 4),
    CudaTile(64, 64, 32, 2, 2, 3, True, "elements"),
)

UNALIGNED = CudaTile(64, 64, 32, 2, 2, 2, epilogue="elements")

LAUNCH = 2.5e-6


def kernel(tile: CudaTile, form: Form, gpu: Gpu = A100, measured: bool = False) -> Kernel:
    """A log's kernel with a computed cost."""
    cost = cuda_analytic.block_cost(tile, form, gpu, 100)
    return Kernel(form, tile, Static(100, 1 << 10, cost.resident, "registers"), cost, measured)


def contents(gpu: Gpu = A100, measured: bool = False, dtype: str = "float16") -> Contents:
    """A log of one dtype and layout, NT."""
    unaligned = Form(dtype, dtype, True, aligned=False)
    kernels = [kernel(tile, Form(dtype, dtype, True), gpu, measured) for tile in TILES]
    kernels.append(kernel(UNALIGNED, unaligned, gpu, measured))
    return Contents(gpu.multiprocessors, 3_000_000, measured, tuple(kernels))


def put(gpu: Gpu, found: Contents, dtype: str = "float16", **header: Any) -> Path:
    """Write it where it is found."""
    path = gpu_logs.path_of(gpu, dtype)
    assert gpu_logs.write(path, gpu, found, header)
    return path


def truth(task: Task, factor: float = 1.7) -> float:
    """Seconds of a task on a GPU of which nothing is known: a launch, and a wave."""
    step = 0.4e-6 * (1 + 0.6 * (task.blocks - 1)) * factor
    return LAUNCH + 2e-6 + task.steps * step


def results(
    gpu: Gpu, kernels: tuple[Kernel, ...], noise: float = 0.01, seed: int = 0, factor: float = 1.7
) -> dict[str, Any]:
    """A results file's document: times of `truth`, some of them disturbed."""
    draw = random.Random(seed)
    found = []
    for each in kernels:
        for task in tasks(each.tile, each.form, gpu, each.cost.resident):
            seconds = truth(task, factor) * (1 + draw.uniform(-noise, noise))
            found.append({**task.to_json(), "seconds": seconds, "samples": [seconds] * 3})
    return {
        "format": 1,
        "gpu": {
            "name": DRIVER_NAMES[gpu.name],
            "arch": gpu.arch,
            "multiprocessors": gpu.multiprocessors,
            "clock_mhz": 1980,
            "driver": "580.1",
        },
        "versions": {"torch": "2.13"},
        "launch_seconds": LAUNCH,
        "tasks": found,
        "correct": {},
        "speed": [],
    }


def saved(path: Path, document: Any) -> Path:
    """The document as a file."""
    path.write_text(json.dumps(document))
    return path
