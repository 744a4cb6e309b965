"""The bench with several threads: workers that are stopped in turn, and what bad ones do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from bench_threads_worker import fake
from patience import DEADLINE, wait_until
from rich.console import Console

from bench.gemm import bandwidth, peak
from bench.gemm.document import document
from bench.gemm.journal import BUSY, QUIET, Journal, Record
from bench.gemm.operands import make_operands
from bench.gemm.peers import DIRECT, STATIC, VM, Peer
from bench.gemm.report import print_document
from bench.gemm.run import PEAK, READ, READ_ROWS, Effort
from bench.gemm.shapes import Shape
from bench.gemm.threads import cases, session
from bench.gemm.threads.busy import busy_core
from bench.gemm.threads.candidates import checked_runs
from bench.gemm.threads.crew import LOSSES, Crew
from bench.gemm.threads.libraries import PLACEMENT, libraries_for, worker_environment
from bench.gemm.threads.link import Link, WorkerLost
from bench.gemm.threads.rounds import measure_case, seed_of
from bench.gemm.threads.static import static_plans
from bench.measure import order_of
from tvm_moonpoly.planner.plan import BMode, Plan

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="stops processes as Linux does"
)

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("bench_threads_worker.py")
ENVIRONMENT = dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(WORKER.parent)])}
GOOD, BAD = Shape(5, 8, 8), Shape(13, 8, 8)  # the other candidate misbehaves when m is 13


def state_of(pid: int) -> str:
    """The state of a process in a letter: T when it is stopped; "" when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits to be reaped has."""
    return state_of(pid) in ("", "Z", "X")


@pytest.fixture
def crew_of():
    """What makes a crew of fake workers of the given kinds; all are ended after the test."""
    made = []

    def make(*kinds: str) -> Crew:
        crew = Crew([fake(kind) for kind in kinds], ENVIRONMENT, 1)
        made.append(crew)
        return crew.__enter__()

    yield make
    for crew in made:
        crew.end()


# One runs, the others are stopped


def test_all_but_the_asked_worker_are_stopped(crew_of, monkeypatch):
    crew = crew_of("one", "two", "three")
    asked = []
    ask = Link.ask

    def spy(link, request, seconds):
        others = [pid for pid in crew.pids.values() if pid != link.pid]
        before = [state_of(pid) for pid in others]
        answer = ask(link, request, seconds)
        asked.append(set(before + [state_of(pid) for pid in others]))
        return answer

    monkeypatch.setattr(Link, "ask", spy)
    seconds, absent = measure_case(crew, GOOD, rounds=4, min_seconds=0.001)
    assert not absent
    assert asked == [{"T"}] * len(asked)
    assert len(asked) == 3 + 4 * 6 + 3  # prepare, samples of two candidates each, release
    assert {len(times) for times in seconds.values()} == {4}
    # in seconds: a call sleeps a ten-thousandth of one
    assert all(1e-4 < each < 10 for times in seconds.values() for each in times)


def test_stopping_and_resuming_twice_is_harmless(crew_of):
    crew = crew_of("one")
    link = crew._links["one"]
    link.stop()
    link.stop()
    assert state_of(link.pid) == "T"
    link.resume()
    link.resume()
    assert wait_until(lambda: state_of(link.pid) != "T")


def test_leaving_the_block_ends_stopped_workers():
    with Crew([fake("one"), fake("two")], ENVIRONMENT, 1) as crew:
        pids = list(crew.pids.values())
        assert [state_of(pid) for pid in pids].count("T") == 1
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_the_host(how):
    host = subprocess.Popen(
        [sys.executable, WORKER, "host"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        pids = [int(pid) for pid in host.stdout.readline().split()]
        children = Path(f"/proc/{host.pid}/task/{host.pid}/children")
        pids += [int(pid) for pid in children.read_text().split() if int(pid) not in pids]
        assert len(pids) == 3  # the process that keeps a core busy is the third
        assert "T" in [state_of(pid) for pid in pids]
        host.send_signal(how)
        host.wait(DEADLINE)
        assert wait_until(lambda: all(gone(pid) for pid in pids))
    finally:
        host.kill()
        host.wait()
        host.stdout.close()


# Bad workers


def test_dead_worker_is_absent_for_the_case_and_started_again(crew_of):
    crew = crew_of("dies", "fine")
    first = crew.pids["dies"]
    seconds, absent = measure_case(crew, BAD, rounds=2, min_seconds=0.001)
    assert set(seconds) == {"plain_fine", "other_fine"}
    assert set(absent) == {"plain_dies", "other_dies"}
    assert absent["other_dies"] == "the worker died of SIGKILL: the last words"
    seconds, absent = measure_case(crew, GOOD, rounds=2, min_seconds=0.001)
    assert set(seconds) == {"plain_fine", "other_fine", "plain_dies", "other_dies"}
    assert not absent
    assert crew.pids["dies"] != first
    assert gone(first)


def test_hanging_worker_is_killed_when_its_time_is_up(crew_of):
    crew = crew_of("hangs", "fine")
    pid = crew.pids["hangs"]
    # so long that the other one answers in time wherever it runs; the call lasts an hour
    seconds, absent = measure_case(crew, BAD, rounds=2, min_seconds=0.001, patience=4.0)
    assert set(seconds) == {"plain_fine", "other_fine"}
    assert absent["other_hangs"] == "no answer within 4 s"
    assert gone(pid)


def test_failing_candidate_is_absent_and_its_worker_goes_on(crew_of):
    crew = crew_of("raises")
    seconds, absent = measure_case(crew, BAD, rounds=2, min_seconds=0.001)
    assert absent == {"other_raises": "ValueError: no such luck"}
    assert len(seconds["plain_raises"]) == 2


def test_worker_that_cannot_start_is_absent_altogether(crew_of):
    crew = crew_of("broken", "fine")
    assert set(crew.absent) == {"plain_broken", "other_broken"}
    assert crew.absent["plain_broken"].endswith("ImportError: no such library")
    seconds, absent = measure_case(crew, GOOD, rounds=1, min_seconds=0.001)
    assert set(seconds) == {"plain_fine", "other_fine"}
    assert not absent


def test_worker_that_is_lost_again_and_again_is_given_up(crew_of):
    crew = crew_of("dies", "fine")
    for _ in range(LOSSES):
        _, absent = measure_case(crew, BAD, rounds=1, min_seconds=0.001)
        assert set(absent) == {"plain_dies", "other_dies"}
    seconds, absent = measure_case(crew, GOOD, rounds=1, min_seconds=0.001)
    assert set(seconds) == {"plain_fine", "other_fine"}
    assert absent["other_dies"] == f"its worker was lost {LOSSES} times"


def test_asking_a_lost_worker_says_so(crew_of):
    crew = crew_of("one")
    os.kill(crew.pids["one"], signal.SIGKILL)
    with pytest.raises(WorkerLost, match="SIGKILL"):
        crew.ask("one", "anything", DEADLINE)
    with pytest.raises(WorkerLost, match="lost before"):
        crew.ask("one", "anything", DEADLINE)


def test_wrong_result_is_found_in_the_worker():
    def wrong(operands):
        def run():
            np.matmul(operands.a, operands.b, out=operands.out)
            operands.out[0, 0] += 1

        return run

    def right(operands):
        return lambda: np.matmul(operands.a, operands.b)

    def failing(operands):
        raise OSError("cannot")

    def broken(operands):
        raise OSError("cannot be had")

    makers = {
        name: lambda operands, name=name, prepare=prepare: Peer(name, "", prepare)
        for name, prepare in {"wrong": wrong, "right": right, "failing": failing}.items()
    } | {"broken": broken}
    runs, absent = checked_runs(makers, make_operands(Shape(3, 5, 7), seed=1))
    assert set(runs) == {"right"}
    assert absent["wrong"].startswith("ValueError: 1 of 15 elements are wrong")
    assert absent["failing"] == "OSError: cannot"
    assert absent["broken"] == "OSError: cannot be had"
    dynamic = make_operands(Shape(3, 5, 7, workload="dynamic", constant=False), seed=1)
    assert checked_runs(makers, dynamic) == ({}, {"broken": "OSError: cannot be had"})


# The protocol of the rounds


def test_order_rotates_and_runs_backwards_every_other_round():
    names = dict.fromkeys("abc")
    assert [order_of(names, turn) for turn in range(3)] == [list("abc"), list("acb"), list("cab")]
    assert order_of({}, 1) == []


def test_seed_is_that_of_the_case():
    assert seed_of(Shape(1, 2, 3)) == seed_of(Shape(1, 2, 3, layer="named"))
    assert seed_of(Shape(1, 2, 3)) != seed_of(Shape(1, 3, 2))


def test_environment_of_the_workers():
    current = dict.fromkeys([*PLACEMENT, "OPENBLAS_CORETYPE", "OMP_NUM_THREADS"], "1")
    made = worker_environment(current | {"HOME": "here"}, 2)
    assert not set(made) & {*PLACEMENT, "OPENBLAS_CORETYPE"}
    assert made["HOME"] == "here"
    assert {made[name] for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS")} == {"2"}


def test_only_wanted_libraries_get_a_process():
    assert [one.name for one in libraries_for(["openblas", "onnxruntime"], QUIET)] == [
        "probes",
        "tvm_moonpoly",
        "numpy",
        "onnxruntime",
    ]


# Cases


def test_cases_are_spread_over_the_work_of_each_workload():
    linear = [Shape(m, 512, 512) for m in range(1, 101)]
    drawn = [Shape(m, 64, 64, source="random") for m in range(1, 50)]
    attention = [Shape(m, 64, 64, 12, transposed=True) for m in (1, 8, 64)]
    chosen = cases.spread([*attention, *linear, *drawn], {"linear": 4, "attention": 9, "row": 2})
    assert chosen == [*attention, *(Shape(m, 512, 512) for m in (13, 38, 63, 88))]
    listed = [*attention, *linear, *drawn]
    busy = cases.busy_cases(listed, quick=False)
    assert 8 <= len(busy) <= 16
    assert set(busy) <= set(cases.quiet_cases(listed, quick=False))
    assert min(shape.flops for shape in busy) >= cases.SHARED_FLOPS


@pytest.mark.parametrize("total", [0, 1, 5, 17])
@pytest.mark.parametrize("count", [1, 4, 17])
def test_positions(total, count):
    found = cases.positions(total, count)
    assert len(set(found)) == len(found) == min(total, count)
    assert all(0 <= at < total for at in found)


# A busy core


def test_busy_core_is_kept_busy_until_the_block_ends():
    cpu = max(os.sched_getaffinity(0))
    with busy_core(cpu, ENVIRONMENT) as spinner:
        assert os.sched_getaffinity(spinner.pid) == {cpu}
        before = spinner.ask("", DEADLINE)
        # others may be at work here too
        assert wait_until(lambda: spinner.ask("", DEADLINE) - before > 0.15)
        pid = spinner.pid
    assert gone(pid)


# The peak on all threads


@pytest.mark.parametrize("threads", [1, 2])
def test_peak_computes_on_every_thread(threads, monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", str(threads))
    target = tvm.target.Target({"kind": "llvm"})
    function = peak.compile_peak(target, 4, threads)[peak.FUNCTION]
    operands = tvm.runtime.tensor(np.repeat(np.array([0.5, 1.0], np.float32), 4))
    state = tvm.runtime.tensor(np.zeros(threads * peak.CHAINS * 4, np.float32))
    function(operands, state, 3)
    np.testing.assert_array_equal(state.numpy(), np.full(threads * peak.CHAINS * 4, 1.75))
    assert peak.peak_runner(target, 4, threads)[1] == 2 * peak.CHAINS * 4 * peak.STEPS * threads


@pytest.mark.parametrize("pattern", bandwidth.PATTERNS)
def test_reader_reads_all_of_each_part(pattern, monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    streams, vectors = pattern
    target = tvm.target.Target({"kind": "llvm"})
    function = tvm.compile(bandwidth.read_function(4, *pattern, 2), target=target).mod
    sums, steps = streams * vectors * 4, 3
    values = np.random.default_rng(0).integers(0, 9, 2 * steps * sums).astype(np.float32)
    total = tvm.runtime.tensor(np.zeros(2 * sums, np.float32))
    function[bandwidth.NAME](tvm.runtime.tensor(values), total, steps)
    expected = values.reshape(2, streams, steps, vectors * 4).sum(axis=2)
    np.testing.assert_array_equal(total.numpy(), expected.ravel())


# The work split once


def plan_of(splits_m: int, splits_n: int, workers: int) -> Plan:
    return Plan(
        nv=2,
        mr=6,
        tail_nv=0,
        tail_mr=0,
        pack_a=False,
        b_mode=BMode.PREPACKED,
        kc=0,
        mc=0,
        nc=0,
        splits_m=splits_m,
        splits_n=splits_n,
        workers=workers,
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, 10, 2), (1, 2, 2)),
        ((10, 1, 2), (2, 1, 2)),
        ((2, 5, 2), (1, 2, 2)),
        ((1, 2, 2), (1, 2, 2)),
        ((1, 1, 1), (1, 1, 1)),
        ((3, 3, 4), (3, 3, 4)),
    ],
)
def test_chunks_are_joined_to_one_a_worker(before, after):
    table = np.array([0, plan_of(*before).encode()], np.int64)
    assert static_plans(table).tolist() == [0, plan_of(*after).encode()]


def test_effects_of_a_busy_core(tmp_path):
    shape = Shape(64, 64, 64)
    with Journal(tmp_path / "journal", {}) as journal:
        journal.add(Record(shape, 2, {PEAK: [1.0], DIRECT: [1.0, 1.0], "openblas": [2.0, 2.0]}))
        rounds = {PEAK: [1.0], DIRECT: [1.5, 1.5], STATIC: [3.0, 3.0], "openblas": [8.0, 8.0]}
        journal.add(Record(shape, 2, rounds, mode=BUSY))
        found = session.effects(journal, 2)
    assert found["slowdown"] == pytest.approx({DIRECT: 1.5, "openblas": 4.0})
    assert found["static"] == pytest.approx(2.0)
    assert found["static_cases"] == 1


# A whole run


def test_run_fills_the_journal_and_goes_on_from_it(tmp_path, monkeypatch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    console = Console(file=(tmp_path / "printed").open("w"))
    shapes = [Shape(9, 40, 24), Shape(3, 8, 16, 2, transposed=True)]
    effort = Effort(rounds=2, min_seconds=0.001, case_seconds=1, budget=1e6)
    with Journal(tmp_path / "journal", {"machine": "any"}) as journal:
        session.run_threads(shapes, ["openblas"], effort, 2, journal, console)
        for shape in shapes:
            first = journal.runs(shape.key, 2)[0]
            read = {READ} if shape.m <= READ_ROWS else set()
            assert set(first.rounds) == {PEAK, DIRECT, VM, "openblas"} | read
            assert {len(times) for times in first.rounds.values()} == {2}
        note = journal.notes[2]
        assert note["peak_flops"] > 0
        assert note["allocating"] == [VM]
        assert not note["absent"]
        assert {pool["num_threads"] for pool in note["pools"]["numpy"]} == {2}
        session.run_threads(shapes[:1], ["openblas"], effort, 2, journal, console, mode=BUSY)
        assert len(journal.measured(2, BUSY)) == 1
        busy = journal.runs(shapes[0].key, 2, BUSY)[0].rounds
        assert set(busy) == {PEAK, DIRECT, VM, STATIC, "openblas"}
        found = journal.notes[2]["busy"]
        assert 0 < found["busy_share"] <= 1.1
        assert set(found["slowdown"]) == {DIRECT, VM, "openblas"}
        assert found["static"] > 0
        assert found["static_cases"] == 1
        assert len(journal.measured(2, QUIET)) == 2

    def unexpected(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(session, "in_doubt", lambda rows: [])
    monkeypatch.setattr(session, "crew_of", unexpected)
    with Journal(tmp_path / "journal", {"machine": "any"}) as journal:
        assert journal.resumed
        session.run_threads(shapes, ["openblas"], effort, 2, journal, console)
        found = document(journal, 2)
    assert [row["mode"] for row in found["rows"]] == [QUIET, QUIET, BUSY]
    assert found["peak_gflops"] > 1
    print_document(console, found, each=True)


def test_too_few_cpus_are_refused():
    with pytest.raises(RuntimeError, match="4096 threads need as many CPUs"):
        session.check_machine(4096)
