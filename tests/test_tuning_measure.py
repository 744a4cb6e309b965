"""Measuring for the tuning stage: estimates, where operands lie, worker processes, real timings."""

from __future__ import annotations

import itertools
import math
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from patience import DEADLINE, undisturbed
from tuning_testing import MACHINE, efficiency, gigaflops

from tvm_moonpoly.machine import Machine, detect_target
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.cpu_gemm import Record
from tvm_moonpoly.tuning.measuring import (
    kernel_loop,
    processes,
    regions,
    robust,
    timing,
    trials,
)
from tvm_moonpoly.tuning.measuring.lab import Lab
from tvm_moonpoly.tuning.measuring.processes import Worker, WorkerError
from tvm_moonpoly.tuning.measuring.regions import PLACEMENTS, Loop, place
from tvm_moonpoly.tuning.measuring.tasks import TRIP_COUNTS, Task, Timing, samples_of
from tvm_moonpoly.tuning.measuring.timing import Bench

# One number from many


def timings(rng, ratio, count, speed):
    """Timings on a machine that is ``speed(i)`` times slower at probe ``i``, a little noise."""
    probe = [speed(i) * rng.uniform(1.0, 1.005) for i in range(count + 1)]
    task = [ratio * (p + q) / 2 * rng.uniform(1.0, 1.01) for p, q in itertools.pairwise(probe)]
    return task, probe


def test_drift_drops_out():
    rng = random.Random(0)
    for speed in (lambda i: 1.0, lambda i: 3.0, lambda i: 1 + 0.002 * i):
        found = robust.estimate(*timings(rng, 7.0, 13, speed))
        assert found.ratio == pytest.approx(7.0, rel=0.01)
        assert found.calm and found.spread < 0.02


def test_outliers_on_either_side_do_not_count():
    rng = random.Random(1)
    task, probe = timings(rng, 7.0, 13, lambda i: 1.0)
    for i in (1, 5, 9):
        task[i] *= 4
    for i in (3, 12):
        probe[i] *= 2
    found = robust.estimate(task, probe)
    assert found.ratio == pytest.approx(7.0, rel=0.02)
    # those next to a slow probe are not used
    assert found.timings == 13 - 4 and found.calm


def test_a_machine_that_is_never_calm_is_told():
    rng = random.Random(2)
    task, probe = timings(rng, 7.0, 13, lambda i: 1.0 if i % 2 else 1.5)
    found = robust.estimate(task, probe)
    assert not found.calm and found.timings == 13
    assert found.ratio == pytest.approx(7.0, rel=0.05)


def test_the_undisturbed_speed():
    assert robust.undisturbed([5.0] * 50 + [9.0] * 50) == 5.0
    assert robust.undisturbed([1.0] + [5.0] * 99) == 5.0, "one slip of the clock does not count"
    with pytest.raises(ValueError, match="^probe: 1 timings"):
        robust.undisturbed([1.0])


@pytest.mark.parametrize(
    "task,probe,rule",
    [([1.0], [1.0], "^probe: 1 "), ([], [1.0], "^probe"), ([0.0], [1.0, 1.0], "^task: ")],
)
def test_timings_that_do_not_belong_together(task, probe, rule):
    with pytest.raises(ValueError, match=rule):
        robust.estimate(task, probe)


# Where operands lie


