"""Kernels as TVM prints them, emulated: right as they are, rejected when broken.

A broken kernel is the printed source with one edit. It must end in a fault or give a wrong result.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tvm
from cuda_emulator import Emulated, Fault, Launch, emulate, missing_compiler, run_host
from tvm import relax, tirx
from tvm.s_tir import dlight

from bench.gpu.runner.reference import activate
from tvm_moonpoly.microkernels.cuda import CudaTile, Epilogue, Form, build, cuda_source, lower

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
# Half a unit in the last place, relative.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
CANARY = 77

Kernel = tuple[CudaTile, Form, Epilogue]

KERNELS: dict[str, Kernel] = {
    "plain": (CudaTile(64, 64, 32, 2, 2, stages=3), Form(), Epilogue()),
    "through_shared": (
        CudaTile(32, 64, 64, 1, 2, stages=3, epilogue="shared"),
        Form(dtype_out="float32", b_transposed=True),
        Epilogue(activation="silu"),
    ),
    "bfloat16": (
        CudaTile(64, 64, 32, 2, 2, stages=4, swizzle=False),
        Form("bfloat16", "bfloat16", b_transposed=True),
        Epilogue(bias=True, activation="gelu", residual=True),
    ),
}
SHAPES = [(1, 8, 8), (1, 64, 200), (64, 64, 32), (65, 72, 96), (77, 136, 160), (130, 200, 40)]


@pytest.fixture(scope="module")
def module() -> tvm.runtime.Module:
    return lower({name: build(*kernel) for name, kernel in KERNELS.items()})


@pytest.fixture(scope="module")
def device(module: tvm.runtime.Module) -> Emulated:
    return emulate(cuda_source(module))


@pytest.fixture(scope="module")
def plain() -> tvm.runtime.Module:
    """The plain product alone: less to compile for each mutant."""
    return lower({"plain": build(*KERNELS["plain"])})


def check_product(
    module: tvm.runtime.Module,
    device: Emulated,
    name: str,
    shape: tuple[int, int, int],
    seed: int = 0,
) -> list[Launch]:
    """Runs a product in regions of at most one tile of rows and two of columns, against float64.

    Raises AssertionError where an element is off by more than rounding explains.
    """
    tile, form, epilogue = KERNELS[name]
    (m, n, k), batch = shape, 2
    rng = np.random.default_rng(seed)

    def values(dtype: str, *dims: int) -> np.ndarray:
        return rng.standard_normal(dims).astype(DTYPES[dtype])

    a = values(form.dtype_in, batch, m, k)
    b = values(form.dtype_in, batch, *((n, k) if form.b_transposed else (k, n)))
    wide_b = b.astype(np.float64)
    wide_b = wide_b.transpose(0, 2, 1) if form.b_transposed else wide_b
    exact = a.astype(np.float64) @ wide_b
    size = np.abs(a.astype(np.float64)) @ np.abs(wide_b)
    extras = []
    if epilogue.bias:
        extras.append(values(form.dtype_out, n))
    if epilogue.residual:
        extras.append(values(form.dtype_out, batch, m, n))
    for extra in extras:
        exact, size = exact + extra.astype(np.float64), size + np.abs(extra.astype(np.float64))
    exact = activate(epilogue.activation, exact)
    # One row more, which nothing may write.
    c = np.full((batch, m + 1, n), CANARY, DTYPES[form.dtype_out])
    launches = []
    for m0 in range(0, m, tile.block_m):
        for n0 in range(0, n, 2 * tile.block_n):
            tiles_n = min(2, -(-(n - n0) // tile.block_n))
            args = [a, b, *extras, c[:, :m], m0, n0, 1, tiles_n]
            launches += run_host(module, device, name, args, seed=seed + m0 + n0)
    # float32 sums of k exact products, an activation whose slope is below 1.2, one last rounding.
    bound = 1.2 * (k + 8) * 2.0**-24 * size + UNIT[form.dtype_out] * np.abs(exact) + 2.0**-25
    error = np.abs(c[:, :m].astype(np.float64) - exact)
    assert (error <= bound).all(), f"wrong result: off by {(error / bound).max()} bounds"
    assert (c[:, m] == CANARY).all(), "wrong result: writes behind the last row"
    return launches


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product(
    module: tvm.runtime.Module, device: Emulated, name: str, shape: tuple[int, int, int]
) -> None:
    for seed in range(3):
        check_product(module, device, name, shape, seed)


def test_launches_are_those_of_the_host(module: tvm.runtime.Module, device: Emulated) -> None:
    tile = KERNELS["plain"][0]
    (launch,) = check_product(module, device, "plain", (40, 128, 64))
    assert (launch.grid, launch.block) == ((2, 1, 2), (32, 2, 2))
    assert launch.dynamic_shared_bytes == tile.stages * (64 + 64) * 32 * 2
    blocks, steps = 4, 2
    warp_tiles = 64 * 64 * 32 // (16 * 8 * 16)
    assert launch.report.mma == blocks * steps * warp_tiles
    assert launch.report.bank_conflicts == 0, launch.report.conflicts_by_line
    assert len(module.imports) == 1, "the CUDA module is back in its place"


def test_padded_rows_meet_banks_once(module: tvm.runtime.Module, device: Emulated) -> None:
    (launch,) = check_product(module, device, "bfloat16", (64, 64, 64))
    text = device.source.splitlines()
    for line in launch.report.conflicts_by_line:
        assert "ldmatrix" not in " ".join(text[line - 1 : line + 3])


def dlight_module(operator: Callable[[relax.Var], relax.Expr]) -> tuple[tvm.runtime.Module, str]:
    """An operator on float16 (n, 100) as dlight schedules it, and the name of its host function."""
    target = tvm.target.Target(
        {
            "kind": "cuda",
            "arch": "sm_80",
            "max_shared_memory_per_block": 48 << 10,
            "max_threads_per_block": 1024,
            "thread_warp_size": 32,
            "host": {"kind": "llvm"},
        }
    )
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 100), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(operator(x)))
    with target:
        module = relax.transform.LegalizeOps()(builder.get())
        rules = dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(), dlight.gpu.Fallback()
        module = dlight.ApplyDefaultSchedule(*rules)(module)
        ((name, func),) = (
            (var.name_hint, func)
            for var, func in module.functions.items()
            if isinstance(func, tirx.PrimFunc)
        )
        func = func.with_attr("global_symbol", name)
        compiled = tvm.compile(tvm.IRModule({name: func}), target=target)
    return compiled.mod, name


@pytest.mark.parametrize("rows", [1, 37])
def test_reductions_of_dlight(rows: int) -> None:
    """Shuffles, static shared memory, threads without work: other than what the products have."""
    module, name = dlight_module(relax.op.nn.softmax)
    device = emulate(cuda_source(module))
    assert "__shfl_down_sync" in device.source and "__shared__" in device.source
    x = np.random.default_rng(rows).standard_normal((rows, 100)).astype(np.float16)
    exact = np.exp(x.astype(np.float64))
    exact /= exact.sum(-1, keepdims=True)
    for seed in range(3):
        out = np.full((rows, 100), CANARY, np.float16)
        (launch,) = run_host(module, device, name, [x, out], seed)
        assert launch.grid == (rows, 1, 1)
        # Sums in float16: a rounding for each of 7 levels and of 4 terms a thread, and the rest.
        assert (np.abs(out - exact) <= 16 * UNIT["float16"] * exact).all()


Edit = Callable[[str], str]


def replace(pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Edit:
    """The edit that replaces all matches."""
    return lambda source: re.sub(pattern, replacement, source, flags=re.MULTILINE)


def in_lines(marker: str, pattern: str, replacement: str) -> Edit:
    """The edit of the lines that contain `marker`."""

    def edit(source: str) -> str:
        lines = source.split("\n")
        return "\n".join(
            re.sub(pattern, replacement, line) if marker in line else line for line in lines
        )

    return edit


WAIT = r"tvm_builtin_ptx_cp_async_wait_group_async_wait_group_\d+\(\);"
MUTANTS: dict[str, Edit] = {
    "no wait": replace(WAIT, ""),
    "waits for one group less": replace(
        r'"cp\.async\.wait_group (\d+);"',
        lambda match: f'"cp.async.wait_group {int(match.group(1)) + 1};"',
    ),
    "no barrier": replace(r"__syncthreads\(\);", ""),
    "the barrier before the wait": replace(
        rf"({WAIT})\s*__syncthreads\(\);", r"__syncthreads(); \1"
    ),
    "copies into the stage that is read": in_lines("cp_async", r"\+ 2\) % 3\)", "+ 3) % 3)"),
    "no predicate for the rows of A": in_lines(" A_ptr, ", r"< M\)", "< M + 4096)"),
    "no predicate for the depth": in_lines("cp_async", r"< K\)", "< K + 4096)"),
    "no predicate for the rows of C": replace(r"^( *if \(.*)< M\)", r"\1< M + 4096)"),
    "a swizzle on one side": in_lines("__cvta_generic_to_shared((", r"\^", "+ 0 *"),
    "a wrong row of the region": in_lines(" A_ptr, ", r"\+ m0\) \*", "+ 0) *"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(plain: tvm.runtime.Module, name: str) -> None:
    source = cuda_source(plain)
    mutant = MUTANTS[name](source)
    assert mutant != source, "the edit found nothing to edit"
    device = emulate(mutant)
    for seed in range(3):
        with pytest.raises((Fault, AssertionError)) as caught:
            check_product(plain, device, "plain", (77, 200, 168), seed)
        assert isinstance(caught.value, Fault) or "wrong result" in str(caught.value)
