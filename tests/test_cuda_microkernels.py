"""CUDA micro-kernels without a GPU: parameters, sources, machine code, occupancy.

What the kernels compute is in test_cuda_kernels_emulated.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from tvm_moonpoly.microkernels.cuda import (
    ARCHITECTURES,
    GPUS,
    CudaTile,
    Epilogue,
    Form,
    Requirements,
    Resources,
    architecture,
    build,
    candidates,
    cuda_source,
    find_nvcc,
    host_module,
    kernel_name,
    lower,
    occupancy,
    position,
    ptx,
    requirements,
    resources,
    shared_bytes,
    space,
)
from tvm_moonpoly.microkernels.cuda.form import FORMS
from tvm_moonpoly.microkernels.cuda.resources import parse

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")

#: A spread of tiles and forms: the large and the small, each path, each layout, each dtype.
MEMBERS = [
    (CudaTile(128, 128), Form(), Epilogue()),
    (CudaTile(128, 256, 32, 2, 4, epilogue="shared"), Form(), Epilogue(bias=True)),
    (
        CudaTile(64, 64, 32, stages=4),
        Form("bfloat16", "bfloat16", b_transposed=True),
        Epilogue(True, "gelu_tanh", True),
    ),
    (
        CudaTile(16, 64, 64, 1, 2, stages=6, epilogue="elements"),
        Form(b_transposed=True),
        Epilogue(True, "silu"),
    ),
    (
        CudaTile(64, 128, 32, 2, 2, swizzle=False, epilogue="shared"),
        Form("bfloat16", "float32"),
        Epilogue(False, "relu", True),
    ),
    (
        CudaTile(64, 64, 32, stages=2, epilogue="elements"),
        Form(aligned=False),
        Epilogue(True, "gelu", True),
    ),
]

NAMES = [kernel_name(*member) for member in MEMBERS]


@pytest.fixture(scope="module")
def source() -> str:
    """The CUDA source of all members, compiled as one module."""
    functions = {
        name: build(*member, shared_limit=architecture("sm_80").block_shared_bytes)
        for name, member in zip(NAMES, MEMBERS, strict=True)
    }
    return cuda_source(lower(functions, "sm_80"))


# Nothing pays for tvm's own intrinsics.

_FRESH = """
import sys
import tvm
from tvm import relax
from tvm.script import relax as R
from tvm.script import ir as I
import tvm_moonpoly as mp
from tvm_moonpoly.microkernels import cuda

@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y

if sys.argv[1] == "cpu":
    target = mp.detect_target()
    tvm.compile(Model, target, relax_pipeline=mp.pipeline(target))
else:
    form = cuda.Form("bfloat16", "bfloat16")
    cuda.lower({"kernel": cuda.build(cuda.CudaTile(64, 64), form)})
