"""The worker that measures on a GPU, with a GPU that is none: kernels run in the emulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from cuda_tuning_testing import A100, kernel

from tvm_moonpoly.microkernels.cuda import CudaTile, Form, build, cuda_source, find_nvcc, lower
from tvm_moonpoly.tuning.cuda import device
from tvm_moonpoly.tuning.cuda.bench import score

WORKER = Path(__file__).with_name("cuda_device_emulated.py")

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")

KERNELS = {
    "aligned": kernel(CudaTile(16, 64, 32, 1, 2, 3), Form("bfloat16", "bfloat16", True)),
    "unaligned": kernel(
        CudaTile(16, 64, 32, 1, 2, 2, epilogue="elements"),
        Form("float16", "float32", aligned=False),
    ),
}


@pytest.fixture
def asked(tmp_path):
    """The answers to requests about a kernel."""

    def ask(jobs, name, change=lambda source: source, tasks=()):
        found = KERNELS[name]
        library = tmp_path / "kernel.so"
        device.export(found, A100, library)
        source = cuda_source(lower({found.name: build(found.tile, found.form)}, "sm_80"))
        (tmp_path / "kernel.cu").write_text(change(source))
        request = {
            "jobs": jobs,
            "kernel": found.name,
            "form": asdict(found.form),
            "tile": asdict(found.tile),
            "library": str(library),
            "tasks": [dict(zip("mnk", sizes, strict=True)) for sizes in tasks],
        }
        (tmp_path / "request.json").write_text(json.dumps(request))
        path = os.pathsep.join([str(WORKER.parent), os.environ.get("PYTHONPATH", "")])
        told = subprocess.run(
            [sys.executable, str(WORKER), str(tmp_path)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    return ask


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_is_timed(asked, name):
    launch, answer = asked(["launch", "measure"], name, tasks=[(16, 64, 32), (16, 64, 128)])
    empty, (short, long) = launch["seconds"], answer["seconds"]
    assert answer["right"] is True and 0 < empty < short < long
    # by the clock of the process, which counts: of one step and of four
    assert long - empty == 4 * (short - empty)


def test_a_wrong_kernel_is_not_timed(asked):
    (answer,) = asked(
        ["measure"],
        "aligned",
        lambda source: source.replace("__syncthreads();", ""),
        [(16, 64, 32)],
    )
    assert answer == {"right": False, "seconds": [None]}


def test_a_machine_without_a_gpu_says_so():
    with pytest.raises(device.DeviceError, match="no CUDA device was found"):
        device.Device(A100, KERNELS["aligned"])


def test_gigaflops_are_those_of_a_full_gpu():
    assert 0 < score(KERNELS["aligned"].cost, A100) < A100.peak_tflops * 1e3
