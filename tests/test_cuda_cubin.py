"""What a kernel takes, read out of its machine code, is what the compiler reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_moonpoly.microkernels.cuda import (
    ARCHITECTURES,
    GPUS,
    CudaTile,
    Form,
    build,
    cubin,
    cuda_source,
    find_nvcc,
    kernel_name,
    lower,
    resources_of,
)
from tvm_moonpoly.microkernels.cuda.resources import compiled, parse
from tvm_moonpoly.operators.cuda import machine_code
from tvm_moonpoly.tuning.cuda import dry_run

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")

#: Kernels with static shared memory, spilled registers, an array on the stack, and a call of a
#: function that has one.
SOURCE = """
extern "C" __global__ void plain(float *a, int n) {
  __shared__ float s[100];
  s[threadIdx.x % 100] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = s[threadIdx.x * 7 % 100] * n;
}
extern "C" __global__ void spilling(const float *a, float *b, int n) {
  float v[64];
#pragma unroll
  for (int i = 0; i < 64; i++) v[i] = a[i * n + threadIdx.x];
  for (int t = 0; t < n; t++) {
#pragma unroll
    for (int i = 0; i < 64; i++) v[i] = v[i] * v[(i + 13) % 64] + a[t * i];
  }
#pragma unroll
  for (int i = 0; i < 64; i++) b[i * n + threadIdx.x] = v[i];
}
extern "C" __global__ void with_array(float *a, int n) {
  float v[32];
  for (int i = 0; i < 32; i++) v[i] = a[i];
  for (int i = 0; i < n; i++) v[i * n % 32] += i;
  a[threadIdx.x] = v[n % 32];
}
__device__ __noinline__ float deep(float x, int n) {
  float w[8];
  for (int i = 0; i < 8; i++) w[i] = x * i;
  return w[n % 8];
}
extern "C" __global__ void calling(float *a, int n) { a[threadIdx.x] = deep(a[n], n); }
"""

TILE = CudaTile(64, 64, 32, 2, 2, 3)


def known(report):
    """What a cubin tells of what ptxas reports: not how much is spilled."""
    return {
        name: replace(taken, spill_stores=None, spill_loads=None)
        for name, taken in parse(report).items()
    }


@needs_nvcc
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_it_is_what_ptxas_reports(arch):
    name = kernel_name(TILE, Form())
    source = SOURCE + cuda_source(lower({name: build(TILE, Form())}, arch))
    report, code = compiled(source, arch, ["-maxrregcount=80"])
    assert resources_of(code) == known(report)
    found = resources_of(code)
    assert set(found) == {"plain", "spilling", "with_array", "calling", f"{name}_kernel"}
    assert found["plain"].shared_bytes >= 400 and found["with_array"].stack >= 128
    assert found["calling"].stack >= 32 and found[f"{name}_kernel"].stack == 0
    tight, code = compiled(SOURCE, arch, ["-maxrregcount=40"])
    assert resources_of(code) == known(tight)
    assert parse(tight)["spilling"].spilled > 0 < resources_of(code)["spilling"].spilled


@needs_nvcc
def test_what_is_no_cubin_is_told():
    code = cubin(SOURCE, "sm_80")
    assert resources_of(code)
    for bad in (b"", b"\x7fELF", b"\0" * 4096, code[:64], *(code[:n] for n in range(0, 5000, 97))):
        with pytest.raises(RuntimeError, match="cubin: "):
            resources_of(bad)
    unlike = bytearray(code)
    at = unlike.index(bytes([4, 0x2F, 8, 0])) + 8  # the registers of one kernel
    unlike[at] += 1
    with pytest.raises(RuntimeError, match="it does not tell what .* takes"):
        resources_of(bytes(unlike))


@needs_nvcc
def test_without_nvcc_a_candidate_is_judged_by_its_machine_code(monkeypatch):
    (usual,) = dry_run.compiled(Form(), [TILE], GPUS["nvidia-a100"])
    asked = []

    def by_nvrtc(sources, arch):
        asked.extend(sources)
        return [cubin(source, arch) for source in sources]

    monkeypatch.setattr(dry_run, "find_nvcc", lambda: None)
    monkeypatch.setattr(machine_code, "compiled", by_nvrtc)
    (found,) = dry_run.compiled(Form(), [TILE], GPUS["nvidia-a100"])
    assert len(asked) == 1 and found.reason == ""
    assert found.resources == replace(usual.resources, spill_stores=None, spill_loads=None)
    assert (found.occupancy, found.of_peak) == (usual.occupancy, usual.of_peak)


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setattr(dry_run, "find_nvcc", lambda: None)
    monkeypatch.setattr(machine_code, "compiler", lambda: None)
    with pytest.raises(RuntimeError, match="no compiler for CUDA was found"):
        list(dry_run.compiled(Form(), [TILE], GPUS["nvidia-a100"]))


def test_what_is_spilled_is_on_the_stack():
    taken = dry_run.Resources(90, 0, None, None, 0)
    assert taken.spilled == 0
    assert not dry_run.judged(TILE, Form(), GPUS["nvidia-a100"], taken).reason
    spilling = replace(taken, stack=64)
    assert spilling.spilled == 64
    reason = dry_run.judged(TILE, Form(), GPUS["nvidia-a100"], spilling).reason
    assert reason == "registers are spilled to memory"