loaded = [name for name in sys.modules if name.startswith("tvm.s_tir.tensor_intrin")]
assert not loaded, loaded
print("done")
"""


@pytest.mark.parametrize("what", ["cpu", "cuda"])
def test_compiling_does_not_import_tvms_intrinsics(what: str, tmp_path) -> None:
    script = tmp_path / "fresh.py"  # TVMScript reads its source from a file
    script.write_text(_FRESH)
    command = [sys.executable, str(script), what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr[-2000:]


# Sources and machine code.


def test_one_module_holds_a_kernel_of_each_name(source: str) -> None:
    defined = re.findall(r"__global__ void __launch_bounds__\((\d+)\) (\w+)\([^)]*\) \{", source)
    threads = {f"{name}_kernel": m[0].threads for name, m in zip(NAMES, MEMBERS, strict=True)}
    assert {name: int(bound) for bound, name in defined} == threads


def test_the_host_part_alone_has_the_functions_and_no_kernels() -> None:
    name = NAMES[0]
    module = host_module({name: build(*MEMBERS[0])})
    assert not module.imports
    assert module.get_function(name) is not None
    with pytest.raises(ValueError, match="imports no CUDA module"):
        cuda_source(module)


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nothing_is_spilled(source: str, arch: str) -> None:
    found = resources(source, arch)
    assert set(found) == {f"{name}_kernel" for name in NAMES}
    for name, member in zip(NAMES, MEMBERS, strict=True):
        used = found[f"{name}_kernel"]
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0), name
        assert used.shared_bytes == 0  # all of it is dynamic
        assert member[0].accumulators < used.registers <= 255
        limits = architecture(arch)
        shared = shared_bytes(*member[:2])
        assert occupancy(used.registers, shared, member[0].threads, limits).blocks >= 1


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_86", "sm_89"])
def test_the_small_gpus_architectures_compile(arch: str) -> None:
    tile = CudaTile(64, 64)
    function = build(tile, Form(), shared_limit=architecture(arch).block_shared_bytes)
    (used,) = resources(cuda_source(lower({"kernel": function}, arch)), arch).values()
    assert used.spill_stores == used.stack == 0


@needs_nvcc
def test_ptx_holds_the_instructions_that_the_tile_promises(source: str) -> None:
    text = ptx(source, "sm_80")
    for name, (tile, form, _) in zip(NAMES, MEMBERS, strict=True):
        body = text[text.index(f".entry {name}_kernel(") :].split(".entry ")[1]
        steps = tile.block_k // 16
        rows, columns = tile.warp_m // 16, tile.warp_n // 16
        kind = "bf16" if form.dtype_in == "bfloat16" else "f16"
        # the products are written once, in a loop over all steps of the reduction
        mma = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
        assert body.count(mma) == body.count("mma.sync") == 2 * rows * columns * steps, name
        assert body.count("ldmatrix.sync.aligned.m8n8.x4") == (rows + columns) * steps, name
        transposed = columns * steps * (not form.b_transposed)
        assert body.count("ldmatrix.sync.aligned.m8n8.x4.trans") == transposed, name
        chunks = (tile.block_m + tile.block_n) * tile.block_k // 8 // tile.threads
        copies = len(re.findall(r"cp\.async\.cg\.shared\.global \[\S+\], \[\S+\], 16;", body))
        # the prologue's steps, and the one in the loop
        assert copies == (chunks * tile.stages if form.aligned else 0), name
        assert ("cp.async" in body) == form.aligned, name
        assert ("st.global.v4" in body) == (tile.epilogue == "shared"), name
        assert ("st.global.v2" in body) == (tile.epilogue == "pairs"), name


def test_reports_of_ptxas_are_read() -> None:
    report = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a_kernel' for 'sm_80'
ptxas info    : Function properties for a_kernel
    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 72 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'b_kernel' for 'sm_80'
ptxas info    : Function properties for b_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, 400 bytes cmem[0]
"""
    assert parse(report) == {
        "a_kernel": Resources(72, 1024, 16, 24, 8),
        "b_kernel": Resources(40, 0, 0, 0, 0),
    }


@needs_nvcc
def test_source_that_nvcc_refuses_is_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match="nvcc: sm_80: .*undefined"):
        resources('extern "C" __global__ void f() { nothing(); }', "sm_80")


def test_a_missing_nvcc_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="nvcc: not found on PATH"):
        resources("", "sm_80")


