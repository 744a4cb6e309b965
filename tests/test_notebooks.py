"""The notebooks of the bench: that they are executed and tidy, and the modules that they call."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from bench.gemm import page
from bench.gemm.document import FORMAT
from bench.gemm.groups import summarise_groups
from bench.gemm.summary import losses
from bench.notebooks import __main__ as execution
from bench.notebooks import buckets, candidates, choices, curves, drawing, libraries, metaschedule
from bench.notebooks.candidates import BUCKETS, EXACT, OURS, PLAIN, Candidate
from bench.notebooks.curves import PEAK, Point
from bench.notebooks.metaschedule import Layer, Tuned
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.spec import Choice

FOLDER = Path(candidates.__file__).parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


# The notebooks as they are committed


def test_the_notebooks_are_there_and_small() -> None:
    names = {path.stem for path in NOTEBOOKS}
    assert names == {
        "dynamic_linear",
        "dynamic_linear_cuda",
        "dynamic_conv",
        "whole_model",
        "how_a_plan_is_chosen",
        "against_the_libraries",
    }
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < 1_500_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_was_executed_in_order_without_error(path: Path) -> None:
    cells = code_cells(read(path))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_nothing_of_the_machine_it_was_executed_on(path: Path) -> None:
    notebook = read(path)
    assert notebook["metadata"] == execution.METADATA
    assert all(not cell["metadata"] for cell in notebook["cells"])
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("image/png", None)
    text = json.dumps(notebook)
    for word in ("/home/", "/root/", "/tmp/", "/usr/", "site-packages", "\\u001b["):
        assert word not in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(path, as_version=4))


def test_an_execution_leaves_nothing_but_outputs() -> None:
    nbformat = pytest.importorskip("nbformat")
    v4 = nbformat.v4
    cell = v4.new_code_cell("1", execution_count=7, metadata={"execution": {"busy": "now"}})
    cell.outputs = [
        v4.new_output("stream", name="stderr", text="/somewhere: a warning"),
        v4.new_output("stream", name="stdout", text="\x1b[1mbold\x1b[0m"),
        v4.new_output("execute_result", data={"text/plain": "1"}, execution_count=7),
    ]
    notebook = v4.new_notebook(
        cells=[v4.new_markdown_cell("a"), cell],
        metadata={"language_info": {"name": "python", "version": "3.1"}},
    )
    cleaned = execution.cleaned(notebook)
    nbformat.validate(cleaned)
    assert cleaned.metadata == execution.METADATA
    (code,) = code_cells(cleaned)
    assert code["execution_count"] == 1 and not code["metadata"]
    text, output = code["outputs"]
    assert text["text"] == "bold"
    assert output["execution_count"] == 1 and output["data"] == {"text/plain": "1"}


def test_an_unknown_notebook_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        execution.main(["no_such"])
    assert "no notebook 'no_such'" in capsys.readouterr().err


def test_the_quickest_notebook_executes(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    source = FOLDER / "against_the_libraries.ipynb"
    # beside the other, so that its paths to the repository hold
    copy = source.with_name("executed-by-a-test.ipynb")
    copy.write_bytes(source.read_bytes())
    try:
        execution.execute(copy)
        cells = code_cells(read(copy))
    finally:
        copy.unlink()
    assert all(cell["outputs"] for cell in cells[1:])
    assert [cell["source"] for cell in cells] == [
        cell["source"] for cell in code_cells(read(source))
    ]


# Buckets


def test_pieces_hold_all_rows_and_waste_less_than_the_next_bucket_would() -> None:
    sizes = [8, 32, 128]
    assert [buckets.pieces(m, sizes) for m in (1, 8, 9, 128)] == [[8], [8], [32], [128]]
    assert buckets.pieces(129, sizes) == [128, 8]
    assert buckets.pieces(256, sizes) == [128, 128]
    assert buckets.pieces(300, sizes) == [128, 128, 128]
    for m in range(1, 500):
        assert sum(buckets.pieces(m, sizes)) >= m
    assert buckets.wasted(8, sizes) == 0
    assert buckets.wasted(33, sizes) == pytest.approx(1 - 33 / 128)


@pytest.mark.parametrize("rows", [1, 4, 5, 16, 17, 37, 48])
def test_bucketed_calls_compute_every_row(rows: int) -> None:
    k, n = 24, 16
    weight = np.random.default_rng(0).standard_normal((k, n), dtype=np.float32)
    calls: list[int] = []

    def kernel(size: int) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            assert tuple(x.shape) == (size, k)
            calls.append(size)
            return tvm.runtime.tensor(np.from_dlpack(x) @ weight)

        return run

    x = tvm.runtime.tensor(np.random.default_rng(rows).standard_normal((rows, k), np.float32))
    run = buckets.bucketed({size: kernel(size) for size in (16, 4)}, x, n)
    for _ in range(2):  # the padding of the first call must not show in the second
        assert np.allclose(run(), np.from_dlpack(x) @ weight, atol=1e-5)
    assert calls == buckets.pieces(rows, [4, 16]) * 2


# Curves


def test_lines_and_ratios_come_from_the_rows_where_a_candidate_was_timed() -> None:
    points = [
        Point(1, 2 * 10**6, {OURS: (1e-3, 2e-3), PEAK: (1e-3, 1e-3), "b": (2e-3, 4e-3)}, 10**7),
        Point(4, 8 * 10**6, {OURS: (1e-3,), PEAK: (1e-3,)}, 10**7),
        Point(8, 16 * 10**6, {OURS: (1e-3,), "b": (8e-3,)}),
    ]
    assert curves.names(points) == [OURS, "b"]
    assert curves.line(points, "b") == ([1, 8], [pytest.approx(2 / 3), pytest.approx(2)])
    assert curves.slowdowns(points, "b") == ([1, 8], [2, 8])
    assert curves.mean_slowdown(points, "b") == pytest.approx(4)
    assert math.isnan(curves.mean_slowdown(points, "c"))
    assert points[0].gflops(PEAK) == pytest.approx(10)


def test_row_counts_are_spaced_by_halves_of_a_doubling() -> None:
    assert curves.row_counts(16) == [1, 2, 3, 4, 6, 8, 11, 16]
    assert curves.row_counts(10, [5, 11]) == [1, 2, 3, 4, 5, 6, 8, 10]


def test_wrong_results_are_not_timed() -> None:
    weight = np.ones((4, 3), np.float32)
    wrong = Candidate("wrong", 0.0, lambda x: lambda: np.zeros((x.shape[0], 3), np.float32))
    with pytest.raises(AssertionError, match="wrong: wrong result for 2 rows"):
        curves.timed([wrong], weight, [2], rounds=1)
    right = Candidate(OURS, 0.0, lambda x: lambda: np.from_dlpack(x) @ weight)
    rare = Candidate(EXACT, 0.0, right.prepare, (2,))
    found = curves.timed(
        [right, rare], weight, [1, 2], rounds=2, min_seconds=0.0, peak=(lambda: None, 8)
    )
    assert [sorted(each.seconds) for each in found] == [
        sorted([OURS, PEAK]),
        sorted([OURS, EXACT, PEAK]),
    ]
    assert all(len(own) == 2 * curves.SETS for each in found for own in each.seconds.values())
    assert found[1].flops == 2 * 2 * 3 * 4


# What TVM offers


def test_dlight_schedules_one_row_by_a_transposed_weight_and_no_matmul(target: Any) -> None:
    assert candidates.dlight_coverage(64, 48, target) == {
        "linear layer, any M, weight (K, N)": False,
        "linear layer, any M, weight (N, K)": False,
        "linear layer, M = 1, weight (K, N)": False,
        "linear layer, M = 1, weight (N, K)": True,
        "softmax over N, any M": True,
    }


def test_all_candidates_compute_the_layer(target: Any) -> None:
    weight = np.random.default_rng(0).standard_normal((40, 48), dtype=np.float32)
    found = candidates.dynamic_candidates(weight, target)
    assert [each.name for each in found][:2] == [OURS, PLAIN]
    for rows in (1, 5, 13):
        points = curves.timed(found, weight, [rows], rounds=1, min_seconds=0.0)
        assert set(points[0].seconds) == {each.name for each in found}


def test_the_records_cover_what_the_notebook_takes_of_them(target: Any) -> None:
    tuned = metaschedule.read_summary(candidates.DATA)
    source = json.dumps(read(FOLDER / "dynamic_linear.ipynb"))
    buckets_and_exact = re.search(r"BUCKETS, EXACT = \(([^)]*)\), \(([^)]*)\)", source)
    assert buckets_and_exact is not None
    for m in map(int, ", ".join(buckets_and_exact.groups()).split(", ")):
        (one,) = [each for each in tuned if (each.m, each.n, each.k) == (m, 768, 768)]
        assert one.best[-1] == min(one.best) and len(one.best) == one.trials >= 32
        assert one.processor_seconds > 1


def test_records_are_replayed(target: Any) -> None:
    pytest.importorskip("psutil")
    weight = np.random.default_rng(0).standard_normal((768, 768), dtype=np.float32)
    few, exact = candidates.static_candidates(weight, target, [8, 32], [8])
    assert few.seconds > exact.seconds > 1
    for rows in (3, 8, 33):
        named = [Candidate(OURS, 0.0, few.prepare), exact]
        (timed,) = curves.timed(named, weight, [rows], rounds=1, min_seconds=0.0)
        assert (EXACT in timed.seconds) == (rows == 8)
    assert "33 vs. 32" in candidates.refusal(exact, 33, 768)


def test_a_layer_without_a_record_is_an_error(target: Any) -> None:
    pytest.importorskip("psutil")
    with pytest.raises(ValueError, match="linear_7_768_768: the database in data has no record"):
        metaschedule.compiled([Layer(7, 768, 768)], target, candidates.DATA)
    with pytest.raises(ValueError, match="never tuned: linear_7_768_768"):
        metaschedule.recorded_or_tuned(768, 768, [7], target, candidates.DATA)


#: Tunes two layers, one of them twice, and computes both by the records.
RETUNING = """
import shutil, sys
from pathlib import Path
import numpy as np
import tvm
import tvm_moonpoly as mp
from bench.notebooks import candidates, metaschedule
from bench.notebooks.metaschedule import Layer