@pytest.mark.parametrize("record", cpu_gemm.family(MACHINE), ids=lambda r: r.name)
def test_areas_fill_their_level_and_no_other(record):
    row = record.nv * 8
    placed = 0
    for (name, placement), k in itertools.product(PLACEMENTS.items(), TRIP_COUNTS):
        loop = place(record, k, placement, MACHINE)
        if loop is None:
            continue
        placed += 1
        areas = {operand: getattr(loop, operand) for operand in "abc"}
        for operand, area in areas.items():
            level = getattr(placement, operand)
            reach = {"a": record.mr * k, "b": row * k, "c": record.mr * row}[operand]
            if record.in_place_b and operand == "b":
                # the last row of the last task ends with the matrix
                assert area.step == row and loop.b_row >= row * area.count
                assert area.end + loop.b_row * (k - 1) <= area.memory_end
            else:
                assert area.step >= reach and area.step % 16 == 0 and not area.beyond
            assert area.begin % 16 == 0
            assert (area.count == 1) == (level == 1)
            together = 4 * sum(
                a.memory_end - a.begin for o, a in areas.items() if getattr(placement, o) == level
            )
            low, high = {
                1: (0, math.inf if record.in_place_b else MACHINE.l2_bytes // 2),
                2: (2 * MACHINE.l1_bytes, MACHINE.l2_bytes),
                3: (2 * MACHINE.l2_bytes, MACHINE.l3_bytes),
                4: (2 * MACHINE.l3_bytes, 1 << 30),
            }[level]
            assert low <= together <= high, (name, k, operand)
        ends = sorted((a.begin, a.memory_end) for a in areas.values())
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))
        assert loop.floats == ends[-1][1]
        assert Loop.from_json(loop.to_json()) == loop
    assert placed > len(TRIP_COUNTS) * 3


def test_what_cannot_be_placed():
    l1 = PLACEMENTS["l1"]
    assert place(Record(4, 3), 100, l1, MACHINE) is not None
    assert place(Record(4, 3), 1000, l1, MACHINE) is None, "larger than the first cache"
    no_l3 = replace(MACHINE, l3_bytes=MACHINE.l2_bytes)
    assert place(Record(4, 3), 100, PLACEMENTS["b_l3"], no_l3) is None
    huge = replace(MACHINE, l3_bytes=1 << 32)
    assert place(Record(4, 3), 100, PLACEMENTS["b_memory"], huge) is None
    many = place(Record(4, 3), 100, PLACEMENTS["b_l3"], MACHINE, busy=8)
    alone = place(Record(4, 3), 100, PLACEMENTS["b_l3"], MACHINE)
    assert many is None or many.b.count < alone.b.count


def test_rows_of_b_in_place_are_as_far_apart_as_in_a_matrix():
    record = Record(4, 3, in_place_b=True)
    shared = place(record, 96, PLACEMENTS["a_l2"], MACHINE)
    assert (shared.b_vector, shared.b_row, shared.b.count) == (8, 1040, 1)
    wide = place(record, 96, PLACEMENTS["b_l3"], MACHINE)
    assert wide.b_row == 24 * wide.b.count
    # all tasks together read the whole matrix
    assert 2 * MACHINE.l2_bytes <= 4 * wide.b_row * 96 <= MACHINE.l3_bytes
    packed = place(replace(record, in_place_b=False), 96, PLACEMENTS["b_l3"], MACHINE)
    assert (packed.b_vector, packed.b_row) == (8 * 96, 8)


