"""The GEMM benchmark: its shapes, its arithmetic, its report, and one whole small run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import tvm
from rich.console import Console

from bench.gemm import cli, environment, operands, ours, peak, report, run, shapes, summary
from bench.gemm.operands import make_operands
from bench.gemm.peers import DEFAULT, DIRECT, OURS, PEER_NAMES, VM, Peer
from bench.gemm.run import PEAK, Effort, Measured
from bench.gemm.shapes import CLASSES, Shape
from tvm_moonpoly.costmodel.tables import CostTable, TaskCost, Traffic
from tvm_moonpoly.microkernels.records import Record

ROOT = Path(__file__).resolve().parents[1]


# Shapes


def test_quick_shapes_cover_the_models_and_every_class():
    quick = shapes.quick_shapes()
    linear = [shape for shape in quick if not shape.dynamic]
    assert len(linear) >= 40
    assert len(set(quick)) == len(quick)
    models = {shape.layer.split()[0] for shape in quick}
    assert {"bert-base", "bert-large", "vit-base", "minilm", "qwen2.5-0.5b"} <= models
    assert {shape.m for shape in linear} >= set(shapes.FULL_M)
    assert min(Counter(shape.group for shape in quick).values()) >= 2
    assert {shape.group for shape in quick} == set(CLASSES)
    # What the four minutes of the quick run rest on.
    assert sum(shape.flops for shape in quick) < 30e9


def test_full_shapes_hold_every_layer_and_are_bounded():
    full = shapes.full_shapes()
    assert {(s.n, s.k) for s in full if not s.dynamic} == {(la.n, la.k) for la in shapes.LAYERS}
    assert max(shape.flops for shape in full) <= shapes.FULL_LIMIT_FLOPS
    assert len(full) > 300


@pytest.mark.parametrize(
    ("shape", "group"),
    [
        (Shape(1, 768, 768), "m=1"),
        (Shape(1, 384, 384), "tiny"),
        (Shape(4, 768, 768), "m=2..4"),
        (Shape(5, 768, 768), "m=5..17"),
        (Shape(17, 768, 768), "m=5..17"),
        (Shape(18, 768, 768), "m=18..100"),
        (Shape(101, 768, 768), "m=101..512"),
        (Shape(512, 768, 768), "m=101..512"),
        (Shape(513, 768, 768), "m>512"),
        (Shape(1, 33, 64, 12), "attention"),
    ],
)
def test_classes(shape, group):
    assert shape.group == group


def test_given_shapes():
    assert shapes.parse_shapes("33,768,512; 5,6,7,8;") == [
        Shape(33, 768, 512, layer="given"),
        Shape(5, 6, 7, 8, layer="given"),
    ]


@pytest.mark.parametrize("text", ["", "1,2", "1,2,3,4,5", "a,b,c", "0,1,1", "1,-2,3"])
def test_malformed_shapes_are_refused(text):
    with pytest.raises(ValueError, match="--shapes"):
        shapes.parse_shapes(text)


# Operands


@pytest.mark.parametrize(
    "shape", [Shape(3, 5, 7), Shape(3, 5, 7, 2), Shape(3, 5, 7, 2, transposed=True)]
)
def test_operands_are_aligned_and_hold_the_product(shape):
    made = make_operands(shape, seed=1)
    for array in (made.a, made.b, made.bt, made.out):
        if array is not None:
            assert array.ctypes.data % 64 == 0
            assert array.flags.c_contiguous
    lead = (2,) if shape.dynamic else ()
    assert made.a.shape == (*lead, 3, 7)
    assert made.right.shape == (*lead, 7, 5)
    assert made.out.shape == (*lead, 3, 5)
    if not shape.dynamic:
        assert made.bt is not None
        np.testing.assert_array_equal(made.bt.T, made.b)
    expected = operands.reference(made)
    assert operands.error_in(np.matmul(made.a, made.right), expected) is None


def test_wrong_results_are_found():
    made = make_operands(Shape(4, 6, 300), seed=2)
    expected = operands.reference(made)
    right = (made.a @ made.right).copy()
    assert operands.error_in(right, expected) is None
    without_a_term = right - np.outer(made.a[:, 7], made.right[7])
    assert "elements are wrong" in operands.error_in(without_a_term, expected)
    right[2, 3] = np.nan
    assert operands.error_in(right, expected).startswith("1 of 24 elements")
    assert "shape" in operands.error_in(right[:3], expected)


# Ratios


FAKE = Shape(33, 768, 768, layer="fake")


def fake(shape: Shape = FAKE, **peers: list[float]) -> Measured:
    """A measurement in which ours takes 1 ms directly and 2 ms through the virtual machine."""
    rounds = len(next(iter(peers.values())))
    ours = {DIRECT: [1e-3] * rounds, VM: [2e-3] * rounds}
    return Measured(shape, {PEAK: [1e-6] * rounds, **ours, **peers})


def test_best_peer_is_picked_on_one_half_and_compared_on_the_other():
    lucky = [0.5e-3, 4e-3, 0.5e-3, 4e-3]
    steady = [0.9e-3, 0.8e-3, 0.9e-3, 0.8e-3]
    measured = fake(openblas=lucky, onnxruntime=steady)
    row = summary.summarise_shape(measured, [], 100.0, 1)
    assert row["best"] == "openblas"
    assert row["vs_best"] == pytest.approx(4.0)
    assert row["vs"] == pytest.approx({"openblas": 2.25, "onnxruntime": 0.85})


def test_a_peer_is_compared_with_ours_called_alike():
    measured = fake(openblas=[3e-3] * 4, onednn_packed=[3e-3] * 4)
    row = summary.summarise_shape(measured, ["onednn_packed"], 100.0, 1)
    assert row["vs"] == pytest.approx({"openblas": 3.0, "onednn_packed": 1.5})
    assert row["vs_best"] == pytest.approx(3.0)
    assert row["vs_best_vm"] == pytest.approx(1.5)


def test_ours_is_never_a_peer():
    assert summary.best_peer({PEAK: [1e-9], DIRECT: [1e-9], VM: [1e-9]}) is None
    alone = Measured(Shape(3, 5, 7), {PEAK: [1e-6], DIRECT: [1e-3], VM: [1e-3]})
    row = summary.summarise_shape(alone, [], 1.0, 1)
    assert row["vs_best"] is None
    assert row["vs"] == {}
    assert summary.losses([row]) == []


def test_default_kernels_are_no_peer_and_a_column_of_their_own():
    measured = fake(openblas=[3e-3] * 4)
    assert summary.summarise_shape(measured, [], 100.0, 1)["vs_default"] is None
    measured.seconds[DEFAULT] = [1.2e-3] * 4
    row = summary.summarise_shape(measured, [], 100.0, 1)
    assert row["best"] == "openblas"
    assert row["vs"] == pytest.approx({"openblas": 3.0})
    assert row["vs_default"] == pytest.approx(1.2)
    assert summary.group_summary([row, row])["vs_default"] == pytest.approx(1.2)


def test_default_kernels_have_the_same_tiles_and_costs():
    costs = [TaskCost.linear(1, step) for step in (5, 7, 9)]
    tuned = [
        Record(4, 2, decisions={"unroll": 4, "prefetch_b": 16}),
        Record(4, 2, packed_a=True, decisions={"unroll": 2}),
        Record(1, 1),
    ]
    traffic = Traffic(*range(len(fields(Traffic))))
    table = CostTable(dict(zip(tuned, costs, strict=True)), traffic, {tuned[0]: costs[2]})
    plain = ours.with_default_schedules(table)
    assert plain.traffic == table.traffic
    assert not any(record.decisions for record in [*plain.tasks, *plain.busy])
    for record in table.tasks:
        tile = (record.mr, record.nv, record.form)
        assert plain.task(*tile) == table.task(*tile)
    assert plain.busy[Record(4, 2)] == costs[2]


def sample_document() -> dict:
    measured = [
        fake(Shape(33, 768, 768, layer="won"), openblas=[2e-3] * 4, onednn_packed=[3e-3] * 4),
        fake(Shape(1, 768, 768, layer="lost a bit"), openblas=[0.9e-3] * 4),
        Measured(
            Shape(1, 1024, 1024, layer="lost much"),
            fake(openblas=[0.5e-3] * 4).seconds,
            {"onednn_packed": "RuntimeError: no such primitive"},
        ),
    ]
    return summary.document(
        measured,
        facts={"cpu": "A CPU", "cores": 2, "caches": {"L1": "32K"}, "blas": [{"version": "1"}]},
        versions={"numpy": "2"},
        modes={DIRECT: "direct", VM: "vm", "openblas": "matmul", "onednn_packed": "packed"},
        allocating=[VM, "onednn_packed"],
        absent={"torch_mm": "ModuleNotFoundError: No module named 'torch'"},
        peak_flops=100_000,
        threads=1,
        extra={"clock": "a clock"},
    )


def test_document_has_the_agreed_fields():
    doc = json.loads(json.dumps(sample_document(), allow_nan=False))
    assert {"machine", "versions", "peak_gflops", "rows"} <= set(doc)
    assert doc["peak_gflops"] == pytest.approx(100.0)
    for row in doc["rows"]:
        assert {"m", "n", "k", "batch", "threads", "class", "gflops", "vs_best", "vs"} <= set(row)
        assert row["gflops"] == pytest.approx(2 * row["m"] * row["n"] * row["k"] / 1e-3 / 1e9)
        assert all(isinstance(ratio, float) for ratio in row["vs"].values())
    assert doc["rows"][0]["of_peak"] == pytest.approx(0.389, abs=1e-3)


def test_geometric_means_by_class_and_over_all():
    groups = sample_document()["geomean"]
    assert list(groups) == ["m=1", "m=18..100", "all"]
    assert groups["m=1"]["vs_best"] == pytest.approx((0.9 * 0.5) ** 0.5)
    assert groups["all"]["vs_best"] == pytest.approx((2.0 * 0.9 * 0.5) ** (1 / 3))
    assert groups["all"]["vs"]["onednn_packed"] == pytest.approx(1.5)
    assert groups["all"]["shapes"] == 3
    assert groups["all"]["losses"] == 2


def test_report_lists_every_loss_and_every_absent_peer():
    console = Console(width=250, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.print_document(console, sample_document())
    text = console.export_text()
    losses = text[text.index("All losses: 2 of 3") :]
    assert losses.index("lost much") < losses.index("lost a bit")
    assert "won" not in losses
    assert "0.50..0.50" in losses
    assert "absent: torch_mm: ModuleNotFoundError" in text
    assert "absent at 1 shapes: onednn_packed: RuntimeError: no such primitive" in text
    assert "A CPU" in text
    assert "100.0 GFLOP/s" in text


def test_report_says_when_there_is_no_loss():
    doc = sample_document()
    doc["rows"] = doc["rows"][:1]
    console = Console(width=250, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.print_losses(console, doc["rows"])
    assert "no losses" in console.export_text()


# Measuring


def numpy_peer(name: str, wrong_by: float = 0.0, fails: bool = False) -> Peer:
    """A candidate that computes by numpy, wrongly or not at all when asked to."""

    def prepare(made: operands.Operands):
        if fails:
            raise RuntimeError("cannot")
        return lambda: np.add(np.matmul(made.a, made.right, out=made.out), wrong_by, out=made.out)

    return Peer(name, "numpy", prepare, products=True)


def ticking_clock():
    """A clock that gains a millisecond whenever it is read."""
    now = [0.0]

    def read() -> float:
        now[0] += 1e-3
        return now[0]

    return read


def measure_with(*peers: Peer) -> list[Measured]:
    given = [Shape(3, 5, 7), Shape(2, 3, 4, 2)]
    weights = run.weights_of(given)
    effort = Effort(rounds=4, min_seconds=1e-4, budget=1e9)
    return run.measure_all(given, weights, peers, lambda: None, effort, ticking_clock())


def test_wrong_and_failing_peers_are_reported_not_timed():
    ours = [numpy_peer(name) for name in OURS]
    measured = measure_with(
        *ours, numpy_peer("good"), numpy_peer("bad", wrong_by=1.0), numpy_peer("gone", fails=True)
    )
    for one in measured:
        assert set(one.seconds) == {PEAK, *OURS, "good"}
        assert all(len(times) == 4 for times in one.seconds.values())
        assert "elements are wrong" in one.absent["bad"]
        assert one.absent["gone"] == "RuntimeError: cannot"


def test_a_wrong_result_of_ours_ends_the_run():
    with pytest.raises(RuntimeError, match="moonpoly_vm failed"):
        measure_with(numpy_peer(DIRECT), numpy_peer(VM, wrong_by=1.0))


def test_rounds_are_cut_when_time_runs_out():
    effort = Effort(rounds=8, min_seconds=0.01, budget=100)
    assert effort.rounds_left(0, 0, 50) == 8
    assert effort.rounds_left(10, 10, 50) == 8
    assert effort.rounds_left(20, 10, 80) == 4
    assert effort.rounds_left(40, 40, 80) == 6
    assert effort.rounds_left(200, 10, 80) == 4
    assert Effort(2, 0.01, 100).rounds_left(200, 10, 80) == 2


def test_work_of_another_thread_is_noticed():
    array = np.ones(200_000)
    assert run.share_in_caller(lambda: np.sin(array)) > 0.95
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        elsewhere = run.share_in_caller(lambda: pool.submit(np.sin, array).result())
    assert elsewhere < 0.5


# The multiply-add peak


def test_peak_loop_is_nothing_but_multiply_adds_in_registers():
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    text = peak.compile_peak(target, 8).inspect_source("s")
    loops = re.findall(r"^(\.LBB\w+):\n((?:(?!\.LBB).)*?)\n\s+jne\s+\1\n", text, re.M | re.S)
    bodies = [body for _, body in loops if "vfmadd" in body]
    assert len(bodies) == 1
    lines = [line.split() for line in bodies[0].splitlines() if re.match(r"\s+[a-z]", line)]
    chained = [line for line in lines if line[0].startswith("vfmadd")]
    assert len(chained) % peak.CHAINS == 0
    assert not any("(" in word for line in chained for word in line)
    assert len({line[-1] for line in chained}) == peak.CHAINS
    assert len(lines) - len(chained) <= 2  # the counter


def test_peak_computes_and_counts():
    function = peak.compile_peak(tvm.target.Target({"kind": "llvm"}), 4)["moonpoly_bench_fma"]
    pair = tvm.runtime.tensor(np.repeat(np.array([0.5, 1.0], np.float32), 4))
    state = tvm.runtime.tensor(np.zeros(peak.CHAINS * 4, np.float32))
    function(pair, state, 3)
    np.testing.assert_array_equal(state.numpy(), np.full(peak.CHAINS * 4, 1.75))


# The command line


def test_environment_is_fair():
    given = {"OMP_NUM_THREADS": "7", "OPENBLAS_CORETYPE": "Prescott", "PATH": "/bin"}
    fair = environment.fair_environment(given, 1)
    assert fair["OMP_NUM_THREADS"] == fair["TVM_NUM_THREADS"] == "1"
    assert "OPENBLAS_CORETYPE" not in fair
    assert fair[environment.REMOVED] == "OPENBLAS_CORETYPE"
    assert fair["PATH"] == "/bin"
    assert environment.fair_environment(fair, 1) == fair


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--threads", "2"], "--threads must be 1, got 2"),
        (["--rounds", "1"], "--rounds must be at least 2"),
        (["--peers", "openblas,blis"], "unknown blis"),
        (["--shapes", "1,2"], "--shapes takes m,n,k"),
        (["--json", "no/such/folder/out.json"], "there is no folder"),
    ],
)
def test_bad_options_end_with_one_clear_message(arguments, said, capsys):
    with pytest.raises(SystemExit):
        cli.parse(arguments)
    assert said in capsys.readouterr().err


def test_the_whole_bench_on_two_small_shapes(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "bench.gemm", "--rounds", "2", "--json", str(out)]
    done = subprocess.run(
        [*command, "--shapes", "13,24,40;5,17,9,3"],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_CORETYPE": "Prescott"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 shapes, 1 thread" in done.stdout
    assert "taken out of the environment: OPENBLAS_CORETYPE" in done.stdout
    doc = json.loads(out.read_text())
    assert [(row["m"], row["batch"]) for row in doc["rows"]] == [(13, 1), (5, 3)]
    assert doc["peak_gflops"] > 1
    for row in doc["rows"]:
        assert row["gflops"] > 0
        assert row["vs_best"] > 0
        # Every peer is either timed or said to be missing.
        assert set(row["vs"]) | set(row["absent"]) | set(doc["absent"]) - {DEFAULT} == set(
            PEER_NAMES
        )
        assert DEFAULT in doc["absent"] or row["vs_default"] > 0
        assert {"openblas", "onnxruntime", "tvm_hand"} <= set(row["vs"])
    assert all(share > 0.9 for share in doc["share_in_calling_thread"].values())
