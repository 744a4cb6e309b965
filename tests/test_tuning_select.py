"""The elite set: which micro-kernels are kept, and what the others would add."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from test_core_planner import AVX2, random_table

from tvm_moonpoly.costmodel.tables import CostTable, Traffic
from tvm_moonpoly.costmodel.tasks import RESIDENCIES, TaskCost
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Form, Record
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import BMode
from tvm_moonpoly.tuning.report import selection_parts
from tvm_moonpoly.tuning.select import elite, needing, synthetic

#: Of the family, all that fits 2 vectors, and the packed forms of 2.
TILES = [r for r in cpu_gemm.family(AVX2) if r.nv <= 2]


def table_of(slow: set[Record], factor: float = 3.0) -> CostTable:
    """Each task costs what its multiply-adds do, and a little; of ``slow`` kernels more."""

    def cost(record):
        each = 100 * (record.mr * record.nv + 1) * (factor if record in slow else 1)
        return TaskCost.of(lambda residency, k: 500 + each * k * (1 + 0.1 * int(residency.b)))

    traffic = {f.name: 50 for f in fields(Traffic)}
    return CostTable({r: cost(r) for r in TILES}, Traffic(**traffic))


def test_kernels_that_never_pay_are_left_out():
    slow = {r for r in TILES if r.form == Form.PACKED_A and r.mr > 2}
    slow |= {Record(8, 1), Record(7, 1)}
    found = elite(table_of(slow), AVX2, shapes=60)
    assert not slow & found.table.tasks.keys()
    assert found.dropped == len(TILES) - len(found.table.tasks) >= len(slow)
    found.table.check()
    # or less: the partial panel is better off without the slow ones
    assert all(found.worth[record] <= 0 for record in slow)
    text = "\n".join(selection_parts(found))
    assert f"{len(found.table.tasks)} of {len(TILES)} kernels are kept" in text
    assert "3x2v on packed A and B" in text.split("\n")[0]
    assert "| 6x2v | " in text and text.count("\n| ") > len(TILES)
    # what hides nothing behind others is kept
    assert Record(6, 2) in found.table.tasks and found.worth[Record(6, 2)] > 0.001


def test_the_set_costs_no_more_than_is_allowed():
    table = random_table(AVX2, 11)
    machine = replace(AVX2, cores=1)
    found = elite(table, machine, shapes=40, mean_loss=0.01, worst_loss=0.3)
    losses = [
        spec.best(p, machine, found.table).picoseconds / spec.best(p, machine, table).picoseconds
        for p in synthetic(40, 0)
    ]
    assert max(losses) - 1 <= 0.3 and sum(losses) / len(losses) - 1 <= 0.01
    steps = found.steps[found.dropped :]
    assert steps and (steps[0].mean_loss > 0.01 or steps[0].worst_loss > 0.3)
    # and the step that was not taken costs what it says
    gone = {step.dropped for step in found.steps[: found.dropped + 1]}
    smaller = CostTable({r: c for r, c in table.tasks.items() if r not in gone}, table.traffic)
    losses = [
        spec.best(p, machine, smaller).picoseconds / spec.best(p, machine, table).picoseconds - 1
        for p in synthetic(40, 0)
    ]
    assert max(losses) == pytest.approx(steps[0].worst_loss)
    assert sum(losses) / len(losses) == pytest.approx(steps[0].mean_loss)


def test_every_set_on_the_way_can_tile_every_shape():
    table = random_table(AVX2, 12)
    found = elite(table, replace(AVX2, cores=1), shapes=10)
    gone: set[Record] = set()
    for step in found.steps:
        gone.add(step.dropped)
        left = {r: c for r, c in table.tasks.items() if r not in gone}
        assert len(left) == step.left
        CostTable(left, table.traffic).check()
    assert len(gone) > len(table.tasks) / 2


def test_costs_of_busy_cores_are_reduced_too():
    table = random_table(AVX2, 13)
    busy = {r: TaskCost.of(lambda res, k, c=c: 2 * c.at(res, k)) for r, c in table.tasks.items()}
    found = elite(replace(table, busy=busy), replace(AVX2, cores=2), shapes=10).table
    assert found.busy.keys() == found.tasks.keys()
    assert all(found.busy[r] == busy[r] for r in found.tasks)


def test_what_kernels_need():
    family = cpu_gemm.family(AVX2)
    assert needing(Record(4, 3), family) == {Record(4, 3)}
    assert needing(Record(3, 3), family) == {Record(3, 3), Record(4, 3)}
    wider = needing(Record(1, 5), family)
    assert wider == {Record(1, 5), Record(2, 5), Record(1, 6)}
    # columns that groups of 3 vectors leave are computed by kernels of 2
    assert Record(4, 3, packed_a=True) in needing(Record(1, 2), family)
    assert needing(Record(1, 1), family) is None
    assert needing(Record(1, 1, in_place_b=True), family) is None
    without = [r for r in family if not (r.packed_a and r.nv == 2)]
    assert needing(Record(1, 3, packed_a=True), without) is None


def test_synthetic_products():
    products = synthetic(200, 3)
    assert products == synthetic(200, 3) != synthetic(200, 4)
    assert {p.b_mode for p in products} == set(BMode) - {BMode.STREAM}
    assert min(p.m for p in products) < 4 and max(p.m for p in products) > 1000
    with pytest.raises(ValueError, match="^shapes: must be at least 1, not 0"):
        elite(random_table(AVX2, 1), AVX2, shapes=0)


def test_costs_change_the_set():
    """The set follows the costs, residency by residency."""
    usual = elite(table_of(set()), AVX2, shapes=60).table.tasks.keys()
    record = Record(6, 2)
    slow = table_of(set())
    far = TaskCost({r: tuple(5 * v for v in slow.tasks[record].knots[r]) for r in RESIDENCIES})
    changed = elite(replace(slow, tasks={**slow.tasks, record: far}), AVX2, shapes=60)
    assert record in usual and record not in changed.table.tasks
