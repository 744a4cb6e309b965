"""The planner: its specification in Python, its native twin, and the form of a plan."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import tvm
from core_testing import SIZES, valid
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.target import Target

import tvm_moonpoly
from tvm_moonpoly import logs, native, operators
from tvm_moonpoly.costmodel.tables import BLOCKINGS, CostTable, TaskCost, Traffic
from tvm_moonpoly.emit import INT, Functions, loop
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner import native as native_planner
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.counts import counts
from tvm_moonpoly.planner.plan import FIELDS, READINGS, BMode, Plan
from tvm_moonpoly.planner.spec import Product

AVX2 = Machine.from_target(Target({"kind": "llvm", "mcpu": "x86-64-v3"}))
#: Caches as of the machine that the packaged table was measured on, whatever this one has.
AVX2 = replace(AVX2, l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20)
NEON = replace(
    Machine.from_target(
        Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]})
    ),
    l1_bytes=64 << 10,
    l2_bytes=512 << 10,
    l3_bytes=4 << 20,
)


def shipped_table() -> CostTable:
    return CostTable.from_entries([dict(entry) for entry in logs.find(AVX2).entries])


def random_table(machine: Machine, seed: int) -> CostTable:
    """Costs without rhyme or reason: every kind of plan is the cheapest somewhere."""
    rng = np.random.default_rng(seed)
    tasks = {
        record: TaskCost(int(rng.integers(0, 30_000)), int(rng.integers(500, 8_000)))
        for record in cpu_gemm.family(machine)
    }
    upper = {"launch": 3_000_000, "c_block": 4_000, "b_memory": 2_000, "dot_step": 5_000}
    traffic = {f.name: int(rng.integers(0, upper.get(f.name, 900))) for f in fields(Traffic)}
    return CostTable(tasks, Traffic(**traffic))


#: name: (machine, table). Few cores and many, and tables that lead to other plans.
SETTINGS = {
    "1 core": lambda: (replace(AVX2, cores=1), shipped_table()),
    "2 cores": lambda: (replace(AVX2, cores=2), shipped_table()),
    "16 cores": lambda: (replace(AVX2, cores=16), shipped_table()),
    "random costs, small caches": lambda: (
        replace(AVX2, cores=3, l1_bytes=8 << 10, l2_bytes=64 << 10, l3_bytes=1 << 20),
        random_table(AVX2, 1),
    ),
    "random costs, 100 cores of another kind": lambda: (
        replace(NEON, cores=100),
        random_table(NEON, 2),
    ),
}


def random_products(count: int, seed: int) -> list[Product]:
    """Small sizes and large ones, around the edges of vectors, tiles and blocks."""
    rng = np.random.default_rng(seed)
    edges = sorted({b.kc for b in BLOCKINGS} | {b.mc for b in BLOCKINGS})

    def size(lowest: int, highest: int) -> int:
        kind = rng.integers(0, 4)
        if kind == 0:
            found = int(rng.choice(SIZES))
        elif kind == 1:
            found = int(rng.choice(edges)) + int(rng.integers(-1, 3))
        else:
            found = int(np.exp(rng.uniform(0, np.log(highest))))
        return min(max(found, lowest), highest)

    return [
        Product(
            m=size(1, 5_000),
            n=size(1, 40_000),
            k=size(0, 20_000),
            batch=int(rng.choice([1, 1, 1, 2, 3, 8, 15, 16, 17, 96, 5_000])),
            b_mode=BMode(int(rng.integers(0, 3))),
        )
        for _ in range(count)
    ]


PRODUCTS = random_products(6000, 7)


class NativePlanner:
    """The native planner of a machine, compiled alone: no loops, no micro-kernels."""

    def __init__(self, machine: Machine, table: CostTable) -> None:
        defined = Functions()
        native_planner.emit(defined, machine, table)

        @defined.public("plan_many", shapes="handle", out="handle")
        def _(shapes, out):
            given, plans = Tensor(shapes, "shapes", INT), Tensor(out, "out", INT)
            with loop(given.shape[0]) as i:
                m, n, k, batch, mode = (given.data[i * 5 + j] for j in range(5))
                defined["moonpoly_plan"](m, n, k, batch, mode, plans.data.at(i))

        self._function = native.build(defined.module(), tvm_moonpoly.detect_target())["plan_many"]

    def __call__(self, products: list[Product]) -> list[Plan]:
        shapes = np.array([(p.m, p.n, p.k, p.batch, int(p.b_mode)) for p in products], np.int64)
        out = tvm.runtime.tensor(np.zeros(len(products), np.int64))
        self._function(tvm.runtime.tensor(shapes), out)
        return [Plan.decode(int(word)) for word in out.numpy()]


@pytest.fixture(scope="module", params=SETTINGS)
def planners(request):
    """(machine, table, the native planner's plans for PRODUCTS)."""
    machine, table = SETTINGS[request.param]()
    return machine, table, NativePlanner(machine, table)(PRODUCTS)


def test_both_planners_decide_alike(planners):
    machine, table, planned = planners
    for product, plan in zip(PRODUCTS, planned, strict=True):
        assert plan == spec.plan(product, machine, table), product


def test_every_plan_is_valid(planners):
    machine, table, planned = planners
    for product, plan in zip(PRODUCTS, planned, strict=True):
        valid(plan, product, machine, table)
        panels = product.n // machine.lanes
        if plan.b_mode == BMode.STREAM:
            continue
        # a tail holds what whole groups leave, alone or with the last group
        assert plan.tail_nv in (panels % plan.nv, panels % plan.nv + plan.nv)
        assert plan.workers <= min(machine.cores, 63)
        assert plan.workers <= product.batch * plan.splits_m * plan.splits_n
        assert plan.splits_m == 1 or plan.splits_n == 1


def test_the_products_meet_every_kind_of_plan():
    machine, table = SETTINGS["random costs, small caches"]()
    met = [spec.plan(product, machine, table) for product in PRODUCTS]
    for name in ("tail_nv", "pack_a", "kc", "mc", "nc"):
        assert {bool(getattr(p, name)) for p in met} == {False, True}, name
    assert {(b.pack_a, b.kc, b.mc) for b in BLOCKINGS} >= {(p.pack_a, p.kc, p.mc) for p in met}
    assert {p.b_mode for p in met} == set(BMode)
    assert len({p.nv for p in met}) > 2 and len({p.mr for p in met}) > 3
    assert any(p.splits_m > 1 for p in met) and any(p.splits_n > 1 for p in met)
    for stored, readings in READINGS.items():
        pairs = zip(PRODUCTS, met, strict=True)
        assert {p.b_mode for q, p in pairs if q.b_mode == stored} == set(readings)


def test_many_small_products():
    """All of a grid of the smallest sizes, where vectors and tiles are not full."""
    machine, table = replace(AVX2, cores=2), shipped_table()
    products = [
        Product(m, n, k, batch, mode)
        for m in (1, 2, 7, 9)
        for n in (1, 7, 8, 9, 15, 24, 25)
        for k in (0, 1, 2, 9)
        for batch in (1, 3)
        for mode in READINGS
    ]
    for product, plan in zip(products, NativePlanner(machine, table)(products), strict=True):
        assert plan == spec.plan(product, machine, table), product
        valid(plan, product, machine, table)


def test_the_library_holds_the_same_planner(target):
    """``plan_table`` of the compiled library, against the specification."""
    library = operators.library(target)
    for n, k in [(1, 1), (17, 0), (384, 384), (1000, 3000)]:
        table = library.plan_table(n, k)
        assert table.dtype == np.int64
        for m in [1, 2, 3, 8, 63, 200, 511, 1024]:
            expected = spec.plan(Product(m, n, k), library.machine, library.table)
            assert Plan.decode(int(table[m])) == expected


def test_costs_lead_to_other_plans():
    """A changed table changes native plans, as it does those of the specification."""
    machine, table = replace(AVX2, cores=2), shipped_table()
    product = Product(512, 512, 512)
    usual = spec.plan(product, machine, table)
    dearer = {
        record: replace(cost, step=cost.step * (50 if record.nv == usual.nv else 1))
        for record, cost in table.tasks.items()
    }
    changed = CostTable(dearer, replace(table.traffic, launch=1 << 39))
    (plan,) = NativePlanner(machine, changed)([product])
    assert plan == spec.plan(product, machine, changed)
    assert plan.nv != usual.nv
    assert usual.workers == 2 and plan.workers == 1


def entry_cost(entry, table: CostTable) -> int:
    if len(entry) == 1:
        return getattr(table.traffic, entry[0])
    part, mr, nv, packed = entry
    return getattr(table.task(mr, nv, packed), part)


@pytest.mark.parametrize("name", ["1 core", "random costs, small caches"])
def test_predicted_cost_is_counts_times_table(name):
    """Of whole panels: for each candidate, the cost is a sum of entries of the table."""
    machine, table = SETTINGS[name]()
    checked = 0
    for product in PRODUCTS[:400]:
        whole = replace(product, n=max(product.n // machine.lanes, 1) * machine.lanes)
        for choice in spec.candidates(whole, machine, table):
            entered = counts(whole, choice.plan, machine)
            total = sum(times * entry_cost(entry, table) for entry, times in entered.items())
            assert total == choice.picoseconds, (whole, choice)
            checked += 1
    assert checked > 2000


def test_a_partial_panel_is_not_counted():
    with pytest.raises(ValueError, match="^product: n = 13 must be whole panels"):
        counts(Product(20, 13, 40), Plan(1, 8, 0, 0, False, BMode.PREPACKED), AVX2)


def test_the_best_is_the_cheapest_and_the_first():
    machine, table = replace(AVX2, cores=1), shipped_table()
    for product in PRODUCTS[:200]:
        choices = spec.candidates(product, machine, table)
        cheapest = min(choice.picoseconds for choice in choices)
        first = next(choice for choice in choices if choice.picoseconds == cheapest)
        assert spec.best(product, machine, table) == first
        assert spec.plan(product, machine, table) == first.plan  # on one core


def test_work_is_shared_out_when_it_is_worth_a_launch():
    table = shipped_table()
    many = replace(AVX2, cores=16)
    assert spec.plan(Product(1, 8, 1), many, table).workers == 1
    assert spec.plan(Product(2000, 2000, 200), many, table).workers == 16
    wide = spec.plan(Product(1, 20_000, 1000), many, table)
    assert (wide.splits_m, wide.splits_n) == (1, 16)
    tall = spec.plan(Product(4000, 16, 1000), many, table)
    assert (tall.splits_m, tall.splits_n) == (16, 1)
    batch = spec.plan(Product(64, 64, 64, 100, BMode.DIRECT), many, table)
    assert (batch.splits_m, batch.splits_n, batch.workers) == (1, 1, 16)
    some = spec.plan(Product(256, 256, 256, 5, BMode.DIRECT), many, table)
    assert some.splits_m * some.splits_n == 4 and some.workers == 16


def numbers(name):
    bits, unit = FIELDS[name]
    return st.integers(0, (1 << bits) - 1).map(lambda value: value * unit)


@settings(max_examples=300)
@given(st.fixed_dictionaries({name: numbers(name) for name in FIELDS if name != "b_mode"}))
def test_plans_are_encoded_and_decoded(drawn):
    for mode in BMode:
        plan = Plan(**{**drawn, "pack_a": bool(drawn["pack_a"]), "b_mode": mode})
        word = plan.encode()
        assert 0 <= word < 1 << 63
        decoded = Plan.decode(word)
        assert decoded == plan
        assert isinstance(decoded.pack_a, bool) and isinstance(decoded.b_mode, BMode)


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("pack_a", "b_mode")])
def test_fields_that_do_not_fit_are_refused(name):
    bits, unit = FIELDS[name]
    plan = Plan(1, 1, 0, 0, False, BMode.PREPACKED)
    largest = replace(plan, **{name: ((1 << bits) - 1) * unit})
    assert Plan.decode(largest.encode()) == largest
    for value in ((1 << bits) * unit, -unit, *([unit // 2] if unit > 1 else [])):
        with pytest.raises(ValueError, match=f"^{name}: .* does not fit {bits} bits of {unit}"):
            replace(plan, **{name: value}).encode()


def test_cost_tables_as_entries():
    table = random_table(AVX2, 3)
    assert CostTable.from_entries(table.to_entries()) == table


def _without(entries, **wanted):
    return [e for e in entries if not all(e.get(key) == value for key, value in wanted.items())]


def test_incomplete_cost_tables_are_refused():
    entries = random_table(AVX2, 4).to_entries()
    for bad in ([], _without(entries, kind="traffic"), _without(entries, kind="kernel")):
        with pytest.raises(ValueError, match="^log: it holds no kernels or no traffic costs"):
            CostTable.from_entries(bad)
    gap = [e for e in entries if e.get("record") != cpu_gemm.Record(2, 1).to_json()]
    assert len(gap) == len(entries) - 1
    with pytest.raises(ValueError, match="^log: tiles of 1 vectors lack heights"):
        CostTable.from_entries(gap)


@pytest.mark.parametrize("value", [None, -1, 1.5, "7", True, 1 << 40])
def test_malformed_costs_are_refused(value):
    for index, name in ((0, "start"), (0, "step"), (-1, "launch")):
        entries = random_table(AVX2, 5).to_entries()
        entries[index][name] = value
        with pytest.raises(ValueError, match=f"^log: {name} must be picoseconds"):
            CostTable.from_entries(entries)


@pytest.mark.parametrize("record", [None, [1, 2], "missing"])
def test_malformed_records_are_refused(record):
    entries = random_table(AVX2, 6).to_entries()
    if record == "missing":
        del entries[0]["record"]
    else:
        entries[0]["record"] = record
    with pytest.raises(ValueError):
        CostTable.from_entries(entries)


def test_unknown_tiles_have_no_cost():
    with pytest.raises(KeyError, match="no micro-kernel of 99 rows and 1 vectors"):
        shipped_table().task(99, 1, False)
