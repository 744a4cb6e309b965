"""``moonpoly tune --gpu``: candidates compiled and judged, without a GPU."""

from __future__ import annotations

import json

import pytest

from tvm_moonpoly.cli import tune_gpu
from tvm_moonpoly.cli.command import main
from tvm_moonpoly.microkernels.cuda import GPUS, CudaTile, Form, find_nvcc
from tvm_moonpoly.tuning.cuda import computed, dry_run

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")

A100 = GPUS["nvidia-a100"]


def test_every_gpu_can_be_named():
    assert tuple(sorted(GPUS)) == tune_gpu.NAMES


def test_the_shortlist_has_tiles_for_few_rows_and_for_many():
    taken = dry_run.Resources(90, 0, 0, 0, 0)

    def compile(form, tiles):
        return [dry_run.judged(tile, form, A100, taken) for tile in tiles]

    chosen, rejected = computed.shortlist(Form(), A100, 8, compile)
    tiles = [candidate.tile for candidate in chosen]
    assert not rejected and 3 <= len(tiles) <= 8 and len(set(tiles)) == len(tiles)
    assert min(t.block_m for t in tiles) == 16
    assert max(t.block_m * t.block_n for t in tiles) >= 128 * 128


@needs_nvcc
def test_a_candidate_is_judged_by_what_the_compiler_tells():
    done = []
    (fit,) = dry_run.compiled(Form(), [CudaTile(64, 64, 32, 2, 2, 3)], A100, lambda: done.append(1))
    assert fit.reason == "" and 0 < fit.of_peak < 1 and len(done) == 1
    assert fit.resources.spill_stores == 0
    assert fit.shared_bytes == 3 * (64 + 64) * 32 * 2 + fit.resources.shared_bytes
    assert fit.occupancy.blocks >= 4


def test_spills_and_blocks_that_do_not_fit_are_rejected():
    tile = CudaTile(64, 64, 32, 2, 2, 3)
    spilled = dry_run.judged(tile, Form(), A100, dry_run.Resources(255, 0, 8, 8, 0))
    assert (spilled.of_peak, spilled.reason) == (None, "registers are spilled to memory")
    large = dry_run.judged(tile, Form(), A100, dry_run.Resources(64, 200 << 10, 0, 0, 0))
    assert (large.of_peak, large.reason) == (None, "a block does not fit: shared memory")


def test_what_is_rejected_is_replaced():
    """By the next best, of another tile."""
    seen = []

    def compile(form, tiles):
        seen.extend(tiles)
        return [
            dry_run.judged(t, form, A100, dry_run.Resources(90, 0, 8 * (t.block_m == 32), 0, 0))
            for t in tiles
        ]

    chosen, rejected = computed.shortlist(Form(), A100, 4, compile)
    assert len(chosen) == 4 and rejected and len(seen) == len(set(seen))
    assert all(c.tile.block_m != 32 and not c.reason for c in chosen)
    assert all(c.tile.block_m == 32 and c.reason for c in rejected)


def test_computed_logs_have_all_kinds_of_kernels():
    def compile(form, tiles):
        return [dry_run.judged(t, form, A100, dry_run.Resources(90, 0, 0, 0, 0)) for t in tiles]

    kernels = computed.of_form(Form(b_transposed=True), A100, compile, computed.Counts())
    paths = [kernel.tile.epilogue for kernel in kernels]
    assert paths[:8] == ["pairs"] * 8 and set(paths) == {"pairs", "shared", "elements"}
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    assert {(64, 64), (128, 128), (256, 128)} <= {
        (kernel.tile.block_m, kernel.tile.block_n) for kernel in kernels
    }
    assert all(k.static.registers == 90 and not k.measured for k in kernels)


@needs_nvcc
def test_a_dry_run_lists_the_micro_kernels(capfd):
    form = "f16_f16_nt"
    given = ["tune", "--gpu", "nvidia-a100", "--dry-run", "--count", "2", "--form", form]
    assert main(given) == 0
    said = capfd.readouterr().out
    assert form in said and "of peak, computed" in said and "spills" in said
    assert "nvidia-a100 (sm_80): costs are computed, nothing was measured" in said
    assert main([*given, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["measured"] is False and told["gpu"]["multiprocessors"] == 108
    assert len(told["kernels"]) == 2
    assert all(k["rejected"] is None and k["resources"]["registers"] for k in told["kernels"])


def test_without_a_gpu_it_ends_at_once(capfd, monkeypatch):
    import tvm

    monkeypatch.setattr(tvm, "cuda", lambda index: type("Device", (), {"exist": False}))
    assert main(["tune", "--gpu", "nvidia-a100"]) == 1
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: no CUDA device was found") and "DRY_RUN=1" in said.err
    assert said.err.count("\n") == 1


def test_without_nvcc_it_says_so(capfd, monkeypatch, tmp_path):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["tune", "--gpu=nvidia-a100", "--dry-run"]) == 1
    assert capfd.readouterr().err.startswith("error: nvcc was not found on PATH")


@pytest.mark.parametrize(
    "given, code, message",
    [
        (["--gpu", "nvidia-v100"], 2, "invalid choice: 'nvidia-v100'"),
        (["--gpu", "nvidia-a100", "--count", "0"], 2, "must be a whole number of at least 1"),
        (["--gpu", "nvidia-a100", "--budget", "5m"], 2, "unrecognized arguments: --budget 5m"),
    ],
)
def test_wrong_usage_is_told(capfd, given, code, message):
    assert main(["tune", *given]) == code
    assert message in capfd.readouterr().err


@needs_nvcc
def test_an_unknown_form_is_told(capfd):
    assert main(["tune", "--gpu", "nvidia-a100", "--dry-run", "--form", "f8"]) == 1
    assert "--form must be one of f16_f16_nn, " in capfd.readouterr().err
