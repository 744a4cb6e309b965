"""Whole plans of the tuning stage: which are measured, how, and that a stop loses none of them."""

from __future__ import annotations

import io
import itertools
from collections import Counter

import pytest
from core_testing import valid
from patience import DEADLINE, undisturbed
from rich.console import Console
from tuning_testing import MACHINE

from tvm_moonpoly.costmodel.tables import BLOCKINGS
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.planner.groups import Product
from tvm_moonpoly.planner.plan import READINGS, BMode, Plan
from tvm_moonpoly.tuning import origin, plan_steps
from tvm_moonpoly.tuning.journal import Journal
from tvm_moonpoly.tuning.measuring.plan_bench import function_of
from tvm_moonpoly.tuning.measuring.plan_lab import PlanLab
from tvm_moonpoly.tuning.measuring.plans import PlanTask, placeholder, random_plans
from tvm_moonpoly.tuning.measuring.processes import Worker, WorkerError
from tvm_moonpoly.tuning.measuring.tasks import Timing
from tvm_moonpoly.tuning.progress import Display

FAMILY = cpu_gemm.family(MACHINE)


def drawn(count, seed=3):
    return list(itertools.islice(random_plans(MACHINE, placeholder(FAMILY), seed), count))


def test_plans_are_valid_and_of_every_kind():
    table, tasks = placeholder(FAMILY), drawn(2500)
    for task in tasks:
        valid(task.plan, task.product, MACHINE, table)
        assert PlanTask.from_json(task.to_json()) == task
    for stored, readings in READINGS.items():
        assert {t.plan.b_mode for t in tasks if t.product.b_mode == stored} == set(readings)
    met = {(t.plan.pack_a, t.plan.kc, t.plan.mc) for t in tasks}
    assert met == {(b.pack_a, b.kc, b.mc) for b in BLOCKINGS}
    tiles = {(t.plan.nv, t.plan.mr) for t in tasks if t.plan.b_mode != BMode.STREAM}
    assert {nv for nv, _ in tiles} == {r.nv for r in FAMILY}
    assert {mr for _, mr in tiles} == {r.mr for r in FAMILY}
    assert {t.plan.tail_nv for t in tasks} >= set(range(6))
    rows = [t.product.m for t in tasks]
    assert min(rows) == 1 and sum(m <= 16 for m in rows) > 500 and max(rows) > 1000
    assert any(t.product.n % MACHINE.lanes for t in tasks)
    sizes = [t.product.m * t.product.n * t.product.k for t in tasks]
    assert min(sizes) < 1 << 12 and max(sizes) <= 1 << 28
    each = Counter(t.product for t in tasks)
    assert set(each.values()) <= {1, 2, 3, 4} and each.most_common(400)[-1][1] > 2
    assert drawn(100) == tasks[:100] != drawn(100, seed=4)


@pytest.mark.parametrize(
    "change",
    [{"m": 0}, {"n": 2.0}, {"k": None}, {"b_mode": 3}, {"plan": 0}, {"plan": -1}, {"b_mode": 7}],
    ids=str,
)
def test_foreign_plans_are_refused(change):
    task = PlanTask(Product(3, 40, 7), Plan(2, 3, 1, 3, False, BMode.PREPACKED))
    assert PlanTask.from_json(task.to_json()) == task
    with pytest.raises(ValueError):
        PlanTask.from_json({**task.to_json(), **change})


class MadeUp:
    """Measures plans that take made-up times, and counts how often."""

    def __init__(self, fails=lambda task: False, slow=lambda number: 1.0):
        self.asked: list[PlanTask] = []
        self._fails, self._slow = fails, slow

    def __call__(self, task):
        self.asked.append(task)
        if self._fails(task):
            raise WorkerError("crashed with SIGSEGV")
        steps = (100.0 + task.product.k) * self._slow(len(self.asked))
        return Timing(steps, 0.01, 9, True)

    def overhead(self):
        return {function_of(stored): 40.0 + int(stored) for stored in list(BMode)[:2]}

    def launch(self):
        return 2500.0


def measured(journal, lab, most=20, left=lambda: 1.0):
    shown = io.StringIO()
    display = Display(Console(file=shown), lambda: 10.0)
    plan_steps.measure(FAMILY, MACHINE, journal, lab, left, most, 0, display)
    return shown.getvalue()


def test_what_is_measured_is_kept_and_not_measured_again(tmp_path):
    first, second = MadeUp(), MadeUp()
    named = []

    def lab(records, name):
        named.append((records, name))
        return first if len(named) == 1 else second

    path = tmp_path / "journal"
    times = iter([1.0] * 8 + [0.0] * 99)
    with Journal(path, {}) as journal:
        measured(journal, lab, left=lambda: next(times))
    assert named == [(FAMILY, origin.library(FAMILY, MACHINE))]
    assert len(first.asked) == 7, "then there was no time left"
    with Journal(path, {}) as journal:
        measured(journal, lab)
        measured(journal, lab)
        plans = plan_steps.read(FAMILY, MACHINE, journal, reference=2.0)
        others = plan_steps.read(FAMILY[:-1], MACHINE, journal, reference=2.0)
    assert others is None, "of another library"
    assert first.asked + second.asked == drawn(20, seed=0) * 2, "in two turns"
    assert [s.task for s in plans.samples] == drawn(20, seed=0)
    assert plans.launch == 2.5e6
    for sample in plans.samples:
        k, stored = sample.task.product.k, sample.task.product.b_mode
        empty = 40.0 if stored == BMode.PREPACKED else 41.0
        assert sample.overhead == empty * 2000
        assert sample.picoseconds == (100.0 + k - empty) * 2000


