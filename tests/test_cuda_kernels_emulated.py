"""CUDA micro-kernels, emulated on the CPU: the same as numpy on every shape."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cuda_emulator import emulate, missing_compiler, run_host
from tvm.script import tirx as T

if missing_compiler() is not None:
    pytest.skip(str(missing_compiler()), allow_module_level=True)

from cuda_testing import UNTOUCHED, Kernel, Operands, Shape

from tvm_moonpoly.microkernels.cuda import (
    ACTIVATIONS,
    GPUS,
    CudaTile,
    Epilogue,
    Form,
    build,
    candidates,
    cuda_source,
    lower,
)
from tvm_moonpoly.operators.cuda.assemblies import assembled
from tvm_moonpoly.tuning.cuda import gpu_logs

LOGS = Path(__file__).resolve().parents[1] / "tuning_logs"

#: Every way of a tile through the family: path of the epilogue, layout in shared memory, form.
KERNELS = {
    "pairs": (CudaTile(64, 64), Form(), Epilogue()),
    "bfloat16": (
        CudaTile(64, 64, raster=1),
        Form("bfloat16", "bfloat16"),
        Epilogue(True, "silu", True),
    ),
    "transposed": (
        CudaTile(64, 64, 64, stages=4, raster=2),
        Form("bfloat16", "float32", b_transposed=True),
        Epilogue(True, "gelu_tanh", True),
    ),
    "shared": (
        CudaTile(64, 64, 32, epilogue="shared"),
        Form(),
        Epilogue(True, "gelu", True),
    ),
    "shared-float32": (
        CudaTile(64, 128, 32, swizzle=False, epilogue="shared", raster=1),
        Form("float16", "float32"),
        Epilogue(True, "relu", True),
    ),
    "shared-bfloat16": (
        CudaTile(32, 128, 32, 1, 4, stages=2, epilogue="shared"),
        Form("bfloat16", "bfloat16", b_transposed=True),
        Epilogue(residual=True),
    ),
    "elements": (
        CudaTile(64, 64, 32, epilogue="elements"),
        Form(b_transposed=True),
        Epilogue(True, "relu", True),
    ),
    "any": (
        CudaTile(64, 64, 32, stages=2, epilogue="elements"),
        Form(aligned=False),
        Epilogue(True, "none", True),
    ),
    "any-transposed": (
        CudaTile(64, 64, 32, stages=2, swizzle=False, epilogue="elements"),
        Form("bfloat16", "bfloat16", b_transposed=True, aligned=False),
        Epilogue(activation="gelu"),
    ),
    "any-float32": (
        CudaTile(32, 64, 32, 1, 2, stages=2, epilogue="elements", raster=1),
        Form("bfloat16", "float32", aligned=False),
        Epilogue(bias=True),
    ),
    "few-rows": (
        CudaTile(16, 64, 64, 1, 2, stages=6),
        Form(),
        Epilogue(bias=True, activation="relu"),
    ),
    "few-rows-shared": (
        CudaTile(16, 256, 64, 1, 4, stages=4, epilogue="shared"),
        Form(b_transposed=True),
        Epilogue(),
    ),
    "large": (CudaTile(128, 128, 32, stages=4), Form(), Epilogue()),
    "wide": (CudaTile(128, 256, 32, 2, 4, epilogue="shared"), Form(), Epilogue(residual=True)),
    "high": (
        CudaTile(256, 128, 32, 4, 2, swizzle=False),
        Form(b_transposed=True),
        Epilogue(activation="silu"),
    ),
    "shallow": (CudaTile(64, 64, 16, swizzle=False), Form(), Epilogue()),
}

#: Those of which each decision is also one of another's: `make test` compiles only so many.
REPEATED = {"shared-bfloat16", "any-float32", "few-rows-shared", "shallow"}

NAMES = [pytest.param(name, marks=[pytest.mark.emulator] * (name in REPEATED)) for name in KERNELS]


@cache
def kernel(name: str) -> Kernel:
    return Kernel(*KERNELS[name])


def shapes(name: str) -> list[Shape]:
    """Ragged sizes around the tile's, as far from its multiples as the form allows."""
    tile, form, _ = KERNELS[name]
    bm, bn, bk = tile.block_m, tile.block_n, tile.block_k
    k_step = 8 if form.aligned else 1
    free_n = tile.epilogue == "elements" and (form.b_transposed or not form.aligned)
    n_step = 1 if free_n else 8
    deep = bk * tile.stages + 5 * k_step
    return [
        Shape(1, 1, n_step, k_step),
        Shape(1, 1, bn + 3 * n_step, deep),
        Shape(2, bm + 13, 2 * bn - 3 * n_step, bk + k_step),
        Shape(1, bm - 1, bn - n_step, 0),
        Shape(1, 9, bn, bk),
        # a region inside, one that the result ends in, and one of several rows of tiles
        Shape(1, 2 * bm + 5, 2 * bn + n_step, 2 * bk, (3, n_step, 1, 1)),
        Shape(2, 2 * bm + 5, 2 * bn + n_step, bk - k_step, (bm + 1, bn, 2, 2)),
        Shape(1, 3 * bm - 2, 2 * bn, k_step, (0, bn, 3, 1)),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_ragged_shapes(name: str) -> None:
    for seed, shape in enumerate(shapes(name)):
        kernel(name).check(shape, seed)


@pytest.mark.parametrize("name", ["pairs", "shared", "any"])
def test_strided_operands_and_broadcast_batches(name: str) -> None:
    """Rows and batches lie apart, and one operand serves all batches."""
    shape = Shape(3, 70, 72, 40)
    form = KERNELS[name][1]
    whole = Operands.random(Shape(6, 70, 88, 56), form)
    operands = Operands(
        whole.a[::2, :, :40],
        np.broadcast_to(whole.b[:1, :40, :72], (3, 40, 72)),
        whole.bias[:72].copy(),
        whole.residual[1::2, :, 8:80] if form.aligned else whole.residual[1::2, :, 5:77],
    )
    kernel(name).check(shape, 1, operands)


@pytest.mark.parametrize("name", ["pairs", "shared", "transposed", "any"])
def test_nan_stays_in_its_row_and_column(name: str) -> None:
    shape = Shape(1, 40, 48, 72)
    tile, form, epilogue = KERNELS[name]
    operands = Operands.random(shape, form)
    operands.a[0, 3, 71] = np.nan
    operands.b[(0, 5, 0) if form.b_transposed else (0, 0, 5)] = np.inf
    result = np.full((1, 40, 48), UNTOUCHED, operands.bias.dtype)
    extras = [operands.bias] * epilogue.bias + [operands.residual] * epilogue.residual
    kernel(name)([operands.a, operands.b, *extras, result], (0, 0, 1, 1), 0)
    finite = np.isfinite(result[0].astype(np.float32))
    assert not finite[3].any()
    rows = np.arange(40) != 3
    columns = np.arange(48) != 5
    assert finite[np.ix_(rows, columns)].all()


@T.prim_func(s_tir=True)
def two_regions(a: T.handle, b: T.handle, c: T.handle):
    T.func_attr({"global_symbol": "two_regions"})
    batch, m, n, k = T.int32(), T.int32(), T.int32(), T.int32()
    A = T.match_buffer(a, (batch, m, k), "float16", align=16)
    B = T.match_buffer(b, (batch, k, n), "float16", align=16)
    C = T.match_buffer(c, (batch, m, n), "float16", align=16)
    with T.sblock("root"):
        T.reads()
        T.writes()
        whole: T.let = m // 128
        rest: T.let = m - whole * 128
        if whole > 0:
            T.evaluate(T.call_cpacked("large", A, B, C, 0, 0, whole, (n + 127) // 128))
        if rest > 0:
            small_m: T.let = (rest + 63) // 64
            small_n: T.let = (n + 63) // 64
            T.evaluate(T.call_cpacked("small", A, B, C, whole * 128, 0, small_m, small_n))


def test_a_host_function_launches_two_kernels_on_two_regions() -> None:
    """As a planner does: whole tiles by one kernel, the remaining rows by another."""
    functions = {
        "large": build(CudaTile(128, 128), Form()),
        "small": build(CudaTile(64, 64), Form()),
        "two_regions": two_regions,
    }
    module = lower(functions)
    emulated = emulate(cuda_source(module))
    for m, grids in ((300, {"large": 4, "small": 3}), (128, {"large": 2}), (30, {"small": 3})):
        operands = Operands.random(Shape(1, m, 136, 104), Form())
        result = np.full((1, m, 136), UNTOUCHED, np.float16)
        launches = run_host(module, emulated, "two_regions", [operands.a, operands.b, result], m)
        expected = operands.expected(Form(), Epilogue())
        np.testing.assert_allclose(result.astype(np.float64), expected, rtol=0, atol=0.1)
        assert {x.kernel: x.grid for x in launches} == {
            f"{name}_kernel": (tiles, 1, 1) for name, tiles in grids.items()
        }


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_fragments_meet_no_bank_conflicts(name: str) -> None:
    tile, form, _ = KERNELS[name]
    launch = kernel(name).check(Shape(1, tile.block_m, tile.block_n, tile.block_k))
    lines = kernel(name).emulated.source.splitlines()
    # padding leaves the copies of short rows some conflicts, which happen in the background
    free = ("ldmatrix", "cp_async") if tile.swizzle else ("ldmatrix",)
    conflicts = {
        lines[line - 1].strip()[:80]: count
        for line, count in launch.report.conflicts_by_line.items()
        if any(word in lines[line - 1] for word in free)
    }
    assert not conflicts


def enumeration() -> list[tuple[CudaTile, Form, Epilogue]]:
    """All shapes of tiles for sm_80, in four forms; other decisions and epilogues take turns."""
    forms = [
        Form(),
        Form("bfloat16", "float32", b_transposed=True),
        Form(aligned=False),
        Form("bfloat16", "bfloat16", b_transposed=True, aligned=False),
    ]
    found = []
    for form in forms:
        groups: dict[tuple[int, ...], list[CudaTile]] = {}
        for tile in candidates(form, "sm_80"):
            key = (tile.block_m, tile.block_n, tile.block_k, tile.warps_m, tile.warps_n)
            groups.setdefault(key, []).append(tile)
        for turn, tiles in enumerate(groups.values()):
            activation = ACTIVATIONS[turn % len(ACTIVATIONS)]
            epilogue = Epilogue(turn % 2 == 0, activation, turn % 3 == 0)
            found.append((tiles[turn % len(tiles)], form, epilogue))
    return found


def elites() -> list[tuple[CudaTile, Form, Epilogue]]:
    """The micro-kernels that operators are assembled from by the logs that ship, of any GPU."""
    found: dict[tuple[CudaTile, Form], None] = {}
    for gpu, dtype in product(GPUS.values(), gpu_logs.DTYPES):
        (contents,) = gpu_logs.contents_of(gpu, dtype, LOGS)[:1]
        for dtype_out, transposed in product((dtype, "float32"), (False, True)):
            for each in assembled(contents, dtype, dtype_out, transposed):
                found |= dict.fromkeys((tile, each.form) for tile in each.tiles)
    known = {(tile, form) for tile, form, _ in enumeration()}
    return [
        (*member, Epilogue(turn % 2 == 1, ACTIVATIONS[turn % len(ACTIVATIONS)], turn % 3 == 1))
        for turn, member in enumerate(found)
        if member not in known
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All members where they are to be run; to read the logs takes a while."""
    if "member" in metafunc.fixturenames:
        left_out = metafunc.config.getoption("markexpr") == "not emulator"
        members = [] if left_out else [*enumeration(), *elites()]
        names = [f"{form.name}-{tile.name}" for tile, form, _ in members]
        metafunc.parametrize("member", members, ids=names)


@pytest.mark.emulator
def test_every_shape_of_tile_and_every_elite(member: tuple[CudaTile, Form, Epilogue]) -> None:
    tile, form, _ = member
    compiled = Kernel(*member)
    step = 8 if form.aligned else 1
    if form.aligned and form.b_transposed and tile.single:
        compiled.check(Shape(1, 17, tile.block_n - 3, tile.block_k))
    deep = tile.block_k * tile.stages + step
    compiled.check(Shape(1, tile.block_m + 7, tile.block_n + step * 8, deep), 1)
    compiled.check(Shape(2, 1, tile.block_n - 3 * step, step), 2)
