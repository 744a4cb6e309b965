"""Costs of CUDA micro-kernels from what is known without running them: **not measured**.

A step along the reduction takes as long as the slowest of four things that go on at the same time:
the tensor cores' multiply-adds, reading shared memory and writing to it, bringing operands from L2,
and waiting for what was asked for some stages ago. What contention, instruction issue and DRAM add
is not known before a GPU has measured it; costs are for ranking, not for telling times.

Sources. Multiply-adds a cycle, clocks: `gpus`. Shared memory: 128 bytes a cycle (NVIDIA, CUDA C++
Best Practices Guide: 32 banks of 4 bytes). L2: 5120 bytes a cycle for the 108 multiprocessors of an
A100 (NVIDIA A100 Tensor Core GPU Architecture), taken for all. Latency of memory: about 500 cycles
(Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking",
2024), who also find that mma.sync reaches about 63 % of the peak on Hopper.
"""

from __future__ import annotations

from collections.abc import Iterable

from tvm_moonpoly.costmodel.cuda import BlockCost, CudaTable
from tvm_moonpoly.microkernels.cuda.candidates import registers_estimate
from tvm_moonpoly.microkernels.cuda.form import ITEM_BYTES, Form
from tvm_moonpoly.microkernels.cuda.gpus import Gpu
from tvm_moonpoly.microkernels.cuda.kernel import kernel_name
from tvm_moonpoly.microkernels.cuda.occupancy import occupancy
from tvm_moonpoly.microkernels.cuda.tile import CudaTile, shared_bytes

#: Bytes a cycle and multiprocessor.
SHARED_BYTES, L2_BYTES = 128.0, 5120 / 108

#: Cycles from asking for a line of memory to having it, and of the barriers of a step.
LATENCY, BARRIERS = 500.0, 40.0

#: What mma.sync reaches of the peak, where that is known to be less than all.
MMA_SHARE = {"sm_90": 0.63}

#: Picoseconds of a launch, from its start to its first instruction: a usual figure.
LAUNCH = 3_000_000

#: An unaligned form goes through registers, two bytes at a time.
_ANY_FACTOR = 4.0


def resident(tile: CudaTile, form: Form, gpu: Gpu, registers: int | None = None) -> int:
    """Blocks that a multiprocessor holds; ``registers`` a thread as told by the assembler, or else
    estimated."""
    told = registers_estimate(tile, form) if registers is None else registers
    return occupancy(told, shared_bytes(tile, form), tile.threads, gpu.architecture).blocks


def step_cycles(tile: CudaTile, form: Form, gpu: Gpu, blocks: int) -> dict[str, float]:
    """Cycles of one step of all of ``blocks`` blocks on a multiprocessor, by what takes them."""
    arch, item = gpu.architecture, ITEM_BYTES[form.dtype_in]
    busy = min(blocks * tile.warps / arch.partitions, 1.0)
    flops = 2.0 * tile.block_m * tile.block_n * tile.block_k * blocks
    brought = float((tile.block_m + tile.block_n) * tile.block_k * item * blocks)
    read = float((tile.warp_m + tile.warp_n) * tile.warps * tile.block_k * item * blocks)
    in_flight = tile.stages - 1 if form.aligned else 1
    slower = 1.0 if form.aligned else _ANY_FACTOR
    return {
        "tensor cores": flops / (arch.tensor_flops * busy * MMA_SHARE.get(gpu.arch, 1.0)),
        "shared memory": (brought + read) / SHARED_BYTES,
        "L2": slower * brought / L2_BYTES,
        "latency": LATENCY / in_flight,
    }


def block_cost(tile: CudaTile, form: Form, gpu: Gpu, registers: int | None = None) -> BlockCost:
    """What blocks of a micro-kernel cost on ``gpu``, computed.

    Raises ValueError when a block does not fit a multiprocessor.
    """
    fit = resident(tile, form, gpu, registers)
    if fit == 0:
        raise ValueError(f"tile: a block of {tile.name} does not fit {gpu.name}")
    steps, longest = [], 0.0
    for blocks in range(1, fit + 1):
        longest = max(longest, *step_cycles(tile, form, gpu, blocks).values())
        steps.append(_picoseconds(longest + BARRIERS, gpu))
    stored = fit * tile.block_m * tile.block_n * ITEM_BYTES[form.dtype_out]
    around = _picoseconds(2 * LATENCY + stored / L2_BYTES, gpu)
    name = kernel_name(tile, form)
    return BlockCost(name, tile.block_m, tile.block_n, tile.block_k, around, tuple(steps))


def table(
    tiles: Iterable[CudaTile], form: Form, gpu: Gpu, registers: dict[str, int] | None = None
) -> CudaTable:
    """The computed costs of some tiles, marked as not measured.

    ``registers`` a thread by the kernels' names, where the assembler has told them.
    """
    told = registers or {}
    kernels = (block_cost(t, form, gpu, told.get(kernel_name(t, form))) for t in tiles)
    return CudaTable(gpu.multiprocessors, LAUNCH, tuple(kernels), measured=False)


def _picoseconds(cycles: float, gpu: Gpu) -> int:
    return max(round(cycles * 1e6 / gpu.clock_mhz), 1)