def test_the_turn_that_was_less_disturbed_counts(tmp_path):
    """Others slow the machine now and then, for a while."""
    lab = MadeUp(slow=lambda number: 1.5 if 5 < number < 12 or number > 35 else 1.0)
    with Journal(tmp_path / "journal", {}) as journal:
        measured(journal, lambda *_: lab)
        plans = plan_steps.read(FAMILY, MACHINE, journal, 1.0)
    assert len(lab.asked) == 40 and len(plans.samples) == 20
    assert all(s.timing.steps == 100.0 + s.task.product.k for s in plans.samples)


def test_what_takes_no_longer_than_an_empty_call_is_not_learned_from(tmp_path):
    """Of the third plan in one of the turns, of the fifth in both."""
    absurd = {3, 5, 25}
    lab = MadeUp(slow=lambda number: 1e-3 if number in absurd else 1.0)
    with Journal(tmp_path / "journal", {}) as journal:
        measured(journal, lambda *_: lab)
        plans = plan_steps.read(FAMILY, MACHINE, journal, 1.0)
    tasks = drawn(20, seed=0)
    assert [s.task for s in plans.samples if s.task != tasks[2]] == [
        task for i, task in enumerate(tasks) if i not in (2, 4)
    ]
    assert tasks[2] in [s.task for s in plans.samples]
    assert all(s.timing.steps == 100.0 + s.task.product.k for s in plans.samples)


def test_without_time_no_library_is_compiled(tmp_path):
    with Journal(tmp_path / "journal", {}) as journal:
        measured(journal, None, left=lambda: 0.0)
        assert plan_steps.read(FAMILY, MACHINE, journal, 1.0) is None


def test_a_plan_that_fails_costs_itself_only(tmp_path):
    plans = drawn(20, seed=0)
    lab = MadeUp(fails=lambda task: task == plans[3])
    with Journal(tmp_path / "journal", {}) as journal:
        measured(journal, lambda *_: lab)
        again = MadeUp()
        measured(journal, lambda *_: again)
        assert not again.asked, "nor is it tried again"
        kept = [s.task for s in plan_steps.read(FAMILY, MACHINE, journal, 1.0).samples]
    assert kept == [*plans[:3], *plans[4:]]


def test_a_library_that_cannot_be_compiled_is_told(tmp_path):
    class Broken(MadeUp):
        def overhead(self):
            raise WorkerError("ended with exit code 1: no compiler")

    with Journal(tmp_path / "journal", {}) as journal:
        shown = measured(journal, lambda *_: Broken())
        assert "no plans are measured: ended with exit code 1: no compiler" in shown
        assert plan_steps.read(FAMILY, MACHINE, journal, 1.0) is None


def test_the_name_of_a_library():
    """The same for the same kernels in whatever order; another for others."""
    name = origin.library(FAMILY, MACHINE)
    assert origin.library(FAMILY[::-1], MACHINE) == name
    other = [Record(1, 1, decisions={"unroll": 2}), *FAMILY[1:]]
    assert origin.library(other, MACHINE) != name


def test_a_library_is_built_when_a_worker_lacks_it():
    """At first, and when a worker has died and another one took its place."""

    class Forgetful:
        def __init__(self):
            self.ops, self._library = [], None

        def ask(self, request, seconds):
            self.ops.append(request["op"])
            if request["op"] == "library":
                assert [Record.from_json(r) for r in request["records"]] == FAMILY
                self._library = request["name"]
                return {}
            if self._library != request["name"]:
                return {"missing": True}
            return {"task": [6.0] * 9, "probe": [2.0] * 10}

    worker = Forgetful()
    lab = PlanLab(worker, FAMILY, "some")
    (task,) = drawn(1)
    assert lab(task).steps == lab(task).steps == 3.0
    assert worker.ops == ["plan", "library", "plan", "plan"]
    worker._library = None
    assert lab(task).steps == 3.0
    assert worker.ops[4:] == ["plan", "library", "plan"]


def test_real_plans_in_a_worker(target, monkeypatch):
    """Timed by work: 8 times the rows take about 8 times as long."""
    monkeypatch.setattr("tvm_moonpoly.tuning.measuring.plan_lab.LIMIT", DEADLINE)
    machine = Machine.from_target(target)
    records = [r for r in cpu_gemm.family(machine) if r.mr <= 2 and r.nv <= 2]
    worker = Worker()
    try:
        lab = PlanLab(worker, records, "some")

        def of_rows():
            plan = Plan(2, 2, 0, 0, False, BMode.PREPACKED)
            return [lab(PlanTask(Product(m, 240, 512), plan)).steps for m in (8, 64)]

        few, _ = undisturbed(of_rows, lambda steps: 4 < steps[1] / steps[0] < 14)
        for stored, mode in ((BMode.DIRECT, BMode.DIRECT), (BMode.PACKED, BMode.PACKED)):
            product = Product(8, 245, 512, b_mode=stored)
            plan = PlanTask(product, Plan(2, 2, 0, 0, False, mode))
            undisturbed(lambda: lab(plan).steps / few, lambda ratio: 0.3 < ratio < 6)  # noqa: B023
        empty = undisturbed(
            lab.overhead, lambda each: all(0 < steps < few for steps in each.values())
        )
        assert set(empty) == {function_of(BMode.PREPACKED), function_of(BMode.DIRECT)}
        undisturbed(lab.launch, lambda nanoseconds: 1 <= nanoseconds < 1e7)
    finally:
        worker.close()
