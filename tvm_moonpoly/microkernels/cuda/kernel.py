"""Micro-kernels of the family, made from their parameters."""

from __future__ import annotations

from tvm import tirx

from tvm_moonpoly.microkernels.cuda.form import Epilogue, Form
from tvm_moonpoly.microkernels.cuda.multistage import STAGED, STAGES
from tvm_moonpoly.microkernels.cuda.raster import RASTER
from tvm_moonpoly.microkernels.cuda.schedule import schedule
from tvm_moonpoly.microkernels.cuda.semantics import semantics
from tvm_moonpoly.microkernels.cuda.tile import CudaTile, check

#: Shared memory that one block may have on every GPU of the family, sm_80 to sm_90.
COMMON_SHARED_BYTES = 99 << 10


def kernel_name(tile: CudaTile, form: Form, epilogue: Epilogue | None = None) -> str:
    """The name of a micro-kernel: a stable string of its parameters."""
    words = ["moonpoly", form.name, tile.name, (epilogue or Epilogue()).name]
    return "_".join(word for word in words if word)


def build(
    tile: CudaTile,
    form: Form,
    epilogue: Epilogue | None = None,
    shared_limit: int = COMMON_SHARED_BYTES,
) -> tirx.PrimFunc:
    """The scheduled micro-kernel; for its parameters see `semantics`.

    ``shared_limit``: bytes of shared memory that a block may have on the GPUs it is for.

    Raises ValueError when tile and form do not go together, or need more shared memory.
    """
    epilogue = epilogue or Epilogue()
    check(tile, form, shared_limit)
    func = semantics(tile, form, epilogue, kernel_name(tile, form, epilogue))
    scheduled = schedule(func, tile, form, epilogue)
    return scheduled.with_attr(
        {RASTER: tile.raster, STAGES: tile.stages, STAGED: int(tile.epilogue == "shared")}
    )