# Parameters and their rules.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_m": 48}, r"block_m: must be one of \(16, 32, 64, 128, 256\), got 48"),
        ({"block_n": 16}, "block_n: must be one of"),
        ({"block_k": 8}, "block_k: must be one of"),
        ({"stages": 9}, r"stages: must be in 1\.\.8, got 9"),
        ({"warps_m": 0}, r"warps_m: must be in 1\.\.8, got 0"),
        ({"warps_m": 8, "warps_n": 4}, "at most 16 warps a block, got 8x4"),
        ({"warps_m": 8}, "warps_m: block_m = 64 must divide into 8 warp tiles"),
        ({"block_m": 256, "block_n": 256, "warps_n": 1}, "needs 1024 accumulators a thread"),
        ({"block_m": 16, "warps_m": 1, "warps_n": 4}, "a step of A, 16x32, must be a multiple"),
        ({"block_k": 16}, "swizzle: needs a block_k of 32, 64 or 128, got 16"),
        ({"epilogue": "direct"}, "epilogue: must be one of"),
        ({"raster": 0}, "raster: must be at least 1, got 0"),
    ],
)
def test_bad_tiles_are_clear_errors(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(CudaTile(64, 64), **changes)


@pytest.mark.parametrize(
    ("tile", "form", "words"),
    [
        (CudaTile(64, 64, stages=2), Form(aligned=False), "stores single elements, got 'pairs'"),
        (
            CudaTile(64, 64, epilogue="elements"),
            Form(aligned=False),
            "one step in shared memory and one in registers, so 2; got 3",
        ),
        (CudaTile(64, 64, stages=1), Form(), "which takes at least 2"),
        (
            CudaTile(128, 128, 64, stages=4),
            Form(),
            "needs 131072 bytes of shared memory, a block may have 101376",
        ),
    ],
)
def test_tiles_that_do_not_go_with_a_form_are_clear_errors(
    tile: CudaTile, form: Form, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        build(tile, form)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Form("float32"), "dtype_in: must be one of"),
        (lambda: Form("bfloat16", "float16"), r"dtype_out: must be dtype_in \(bfloat16\)"),
        (lambda: Epilogue(activation="tanh"), "activation: must be one of"),
        (lambda: candidates(Form(), "sm_75"), "arch: must be one of sm_80, sm_86, sm_89, sm_90"),
    ],
)
def test_bad_forms_are_clear_errors(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_requirements_say_what_a_call_must_keep() -> None:
    pairs, shared = CudaTile(64, 64), CudaTile(64, 64, epilogue="shared")
    assert requirements(pairs, Form()) == Requirements(8, 8, 8, 2, 16, 4)
    assert requirements(pairs, Form(b_transposed=True)) == Requirements(8, 2, 8, 2, 16, 4)
    assert requirements(shared, Form(dtype_out="float32", b_transposed=True)) == Requirements(
        8, 4, 8, 4, 16, 16
    )
    free = CudaTile(64, 64, stages=2, epilogue="elements")
    assert requirements(free, Form(aligned=False)) == Requirements(1, 1, 1, 1, 2, 2)


def test_names_are_stable_and_tell_members_apart() -> None:
    tile = CudaTile(128, 64, 32, 2, 2, 4, True, "shared", 4)
    form = Form("bfloat16", "float32", b_transposed=True)
    name = kernel_name(tile, form, Epilogue(True, "gelu", True))
    assert name == ("moonpoly_bf16_f32_nt_128x64x32_w2x2_s4_shared_r4_bias_residual_gelu")
    assert str(build(tile, form, Epilogue(True, "gelu", True)).attrs["global_symbol"]) == name
    members = [(t, f) for f in (Form(), Form(aligned=False)) for t in candidates(f, "sm_80")]
    assert len({kernel_name(*member) for member in members}) == len(members)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("form", [Form(), Form(b_transposed=True), Form(aligned=False)])
def test_candidates_fit_their_gpu_and_span_the_family(arch: str, form: Form) -> None:
    tiles = candidates(form, arch)
    assert len(set(tiles)) == len(tiles)
    limits = architecture(arch)
    assert all(shared_bytes(tile, form) <= limits.block_shared_bytes for tile in tiles)
    options = space(form)
    for tile in tiles:
        assert all(getattr(tile, name) in values for name, values in options.items())
    blocks = {(tile.block_m, tile.block_n) for tile in tiles}
    expected = {(16, 64), (32, 64), (64, 64), (64, 128), (128, 64)}
    if form.aligned:
        expected |= {(128, 128), (128, 256), (256, 128), (64, 256)}
    assert expected <= blocks


# The grid.


@pytest.mark.parametrize("group", [1, 4, 8])
def test_the_raster_visits_every_tile_once(group: int) -> None:
    for tiles_m, tiles_n in ((1, 1), (1, 9), (9, 1), (8, 5), (13, 7), (3, 4)):
        order = [position(b, tiles_m, tiles_n, group) for b in range(tiles_m * tiles_n)]
        assert sorted(order) == [(i, j) for i in range(tiles_m) for j in range(tiles_n)]


def test_the_raster_goes_down_a_group_of_rows_first() -> None:
    order = [position(b, 5, 3, 2) for b in range(15)]
    assert order[:6] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert order[-3:] == [(4, 0), (4, 1), (4, 2)]


# Occupancy and the facts about GPUs.


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "threads", "blocks", "limit"),
    [
        # 205 registers are 26 units of 256 a warp, 2 warps in each of 4 quarters: 8 warps
        ("sm_80", 205, 48 << 10, 128, 2, "registers"),
        # 168 registers are 21 units a warp, 3 warps a quarter: 12 warps, 3 blocks of 4
        ("sm_90", 168, 32 << 10, 128, 3, "registers"),
        # 32 registers: 64 warps of registers and of threads
        ("sm_80", 32, 0, 256, 8, "registers"),
        # 48 warps of threads where 64 would have registers
        ("sm_86", 32, 0, 256, 6, "threads"),
        ("sm_89", 40, 0, 1024, 1, "registers"),
        # 48 KiB and the system's 1 KiB: 3 of them in 164 KiB, 2 in 100 KiB
        ("sm_80", 64, 48 << 10, 128, 3, "shared memory"),
        ("sm_86", 64, 48 << 10, 128, 2, "shared memory"),
        ("sm_80", 64, 163 << 10, 128, 1, "shared memory"),
        ("sm_80", 64, (163 << 10) + 1, 128, 0, "shared memory"),
        # small blocks: as many as a multiprocessor has places for
        ("sm_80", 32, 0, 32, 32, "blocks"),
        ("sm_86", 32, 0, 32, 16, "blocks"),
        ("sm_89", 32, 0, 32, 24, "blocks"),
        ("sm_90", 32, 0, 2048, 0, "registers"),
    ],
)
def test_occupancy_of_worked_examples(
    arch: str, registers: int, shared: int, threads: int, blocks: int, limit: str
) -> None:
    found = occupancy(registers, shared, threads, architecture(arch))
    assert (found.blocks, found.limit) == (blocks, limit)


