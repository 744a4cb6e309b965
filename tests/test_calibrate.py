"""The calibration: what it measures is valid, what it fits is right, what it writes is a log."""

from __future__ import annotations

import itertools
import sys

import pytest
from core_testing import valid

from tvm_moonpoly import logs
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators import described
from tvm_moonpoly.planner.counts import counts
from tvm_moonpoly.planner.plan import READINGS, BMode
from tvm_moonpoly.tuning import calibrate


@pytest.fixture(scope="module")
def machine(target):
    return Machine.from_target(target)


def sampled(machine, count):
    table = calibrate.placeholder(machine)
    return list(itertools.islice(calibrate.random_plans(machine, table, seed=3), count))


def test_measured_plans_are_valid_and_of_every_kind(machine):
    table = calibrate.placeholder(machine)
    plans = sampled(machine, 1500)
    for product, plan in plans:
        valid(plan, product, machine, table)
    for stored, readings in READINGS.items():
        assert {p.b_mode for q, p in plans if q.b_mode == stored} == set(readings)
    assert {p.pack_a for _, p in plans} == {False, True}
    assert {(p.mr, p.nv) for _, p in plans if p.b_mode != BMode.STREAM} == {
        (r.mr, r.nv) for r in table.tasks
    }


def cost(entry, table):
    if len(entry) == 1:
        return getattr(table.traffic, entry[0])
    name, *tile = entry
    return getattr(table.task(*tile), name)


def test_the_fit_finds_the_costs_that_times_were_made_of(machine, target):
    """Times that are exactly a table's predictions are predicted again, also where not sampled."""
    _, _, table = described(target)
    overhead = 1.0e6

    def time_of(product, plan):
        counted = calibrate.shared(counts(product, plan, machine))
        return overhead + sum(n * cost(entry, table) for entry, n in counted.items())

    plans = sampled(machine, 1400)
    samples = [calibrate.Sample(q, p, time_of(q, p)) for q, p in plans]
    fitted = calibrate.fit(samples[:1200], overhead, machine)
    for sample in samples[1200:]:
        counted = calibrate.shared(counts(sample.product, sample.plan, machine))
        predicted = overhead + sum(n * fitted.get(entry, 0.0) for entry, n in counted.items())
        assert predicted == pytest.approx(sample.picoseconds, rel=0.02)


def test_the_log_that_it_writes_is_complete(machine, tmp_path, monkeypatch):
    out = tmp_path / "new" / logs.FILE_NAME
    monkeypatch.setattr(sys, "argv", ["calibrate", str(out), "--samples", "150"])
    calibrate.main()
    log = logs.parse(out.read_text(), str(out))
    table = CostTable.from_entries([dict(entry) for entry in log.entries])
    assert log.machine["isa"] == machine.isa
    assert set(table.tasks) == set(calibrate.placeholder(machine).tasks)
    assert all(task.step > 0 for task in table.tasks.values())
