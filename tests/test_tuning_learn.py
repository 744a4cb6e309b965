"""Learning: from made-up measurements the costs are recovered that they were made of."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from test_core_planner import NativePlanner
from tuning_testing import MACHINE

from tvm_moonpoly.costmodel.tables import CostTable, Traffic
from tvm_moonpoly.costmodel.tasks import RESIDENCIES, TRIPS, Level, Residency, TaskCost
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.planner.counts import priced
from tvm_moonpoly.planner.groups import Product
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.tuning.learning import baseline, errors, learn, plan_model, table, task_model
from tvm_moonpoly.tuning.learning.task_model import Point, TaskModel
from tvm_moonpoly.tuning.measuring.plans import PlanSample, PlanTask, placeholder, random_plans
from tvm_moonpoly.tuning.measuring.tasks import Sample, Timing, samples_of
from tvm_moonpoly.tuning.plan_steps import Plans

RECORDS = cpu_gemm.family(MACHINE)

TRAFFIC = Traffic(
    b_direct=300, c_block=900, pack_a=150, pack_rows=1200, pack_columns=1500, edge_row=20_000,
    tile=4_000, group=15_000, axpy_start=900, axpy_step=600, axpy_rest=700,
    dot_start=5_000, dot_step=500, dot_rest=900,
    launch=4_000_000,
)  # fmt: skip

TIMING = Timing(1.0, 0.01, 9, True)

#: Quicker than the real settings, and enough for numbers without noise.
QUICK = {"rounds": 250, "corrections": (0, 40)}


def g(record: Record, k: int, residency: Residency, busy: bool) -> float:
    """What a task takes, in picoseconds: starting, multiplying, and waiting for operands."""
    tile, form = record.mr * record.nv, 1.1 if record.in_place_b else 1.0
    far = {Level.L1: 0.0, Level.L2: 0.1, Level.L3: 0.3, Level.MEMORY: 1.5}
    waits = far[residency.b] * record.nv * 90 * (1 + busy) + far[residency.a] * record.mr * 40
    latency = max(tile, 9) * 175
    return 9_000 + 400 * tile + k * form * (latency + 60 * (record.mr + record.nv) + waits)


def truth(factor=lambda record: 1.0) -> CostTable:
    def cost(record, busy):
        return TaskCost.of(lambda residency, k: factor(record) * g(record, k, residency, busy))

    alone, busy = ({r: cost(r, busy) for r in RECORDS} for busy in (False, True))
    return CostTable(alone, TRAFFIC, busy)


def task_samples(part=3, factor=lambda record: 1.0):
    tasks = list(samples_of(RECORDS, MACHINE, thorough=True))[::part]
    return [
        Sample(
            t,
            TIMING,
            round(factor(t.record) * g(t.record, t.k, t.residency(MACHINE), t.busy)),
        )
        for t in tasks
    ]


def plan_samples(costs, count=700):
    drawn = itertools.islice(random_plans(MACHINE, placeholder(RECORDS), 0), count)
    return Plans(
        RECORDS,
        [
            PlanSample(t, TIMING, priced(t.product, t.plan, MACHINE, costs), 500_000.0)
            for t in drawn
        ],
        launch=4_000_000.0,
    )


@pytest.fixture(scope="module")
def learned():
    return learn.learn(task_samples(), plan_samples(truth()), MACHINE, **QUICK)


def sensible(record, k, residency):
    """Whether the planner may ask for it: operands come from a cache that holds them."""
    point = Point(record, k, residency, False)
    return task_model.not_nearer(point, MACHINE) == residency


def test_the_costs_are_recovered(learned):
    found, real = learned.table, truth()
    assert set(found.tasks) == set(found.busy) == set(RECORDS)
    for name in ("tasks", "busy"):
        off = [
            abs(getattr(found, name)[r].at(res, k) / getattr(real, name)[r].at(res, k) - 1)
            for r in RECORDS
            for res in RESIDENCIES
            for k in TRIPS[:-1]
            if sensible(r, k, res)
        ]
        assert np.median(off) < 0.03 and np.quantile(off, 0.9) < 0.12, name
    assert found.traffic.launch == TRAFFIC.launch
    for name in ("axpy_start", "axpy_step", "dot_start", "dot_step", "dot_rest", "edge_row"):
        assert getattr(found.traffic, name) == pytest.approx(getattr(TRAFFIC, name), rel=0.2), name
    assert learned.held_out[0].median < 0.04
    assert learned.held_out[1].errors.median < 0.04
    assert learned.held_out[1].spearman > 0.95 and learned.held_out[1].losses.tenth < 0.02


def test_the_model_is_better_than_what_it_is_compared_with(learned):
    """But for lines for each residency: these made-up costs are nothing else."""
    best, plans = learned.held_out
    others = ("a line for each kernel", "one constant")
    assert all(2 * best.median < learned.tasks[name].median for name in others)
    assert all(2 * plans.errors.median < learned.plans[name].errors.median for name in others)
    assert set(learned.tasks) == {learn.LEARNED, *baseline.BASELINES}


def test_the_table_is_whole_numbers_that_do_not_fall(learned):
    for cost in (*learned.table.tasks.values(), *learned.table.busy.values()):
        for knots in cost.knots.values():
            assert all(type(value) is int for value in knots) and list(knots) == sorted(knots)
    for f in fields(Traffic):
        assert type(getattr(learned.table.traffic, f.name)) is int
    learned.table.check()
    assert CostTable.from_entries(learned.table.to_entries()) == learned.table


def test_the_same_samples_make_the_same_table():
    samples, plans = task_samples(part=17), plan_samples(truth(), 80)
    few = {"rounds": 30, "corrections": (0, 10)}
    first, again, other = (learn.learn(samples, plans, MACHINE, seed, **few) for seed in (0, 0, 1))
    assert first.table == again.table and first.model.to_json() == again.model.to_json()
    assert other.table != first.table
    shuffled = replace(plans, samples=plans.samples[::-1])
    assert learn.learn(samples[::-1], shuffled, MACHINE, **few).table == first.table


def test_the_model_is_json_that_xgboost_reads(learned, tmp_path):
    import xgboost

    path = tmp_path / "model.json"
    path.write_bytes(learned.model.to_json())
    booster = xgboost.Booster(model_file=str(path))
    points = [Point(r, 48, RESIDENCIES[5], False) for r in RECORDS[::7]]
    again = TaskModel(booster, MACHINE).picoseconds(points)
    np.testing.assert_allclose(again, learned.model.picoseconds(points), rtol=1e-6)


def test_too_few_samples_are_refused():
    samples, plans = task_samples(part=17), plan_samples(truth(), 80)
    with pytest.raises(ValueError, match="^samples: 10 tasks are too few to learn from"):
        learn.learn(samples[:10], plans, MACHINE)
    with pytest.raises(ValueError, match="^samples: 10 plans are too few to learn from"):
        learn.learn(samples, replace(plans, samples=plans.samples[:10]), MACHINE)


def test_without_plans_the_traffic_is_borrowed(learned):
    found = learn.learn_tasks(task_samples(), RECORDS, TRAFFIC, MACHINE, rounds=250)
    assert found.table.traffic == TRAFFIC and set(found.table.tasks) == set(RECORDS)
    errors, none = found.held_out
    assert errors == learned.held_out[0] and none is None


PRODUCTS = [
    Product(m, n, k, b_mode=mode)
    for m, (n, k) in itertools.product(
        (1, 4, 7, 12, 31, 64, 200), ((768, 768), (3072, 768), (64, 200), (500, 1536))
    )
    for mode in (BMode.PREPACKED, BMode.DIRECT)
]


def native_plans(costs):
    return NativePlanner(replace(MACHINE, cores=1), costs)(PRODUCTS)


def test_what_is_learned_decides_native_plans(learned):
    """A kernel that was measured to be 3 times slower is taken less often, natively."""
    plans = native_plans(learned.table)
    used = [(plan.mr, plan.nv) for plan in plans]
    most = max(set(used), key=used.count)

    def slower(record):
        return 3.0 if (record.mr, record.nv) == most else 1.0

    perturbed = learn.learn(
        task_samples(factor=slower), plan_samples(truth(slower)), MACHINE, **QUICK
    )
    others = native_plans(perturbed.table)
    assert others != plans
    taken = [(plan.mr, plan.nv) for plan in others]
    assert taken.count(most) < used.count(most) / 2


def test_without_xgboost_plans_are_worse(learned, monkeypatch):
    """With one constant in the place of the trained model, plans take longer."""
    constant = TaskModel(Constant(), MACHINE)
    monkeypatch.setattr(task_model, "train", lambda *_, **__: constant)
    monkeypatch.setattr(plan_model, "refined", lambda model, *_: model)
    guessed = learn.learn(task_samples(), plan_samples(truth()), MACHINE, corrections=(0,))
    assert guessed.held_out[1].errors.median > 3 * learned.held_out[1].errors.median
    real = truth()
    ours, theirs = (
        sum(
            math.log(priced(product, plan, MACHINE, real))
            for product, plan in zip(PRODUCTS, native_plans(found.table), strict=True)
        )
        / len(PRODUCTS)
        for found in (learned, guessed)
    )
    assert theirs > ours + 0.03


class Constant:
    """In the place of a booster."""

    def predict(self, data):
        return np.full(data.num_row(), math.log(300.0), np.float32)

    def save_raw(self, kind):
        return b"{}"


def test_one_absurd_plan_does_not_hide_what_plans_lose():
    """Twenty products of two plans each, of which the better one is chosen: but one product takes
    nothing beyond the empty call, and of another the chosen plan was held up."""
    plans = [Plan(nv, 1, 0, 0, False, BMode.PREPACKED) for nv in (1, 2)]
    tasks = [PlanTask(Product(1 + i, 64, 64), plan) for i in range(20) for plan in plans]
    times = np.array([100.0, 150.0] * 20) * 1000
    times[:2] = 1.0, 0.0
    times[2] = 1e8
    none = np.zeros((len(tasks), len(plan_model.TRAFFIC)))
    samples = [PlanSample(task, TIMING, each, 5e5) for task, each in zip(tasks, times, strict=True)]
    counted = plan_model.Counted(samples, [], None, none, times, np.full(len(tasks), 5e5))
    predicted = np.array([100.0, 150.0] * 20) * 1000
    found = errors.plan_errors(counted, predicted, none[0])
    assert found.losses.count == 20 and found.losses.tenth < 1e-5 and found.errors.tenth < 1e-9


def test_splits_keep_groups_together():
    groups = [i // 4 for i in range(200)]
    kept, held = learn.split(groups, 0)
    assert sorted([*kept, *held]) == list(range(200))
    assert not {groups[i] for i in kept} & {groups[i] for i in held}
    assert 0.1 < len(held) / 200 < 0.2


def test_points_in_a_table():
    model = lambda points: np.array([float(p.k * p.record.mr) for p in points])  # noqa: E731
    alone = table.tasks(model, RECORDS[:2], busy=False)
    assert table.at_points(alone, [Point(RECORDS[1], 48, RESIDENCIES[0], False)]) == [
        48 * RECORDS[1].mr
    ]
    assert PlanTask(Product(1, 8, 1), Plan(1, 1, 0, 0, False, BMode.PREPACKED))


def test_a_table_is_halfway_to_a_straight_line():
    line = [500 + 20 * k for k in TRIPS]
    assert table.halfway(line) == pytest.approx(line)
    step = list(line)
    step[6] = step[6] * 1.3
    found = table.halfway(step)
    # half of the step is left, in logarithms, and what is around it has hardly moved
    assert found[6] / line[6] == pytest.approx(math.sqrt(1.3), rel=0.03)
    assert np.delete(found, 6) == pytest.approx(np.delete(line, 6), rel=0.03)
