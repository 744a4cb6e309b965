"""The machine code of CUDA micro-kernels holds the instructions that their tiles promise."""

from __future__ import annotations

import re
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from tvm_moonpoly.microkernels.cuda import (
    GPUS,
    Form,
    build,
    cubin,
    cuda_source,
    find_nvcc,
    find_nvdisasm,
    kernel_name,
    lower,
    sass,
)
from tvm_moonpoly.microkernels.cuda.tile import MMA
from tvm_moonpoly.tuning.cuda import gpu_logs

LOGS = Path(__file__).resolve().parents[1] / "tuning_logs"

#: Kernels of each form that are looked at: those that the tuning log has first.
FIRST = 2

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
needs_nvdisasm = pytest.mark.skipif(
    find_nvdisasm() is None,
    reason="nvdisasm is not installed (pip install nvidia-cuda-nvdisasm, or a CUDA toolkit)",
)


def instructions(text: str, kernel: str) -> Counter[str]:
    """How often a kernel has each instruction, with its modifiers ("HMMA.16816.F32")."""
    body = text.split(f".text.{kernel}:")[1].split(".text.")[0]
    return Counter(re.findall(r"\*/ +(?:@!?\w+ +)?([A-Z][A-Z0-9_.a-z]*)", body))


@needs_nvcc
@needs_nvdisasm
@pytest.mark.parametrize(
    ("name", "dtype"), [("nvidia-a100", "float16"), ("nvidia-h100", "bfloat16")]
)
def test_a_step_is_what_the_tile_implies(name: str, dtype: str) -> None:
    gpu = GPUS[name]
    arch, limit = gpu.arch, gpu.architecture.block_shared_bytes
    known = gpu_logs.contents_of(gpu, dtype, LOGS)[0]
    forms = [Form(dtype, dtype, *each) for each in product((False, True), repeat=2)]
    members = [(kernel.tile, form) for form in forms for kernel in known.of(form)[:FIRST]]
    assert len(members) == FIRST * len(forms)
    functions = {kernel_name(*each): build(*each, shared_limit=limit) for each in members}
    text = sass(cubin(cuda_source(lower(functions, arch)), arch))
    for tile, form in members:
        name = kernel_name(tile, form)
        counts = instructions(text, f"{name}_kernel")

        def of(prefix: str, counts: Counter[str] = counts) -> int:
            return sum(n for each, n in counts.items() if each.startswith(prefix))

        steps = tile.block_k // MMA
        rows, columns = tile.warp_m // MMA, tile.warp_n // MMA
        # the loop over the reduction's steps, which ptxas may write out more than once
        times, rest = divmod(of("HMMA."), 2 * rows * columns * steps)
        assert times >= 1 and rest == 0, (name, counts)
        assert of("HMMA.16816.F32") == of("HMMA."), (name, counts)
        assert of("LDSM.16.M") == (rows + columns) * steps * times, (name, counts)
        assert of("LDSM.16.MT") == columns * steps * times * (not form.b_transposed), name
        copies = (tile.block_m + tile.block_n) * tile.block_k // 8 // tile.threads
        # 16 bytes past L1: the stages that are filled first, and the one of each step
        expected = copies * (tile.stages - 1 + times) if form.aligned else 0
        assert of("LDGSTS.E.BYPASS.128") == of("LDGSTS") == expected, (name, counts)
        assert of("LDL") == of("STL") == 0, (name, counts)
        assert of("STG") >= 1 and of("BAR.SYNC") >= 1, (name, counts)


@needs_nvdisasm
def test_what_is_no_machine_code_is_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match="nvdisasm: "):
        sass(b"nothing")


def test_a_missing_nvdisasm_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[sass.__module__], "find_nvdisasm", lambda: None)
    with pytest.raises(RuntimeError, match="nvdisasm: not found on PATH"):
        sass(b"")
