"""The elite set: the few CUDA micro-kernels by which most products are near their best.

Ranked on synthetic shapes, powers of two and what lies between them, as MikPoly does (ASPLOS 2024).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tvm_moonpoly.costmodel.cuda import BlockCost, CudaTable
from tvm_moonpoly.costmodel.cuda_log import Kernel
from tvm_moonpoly.planner.cuda.spec import Product, single

#: Sizes of the shapes that are ranked on.
ROWS = (1, 8, 16, 24, 48, 64, 96, 128, 200, 256, 384, 512, 1024, 1536, 2048, 4096)
WIDTHS = (64, 256, 768, 1000, 2048, 4096, 11008)
DEPTHS = (64, 256, 768, 2048, 4096)

SHAPES = tuple(Product(*sizes) for sizes in itertools.product(ROWS, WIDTHS, DEPTHS))


def elite(
    candidates: CudaTable, count: int, shapes: Sequence[Product] = SHAPES
) -> tuple[BlockCost, ...]:
    """``count`` kernels of a table, or fewer where more gain nothing, the most useful first.

    Each is the one that lowers the geometric mean of the shapes' times most, with those before it.
    A kernel is judged on whole results: what regions gain comes on top.

    Raises ValueError when ``count`` is less than 1.
    """
    if count < 1:
        raise ValueError(f"count: at least 1 is needed, not {count}")
    each = range(len(candidates.kernels))
    times = np.log([[single(i, s, candidates) for s in shapes] for i in each])
    best = np.full(len(shapes), np.inf)
    chosen: list[int] = []
    while len(chosen) < count:
        means = np.minimum(times, best).mean(axis=1)
        found = int(np.argmin(means))
        if found in chosen or (chosen and means[found] >= best.mean() - 1e-9):
            break
        chosen.append(found)
        best = np.minimum(best, times[found])
    return tuple(candidates.kernels[i] for i in chosen)


def elite_kernels(
    kernels: Sequence[Kernel], multiprocessors: int, launch: int, count: int
) -> list[Kernel]:
    """The `elite` among kernels of a log, by their costs."""
    by_cost = {kernel.cost: kernel for kernel in kernels}
    table = CudaTable(multiprocessors, launch, tuple(by_cost))
    return [by_cost[cost] for cost in elite(table, count)]
