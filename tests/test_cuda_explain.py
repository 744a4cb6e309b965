"""Explanations of products on a GPU, and how its targets are named on the command line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tvm.target import Target

import tvm_moonpoly as mp
from tvm_moonpoly import explanation_cuda
from tvm_moonpoly.cli import explain, info, targets
from tvm_moonpoly.cli.command import UserError
from tvm_moonpoly.explanation_cuda import NOT_MEASURED, explained
from tvm_moonpoly.microkernels.cuda import GPUS
from tvm_moonpoly.planner.cuda import spec
from tvm_moonpoly.tuning.cuda import gpu_logs

ROOT = Path(__file__).resolve().parents[1]
A100 = Target("nvidia/nvidia-a100")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home with the repository's log of one GPU."""
    name = "nvidia-a100"
    shutil.copytree(ROOT / "tuning_logs" / name, tmp_path / "tuning_logs" / name)
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path))


@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (300, 4096, 4096), (2000, 3000, 512)])
def test_the_plan_is_the_planners(sizes):
    found = explained(*sizes, A100, b_transposed=True)
    assert found.best.plan == spec.plan(found.product, found.assembly.table)
    regions = found.regions(found.best)
    assert sum(region.rows * region.columns for region in regions) == sizes[0] * sizes[1]
    spent = sum(region.picoseconds for region in regions)
    assert spent + len(regions) * found.assembly.table.launch == found.best.picoseconds
    for region in regions:
        assert region.full * region.held + region.rest == region.blocks


def test_two_regions_are_both_shown():
    sizes = [(m, n) for m in range(500, 4000, 100) for n in (3000, 4100)]
    each = (explained(m, n, 512, A100, b_transposed=True) for m, n in sizes)
    found = next(e for e in each if e.best.plan.axis != spec.Axis.NONE)
    text = explanation_cuda.text(found)
    assert "region 1:" in text and "region 2:" in text and "launches: 2" in text


def test_unaligned_rows_are_told():
    found = explained(13, 4097, 4095, A100)
    assert not found.form.aligned
    assert "rows are not aligned" in explanation_cuda.text(found)


def test_what_was_not_measured_is_said_wherever_a_time_is():
    text = mp.explain(300, 4096, 4096, A100, dtype="float16")
    timed = [line for line in text.splitlines() if "predicted:" in line or "us," in line]
    assert any(NOT_MEASURED in line for line in timed)
    assert f"gemm_f16.jsonl): {NOT_MEASURED}" in text
    assert explained(3, 64, 64, A100).to_json()["measured"] is False


def test_predictions_by_measured_costs_are_not_called_measured(tmp_path):
    path = tmp_path / "tuning_logs" / "nvidia-a100" / "gemm_f16.jsonl"
    known = gpu_logs.contents_of(GPUS["nvidia-a100"], "float16")[0]
    kernels = tuple(replace(kernel, measured=True) for kernel in known.kernels)
    gpu_logs.write(path, GPUS["nvidia-a100"], replace(known, kernels=kernels), {})
    found = explained(300, 4096, 4096, A100)
    lines = explanation_cuda.text(found).splitlines()
    assert any(line.endswith("gemm_f16.jsonl): measured") for line in lines)
    assert next(line for line in lines if "predicted: " in line).endswith("(by measured costs)")
    # the launch was not timed
    assert next(line for line in lines if "launches: " in line).endswith(f"({NOT_MEASURED})")
    told = found.to_json()
    assert told["measured"] is True and told["measured_launch"] is False


def test_the_log_that_is_named_is_the_one_that_serves(tmp_path):
    """Another one comes first, and has nothing for unaligned operands."""
    a100, folder = GPUS["nvidia-a100"], tmp_path / "tuning_logs"
    whole = gpu_logs.contents_of(a100, "float16")[0]
    shutil.copytree(folder / "nvidia-a100", folder / "nvidia-other")
    few = tuple(kernel for kernel in whole.kernels if kernel.form.aligned)
    gpu_logs.write(folder / "nvidia-a100" / "gemm_f16.jsonl", a100, replace(whole, kernels=few), {})
    assert Path(explained(300, 512, 512, A100).log.origin).parent.name == "nvidia-other"


def test_bad_input_is_told():
    with pytest.raises(ValueError, match="m: must be a whole number of at least 1, not 0"):
        mp.explain(0, 8, 8, A100)
    with pytest.raises(ValueError, match="target: .*sm_75"):
        mp.explain(8, 8, 8, Target({"kind": "cuda", "arch": "sm_75"}))


def test_the_command(capsys):
    assert explain.main(["matmul", "300", "4096", "512", "--target", "nvidia-a100", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["gpu"]["arch"], told["dtype"], told["measured"]) == ("sm_80", "float16", False)
    assert explain.main(["matmul", "300", "4096", "512", "--target", "nvidia/nvidia-a100"]) == 0
    assert NOT_MEASURED in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, message",
    [
        (["--target", "nvidia-a100", "--threads", "2"], "--threads: this is for CPUs"),
        (["--target", "nvidia-a100", "--dtype", "int8"], "--dtype: on a GPU it must be one of"),
        (["--target", "nvidia-none"], "no GPU 'nvidia-none' is known; there are nvidia-a100"),
    ],
)
def test_the_command_tells_what_is_wrong(options, message):
    with pytest.raises(UserError, match=message):
        explain.main(["matmul", "3", "4", "5", *options])


def test_gpus_are_targets():
    assert targets.parsed("nvidia-a100").attrs["arch"] == "sm_80"
    assert str(targets.parsed("nvidia/nvidia-a100")) == str(targets.parsed("nvidia-a100"))
    # tvm has no tag for it
    assert targets.parsed("nvidia-h200").attrs["arch"] == "sm_90"
    assert targets.parsed('{"kind": "cuda", "arch": "sm_86"}').attrs["arch"] == "sm_86"


def test_info_tells_of_the_compiler():
    cuda = info.collect()["cuda"]
    assert set(cuda) == {"compiler", "device"}
    without = info._cuda_in_words({"compiler": None, "device": False})
    assert without.startswith("no compiler (nvcc") and without.endswith("no device")