data, fresh = Path(sys.argv[1]), Path(sys.argv[2])
target = mp.detect_target(cores=1)
layers = [Layer(4, 16, 8), Layer(2, 16, 8)]
for layer in layers:
    metaschedule.recorded_or_tuned(16, 8, [layer.m], target, data, trials=2)
shutil.copytree(data, fresh)
metaschedule.replace_record(data, fresh, layers[0], target)
assert "the same as here" in metaschedule.recorded_on(data, target)
vm = metaschedule.compiled(layers, target, data)
weight = np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32)
for layer in layers:
    x = np.random.default_rng(1).standard_normal((layer.m, 8), dtype=np.float32)
    y = candidates.kernel(vm, layer, weight)(tvm.runtime.tensor(x))
    assert np.allclose(np.from_dlpack(y), x @ weight, atol=1e-5)
"""


def test_tuning_again_replaces_the_record_of_the_layer(target: Any, tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    pytest.importorskip("xgboost")
    # in a process of one thread, as the notebook has it
    environment = {**os.environ, "TVM_NUM_THREADS": "1", "MOONPOLY_RETUNE": "1"}
    folders = [str(tmp_path / "data"), str(tmp_path / "fresh")]
    root = FOLDER.parents[1]
    subprocess.run(
        [sys.executable, "-c", RETUNING, *folders], cwd=root, env=environment, check=True
    )
    records = (tmp_path / "data" / metaschedule.RECORDS).read_text().splitlines()
    assert len(records) == 2
    kept = metaschedule.read_summary(tmp_path / "data")
    assert [(each.m, each.trials) for each in kept] == [(4, 2), (2, 2)]
    for one in kept:
        (read_back,) = metaschedule.recorded_or_tuned(16, 8, [one.m], target, tmp_path / "data")
        assert read_back == one


# Plans


def choice(nv: int, tail: int, cost: int, mr: int = 4) -> Choice:
    return Choice(Plan(nv, mr, tail, mr if tail else 0, False, BMode.PREPACKED), cost)


def test_choices_are_told_apart_by_their_widths() -> None:
    costs = choices.by_widths(5, [choice(3, 1, 10), choice(3, 1, 12, 6), choice(2, 0, 15)])
    assert list(costs.choices) == ["3v + 1v", "2v"] and costs.chosen == "3v + 1v"
    assert costs.choices["3v + 1v"].picoseconds == 10
    assert costs.above("2v") == pytest.approx(0.5) and costs.above("3v + 1v") == 0


def test_stretches_winners_and_what_a_choice_costs() -> None:
    costs = [
        choices.by_widths(m, [choice(nv, 0, 10), choice(5 - nv, 0, 11)])
        for m, nv in ((1, 2), (2, 2), (3, 3), (4, 2))
    ]
    assert choices.stretches(costs) == [(1, 2, "2v"), (3, 3, "3v"), (4, 4, "2v")]
    assert choices.winners(costs) == ["2v", "3v"]
    times = [choices.Times(m, {"2v": [1.0, 1.1], "3v": [1.2, 1.32]}) for m in (1, 2, 3, 4)]
    assert choices.price_of_choice(costs, times) == pytest.approx([0, 0, 0.2, 0])


def test_the_plans_of_a_product_are_predicted_and_run(target: Any) -> None:
    costs = choices.costs_of([3, 4], 40, 64, target)
    names = choices.winners(costs)
    times = choices.measured(costs, 40, 64, target, only=names, rounds=2, min_seconds=0.0)
    for cost, time in zip(costs, times, strict=True):
        assert cost.above(cost.chosen) == 0 and set(time.seconds) <= set(names)
        assert all(min(own) > 0 for own in time.seconds.values())
    row = choices.every_plan_timed(4, 40, 64, target, budget=0.01)
    from bench.notebooks import choice_figures

    assert is_picture(choice_figures.plan_figure(row, 8))
    assert is_picture(choice_figures.change_figure(costs, times, "two sizes"))
    assert is_picture(choice_figures.prediction_figure(costs, times, 40, 64, "two sizes"))
    assert choices.stretches(costs)[0][2] in choice_figures.stretches_table(costs).data


# The libraries


def row(vs_best: float, **more: Any) -> dict[str, Any]:
    """A row of a document of the product bench."""
    found = {
        "m": 4, "n": 8, "k": 16, "batch": 1, "layer": "a", "workload": "linear", "source": "list",
        "mode": "quiet", "class": "tiny", "best": "openblas", "vs_best": vs_best,
        "vs_best_bounds": [vs_best * 0.98, vs_best * 1.02], "vs_best_first": vs_best,
        "loss": vs_best < 0.93, "vs_best_vm": None, "vs_default": None, "of_peak": 0.5,
        "of_bandwidth": None, "limit": None, "gflops": 50.0, "rounds": 8,
        "vs": {"openblas": vs_best, "onnxruntime": vs_best * 1.5},
        "peer_gflops": {"openblas": 40.0, "onnxruntime": 30.0}, **more,
    }  # fmt: skip
    return found | {"key": f"{found['workload']}/{found['m']}/{vs_best}"}


def document(*rows: dict[str, Any], threads: int = 1) -> dict[str, Any]:
    return {
        "format": FORMAT, "threads": threads, "rows": list(rows), "groups": summarise_groups(rows),
        "machine": {"cpu": "a cpu", "cores": 2, "caches": {"L2": "1M"}}, "versions": {"x": "1"},
        "clock": "a clock", "seconds_measured": 150.0,
    }  # fmt: skip


#: Rows that are no part of the list's figures, and would change all of them.
OTHERS = (
    row(9.0, source="random"),
    row(0.1, mode="busy core"),
    row(7.0) | {"vs_best": None, "best": None, "vs": {}, "peer_gflops": {}},
)


def test_figures_are_of_the_list_with_nothing_else_at_work() -> None:
    rows = [row(1.5), row(0.9), row(2.0, workload="stream"), row(3.0, workload="chain")]
    made = document(*rows, *OTHERS)
    assert libraries.listed(made) == rows
    found = {group["name"]: own for group, own in libraries.members(made)}
    assert found == {"linear": rows[:2], "stream": rows[2:3], "chain": rows[3:]}
    title = libraries.ratio_title(made)
    assert f"{math.sqrt(1.5 * 0.9):.2f} times as fast" in title
    assert "Of all 4 cases of the list\nslower on 1, of them 1 beyond" in title
    assert "0.90 at worst" in title


def test_means_are_those_of_the_document_and_thus_of_the_readme() -> None:
    made = document(row(0.9, vs_best_first=1.8), row(2.0, vs_best_first=2.0))
    (group, _), *_ = libraries.members(made)
    assert group["vs_best"] == pytest.approx(math.sqrt(3.6))
    assert "1.90 times as fast" in libraries.ratio_title(made)
    table = libraries.groups_table(made).data
    assert table == page.groups_table(made["groups"]) and "| **1.90** |" in table


def test_losses_are_those_that_the_document_counts() -> None:
    rows = [row(1.3), row(0.96), row(0.94), row(0.9)]
    assert [libraries.colour(each) for each in rows] == [
        libraries.WIN, libraries.EVEN, libraries.EVEN, libraries.LOSS
    ]  # fmt: skip
    lines = libraries.losses_table([*rows, *OTHERS]).data.splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert [(each[0], each[2], each[4]) for each in cells] == [
        ("0.10", "yes", "linear, busy core"), ("0.90", "yes", "linear"), ("0.94", "no", "linear"),
        ("0.96", "no", "linear"),
    ]  # fmt: skip


def test_single_libraries_are_compared_on_the_same_cases() -> None:
    part = {"openblas": 2.0, "onnxruntime": 1.5, "onednn_separate": 1.1, "tvm_hand": 1.0}
    rows = [row(1.2), row(1.2, vs=part)]
    assert libraries.library_means(rows) == {
        "openblas": pytest.approx(math.sqrt(1.2 * 2.0)),
        "onnxruntime": pytest.approx(math.sqrt(1.8 * 1.5)),
    }
    # a schedule written by hand is no library even where it was run on all
    assert list(libraries.library_means(rows[1:])) == ["onednn_separate", "onnxruntime", "openblas"]
    table = libraries.nearest_table(document(*rows)).data
    assert table.splitlines()[2] == "| constant weights, all | 2 | openblas | 1.55 | 1.20 |"
    rows = [row(1.2, vs={"openblas": 1.2}), row(1.2, vs={"onnxruntime": 1.2}, best="onnxruntime")]
    assert " | - | - | 1.20 |" in libraries.nearest_table(document(*rows)).data
    with pytest.raises(ValueError, match="no library was run on all 2 cases"):
        libraries.library_figure(document(*rows))


def test_the_best_librarys_part_of_the_peak_is_by_its_own_speed() -> None:
    # compared with the call that allocates, which takes much longer than the one that does not
    one = row(0.9, gflops=50.0, of_peak=0.5, peer_gflops={"openblas": 40.0, "onnxruntime": 30.0})
    assert libraries.parts_of_peak(one) == (0.5, pytest.approx(0.4))
    made = document(one, row(1.2, batch=3, workload="attention"), row(2, workload="chain"))
    axes = libraries.peak_figure(made).axes[0]
    work = 2 * 4 * 8 * 16
    drawn = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert drawn == [[work, 3 * work]] * 2  # no chain
    assert axes.get_title(loc="left").endswith("constant weights, all: 50%")


def test_documents_of_both_numbers_of_threads_are_read(tmp_path: Path) -> None:
    assert libraries.documents(tmp_path) == {}
    for name, threads in zip(libraries.FILES, (1, 2), strict=True):
        (tmp_path / name).write_text(json.dumps(document(row(1.2), threads=threads)))
    found = libraries.documents(tmp_path)
    assert list(found) == ["one thread", "2 threads"]
    said = libraries.setting_of(found["2 threads"])
    assert said.startswith("a cpu, 2 cores, L2 1M\n")
    assert said.endswith("the run took 2 minutes")
    (tmp_path / libraries.FILES[0]).write_text(json.dumps({"format": 1}))
    with pytest.raises(ValueError, match="format 1, expected 2"):
        libraries.documents(tmp_path)


def test_the_libraries_are_drawn_with_and_without_losses() -> None:
    for rows in ([row(1.2)], [row(1.2), row(0.8), row(0.99, of_peak=None), *OTHERS]):
        for draw in (
            libraries.ratio_figure, libraries.library_figure, libraries.peak_figure
        ):  # fmt: skip
            assert is_picture(draw(document(*rows)))


def test_the_committed_results_are_read() -> None:
    for made in libraries.documents().values():
        found = libraries.members(made)
        assert found[0][0]["name"] == "linear"
        for group, rows in found:
            assert len(rows) == group["cases"]
            assert len(losses(rows)) == group["losses"]
        assert libraries.setting_of(made)


# Drawing


def is_picture(figure: Any) -> bool:
    return drawing.picture(figure).data.startswith(b"\x89PNG")


def test_labels_are_spread_apart_and_stay_in_order() -> None:
    assert drawing.spread([0.1, 0.5, 0.9], 0.1) == [0.1, 0.5, 0.9]
    assert drawing.spread([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])
    chooser = random.Random(3)
    for count in range(1, 30):
        wanted = [chooser.random() for _ in range(count)]
        placed = drawing.spread(wanted, 0.05)
        order = sorted(range(count), key=lambda i: wanted[i])
        gaps = [placed[b] - placed[a] for a, b in zip(order, order[1:], strict=False)]
        assert all(gap >= 0.05 - 1e-9 for gap in gaps)
        assert sum(placed) == pytest.approx(sum(wanted))


def test_columns_of_numbers_stand_at_the_right() -> None:
    text = drawing.markdown(("a", "b"), [["x", "1.5"], ["y", "-"]])
    assert text.splitlines() == ["| a | b |", "| --- | ---: |", "| x | 1.5 |", "| y | - |"]


def test_padding_costs_most_where_rows_are_padded() -> None:
    from bench.notebooks import linear_figures as figures

    slowdowns = {1: 2.0, 8: 9.0, 9: 3.0, 20: 2.5, 32: 8.0, 33: 7.0, 64: 6.0}
    points = [
        Point(m, m * 10**6, {OURS: (1e-3,), BUCKETS: (each * 1e-3,), EXACT: (1e-3,), PEAK: (1e-4,)})
        for m, each in slowdowns.items()
    ]
    # neither a bucket's own size, nor in pieces beyond the largest
    assert figures.worst_padding(points, [8, 32]).rows == 9
    title = figures.padding_figure(points, [8, 32], "a layer").axes[0].get_title(loc="left")
    assert "takes 8.00 to 9.00 of our time" in title
    assert title.endswith("padding costs up to 3.0 times our time (M = 9)")
    with pytest.raises(ValueError, match="empty"):
        figures.worst_padding([points[1]], [8, 32])


def test_the_search_is_said_to_be_short() -> None:
    assert "still improves within the last trials" in (
        (FOLDER / "dynamic_linear.ipynb").read_text(encoding="utf-8")
    )
    late = [each for each in metaschedule.read_summary(candidates.DATA)
            if each.best[-1] < each.best[3 * len(each.best) // 4]]  # fmt: skip
    assert late


def test_figures_of_a_layer_are_drawn() -> None:
    from bench.notebooks import linear_figures as figures

    seconds = {name: (1e-3 * (i + 1),) * 2 for i, name in enumerate(figures.COLOUR)}
    fast = {name: own for name, own in seconds.items() if name not in figures.SLOW}
    slow = {name: own for name, own in seconds.items() if name in (OURS, *figures.SLOW)}
    points = [Point(m, m * 10**6, {**fast, PEAK: (1e-4,)}, 10**6) for m in (1, 8, 9, 64)]
    few = [Point(m, m * 10**6, slow) for m in (1, 8)]
    every = [
        Candidate(name, 10.0 ** (i - 2), lambda x: lambda: None) for i, name in enumerate(seconds)
    ]
    tuned = [Tuned(8, 16, 16, 3, 60.0, 90.0, 1e-3, (3e-3, 2e-3, 1e-3))]
    for figure in (
        figures.speed_figure(points, few, "a layer"),
        figures.padding_figure(points, [8, 32], "a layer"),
        figures.offline_figure(points, few, every),
        figures.search_figure(tuned),
    ):
        assert is_picture(figure)
    table = figures.summary_table(points, few, every, [8, 32]).data
    assert BUCKETS in table and "pieces of 32" in table
    assert (
        "| 8 | tvm_moonpoly | 1000.0 | 8.0 | 1.00 |" in figures.speed_table(points, few, [8]).data
    )
    assert [figures.duration(s) for s in (0.5, 5, 600, 7200)] == [
        "0.50 s", "5.0 s", "10.0 min", "2.0 h"
    ]  # fmt: skip
