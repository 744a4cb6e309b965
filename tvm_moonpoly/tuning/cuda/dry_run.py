"""Everything of the offline stage for a GPU but the measuring: candidates, compiled and judged.

What a compiler tells of a micro-kernel, registers, spills, shared memory, and what follows from it:
how many blocks a multiprocessor holds, and a computed cost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tvm_moonpoly.costmodel import cuda_analytic
from tvm_moonpoly.microkernels.cuda import (
    CudaTile,
    Form,
    Gpu,
    Occupancy,
    Resources,
    build,
    cuda_source,
    find_nvcc,
    kernel_name,
    lower,
    occupancy,
    resources,
    resources_of,
    shared_bytes,
)
from tvm_moonpoly.operators.cuda import machine_code
from tvm_moonpoly.planner.cuda.spec import Product, single

#: The product that a kernel's share of the peak is computed for.
_LARGE = Product(4096, 4096, 4096)

#: Micro-kernels that nvcc is given at a time: it spends as long on its headers as on two of them.
_TOGETHER = 4


@dataclass(frozen=True)
class Candidate:
    """A micro-kernel as compiled for a GPU.

    ``of_peak``: of the GPU's peak on a large product, computed and not measured; None where the
    kernel is rejected, and ``reason`` says why.
    """

    tile: CudaTile
    form: Form
    resources: Resources
    shared_bytes: int
    occupancy: Occupancy
    of_peak: float | None
    reason: str

    @property
    def name(self) -> str:
        """The kernel's."""
        return kernel_name(self.tile, self.form)


def compiled(
    form: Form, tiles: Sequence[CudaTile], gpu: Gpu, done: Callable[[], object] = lambda: None
) -> Iterator[Candidate]:
    """Each of ``tiles`` compiled for ``gpu``, in order; ``done`` is called after each.

    Raises RuntimeError when there is no compiler for CUDA, or it does not accept a kernel's source.
    """
    limit = gpu.architecture.block_shared_bytes
    sources = []
    for first in range(0, len(tiles), _TOGETHER):
        part = tiles[first : first + _TOGETHER]
        functions = {kernel_name(tile, form): build(tile, form, None, limit) for tile in part}
        sources.append(cuda_source(lower(functions, gpu.arch)))
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        told: dict[str, Resources] = {}
        parts = pool.map(lambda source: _resources(source, gpu.arch), sources)
        for tile in tiles:
            name = f"{kernel_name(tile, form)}_kernel"
            while name not in told:
                told |= next(parts)
            yield judged(tile, form, gpu, told[name])
            done()


def _resources(source: str, arch: str) -> dict[str, Resources]:
    """What each kernel of a source takes: as nvcc reports it, or as the machine code of NVRTC
    says."""
    if find_nvcc() is not None:
        return resources(source, arch)
    codes = machine_code.compiled([source], arch)
    if codes is None:
        raise RuntimeError(machine_code.MISSING)
    return resources_of(codes[0])


def judged(tile: CudaTile, form: Form, gpu: Gpu, taken: Resources) -> Candidate:
    """A micro-kernel of which the compiler told what it takes."""
    shared = shared_bytes(tile, form) + taken.shared_bytes
    held = occupancy(taken.registers, shared, tile.threads, gpu.architecture)
    reason = ""
    if taken.spilled or taken.stack:
        reason = "registers are spilled to memory"
    elif not held.blocks:
        reason = f"a block does not fit: {held.limit}"
    of_peak = None
    if not reason:
        name = kernel_name(tile, form)
        table = cuda_analytic.table([tile], form, gpu, {name: taken.registers})
        seconds = single(0, _LARGE, table) * 1e-12
        of_peak = 2 * _LARGE.m * _LARGE.n * _LARGE.k / seconds / (gpu.peak_tflops * 1e12)
    return Candidate(tile, form, taken, shared, held, of_peak, reason)
