"""``moonpoly tune --gpu``: candidates compiled and judged, without a GPU."""

from __future__ import annotations

import importlib.util
import io
import json

import pytest
from rich.console import Console

from tvm_moonpoly import versions
from tvm_moonpoly.cli import tune_gpu, tune_gpu_dry
from tvm_moonpoly.cli.command import main
from tvm_moonpoly.microkernels.cuda import GPUS, CudaTile, Form, candidates, find_nvcc
from tvm_moonpoly.operators.cuda import machine_code
from tvm_moonpoly.tuning.cuda import computed, dry_run, gpu_stage
from tvm_moonpoly.tuning.cuda.dry_search import Searched, searched
from tvm_moonpoly.tuning.cuda.search import CostModel

needs_xgboost = pytest.mark.skipif(
    importlib.util.find_spec("xgboost") is None, reason="no xgboost (of the extra [tune])"
)

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


NT = Form(b_transposed=True)


@pytest.fixture
def one_size(monkeypatch):
    """Searches blocks of one size alone."""
    every = gpu_stage.groups
    monkeypatch.setattr(
        gpu_stage,
        "groups",
        lambda form, gpu: [g for g in every(form, gpu) if (g.block_m, g.block_n) == (64, 64)],
    )


@pytest.fixture
def made_up(monkeypatch):
    """A compiler that tells of each kernel that it takes 100 registers; those with 6 stages spill,
    and what is deep has a block that does not fit."""
    seen = []

    def compile(form, tiles, gpu=A100):
        seen.append(list(tiles))
        for tile in tiles:
            spilled, shared = 8 * (tile.stages == 6), (200 << 10) * (tile.block_k == 128)
            taken = dry_run.Resources(100, shared, spilled, spilled, spilled)
            yield dry_run.judged(tile, form, gpu, taken)

    monkeypatch.setattr(dry_run, "compiled", compile)
    monkeypatch.setattr(machine_code, "compiler", lambda: "none, for tests")
    return seen


@needs_xgboost
def test_a_dry_run_searches(one_size, made_up):
    found = searched(NT, A100, dry_run.compiled, CostModel(), trials=12, seed=1)
    tiles = [candidate.tile for candidate in found.candidates]
    assert len(set(tiles)) == len(tiles) == sum(map(len, made_up)) and found.sizes == 1
    # MetaSchedule proposes what no list of ours holds
    assert found.proposed >= 10 and set(tiles) - set(candidates(NT, "sm_80"))
    assert all((tile.block_m, tile.block_n) == (64, 64) for tile in tiles)
    assert len(found.best()) == 12 and not any(candidate.reason for candidate in found.best())
    peaks = [candidate.of_peak for candidate in found.best()]
    assert peaks == sorted(peaks, reverse=True) and found.best(3) == found.best()[:3]
    assert all(c.tile.stages == 6 or c.tile.block_k == 128 for c in found.rejected)
    again = searched(NT, A100, dry_run.compiled, CostModel(), trials=12, seed=1)
    assert again.candidates == found.candidates


@needs_xgboost
def test_a_dry_run_is_bounded(one_size, made_up):
    nothing_fits = dry_run.Resources(255, 0, 8, 8, 8)

    def refuse(form, tiles):
        return [dry_run.judged(tile, form, A100, nothing_fits) for tile in tiles]

    found = searched(NT, A100, refuse, CostModel(), trials=3)
    assert len(found.candidates) <= 4 * 3 and len(found.rejected) == len(found.candidates)
    # no time is left after the first
    found = searched(NT, A100, dry_run.compiled, CostModel(), trials=8, stop=lambda: True)
    assert 1 <= len(found.candidates) <= 2 and found.proposed == 0


def test_every_column_of_a_dry_run_has_a_title():
    fit = dry_run.judged(CudaTile(64, 64, 32, 2, 2, 3), NT, A100, dry_run.Resources(90, 0, 0, 0, 0))
    tile = CudaTile(64, 64, 32, 2, 2, 4)
    spilled = dry_run.judged(tile, NT, A100, dry_run.Resources(255, 0, 8, 8, 0))
    for rejected in ((), (spilled,)):
        group = Searched(NT, 1, 0, (fit, *rejected))
        out = io.StringIO()
        tune_gpu_dry._print(Console(file=out, width=300), group, None)
        head = next(line for line in out.getvalue().splitlines() if "registers" in line)
        titles = [title.strip() for title in head.strip("┃").split("┃")]
        assert all(titles) and ("rejected" in titles) == bool(rejected)
        assert ("registers are spilled" in out.getvalue()) == bool(rejected)


@needs_xgboost
def test_a_dry_run_lists_each_candidate(one_size, made_up, capfd):
    given = ["tune", "--gpu", "nvidia-a100", "--dry-run", "--form", NT.name, "--trials", "9"]
    assert main(given) == 0
    said = capfd.readouterr().out
    for word in (NT.name, "registers", "spills", "shared", "limited by", "of peak, computed"):
        assert word in said
    assert "candidates of 1 sizes of blocks" in said and "proposed by MetaSchedule" in said
    assert "nvidia-a100 (sm_80): costs are computed, nothing was measured" in said
    assert main([*given, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["measured"] is False and told["gpu"]["multiprocessors"] == 108
    (summary,) = told["searched"]
    assert summary["candidates"] == len(told["kernels"]) == 9 + summary["rejected"]
    assert summary["proposed"] > 0 and summary["sizes"] == 1
    reasons = {kernel["rejected"] for kernel in told["kernels"]}
    known = {"registers are spilled to memory", "a block does not fit: shared memory"}
    assert None in reasons and reasons - {None} <= known
    assert main([*given, "--json", "--count", "2"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert sum(kernel["rejected"] is None for kernel in told["kernels"]) == 2


@needs_nvcc
@needs_xgboost
def test_what_a_dry_run_proposes_is_compiled(one_size, capfd):
    given = ["tune", "--gpu", "nvidia-a100", "--dry-run", "--form", NT.name, "--trials", "3"]
    assert main([*given, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["searched"][0]["proposed"] >= 1
    usable = [kernel for kernel in told["kernels"] if kernel["rejected"] is None]
    assert len(usable) == 3
    for kernel in usable:
        assert kernel["resources"]["registers"] > 32 and kernel["blocks"] >= 1
        assert kernel["resources"]["spill_stores"] == kernel["resources"]["stack"] == 0


def test_without_a_gpu_it_ends_at_once(capfd, monkeypatch):
    import tvm

    monkeypatch.setattr(tvm, "cuda", lambda index: type("Device", (), {"exist": False}))
    assert main(["tune", "--gpu", "nvidia-a100"]) == 1
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: no CUDA device was found") and "DRY_RUN=1" in said.err
    assert said.err.count("\n") == 1


def test_without_a_compiler_it_says_so(capfd, monkeypatch, tmp_path):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(versions, "installed", lambda name: None)
    assert main(["tune", "--gpu=nvidia-a100", "--dry-run"]) == 1
    assert capfd.readouterr().err.startswith("error: no compiler for CUDA was found (nvcc on PATH")


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
