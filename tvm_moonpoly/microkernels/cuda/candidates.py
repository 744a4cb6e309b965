"""The space of the family's decisions, and those of its members that are worth a try."""

from __future__ import annotations

import itertools
from typing import Any

from tvm_moonpoly.microkernels.cuda.form import Form
from tvm_moonpoly.microkernels.cuda.gpus import architecture
from tvm_moonpoly.microkernels.cuda.tile import BLOCK_M, BLOCK_N, CHUNK, MMA, WARP, CudaTile, check

#: Registers of a thread beside accumulators and fragments: addresses, counters, guards.
_OTHER_REGISTERS = 40

#: A thread's registers, of which ptxas can use one less than 256.
_MAX_REGISTERS = 255


def space(form: Form) -> dict[str, tuple[Any, ...]]:
    """What each parameter of `CudaTile` may be for a form: options of a search's decisions.

    Not every combination keeps the rules: `candidates` lists those that do.
    """
    stages: tuple[int, ...] = (2, 3, 4, 5, 6)
    paths: tuple[str, ...] = ("pairs", "shared", "elements")
    if not form.aligned:
        stages, paths = (2,), ("elements",)
    elif not form.b_transposed:
        # N is then a multiple of 8 anyway
        paths = ("pairs", "shared")
    return {
        "block_m": BLOCK_M,
        "block_n": BLOCK_N,
        "block_k": (32, 64, 128),
        "warps_m": (1, 2, 4),
        "warps_n": (1, 2, 4),
        "stages": stages,
        "swizzle": (True, False),
        "epilogue": paths,
        "raster": (1, 4, 8, 16),
    }


def candidates(form: Form, arch: str) -> list[CudaTile]:
    """Tiles from 16x64 to 256x128 that suit ``form`` on a GPU of ``arch``, without repeats.

    Left out are tiles that cannot fit in registers or shared memory, those with fewer than two
    steps of the tensor cores for each fragment loaded where a larger warp tile would do, pipelines
    that are too short to hide memory or longer than they need to be, padding where the permutation
    does as well, and all but one width of the raster, which a search may refine.

    Raises ValueError for an unknown ``arch``.
    """
    limits = architecture(arch)
    options = space(form) | {"swizzle": (True,), "raster": (8,)}
    found = []
    for values in itertools.product(*options.values()):
        try:
            tile = CudaTile(**dict(zip(options, values, strict=True)))
            check(tile, form, limits.block_shared_bytes)
        except ValueError:
            continue
        if _sensible(tile, form):
            found.append(tile)
    return found


def registers_estimate(tile: CudaTile, form: Form) -> int:
    """About the registers of a thread: accumulators, fragments of A and B, copies, the rest."""
    fragments = (tile.warp_m + tile.warp_n) * MMA // WARP // 2
    copies = 0
    if not form.aligned:
        copies = (tile.block_m + tile.block_n) * tile.block_k // tile.threads
    return tile.accumulators + fragments + copies + _OTHER_REGISTERS


def _sensible(tile: CudaTile, form: Form) -> bool:
    area = tile.block_m * tile.block_n
    if not 16 * 64 <= area <= 256 * 128 or tile.block_n < 64:
        return False
    if registers_estimate(tile, form) > _MAX_REGISTERS:
        return False
    # two warps at least, and no more than give each a tile of 32x32
    most = max(2, area // (32 * 32))
    if not 2 <= tile.warps <= min(8, most):
        return False
    if tile.warp_m > tile.warp_n * 2 or tile.warp_n > tile.warp_m * 8:
        return False
    # 8 warps only where 4 would have long tiles each
    if tile.warps == 8 and area < 128 * 128:
        return False
    if tile.block_k == 128 and area > 32 * 64:
        return False
    step_bytes = (tile.block_m + tile.block_n) * tile.block_k * 2
    if not form.aligned:
        return step_bytes <= 16 << 10
    # in flight: enough to hide the memory's latency, not more than that
    in_flight = (tile.stages - 1) * step_bytes
    if not 8 << 10 <= in_flight <= 96 << 10 or (tile.stages > 4 and step_bytes > 12 << 10):
        return False
    # staging pays where a warp's rows are whole lines of 128 bytes
    return tile.epilogue != "shared" or tile.warp_n >= 4 * CHUNK
