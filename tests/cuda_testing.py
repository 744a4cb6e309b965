"""Runs of CUDA micro-kernels in the emulator, and what numpy says they must compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from cuda_emulator import Launch, emulate, run_host

from bench.gpu.runner.reference import activate
from tvm_moonpoly.costmodel import cuda_analytic
from tvm_moonpoly.costmodel.cuda import CudaTable
from tvm_moonpoly.microkernels.cuda import (
    GPUS,
    CudaTile,
    Epilogue,
    Form,
    build,
    cuda_source,
    kernel_name,
    lower,
    shared_bytes,
)
from tvm_moonpoly.operators.cuda import Assembly

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}

#: What an untouched element of a result holds.
UNTOUCHED = 7.0

#: Rounding of the result, relative to its largest element.
ROUNDING = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5}


#: Micro-kernels and an epilogue that operators are tested with: all tests share what is compiled.
TILES = (
    CudaTile(64, 64, 32, 2, 2, 3),
    CudaTile(16, 64, 64, 1, 2, 4),
    CudaTile(32, 64, 64, 1, 2, 3),
)
SINGLE = (CudaTile(32, 64, 32, 1, 2, 3, epilogue="elements"),)
ANY = (CudaTile(32, 64, 32, 1, 2, 2, epilogue="elements"),)
EPILOGUE = Epilogue(bias=True, activation="silu", residual=True)


def small_assemblies(transposed: bool) -> tuple[Assembly, ...]:
    """Those of `TILES`, of `SINGLE` where B is transposed, and of `ANY`, with the costs of a GPU of
    three multiprocessors and quick launches: small shapes then take several waves, and are cut."""
    found = []
    for tiles, aligned in ((TILES, True), *[(SINGLE, True)] * transposed, (ANY, False)):
        form = Form(b_transposed=transposed, aligned=aligned)
        table = cuda_analytic.table(tiles, form, GPUS["nvidia-a100"])
        kernels = tuple(replace(kernel, steps=kernel.steps[:1]) for kernel in table.kernels)
        found.append(Assembly(form, tiles, CudaTable(3, 1000, kernels)))
    return tuple(found)


@dataclass(frozen=True)
class Shape:
    """One call: sizes, and the region (m0, n0, tiles_m, tiles_n), by default all of the result."""

    batch: int
    m: int
    n: int
    k: int
    region: tuple[int, int, int, int] | None = None


class Kernel:
    """A micro-kernel, compiled once for the emulator."""

    def __init__(self, tile: CudaTile, form: Form, epilogue: Epilogue | None = None) -> None:
        self.tile, self.form, self.epilogue = tile, form, epilogue or Epilogue()
        self.name = kernel_name(tile, form, self.epilogue)
        function = build(tile, form, self.epilogue, shared_limit=227 << 10)
        self.module = lower({self.name: function})
        self.emulated = emulate(cuda_source(self.module))

    def __call__(self, arrays: Sequence[np.ndarray], region: Sequence[int], seed: int) -> Launch:
        (launch,) = run_host(self.module, self.emulated, self.name, [*arrays, *region], seed)
        return launch

    def check(self, shape: Shape, seed: int = 0, operands: Operands | None = None) -> Launch:
        """One call against numpy; the launch that it was."""
        given = operands or Operands.random(shape, self.form)
        tile = self.tile
        region = shape.region or (0, 0, -(-shape.m // tile.block_m), -(-shape.n // tile.block_n))
        dtype = DTYPES[self.form.dtype_out]
        result = np.full((shape.batch, shape.m, shape.n), UNTOUCHED, dtype)
        extras = [given.bias] * self.epilogue.bias + [given.residual] * self.epilogue.residual
        launch = self([given.a, given.b, *extras, result], region, seed)
        m0, n0, tiles_m, tiles_n = region
        inside = np.zeros((shape.m, shape.n), bool)
        inside[m0 : m0 + tiles_m * tile.block_m, n0 : n0 + tiles_n * tile.block_n] = True
        expected = given.expected(self.form, self.epilogue)
        got = result.astype(np.float64)
        largest = max(1.0, float(np.abs(expected).max(initial=0)))
        tolerance = ROUNDING[self.form.dtype_out] * largest
        np.testing.assert_allclose(got[:, inside], expected[:, inside], rtol=0, atol=tolerance)
        assert (got[:, ~inside] == UNTOUCHED).all(), "written outside of the region"
        assert launch.grid == (tiles_m * tiles_n, 1, shape.batch)
        assert launch.block == (32, tile.warps_n, tile.warps_m)
        assert launch.dynamic_shared_bytes == shared_bytes(tile, self.form)
        return launch


@dataclass
class Operands:
    """The operands of one call, any epilogue's included."""

    a: np.ndarray
    b: np.ndarray
    bias: np.ndarray
    residual: np.ndarray

    @classmethod
    def random(cls, shape: Shape, form: Form, seed: int = 0) -> Operands:
        """Normal numbers, as the dtypes of ``form`` hold them."""
        draw = np.random.default_rng(seed)

        def normal(dtype: str, *dims: int) -> np.ndarray:
            return draw.standard_normal(dims).astype(DTYPES[dtype])

        b = (shape.n, shape.k) if form.b_transposed else (shape.k, shape.n)
        return cls(
            normal(form.dtype_in, shape.batch, shape.m, shape.k),
            normal(form.dtype_in, shape.batch, *b),
            normal(form.dtype_out, shape.n),
            normal(form.dtype_out, shape.batch, shape.m, shape.n),
        )

    def expected(self, form: Form, epilogue: Epilogue) -> np.ndarray:
        """The result in float64."""
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        total = a @ (b.swapaxes(1, 2) if form.b_transposed else b)
        if epilogue.bias:
            total = total + self.bias.astype(np.float64)
        if epilogue.residual:
            total = total + self.residual.astype(np.float64)
        return activate(epilogue.activation, total)
