"""What the notebook about a GPU calls: what is counted, and that what was not measured says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_testing import case, library

from bench.gpu import baseline, page
from bench.gpu.runner.parts import PEAK_SIDE
from bench.notebooks import cuda_figures, cuda_layer
from bench.notebooks.cuda_layer import CUBLAS, DLIGHT, OURS, Launch, Layer

GPU, N, K = "nvidia-a100", 4096, 4096


@pytest.fixture(scope="module")
def layer() -> Layer:
    return Layer.of(GPU, N, K)


def is_picture(figure: Any) -> bool:
    from bench.notebooks import drawing

    return drawing.picture(figure).data.startswith(b"\x89PNG")


def timed(m: int, ratio: float, tvm: float | None = None, **more: Any) -> dict[str, Any]:
    """A case of the speed part that takes us 10 us."""
    seconds = {"ours": 1e-5, "peer": ratio * 1e-5, "ratio": ratio}
    if tvm is not None:
        seconds["tvm"] = tvm
    entry = library(cuda_layer.LIBRARY)
    return {**case(entry, 1, m, N, K), "cold": seconds, "warm": dict(seconds), **more}


def results(*speed: dict[str, Any], wrong: tuple[dict, ...] = ()) -> dict[str, Any]:
    """A document with such cases."""
    peak = {"ours": 2e-3, "peer": 1.1e-3, "ratio": 0.55}
    plans = [
        {"launches": [["a", 0, 0, 1, 1]], "chosen": True, "predicted": 1e-5, "seconds": 2e-5},
        {"launches": [["b", 0, 0, 1, 1]], "chosen": False, "predicted": 2e-5, "seconds": 1e-5},
    ]
    planned = {**case(library(), 1, 8, 64, 64), "operator": 2e-5, "plans": plans}
    return {
        "format": 1,
        "bundle": "0123456789abcdef",
        "gpu": {"name": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132, "driver": "580"},
        "versions": {"tvm": "0.27"},
        "clocks": ["before: clocks.sm: 1980 MHz"],
        "correct": {
            "reference": "torch", "cases": 9, "checked": 9, "wrong": list(wrong), "worst": 0.5
        },
        "tasks": [],
        "peak": {cuda_layer.LIBRARY: {"cold": peak, "warm": peak}},
        "no_peer": "",
        "speed": list(speed),
        "planner": [planned],
        "failures": [],
    }  # fmt: skip


def test_waves_and_useful_shares_are_counted():
    # 2 x 3 blocks on 4 multiprocessors, of which two get a second one
    launch = Launch("a", 100, 150, 64, 64, 2, 4)
    assert launch.blocks == 6 and launch.waves == 0.75
    assert launch.useful == pytest.approx(100 * 150 / (6 * 64 * 64) * 6 / 8)
    whole = Launch("a", 256, 64, 64, 64, 1, 4)
    assert whole.useful == 1.0


def test_a_plan_is_at_most_the_fastest_micro_kernel(layer):
    for rows in (1, 33, 640, 4096):
        plan = layer.planned(rows)
        assert plan.seconds <= min(plan.alone.values()) and 0 < plan.useful <= 1
        # with few rows the weight's way from memory takes longer than the costs know of
        assert rows < 640 or layer.bound(rows) < plan.seconds
        assert sum(launch.rows * launch.columns for launch in plan.launches) == rows * N
    assert layer.by_dlight(1).blocks == N // layer.dlight.block_n
    assert "not measured" in layer.status or layer.assembly.table.measured


def test_what_was_recorded_is_of_this_tvm(layer):
    from importlib import metadata

    assert layer.dlight.versions == f"apache-tvm {metadata.version('apache-tvm')}"
    assert layer.dlight.tensor_cores and not layer.dlight.spilled
    with pytest.raises(LookupError, match=r"nothing is recorded of 8 x 8"):
        cuda_layer.recorded(GPU, 8, 8)


def test_facts_are_written_and_read_back(tmp_path, layer):
    path = tmp_path / "facts.json"
    baseline.write(path, [layer.dlight])
    assert baseline.read(path) == [layer.dlight]


def test_times_are_filled_in_when_they_are_there(layer):
    found = layer.measured(results(timed(64, 2.0, tvm=5e-5), timed(1, 0.5)))
    assert found == {1: {OURS: 1e-5, CUBLAS: 5e-6}, 64: {OURS: 1e-5, CUBLAS: 2e-5, DLIGHT: 5e-5}}
    plans = [layer.planned(m) for m in (1, 64)]
    table = cuda_figures.rows_table(layer, plans, found).data.splitlines()
    assert table[2].endswith("| 10.0 | not measured | 5.0 |")
    assert table[3].endswith("| 10.0 | 50.0 | 20.0 |")
    assert layer.measured(None) == {}
    blank = cuda_figures.rows_table(layer, plans, {}).data.splitlines()
    assert all(line.count("not measured |") == 3 for line in blank[2:])


def test_figures_are_drawn(layer):
    plans = [layer.planned(m) for m in (1, 8, 16, 64, 512)]
    for measured in ({}, layer.measured(results(timed(64, 2.0, tvm=5e-5)))):
        assert is_picture(cuda_figures.time_figure(layer, plans, measured))
    assert is_picture(cuda_figures.useful_figure(layer, plans))
    assert is_picture(cuda_figures.occupancy_figure(layer))
    assert f"{DLIGHT}: 128 x 128" in cuda_figures.kernels_table(layer).data


def test_a_page_without_results_says_not_measured():
    assert "not measured" in page.page(None)
    assert "ratio" not in page.page(None)


def test_a_page_has_what_is_wrong_and_every_loss_first():
    wrong = {"key": "f16_f16_nt/1x1x1x1", "reason": "[0, 0, 0] is nan and not 1"}
    found = results(timed(1, 0.5), timed(8, 1.5), timed(600, 0.9), wrong=(wrong,))
    text = page.page(found)
    assert (
        "8 of 9 results are right" in text and "| `f16_f16_nt/1x1x1x1` | [0, 0, 0] is nan" in text
    )
    assert "cuBLAS is faster in 2 of 3 cases" in text
    worst, other = text.index("| 1 x 4096 x 4096 |"), text.index("| 600 x 4096 x 4096 |")
    assert text.index("| wrong |") < worst < other < text.index("### f16_f16_nt")
    assert "| 8 x 4096 x 4096 |" not in text
    peak = 2 * PEAK_SIDE**3 / 1.1e-3 / 1e12
    assert f"Measured peak: {peak:.0f} TFLOP/s" in text
    geomean = (0.5 * 1.5 * 0.9) ** (1 / 3)
    assert f"| all | 3 | {geomean:.2f} | 1 of 3 |" in text
    assert "geomean 0.500 of the best" in text and "| `a` | `b` |" in text


def test_parts_that_were_not_measured_say_so():
    found = {**results(), "planner": [], "no_peer": "torch cannot be imported"}
    found["correct"] = {**found["correct"], "checked": 0}
    text = page.page(found)
    assert text.count("Not measured") == 3 and "torch cannot be imported" in text


def test_the_page_is_printed(tmp_path: Path, capsys):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results(timed(1, 2.0))))
    assert page.main([str(path)]) == 0
    assert "cuBLAS is faster in none of 1 cases" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, said",
    [
        ('{"format": 7}', "it holds no results of format 1"),
        ("[]", "it holds no results of format 1"),
        ("{", "it is not JSON"),
        ('{"format": 1, "gpu": {}}', "it is not what run.py writes: bundle, versions"),
    ],
)
def test_what_are_no_results_is_told(tmp_path: Path, capsys, text: str, said: str):
    path = tmp_path / "results.json"
    path.write_text(text)
    assert page.main([str(path)]) == 1
    error = capsys.readouterr().err
    assert said in error and str(path) in error and error.count("\n") == 1