def test_the_tasks_that_are_measured():
    records = [Record(4, 3), Record(1, 2), Record(2, 2, in_place_b=True)]
    few, all_ = (list(samples_of(records, MACHINE, thorough)) for thorough in (False, True))
    for tasks in (few, all_):
        assert len(set(tasks)) == len(tasks)
        assert {t.record for t in tasks} == set(records)
        assert {t.placement for t in tasks} == set(PLACEMENTS)
        assert {t.busy for t in tasks} == {False, True}
    assert {t.k for t in all_} == set(TRIP_COUNTS)
    assert {TRIP_COUNTS[0], 5000} <= set(TRIP_COUNTS)
    assert set(few) < set(all_)
    # what a short stage measures comes first in a long one, as far as cores are not busy
    quiet = [t for t in few if not t.busy]
    assert set(quiet) == {t for t in all_[: len(quiet) * 2] if not t.busy and t.k in SOME}
    # whatever is left out, the rest is of all kinds
    first = all_[: len(all_) // 20]
    assert {t.record for t in first} == set(records) and len({t.placement for t in first}) > 6
    one_core = list(samples_of(records, replace(MACHINE, cores=1), True))
    assert not any(t.busy for t in one_core)


SOME = TRIP_COUNTS[::2]


def test_where_the_planner_says_that_operands_come_from():
    def residency(placement, k, record=Record(4, 3)):  # noqa: B008
        return tuple(Task(record, k, placement).residency(MACHINE))

    assert residency("l1", 48) == (1, 1)
    assert residency("b_l3", 48) == (1, 3)
    assert residency("b_memory", 48) == (1, 4)
    assert residency("a_l2", 48) == (2, 1)
    assert residency("a_l2_b_memory", 3072) == (2, 4)
    # operands that stay, but not in the first cache
    assert residency("b_l3", 1536) == (2, 3)
    assert residency("a_l3", 1536) == (3, 2)


@pytest.mark.parametrize(
    "change",
    [{"k": 0}, {"k": 1.0}, {"k": True}, {"placement": "l9"}, {"placement": None}, {"busy": 1}],
    ids=str,
)
def test_foreign_tasks_are_refused(change):
    task = Task(Record(4, 3), 24, "b_l2", True)
    assert Task.from_json(task.to_json()) == task
    with pytest.raises(ValueError, match="^task: "):
        Task.from_json({**task.to_json(), **change})


def test_foreign_timings_are_refused():
    one = Timing(3.5, 0.01, 9, True)
    assert Timing.from_json(one.to_json()) == one
    for change in ({"steps": 3}, {"spread": None}, {"timings": 2.0}, {"calm": 1}):
        with pytest.raises(ValueError, match="^timing: "):
            Timing.from_json({**one.to_json(), **change})


# Worker processes


@pytest.fixture
def worker():
    script = Path(__file__).with_name("tuning_worker.py")
    worker = Worker([sys.executable, str(script)])
    yield worker
    worker.close()


def test_a_crash_costs_one_request(worker):
    first = worker.ask({"op": "echo", "say": 1}, DEADLINE)
    assert first["said"] == 1 and first["pid"] != os.getpid()
    assert worker.ask({"op": "echo"}, DEADLINE)["pid"] == first["pid"]
    with pytest.raises(WorkerError, match="^crashed with SIGSEGV$"):
        worker.ask({"op": "crash"}, DEADLINE)
    assert worker.ask({"op": "echo", "say": 2}, DEADLINE)["said"] == 2


def test_native_code_that_hangs_costs_one_request(worker):
    """It does not give Python a chance; nor is the parent needed to end it."""
    pid = worker.ask({"op": "echo"}, DEADLINE)["pid"]
    assert worker.ask({"op": "load_tvm"}, DEADLINE)["version"]
    with pytest.raises(WorkerError, match="^it took too long$"):
        worker.ask({"op": "hang"}, 2)  # it never returns
    assert not alive(pid)
    assert worker.ask({"op": "echo", "say": 3}, DEADLINE)["said"] == 3


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_a_job_raises_is_told(worker):
    with pytest.raises(WorkerError, match="^ValueError: record: it does not fit$"):
        worker.ask({"op": "fail"}, DEADLINE)
    with pytest.raises(WorkerError, match="KeyError"):
        worker.ask({"op": "unheard of"}, DEADLINE)
    assert str(WorkerError("two\n lines \x1b[31m")) == "two lines ?[31m"
    assert worker.ask({"op": "noise"}, DEADLINE) == {"quiet": True}


def test_a_worker_that_leaves_or_talks_nonsense(worker):
    with pytest.raises(WorkerError, match="^ended with exit code 3: cannot go on$"):
        worker.ask({"op": "leave"}, DEADLINE)
    with pytest.raises(WorkerError, match="^an answer that is no JSON object: b'no JSON'$"):
        worker.ask({"op": "garbage"}, DEADLINE)
    assert worker.ask({"op": "echo", "say": 4}, DEADLINE)["said"] == 4
    missing = Worker([sys.executable, "-c", "import sys; sys.exit('not today')"])
    with pytest.raises(WorkerError, match="^ended with exit code 1: not today$"):
        missing.ask({"op": "echo"}, DEADLINE)


def test_a_worker_that_lives_on_without_a_word_is_ended(monkeypatch):
    monkeypatch.setattr(processes, "END_SECONDS", 0.2)
    mute = "import os, time; os.close(1); time.sleep(3600)"
    start = time.monotonic()
    with pytest.raises(WorkerError, match="^it does not answer any more$"):
        Worker([sys.executable, "-c", mute]).ask({"op": "echo"}, DEADLINE)
    assert time.monotonic() - start < 3000


def test_a_worker_that_dies_of_a_signal_without_a_name():
    dying = f"import os; os.kill(os.getpid(), {signal.SIGRTMIN + 3})"
    with pytest.raises(WorkerError, match="^crashed with signal 37$"):
        Worker([sys.executable, "-c", dying]).ask({"op": "echo"}, DEADLINE)


# Real timings


@pytest.fixture(scope="module")
def machine():
    return Machine.from_target(detect_target())


@pytest.fixture(scope="module")
def bench():
    return Bench()


def test_the_loop_runs_the_kernel_where_it_is_told(machine, bench):
    """All tiles of C are computed, from the operands that they walk past, and nothing else."""
    record, k = Record(3, 2, decisions={"unroll": 2, "prefetch_b": 16}), 5
    lanes = machine.lanes
    loop = Loop(
        k=k,
        lda=k,
        b_vector=k * lanes,
        b_row=lanes,
        ldc=2 * lanes,
        a=regions.Area(0, 16, 2),
        b=regions.Area(32, 2 * k * lanes, 3),
        c=regions.Area(32 + 6 * k * lanes, 6 * lanes, 4),
    )
    module = kernel_loop.build(record, machine, bench.target)
    rng = np.random.default_rng(0)
    before = rng.standard_normal(loop.floats + 7, dtype="float32")
    arena = bench._floats(len(before))
    arena.copyfrom(before)
    walk = tvm.runtime.tensor(np.array(loop.walk, np.int64))
    for done, count in ((1, 1), (7, 6), (7, 0), (12, 5)):
        module[kernel_loop.TASKS](arena, walk, *loop.strides, k, count)
        # it goes on from where it has come, and begins again at the end of an area
        places = walk.numpy()[:12].reshape(3, 4)
        for area, (at, *bounds) in zip((loop.a, loop.b, loop.c), places, strict=True):
            assert at == area.begin + done % area.count * area.step
            assert bounds == [area.step, area.begin, area.end]
    after = arena.numpy()
    assert (after[: loop.c.begin] == before[: loop.c.begin]).all()
    assert (after[loop.c.end :] == before[loop.c.end :]).all()
    for task in range(8, 12):
        at = {
            o: getattr(loop, o).begin + task % getattr(loop, o).count * getattr(loop, o).step
            for o in "abc"
        }
        a = before[at["a"] : at["a"] + 3 * k].reshape(3, k)
        b = before[at["b"] : at["b"] + 2 * k * lanes].reshape(2, k, lanes)
        c = after[at["c"] : at["c"] + 6 * lanes].reshape(3, 2 * lanes)
        expected = cpu_gemm.reference(a, b, np.zeros(2 * lanes), np.zeros(2 * lanes), -np.inf)
        np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


def test_tasks_are_measured_alone_and_with_every_core_busy(machine, monkeypatch):
    """What is measured depends on the work: 8 times the steps take about 8 times as long, whatever
    else the machine does."""
    monkeypatch.setattr("tvm_moonpoly.tuning.measuring.lab.LIMIT", DEADLINE)
    with Lab(machine) as bench:
        reference = bench.reference()
        assert 0.1 < reference < 1000

        def of_lengths():
            return [bench(Task(Record(4, 3), k, "l1")).steps for k in (24, 192)]

        undisturbed(of_lengths, lambda steps: 4 < steps[1] / steps[0] < 12)
        task = Task(Record(4, 3), 192, "b_l2")
        quiet = undisturbed(
            lambda: bench(task), lambda quiet: 0.2 < efficiency(task, quiet, machine) < 2
        )
        assert gigaflops(task, quiet, reference, machine) > 0.1
        if machine.cores > 1:
            undisturbed(
                lambda: bench(replace(task, busy=True)),
                lambda busy: busy.steps > 0.4 * quiet.steps,
            )
            # the loads have ended: their workers answer
            assert bench._workers[1].ask({"op": "stop"}, DEADLINE) == {}
        with pytest.raises(ValueError, match="^task: .* has no place"):
            bench(Task(Record(4, 3), 5000, "l1"))
        # what does not fit is the worker's to refuse, and it goes on
        with pytest.raises(WorkerError, match="record: tile .* needs more than"):
            bench(Task(Record(16, 16), 24, "l1"))
        assert bench(Task(Record(4, 3), 24, "l1")).steps > 0


class Scripted:
    """A worker whose answers are given: a WorkerError is raised."""

    def __init__(self, *answers):
        self.answers, self.asked, self.closed = list(answers), [], False

    def send(self, request, seconds):
        self.asked.append(request["op"])

    def answer(self, seconds):
        answer = self.answers.pop(0)
        if isinstance(answer, WorkerError):
            raise answer
        return answer

    def ask(self, request, seconds):
        self.send(request, seconds)
        return self.answer(seconds)

    def close(self):
        self.closed = True


def test_a_core_that_was_not_busy_is_told():
    """A load that has crashed kept nothing busy: what was timed beside it does not count."""
    timings = {"task": [2.0] * 5, "probe": [1.0] * 6}
    task = Task(Record(4, 3), 192, "b_l2", busy=True)
    load = Scripted({}, {"tasks": 9}, {})
    assert Lab(MACHINE, [Scripted(timings), load])(task).steps == 2.0
    assert load.asked == ["prepare", "load", "stop"] and not load.closed
    crashed = Scripted({}, WorkerError("crashed with SIGSEGV"))
    with pytest.raises(WorkerError, match="^crashed with SIGSEGV$"):
        Lab(MACHINE, [Scripted(timings), crashed])(task)
    assert crashed.closed


def test_one_slip_does_not_shorten_all_timings():
    """Something else had the core when it was tried out how many tasks to time at once."""
    slips = iter([400_000.0])

    def clock(count):
        return 100.0 * count + next(slips, 0.0)

    assert timing.affordable(clock, 2e5) == pytest.approx(2000, rel=0.01)


def test_timings_of_turns():
    """Each without what an empty call takes."""

    def turns(count, steps, repeats):
        return [7.0 + 2.0 * steps, *[50.0 + 30.0 * count, 7.0 + 2.0 * steps] * repeats]

    loop = place(Record(4, 3), 96, PLACEMENTS["b_l2"], MACHINE)
    request = {"loop": loop.to_json(), "nanoseconds": 2e5, "probe_steps": 10, "repeats": 3}
    ran = []

    def task(count):
        ran.append(count)
        return 30.0 * count

    assert timing.in_turns(task, turns, request) == {"task": [30.0] * 3, "probe": [2.0] * 4}
    assert loop.round in ran, "first once around"
    probe = lambda steps, repeats: [7.0 + 2.0 * steps] * repeats  # noqa: E731
    assert timing.alone(probe, request) == {"probe": [2.0] * 3}


def test_jobs_one_by_one():
    """The next one is only taken when the last one was dealt with; a failure ends its job only."""
    taken = []

    def jobs():
        for k in (3, 6, 12):
            taken.append(k)
            yield [Task(Record(1, 1), each, "l1") for each in (k, 1)]

    def measure(task):
        if task.k == 6:
            raise WorkerError("it does not run")
        return Timing(float(task.k), 0.0, 1, True)

    for number, measured in trials.one_by_one(measure)(jobs()):
        assert len(taken) == number + 1
        steps = [each.steps for each in measured.timings]
        assert (steps, measured.error) == {
            0: ([3.0, 1.0], None),
            1: ([], "it does not run"),
            2: ([12.0, 1.0], None),
        }[number]
    assert len(taken) == 3
