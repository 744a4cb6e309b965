"""Blocks that run together on one multiprocessor, by the public rules of CUDA's occupancy."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_moonpoly.microkernels.cuda.gpus import Architecture
from tvm_moonpoly.microkernels.cuda.tile import WARP


@dataclass(frozen=True)
class Occupancy:
    """Blocks a multiprocessor, and how many each resource alone would allow."""

    blocks: int
    by_registers: int
    by_shared: int
    by_threads: int
    by_blocks: int

    @property
    def limit(self) -> str:
        """The resource that sets the number of blocks, the first one if there are several."""
        limits = {
            "registers": self.by_registers,
            "shared memory": self.by_shared,
            "threads": self.by_threads,
            "blocks": self.by_blocks,
        }
        return min(limits, key=lambda name: limits[name])


def occupancy(registers: int, shared_bytes: int, threads: int, arch: Architecture) -> Occupancy:
    """Blocks of ``threads`` threads that one multiprocessor holds at once.

    ``registers`` a thread and ``shared_bytes`` a block (static and dynamic). A warp's registers are
    a multiple of a unit, each of the four schedulers holds whole warps in its share, and the system
    keeps 1 KiB of each block's shared memory. 0 blocks mean that the kernel cannot be launched.

    Raises ValueError when a figure is not positive, or shared memory negative.
    """
    if registers < 1 or threads < 1 or shared_bytes < 0:
        raise ValueError(
            "registers, shared_bytes, threads: must be positive, "
            f"got {registers}, {shared_bytes}, {threads}"
        )
    if threads > arch.block_threads:
        return Occupancy(0, 0, 0, 0, arch.blocks)
    warps = -(-threads // WARP)
    per_thread = _round_up(registers, arch.thread_registers)
    per_warp = _round_up(per_thread * WARP, arch.warp_registers)
    held = arch.registers // arch.partitions // per_warp * arch.partitions
    by_registers = held // warps if per_thread <= 256 else 0
    shared = _round_up(shared_bytes + arch.shared_reserved, arch.shared_unit)
    fits = shared_bytes <= arch.block_shared_bytes
    by_shared = arch.shared_bytes // shared if fits else 0
    by_threads = arch.threads // WARP // warps
    blocks = min(by_registers, by_shared, by_threads, arch.blocks)
    return Occupancy(blocks, by_registers, by_shared, by_threads, arch.blocks)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
