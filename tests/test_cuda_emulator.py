"""The emulator of CUDA kernels, feature by feature: known answers, and faults that it must see."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cuda_emulator import Emulated, Fault, TranslationError, emulate, missing_compiler

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

BFLOAT16 = ml_dtypes.bfloat16
_SOURCE = (Path(__file__).parent / "cuda_features.cu").read_text()


@pytest.fixture(scope="module")
def device() -> Emulated:
    """All kernels of cuda_features.cu; mma_half once more for bfloat16."""
    begin = _SOURCE.index('extern "C" __global__ void mma_half')
    mma = _SOURCE[begin : _SOURCE.index("// cp.async:")]
    bfloat = mma.replace("half", "nv_bfloat16").replace(".f16.f16", ".bf16.bf16")
    return emulate(_SOURCE + bfloat)


def fault(device: Emulated, *launch: object, **options: int) -> str:
    """The sentence of the fault that the launch must have."""
    with pytest.raises(Fault) as caught:
        device.launch(*launch, **options)
    return str(caught.value)


def halves(shape: tuple[int, ...], seed: int = 0, dtype: type = np.float16) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Threads, blocks, arguments.


def test_geometry(device: Emulated) -> None:
    out = np.full(2 * 3 * 4 * 5 * 3 * 2, -1, np.int32)
    device.launch("geometry", (2, 3, 4), (5, 3, 2), 0, [out], seed=3)
    blocks, threads = np.arange(24)[:, None], np.arange(30)[None]
    np.testing.assert_array_equal(out, (blocks * 10000 + threads).ravel())


def test_scalars(device: Emulated) -> None:
    out = np.zeros(6)
    device.launch("scalars", (1,), (1,), 0, [out, -7, 1 << 40, 0.1, 1 / 3, True, 200])
    np.testing.assert_array_equal(out, [-7, 1 << 40, np.float32(0.1), np.float16(1 / 3), 1, 200])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([np.zeros(6)], "takes 7 arguments, not 1"),
        ([1, 0, 0, 0, 0, 0, 0], "argument out is a pointer, got 1"),
        ([np.zeros(6, np.float32), 0, 0, 0, 0, 0, 0], "elements of 8 bytes"),
        ([np.zeros((6, 2))[:, 0], 0, 0, 0, 0, 0, 0], "C-contiguous"),
        ([np.zeros(6), np.zeros(1), 0, 0, 0, 0, 0], "argument a is a number, got an array"),
        ([np.zeros(6), 1 << 31, 0, 0, 0, 0, 0], "2147483648 does not fit int"),
    ],
)
def test_arguments_that_do_not_fit(device: Emulated, args: list[object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        device.launch("scalars", (1,), (1,), 0, args)


def test_launches_that_are_not_possible(device: Emulated) -> None:
    out = np.zeros(64, np.float32)
    assert "1 to 64 are possible" in fault(device, "bounded", (1,), (65,), 0, [out])
    assert "1 to 1024 are possible" in fault(device, "never_written", (1,), (32, 33), 0, [out])
    assert "a grid of (0, 1, 1)" in fault(device, "bounded", (0,), (64,), 0, [out])
    assert "a grid of (1, 65536, 1)" in fault(device, "bounded", (1, 65536), (64,), 0, [out])
    assert "shared memory" in fault(device, "bounded", (1,), (64,), 1 << 20, [out])
    with pytest.raises(ValueError, match="'gone' is not among"):
        device.launch("gone", (1,), (1,), 0, [])


def test_seeds_shuffle_blocks_and_warps(device: Emulated) -> None:
    def order(seed: int) -> list[int]:
        result = np.full(16, -1, np.int32)
        device.launch("tickets", (4,), (128,), 0, [np.zeros(1, np.int32), result], seed=seed)
        assert sorted(result) == list(range(16))
        return result.tolist()

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(4)}) == 4


def test_a_thread_that_never_stops(device: Emulated) -> None:
    assert "it never ends" in fault(device, "endless", (1,), (1,), 0, [np.zeros(1, np.int32)])


# Plain accesses.


def test_vectors_of_16_bytes(device: Emulated) -> None:
    source, target = halves((264,)), np.zeros(264, np.float16)
    device.launch("copy_vectors", (1,), (32,), 0, [source, target, 8, 0])
    np.testing.assert_array_equal(target, [*source[8:], *[0] * 8])


def test_bounds_and_alignment_of_arguments(device: Emulated) -> None:
    source, target = halves((256,)), np.zeros(256, np.float16)
    for args, words in [
        ([source, target, 8, 0], "reads 16 bytes at byte 512 of argument in, which has 512 bytes"),
        ([source, target, -8, 0], "reads 16 bytes at byte -16 of argument in"),
        ([source, target, 0, 8], "writes 16 bytes at byte 512 of argument out"),
        ([source, target, 4, 0], "misaligned: reads 16 bytes at byte 8 of argument in"),
        ([source[:249], target, 0, 0], "reads 16 bytes at byte 496 of argument in, which has 498"),
    ]:
        sentence = fault(device, "copy_vectors", (1,), (32,), 0, args)
        assert words in sentence
        assert "`*(uint4*)(out + to + threadIdx.x * 8) =" in sentence
    assert "thread (31, 0, 0) of block (0, 0, 0)" in fault(
        device, "copy_vectors", (1,), (32,), 0, [source, target[:-8], 0, 0]
    )


def test_arrays_of_a_thread(device: Emulated) -> None:
    out = np.zeros(32, np.float32)
    device.launch("local_array", (1,), (32,), 0, [out, 4])
    assert (out == 3).all()
    device.launch("local_array", (1,), (32,), 0, [out, 3])
    assert np.isnan(out).all(), "what was never written is NaN"
    words = "writes 4 bytes at byte 16 of values, which has 16 bytes"
    assert words in fault(device, "local_array", (1,), (32,), 0, [out, 5])


def test_blocks_that_write_the_same(device: Emulated) -> None:
    out = np.zeros(127, np.float32)
    device.launch("overlapping", (3,), (32,), 0, [out, 32])
    sentence = fault(device, "overlapping", (3,), (32,), 0, [out, 31])
    assert "race: writes byte" in sentence and "which another block wrote" in sentence
    total = np.zeros(1, np.float32)
    device.launch("sums", (3,), (32,), 0, [np.arange(96, dtype=np.float32), total])
    assert total[0] == 95 * 48


# Shared memory and barriers.


def test_static_and_dynamic_shared_memory(device: Emulated) -> None:
    data = np.arange(64, dtype=np.float32)
    report = device.launch("reverse", (1,), (64,), 256, [data, 1], seed=1)
    np.testing.assert_array_equal(data, (64 - np.arange(64)) * 2)
    assert (report.barriers, report.bank_conflicts) == (1, 0)
    words = "writes 4 bytes at byte 252 of dynamic shared memory, which has 252 bytes"
    assert words in fault(device, "reverse", (1,), (64,), 252, [data, 1])


@pytest.mark.parametrize("seed", range(4))
def test_races(device: Emulated, seed: int) -> None:
    data = np.arange(64, dtype=np.float32)
    sentence = fault(device, "reverse", (1,), (64,), 256, [data, 0], seed=seed)
    assert "nothing has written" in sentence or "no barrier in between" in sentence
    device.launch("overwrite", (1,), (64,), 0, [data, 1], seed=seed)
    sentence = fault(device, "overwrite", (1,), (64,), 0, [data, 0], seed=seed)
    assert "race: " in sentence and "with no barrier in between" in sentence


def test_the_lanes_of_a_warp_need_syncwarp(device: Emulated) -> None:
    data = np.arange(64, dtype=np.float32)
    device.launch("within_warp", (1,), (64,), 0, [data, 1], seed=2)
    np.testing.assert_array_equal(data, np.arange(64) ^ 1)
    assert "nothing has written" in fault(device, "within_warp", (1,), (64,), 0, [data, 0])


def test_memory_that_nothing_wrote(device: Emulated) -> None:
    sentence = fault(device, "never_written", (1,), (32,), 128, [np.zeros(32, np.float32)])
    assert "poisoned: reads byte 0 of dynamic shared memory, which nothing has written" in sentence


def test_barrier_divergence(device: Emulated) -> None:
    device.launch("some_skip_barrier", (1,), (64,), 0, [0])
    for skipping in (1, 32):
        sentence = fault(device, "some_skip_barrier", (1,), (64,), 0, [skipping])
        assert f"barrier divergence (deadlock): {skipping} of 64 threads ended" in sentence
    device.launch("two_barriers", (1,), (64,), 0, [64])
    assert "barrier divergence: thread" in fault(device, "two_barriers", (1,), (64,), 0, [32])


@pytest.mark.parametrize(("stride", "passes"), [(1, 1), (2, 2), (3, 1), (4, 4), (32, 32), (33, 1)])
def test_bank_conflicts_of_words(device: Emulated, stride: int, passes: int) -> None:
    report = device.launch("strided", (1,), (32,), 4096 * 2, [np.zeros(32, np.float32), stride])
    assert report.bank_conflicts == 2 * (passes - 1)  # one write, one read
    assert len(report.conflicts_by_line) == (0 if passes == 1 else 2)


@pytest.mark.parametrize(("stride", "passes"), [(4, 1), (8, 2), (16, 4), (32, 8), (36, 1)])
def test_bank_conflicts_of_vectors(device: Emulated, stride: int, passes: int) -> None:
    out = np.zeros(32, np.float32)
    report = device.launch("strided_vectors", (1,), (32,), 8192, [out, stride])
    assert (out == 4).all()
    assert report.bank_conflicts == 2 * 4 * (passes - 1)  # in four quarters of the warp


def test_a_word_for_all_lanes_is_no_conflict(device: Emulated) -> None:
    report = device.launch("broadcast", (1,), (32,), 0, [np.zeros(32, np.float32)])
    assert report.bank_conflicts == 0


# Tensor cores.


def words_of(tile: np.ndarray, transposed: bool) -> np.ndarray:
    """What ldmatrix gives of (matrices, 8, 8): (matrices, 32) words."""
    if transposed:
        tile = tile.transpose(0, 2, 1)
    return np.ascontiguousarray(tile).view(np.uint32).reshape(len(tile), 32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("pitch", "conflicts"), [(16, 0), (32, 4), (64, 12), (128, 28), (144, 0)])
def test_ldmatrix_x4(device: Emulated, transposed: bool, pitch: int, conflicts: int) -> None:
    tile, out = halves((4, 8, 8)), np.zeros((4, 32), np.uint32)
    args = [tile, out, pitch, int(transposed)]
    report = device.launch("ldmatrix_x4", (1,), (32,), 32 * pitch, args)
    np.testing.assert_array_equal(out, words_of(tile, transposed))
    assert report.ldmatrix == 1
    line = max(report.conflicts_by_line)  # the writes of the tile come before
    assert report.conflicts_by_line[line] == conflicts or conflicts == 0


def test_ldmatrix_x1_and_x2(device: Emulated) -> None:
    tile, out = halves((4, 8, 8), 1), np.zeros((3, 32), np.uint32)
    device.launch("ldmatrix_x1_x2", (1,), (32,), 1024, [tile, out])
    rows = tile.reshape(32, 8)
    expected = words_of(np.stack([rows[:8], rows[1:9], rows[9:17]]), False)
    np.testing.assert_array_equal(out, expected)


def test_ldmatrix_addresses(device: Emulated) -> None:
    tile, out = halves((4, 8, 8)), np.zeros((4, 32), np.uint32)
    assert "misaligned: ldmatrix at byte 24" in fault(
        device, "ldmatrix_x4", (1,), (32,), 1024, [tile, out, 24, 0]
    )
    assert "(deadlock): it waits at ldmatrix, while lane 16 has ended" in fault(
        device, "ldmatrix_half_warp", (1,), (32,), 512, [np.zeros(32, np.uint32)]
    )


@pytest.mark.parametrize(
    ("kernel", "dtype"), [("mma_half", np.float16), ("mma_nv_bfloat16", BFLOAT16)]
)
def test_mma(device: Emulated, kernel: str, dtype: type) -> None:
    a, b = halves((16, 16), 1, dtype), halves((16, 8), 2, dtype)
    start = halves((16, 8), 3, np.float32)
    c = start.copy()
    report = device.launch(kernel, (1,), (32,), 0, [a, b, c])
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    bound = 17 * 2.0**-24 * (np.abs(wide_a) @ np.abs(wide_b) + np.abs(start))
    assert (np.abs(c - (wide_a @ wide_b + start)) <= bound).all()
    assert report.mma == 1


# cp.async.


def test_waiting_for_copies(device: Emulated) -> None:
    source = halves((256,), 5, np.float32)

    def run(mode: int, group: int, neighbour: int = 0) -> None:
        out = np.zeros(128, np.float32)
        args = [source, out, mode, group, neighbour]
        device.launch("two_groups", (1,), (32,), 1024, args)
        np.testing.assert_array_equal(out, source[128 * group :][:128])

    run(mode=0, group=0)
    run(mode=0, group=1)
    run(mode=1, group=0)
    run(mode=3, group=0)
    run(mode=3, group=1)
    run(mode=4, group=0)
    for mode, group in [(1, 1), (2, 0), (2, 1), (4, 1)]:  # the last: never committed
        with pytest.raises(Fault, match="nobody has waited for that copy"):
            run(mode, group)
    with pytest.raises(Fault, match="poisoned: reads|race: reads"):
        run(mode=0, group=0, neighbour=1)


def test_sizes_of_copies_and_zeros(device: Emulated) -> None:
    source, out = halves((64,), 6), np.full(16, 9, np.float16)
    device.launch("copy_sizes", (1,), (1,), 64, [source, out, 8, 2])
    expected = [*source[8:12], source[8], *[0] * 3, *source[8:12], *[0] * 4]
    np.testing.assert_array_equal(out, expected)
    # Beyond the end of the source, from where nothing is read then.
    device.launch("copy_sizes", (1,), (1,), 64, [source, out, 80, 0])
    np.testing.assert_array_equal(out, np.zeros(16))


def test_what_copies_may_touch(device: Emulated) -> None:
    source = np.zeros(64, np.float32)
    device.launch("copy_from", (1,), (1,), 64, [source, 240, 48])
    for args, words in [
        ([source, 228, 0], "misaligned: reads 16 bytes at byte 228 of argument in"),
        ([source, 256, 0], "reads 16 bytes at byte 256 of argument in, which has 256 bytes"),
        ([source, 0, 64], "out of bounds: cp.async, 16 bytes at byte 64 of dynamic"),
        ([source, 0, 8], "misaligned: cp.async at byte 8"),
    ]:
        assert words in fault(device, "copy_from", (1,), (1,), 64, args)
    assert "cp.async.cg of 4 bytes" in fault(device, "copy_past_l1", (1,), (1,), 64, [source])
    assert "poisoned: writes" in fault(device, "overwrite_copy", (1,), (1,), 64, [source])


# Shuffles.


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("operand", [0, 1, 5])
def test_shuffles(device: Emulated, width: int, operand: int) -> None:
    values, out = halves((32,), 7, np.float32), np.zeros((4, 32), np.float32)
    device.launch("shuffles", (1,), (32,), 0, [values, out, operand, width])
    lanes = np.arange(32)
    begin = lanes // width * width
    sources = [
        begin + operand % width,
        np.where(lanes - operand < begin, lanes, lanes - operand),
        np.where(lanes + operand >= begin + width, lanes, lanes + operand),
        lanes ^ operand,
    ]
    np.testing.assert_array_equal(out, values[np.array(sources)])


def test_shuffles_need_all_lanes_of_their_mask(device: Emulated) -> None:
    out = np.zeros(32, np.float32)
    device.launch("shuffle_some", (1,), (32,), 0, [out, 16])
    np.testing.assert_array_equal(out[:16], np.arange(16) ^ 1)
    assert "while lane 12 has ended" in fault(device, "shuffle_some", (1,), (32,), 0, [out, 12])
    assert "its own lane is not in the mask" in fault(
        device, "shuffle_some", (1,), (32,), 0, [out, 32]
    )


# Numbers.


def test_conversions_round_to_nearest_even(device: Emulated) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    exact = np.concatenate(
        [every.view(np.float16).astype(np.float32), every.view(BFLOAT16).astype(np.float32)]
    )
    exact = exact[np.isfinite(exact)]
    # The values themselves, halfway to the next one, and next to that.
    middle = np.concatenate([exact * np.float32(1 + 2.0**-11), exact * np.float32(1 + 2.0**-8)])
    near = [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))]
    special = np.array([np.nan, np.inf, -np.inf, 65504, 65519.996, 65520, 2**-25, 3e38], np.float32)
    values = np.concatenate([exact, *near, special])
    values = np.concatenate([values, np.zeros(-len(values) % 32, np.float32)])
    as_half, as_bfloat = np.zeros(len(values), np.float16), np.zeros(len(values), BFLOAT16)
    back = np.zeros((len(values), 2), np.float32)
    grid = (len(values) // 32,)
    device.launch("conversions", grid, (32,), 0, [values, as_half, as_bfloat, back])
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(as_half, values.astype(np.float16))
        np.testing.assert_array_equal(
            as_bfloat.astype(np.float32), values.astype(BFLOAT16).astype(np.float32)
        )
    np.testing.assert_array_equal(back[:, 0], as_half.astype(np.float32))
    np.testing.assert_array_equal(back[:, 1], as_bfloat.astype(np.float32))


def test_functions(device: Emulated) -> None:
    x = np.linspace(-4, 4, 32, dtype=np.float32)
    out = np.zeros((9, 32), np.float32)
    device.launch("functions", (1,), (32,), 0, [x, out])
    wide = x.astype(np.float64)
    expected = [
        [math.erf(v) for v in wide],
        np.exp(wide),
        np.tanh(wide),
        np.sqrt(np.abs(wide)),
        1 / np.sqrt(np.abs(wide)),
        np.maximum(wide, 0),
        np.minimum(wide, 1),
        np.exp(wide) + math.log(2),
        np.where(wide < 0, wide, wide[np.arange(32) ^ 1]),
    ]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_functions_of_halves(device: Emulated) -> None:
    x = np.linspace(-3, 3, 32).astype(np.float16)
    out = np.zeros((5, 32), np.float16)
    device.launch("half_functions", (1,), (32,), 0, [x, out])
    wide = x.astype(np.float32)
    root = np.sqrt(np.abs(wide)).astype(np.float16).astype(np.float32)
    pairs = x.reshape(16, 2)
    expected = [
        np.exp(wide).astype(np.float16),
        np.tanh(wide).astype(np.float16),
        x * x + np.float16(1.5),  # two roundings
        (1 / root).astype(np.float16),
        np.repeat(pairs[:, 0] + pairs[:, 1], 2),
    ]
    np.testing.assert_array_max_ulp(out, np.array(expected), maxulp=1)


# What is not modelled.

_KERNEL = 'extern "C" __global__ void k(float* out) {{\n  int i = 0;\n  {}\n}}\n'


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ('asm volatile("bar.sync 1, 64;");', r"`bar\.sync` .*line 3: `asm volatile"),
        ('asm volatile("cp.async.wait_group 0, 1;");', "`cp.async.wait_group` with 2 operands"),
        ('asm("mov.b32 %1, 0;" : "=r"(i));', "no operand `%1`"),
        ('asm("mov.b32 %0, other;" : "=r"(i));', "undeclared register `other`"),
        ('asm("mov.b32 %0, 0;" : "=q"(i));', 'asm operand `"=q"'),
        ('asm("{ .reg .f64 d; }");', r"registers of type `\.f64`"),
        ('asm("{ mov.b32 %0, 0;" : "=r"(i));', "a missing `}`"),
        ("wmma::mma_sync(out);", r"line 3: `wmma::mma_sync\(out\);`: .*wmma"),
        ("__shared__ float x[2][2];", "line 3: `__shared__ float"),
    ],
)
def test_unknown_statements(statement: str, words: str) -> None:
    with pytest.raises(TranslationError, match=words):
        emulate(_KERNEL.format(statement))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("__global__ void k(float* out) {}", "no `extern"),
        ('extern "C" __global__ void k(CUtensorMap map) {}', "`CUtensorMap map` has an unknown"),
        ('extern "C" __global__ void k(float** out) {}', "has an unknown type"),
        ("#include <cooperative_groups.h>\n", "<cooperative_groups.h> is not modelled"),
        ('extern "C" __global__ void k(float* out) {', "nothing closes"),
    ],
)
def test_unknown_sources(source: str, words: str) -> None:
    with pytest.raises(TranslationError, match=words):
        emulate(source)
