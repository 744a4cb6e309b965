"""The parameters of a CUDA matrix-product micro-kernel, and the rules that they keep."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm_moonpoly.microkernels.cuda.form import ITEM_BYTES, Form

#: Ways of the result from the accumulators to memory, and the elements that one thread stores at
#: once (None: 16 bytes). Registers hold a pair of neighbours, so pairs need no exchange; 16 bytes
#: go through shared memory.
EPILOGUE_PATHS = {"elements": 1, "pairs": 2, "shared": None}

#: Rows, columns and depth of one step of the tensor cores: two mma.sync m16n8k16 side by side.
MMA = 16

WARP = 32

#: Elements in 16 bytes of an operand: what one cp.async copies and one row of ldmatrix holds.
CHUNK = 8

#: Most elements from the first to the last that A or B may span: byte offsets are int32.
MAX_OPERAND_ELEMENTS = 1 << 30

#: Most batches of one launch: the extent of a grid's z.
MAX_BATCH = 65535

BLOCK_M = (16, 32, 64, 128, 256)
BLOCK_N = (32, 64, 128, 256)
BLOCK_K = (16, 32, 64, 128)
MAX_STAGES = 8


_NAME = re.compile(r"(\d+)x(\d+)x(\d+)_w(\d+)x(\d+)_([sp])(\d+)_([a-z]+)_r(\d+)")


@dataclass(frozen=True)
class CudaTile:
    """The decisions of one micro-kernel's schedule.

    A thread block of ``warps_m x warps_n`` warps computes ``block_m x block_n`` of the result, in
    steps of ``block_k`` along the reduction; ``stages`` such steps are in flight. Rows in shared
    memory are either permuted (``swizzle``) or padded, against bank conflicts. ``epilogue`` is one
    of `EPILOGUE_PATHS`. Blocks walk down ``raster`` rows of tiles before they go to the next
    column, so that blocks that run together share rows of A and columns of B in L2.

    Raises ValueError, naming the parameter and the rule, when a rule is broken.
    """

    block_m: int
    block_n: int
    block_k: int = 32
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 3
    swizzle: bool = True
    epilogue: str = "pairs"
    raster: int = 8

    def __post_init__(self) -> None:
        for name, allowed in (
            ("block_m", BLOCK_M),
            ("block_n", BLOCK_N),
            ("block_k", BLOCK_K),
            ("epilogue", tuple(EPILOGUE_PATHS)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: must be one of {allowed}, got {getattr(self, name)!r}")
        for name, limit in (("warps_m", 8), ("warps_n", 8), ("stages", MAX_STAGES)):
            if not 1 <= getattr(self, name) <= limit:
                raise ValueError(f"{name}: must be in 1..{limit}, got {getattr(self, name)}")
        if self.raster < 1:
            raise ValueError(f"raster: must be at least 1, got {self.raster}")
        if self.warps_m * self.warps_n > 16:
            raise ValueError(
                f"warps_m, warps_n: at most 16 warps a block, got {self.warps_m}x{self.warps_n}"
            )
        for block, warps in (("block_m", "warps_m"), ("block_n", "warps_n")):
            extent, parts = getattr(self, block), getattr(self, warps)
            if extent % (parts * MMA):
                raise ValueError(
                    f"{warps}: {block} = {extent} must divide into {parts} warp tiles of a "
                    f"multiple of {MMA}"
                )
        if self.warp_m * self.warp_n > 64 * 128:
            raise ValueError(
                f"warps_m, warps_n: a warp tile of {self.warp_m}x{self.warp_n} needs "
                f"{self.accumulators} accumulators a thread; at most 256 registers exist"
            )
        for name, extent in (("A", self.block_m), ("B", self.block_n)):
            if extent * self.block_k % (self.threads * CHUNK):
                raise ValueError(
                    f"block_k: a step of {name}, {extent}x{self.block_k}, must be a multiple of "
                    f"{self.threads} threads x {CHUNK} elements"
                )
        if self.swizzle and self.block_k not in (32, 64, 128):
            raise ValueError(
                f"swizzle: needs a block_k of 32, 64 or 128, got {self.block_k}; pad instead"
            )

    @property
    def warps(self) -> int:
        """Warps of a thread block."""
        return self.warps_m * self.warps_n

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return self.warps * WARP

    @property
    def warp_m(self) -> int:
        """Rows of a warp's tile."""
        return self.block_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of a warp's tile."""
        return self.block_n // self.warps_n

    @property
    def accumulators(self) -> int:
        """float32 accumulators of a thread."""
        return self.warp_m * self.warp_n // WARP

    @property
    def single(self) -> bool:
        """Whether results are stored as single elements."""
        return self.epilogue == "elements"

    @property
    def name(self) -> str:
        """A short, stable name, part of the kernel's."""
        layout = "s" if self.swizzle else "p"
        return (
            f"{self.block_m}x{self.block_n}x{self.block_k}_w{self.warps_m}x{self.warps_n}"
            f"_{layout}{self.stages}_{self.epilogue}_r{self.raster}"
        )

    @classmethod
    def named(cls, name: str) -> CudaTile:
        """The tile that has this `name`; raises ValueError where none can have it."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"name: {name!r} is not the name of a tile")
        *sizes, layout, stages, path, raster = found.groups()
        block_m, block_n, block_k, warps_m, warps_n = map(int, sizes)
        return cls(
            block_m,
            block_n,
            block_k,
            warps_m,
            warps_n,
            int(stages),
            layout == "s",
            path,
            int(raster),
        )


@dataclass(frozen=True)
class Requirements:
    """Multiples, in elements, that a call's dimensions, strides and offsets must keep.

    ``k``: of K. ``n``: of N and ``n0``. ``operands``: of the strides of rows and batches of A and
    B. ``result``: of those of the result and the residual. ``pointer_bytes``: the alignment of
    every operand's first element, and ``result_bytes`` that of result, bias and residual.
    """

    k: int
    n: int
    operands: int
    result: int
    pointer_bytes: int
    result_bytes: int


def store_elements(tile: CudaTile, form: Form) -> int:
    """Elements that one thread stores at once."""
    return EPILOGUE_PATHS[tile.epilogue] or 16 // ITEM_BYTES[form.dtype_out]


def requirements(tile: CudaTile, form: Form) -> Requirements:
    """What a call of the micro-kernel must keep for it to be right."""
    load = CHUNK if form.aligned else 1
    store = store_elements(tile, form)
    rows_of_n = form.aligned and not form.b_transposed
    return Requirements(
        k=load,
        n=max(CHUNK if rows_of_n else 1, store),
        operands=load,
        result=store,
        pointer_bytes=load * ITEM_BYTES[form.dtype_in],
        result_bytes=store * ITEM_BYTES[form.dtype_out],
    )


def shared_bytes(tile: CudaTile, form: Form) -> int:
    """Dynamic shared memory of a block: the stages, reused by the epilogue that needs it."""
    item, pad = ITEM_BYTES[form.dtype_in], 0 if tile.swizzle else CHUNK
    rows_a = tile.block_m * (tile.block_k + pad)
    if form.b_transposed:
        rows_b = tile.block_n * (tile.block_k + pad)
    else:
        rows_b = tile.block_k * (tile.block_n + pad)
    staging = 0
    if tile.epilogue == "shared":
        staging = tile.warps_m * MMA * (tile.block_n + CHUNK) * ITEM_BYTES["float32"]
    # copies through registers have one step in shared memory
    stages = tile.stages if form.aligned else 1
    return max(stages * (rows_a + rows_b) * item, staging)


def check(tile: CudaTile, form: Form, shared_limit: int) -> None:
    """Raise ValueError where tile and form do not go together, or need too much shared memory.

    ``shared_limit``: bytes of shared memory that one block may have.
    """
    if not form.aligned and not tile.single:
        raise ValueError(
            f"epilogue: an unaligned form stores single elements, got {tile.epilogue!r}"
        )
    if form.aligned and tile.stages < 2:
        raise ValueError("stages: an aligned form copies asynchronously, which takes at least 2")
    if not form.aligned and tile.stages != 2:
        raise ValueError(
            "stages: an unaligned form has one step in shared memory and one in registers, so 2; "
            f"got {tile.stages}"
        )
    need = shared_bytes(tile, form)
    if need > shared_limit:
        raise ValueError(
            f"stages: {tile.name} needs {need} bytes of shared memory, a block may have "
            f"{shared_limit}"
        )
