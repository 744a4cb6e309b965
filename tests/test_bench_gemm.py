"""The GEMM benchmark: shapes, operands, measuring, probes, options, and one whole small run."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from bench.gemm import bandwidth, cli, environment, operands, ours, peak, reference, run, shapes
from bench.gemm.journal import Journal, read_lines
from bench.gemm.operands import make_operands
from bench.gemm.peers import DEFAULT_NAMES, DIRECT, OURS, VM, Peer
from bench.gemm.run import PEAK, READ, Bench, Effort
from bench.gemm.shapes import Shape
from tvm_moonpoly.costmodel.tables import CostTable, Traffic
from tvm_moonpoly.costmodel.tasks import TaskCost
from tvm_moonpoly.microkernels.records import Record

ROOT = Path(__file__).resolve().parents[1]


# Shapes


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
        (Shape(64, 768, 768, constant=False, workload="dynamic"), "m=18..100"),
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


def test_a_batch_makes_both_operands_new_and_attention_of_it():
    shape = Shape(5, 6, 7, 8)
    assert (shape.dynamic, shape.constant, shape.workload) == (True, False, "attention")
    assert not Shape(5, 6, 7).dynamic


def test_keys_tell_cases_apart_and_layers_do_not():
    variants = [
        Shape(1, 8, 4),
        Shape(1, 8, 4, workload="row"),
        Shape(1, 8, 4, workload="row", constant=False),
        Shape(1, 8, 4, workload="row", constant=False, transposed=True),
        Shape(1, 8, 4, workload="row", constant=False, row_stride=9),
        Shape(1, 8, 4, workload="fused", epilogue="bias_gelu"),
        Shape(1, 8, 4, source="random"),
        Shape(1, 8, 4, 3),
    ]
    assert len({shape.key for shape in variants}) == len(variants)
    assert Shape(1, 8, 4, layer="x").key == Shape(1, 8, 4, layer="y").key
    for shape in variants:
        assert Shape.from_json(json.loads(json.dumps(shape.to_json()))) == shape


def test_a_chain_counts_all_its_products():
    chain = Shape(2, 8, 8, workload="chain")
    assert chain.flops == 32 * 2 * 2 * 8 * 8
    assert chain.right_bytes == 32 * 4 * 8 * 8


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"workload": "conv"}, "workload must be one of"),
        ({"epilogue": "relu"}, "epilogue must be one of"),
        ({"workload": "chain"}, "square"),
        ({"row_stride": 64}, "row_stride"),
        ({"row_stride": 7, "constant": False}, "row_stride"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        Shape(3, 8, 4, **fields)


def test_unknown_fields_are_refused():
    with pytest.raises(ValueError, match="not a shape"):
        Shape.from_json({"m": 1, "n": 1, "k": 1, "z": 1})
    with pytest.raises(ValueError, match="not a shape"):
        Shape.from_json({"m": 1})


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
    expected = reference.reference(made)
    assert reference.error_in(np.matmul(made.a, made.right), expected) is None


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_are_as_far_apart_as_the_shape_says(transposed):
    shape = Shape(3, 6, 5, transposed=transposed, constant=False, row_stride=40)
    made = make_operands(shape, seed=1)
    stored = made.bt if transposed else made.b
    assert stored.strides == (160, 4)
    assert stored.ctypes.data % 64 == 0
    assert made.right.shape == (5, 6)
    assert (made.b is None) == transposed


def test_wrong_results_are_found():
    made = make_operands(Shape(4, 6, 300), seed=2)
    expected = reference.reference(made)
    right = (made.a @ made.right).copy()
    assert reference.error_in(right, expected) is None
    without_a_term = right - np.outer(made.a[:, 7], made.right[7])
    assert "elements are wrong" in reference.error_in(without_a_term, expected)
    right[2, 3] = np.nan
    assert reference.error_in(right, expected).startswith("1 of 24 elements")
    assert "shape" in reference.error_in(right[:3], expected)


def test_the_reference_is_the_same_in_one_piece_and_in_several(monkeypatch):
    made = make_operands(Shape(3, 50, 20), seed=3)
    whole = reference.reference(made)
    np.testing.assert_allclose(whole.values, made.a.astype(float) @ made.b.astype(float))
    monkeypatch.setattr(reference, "CHUNK_BYTES", 8 * 20 * 7)
    parts = reference.reference(made)
    np.testing.assert_allclose(parts.values, whole.values, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(parts.tolerance, whole.tolerance, rtol=1e-5)


def test_epilogues_are_part_of_the_reference():
    shape = Shape(4, 6, 30, workload="fused", epilogue="bias_residual")
    made = make_operands(shape, seed=4)
    expected = reference.reference(made)
    plain = made.a @ made.b + made.bias
    assert reference.error_in(plain + made.residual, expected) is None
    assert "wrong" in reference.error_in(plain, expected)
    made = make_operands(replace(shape, epilogue="bias_gelu"), seed=4)
    expected = reference.reference(made)
    x = (made.a @ made.b + made.bias).astype(float)
    by_tanh = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    by_erf = np.array([each * 0.5 * math.erfc(-each / math.sqrt(2)) for each in x.flat])
    assert reference.error_in(by_erf.reshape(x.shape), expected) is None
    assert "wrong" in reference.error_in(by_tanh, expected)  # another function, close to it


def test_a_chain_keeps_its_size_and_a_missing_product_is_noticed():
    made = make_operands(Shape(3, 48, 48, workload="chain"), seed=5)
    assert len(made.chain) == 32
    expected = reference.reference(made)
    x = made.a
    for weight in made.chain:
        before, x = x, x @ weight
    assert reference.error_in(x, expected) is None
    assert "wrong" in reference.error_in(before, expected)
    np.testing.assert_allclose(np.linalg.norm(x), np.linalg.norm(made.a), rtol=1e-4)


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


EFFORT = Effort(rounds=4, min_seconds=1e-4, case_seconds=1e9, budget=1e9)


def bench_of(*peers: Peer) -> Bench:
    return Bench(peers, lambda: None, None, ticking_clock())


def numpy_bench() -> Bench:
    return bench_of(*(numpy_peer(name) for name in (*OURS, "good")))


def new_journal(path: Path) -> Journal:
    return Journal(path / "journal.jsonl", {"settings": 1})


def test_wrong_and_failing_peers_are_reported_not_timed(tmp_path):
    bench = bench_of(
        *(numpy_peer(name) for name in (*OURS, "good")),
        numpy_peer("bad", wrong_by=1.0),
        numpy_peer("gone", fails=True),
        replace(numpy_peer("weights only"), products=False),
    )
    with new_journal(tmp_path) as journal:
        run.measure_all([Shape(3, 5, 7), Shape(2, 3, 4, 2)], bench, EFFORT, journal)
        measured = journal.measured(1)
    for one in measured:
        known = {PEAK, *OURS, "good"} | ({"weights only"} if one.shape.constant else set())
        assert set(one.seconds) == known
        assert all(len(times) == 4 for times in one.seconds.values())
        assert "elements are wrong" in one.absent["bad"]
        assert one.absent["gone"] == "RuntimeError: cannot"
        assert set(one.absent) == {"bad", "gone"}  # a mode that does not exist is no failure


def test_a_wrong_result_of_ours_ends_the_run(tmp_path):
    bench = bench_of(numpy_peer(DIRECT), numpy_peer(VM, wrong_by=1.0))
    with new_journal(tmp_path) as journal, pytest.raises(RuntimeError, match="moonpoly_vm failed"):
        run.measure_all([Shape(3, 5, 7)], bench, EFFORT, journal)


def test_an_interrupted_run_goes_on_with_what_is_left(tmp_path):
    given = [Shape(m, 5, 7) for m in (1, 2, 3, 4)]

    def stop_at_three(shape: Shape) -> None:
        if shape.m == 3:
            raise KeyboardInterrupt

    with new_journal(tmp_path) as journal, pytest.raises(KeyboardInterrupt):
        run.measure_all(given, numpy_bench(), EFFORT, journal, stop_at_three)
    seen: list[int] = []
    with new_journal(tmp_path) as journal:
        assert journal.resumed
        run.measure_all(given, numpy_bench(), EFFORT, journal, lambda shape: seen.append(shape.m))
        assert seen == [3, 4]
        assert [one.shape.m for one in journal.measured(1)] == [1, 2, 3, 4]
        more = EFFORT.again(1e9)
        run.measure_all(given[:1], numpy_bench(), more, journal, earlier=1)
        run.measure_all(given[:1], numpy_bench(), more, journal, earlier=1)
        first, *others = journal.measured(1)
    assert [len(one[DIRECT]) for one in first.runs] == [4, 12]
    assert len(first.seconds[DIRECT]) == 16
    assert all(len(one.runs) == 1 for one in others)


def test_cases_of_one_weight_follow_one_another():
    given = [Shape(9, 5, 7), Shape(1, 6, 7), Shape(2, 3, 4, 2), Shape(1, 5, 7)]
    assert [(s.workload, s.n, s.m) for s in run.in_order(given)] == [
        ("linear", 5, 1),
        ("linear", 5, 9),
        ("linear", 6, 1),
        ("attention", 3, 2),
    ]
    bench = bench_of()
    one, other = bench.operands(given[0]), bench.operands(given[3])
    assert one.b is other.b
    assert bench.operands(given[1]).b is not one.b
    assert list(bench.weights) == [(6, 7)]


def test_rounds_are_cut_when_time_runs_out():
    effort = Effort(rounds=12, min_seconds=0.01, case_seconds=1, budget=100)
    assert effort.rounds_left(0, 0, 50) == 12
    assert effort.rounds_left(10, 10, 50) == 12
    assert effort.rounds_left(20, 10, 80) == 6
    assert effort.rounds_left(40, 40, 80) == 8
    assert effort.rounds_left(200, 10, 80) == 6
    assert Effort(2, 0.01, 1, 100).rounds_left(200, 10, 80) == 2
    # Second runs have three times the rounds, cut or not.
    assert effort.again(10).rounds_left(200, 10, 80) == 18
    assert effort.again(1000).rounds_left(10, 10, 80) == 36


def test_few_rows_are_timed_beside_the_reading_of_memory(tmp_path):
    target = tvm.target.Target({"kind": "llvm"})
    peers = [numpy_peer(name) for name in OURS]
    bench = Bench(peers, lambda: None, bandwidth.compile_reader(target, 4), ticking_clock())
    record = bench.measure(Shape(2, 64, 64), EFFORT, 4)
    assert len(record.rounds[READ]) == 4
    assert READ not in bench.measure(Shape(5, 64, 64), EFFORT, 4).rounds


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


@pytest.mark.parametrize(("streams", "vectors"), bandwidth.PATTERNS)
def test_the_read_probe_reads_everything(streams, vectors):
    lanes = 4
    target = tvm.target.Target({"kind": "llvm"})
    reader = bandwidth.compile_reader(target, lanes)
    step = streams * vectors * lanes
    values = np.random.default_rng(6).integers(0, 9, 5 * step + 3).astype(np.float32)
    total = tvm.runtime.tensor(np.zeros(step, np.float32))
    reader.functions[streams, vectors](tvm.runtime.tensor(values), total, 5)
    assert total.numpy().sum() == values[: 5 * step].sum()
    call, pattern = reader.fastest(1000)
    assert pattern in bandwidth.PATTERNS
    call()


def test_the_read_probe_loads_and_adds_vectors_only():
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    function = bandwidth.read_function(8, 4, 2)
    text = tvm.compile(function, target=target).mod.inspect_source("s")
    bodies = re.findall(r"^(\.LBB\w+):\n((?:(?!\.LBB).)*?)\n\s+jne\s+\1\n", text, re.M | re.S)
    loops = [body for _, body in bodies if len(re.findall(r"vaddps\t[^\n]*\(", body)) >= 8]
    assert len(loops) == 1
    lines = [line.split()[0] for line in loops[0].splitlines() if re.match(r"\s+[a-z]", line)]
    added = lines.count("vaddps")
    assert added % 8 == 0
    assert not any(word.startswith("vmov") for word in lines)
    assert len(lines) - added <= 6  # counters and addresses


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
        (["--threads", "0"], "--threads takes different numbers"),
        (["--threads", "1,1"], "--threads takes different numbers"),
        (["--json", "out.json"], "--json takes one number of threads"),
        (["--resume", "--restart"], "exclude each other"),
        (["--budget", "0"], "--budget must be positive"),
        (["--seed", "-1"], "--seed must not be negative"),
        (["--quick", "--workloads", "row,conv"], "no cases of conv"),
        (["--rounds", "1"], "--rounds must be at least 2"),
        (["--peers", "openblas,blis"], "unknown blis"),
        (["--shapes", "1,2"], "--shapes takes m,n,k"),
        (["--quick", "--json", "no/such/folder/out.json"], "there is no folder"),
    ],
)
def test_bad_options_end_with_one_clear_message(arguments, said, capsys):
    with pytest.raises(SystemExit):
        cli.parse(arguments)
    assert said in capsys.readouterr().err


def test_threads_are_one_and_then_two_unless_quick():
    assert cli.parse([]).threads == [1, 2]
    assert cli.parse(["--quick"]).threads == [1]
    assert {case.workload for case in cli.parse(["--workloads", "row,chain"]).cases} == {
        "row",
        "chain",
    }


@pytest.mark.parametrize(
    ("ends_by", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "the same command goes on"),
        (RuntimeError("no micro-kernels"), 1, "bench.gemm: no micro-kernels"),
    ],
)
def test_an_interrupted_or_impossible_run_says_how_it_ended(
    monkeypatch, capsys, tmp_path, ends_by, code, said
):
    def measure(options: object, path: Path, console: object) -> None:
        assert path == tmp_path / "gemm-quick.jsonl"
        raise ends_by

    monkeypatch.setattr(cli, "measure", measure)
    monkeypatch.setattr(environment, "restart_in_fair_environment", lambda threads: None)
    assert cli.main(["--quick", "--out", str(tmp_path)]) == code
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_run_goes_on_in_its_journal_and_writes_its_document(monkeypatch, tmp_path):
    """Everything but the measuring: header, journal, document, report, finished or not."""
    from bench.gemm import session

    calls: list[int] = []

    def one_thread(cases, names, effort, journal, console) -> None:
        calls.append(len(journal.records))
        journal.note(1, {"candidates": {}, "allocating": [VM], "peak_flops": 1000})
        run.measure_all(cases, numpy_bench(), EFFORT, journal)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(session, "run_one_thread", one_thread)
    monkeypatch.setattr(environment, "restart_in_fair_environment", lambda threads: None)
    out = tmp_path / "figures.json"
    command = ["--shapes", "2,3,4;5,6,7", "--threads", "1", "--out", str(tmp_path)]
    command += ["--json", str(out)]
    assert [cli.main(command) for _ in range(3)] == [130, 0, 0]
    assert calls == [0, 2, 0]  # gone on with, then finished and begun anew
    doc = json.loads(out.read_text())
    assert [row["m"] for row in doc["rows"]] == [2, 5]
    assert doc["settings"]["seed"] == cli.SEED
    assert {"machine", "versions", "library", "target"} <= set(doc)


def test_the_whole_bench_on_small_cases(tmp_path):
    command = [sys.executable, "-m", "bench.gemm", "--rounds", "2", "--threads", "1", "--each"]
    done = subprocess.run(
        [*command, "--shapes", "13,24,40;5,17,9,3", "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_CORETYPE": "Prescott"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 cases, 1 thread" in done.stdout
    assert "taken out of the environment: OPENBLAS_CORETYPE" in done.stdout
    doc = json.loads((tmp_path / "gemm-shapes-1-thread.json").read_text())
    assert [(row["m"], row["batch"]) for row in doc["rows"]] == [(13, 1), (5, 3)]
    assert doc["peak_gflops"] > 1
    for row in doc["rows"]:
        assert row["gflops"] > 0
        assert row["vs_best"] > 0
        assert row["limit"] > 0
        assert {"openblas", "onnxruntime"} <= set(row["vs"])
    # Every peer that exists is either timed or said to be missing.
    found = set(doc["rows"][0]["vs"]) | set(doc["absent"])
    assert found >= set(DEFAULT_NAMES) - {"onednn_separate", "onnxruntime_separate"}
    assert all(share > 0.9 for share in doc["share_in_calling_thread"].values())
    lines, _ = read_lines(tmp_path / "gemm-shapes.jsonl")
    assert "finished" in lines[-1]