def test_occupancy_refuses_what_is_no_kernel() -> None:
    with pytest.raises(ValueError, match="registers, shared_bytes, threads: must be positive"):
        occupancy(0, 0, 32, architecture("sm_80"))


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("nvidia-a100", 312.0),
        ("nvidia-h100", 989.4),
        ("nvidia-h200", 989.4),
        ("nvidia-rtx4090", 165.2),
        ("nvidia-rtx3090", 71.0),
    ],
)
def test_facts_agree_with_the_peaks_that_datasheets_give(name: str, peak: float) -> None:
    gpu = GPUS[name]
    assert gpu.peak_tflops == pytest.approx(peak, rel=0.01)
    target = gpu.target()
    assert target.kind.name == "cuda"
    assert target.attrs["arch"] == gpu.arch
    assert int(target.attrs["max_shared_memory_per_block"]) == 48 << 10
    assert target.host.kind.name == "llvm"


def test_a_tile_is_found_by_its_name():
    for form in FORMS:
        for tile in candidates(form, "sm_80"):
            assert CudaTile.named(tile.name) == tile
    for name in ("", "64x64", "64x64x32_w2x2_s3_pairs_r8 ", "1x64x32_w2x2_s3_pairs_r8"):
        with pytest.raises(ValueError, match="name: .* is not the name of a tile|block_m: must be"):
            CudaTile.named(name)
