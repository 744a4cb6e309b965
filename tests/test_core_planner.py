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
from tvm_moonpoly.costmodel.tables import BLOCKINGS, CostTable, Traffic
from tvm_moonpoly.costmodel.tasks import (
    RESIDENCIES,
    SEGMENTS,
    TRIPS,
    Level,
    Residency,
    TaskCost,
    segment,
)
from tvm_moonpoly.emit import INT, Functions, loop
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Form
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner import native as native_planner
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.counts import priced
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
    family = cpu_gemm.family(machine)
    tasks = {}
    for record in family:
        start, step = int(rng.integers(0, 30_000)), int(rng.integers(500, 8_000))
        if record.packed_a:  # or packing it would never pay
            start, step = start // 4, step // 4
        more = {r: float(rng.uniform(0.6, 1.6)) for r in RESIDENCIES}
        bends = {k: float(rng.uniform(0.7, 1.3)) for k in TRIPS}
        tasks[record] = TaskCost.of(
            lambda r, k, start=start, step=step, more=more, bends=bends: (
                (start + step * k) * more[r] * bends[k]
            )
        )
    upper = {
        "launch": 3_000_000, "c_block": 4_000, "dot_step": 5_000, "tile": 9_000, "group": 20_000,
    }  # fmt: skip
    traffic = {f.name: int(rng.integers(0, upper.get(f.name, 900))) for f in fields(Traffic)}
    return CostTable(tasks, Traffic(**traffic))


def uneven_table(machine: Machine, seed: int) -> CostTable:
    """Of which each form has tiles that the others lack, as an elite set may be."""
    kept = {
        Form.PLAIN: {1: 2, 2: 4},
        Form.PACKED_A: {3: 2},
        Form.IN_PLACE_B: {1: 8, 2: 1, 3: 4, 4: 2},
    }
    table = random_table(machine, seed)
    tasks = {r: c for r, c in table.tasks.items() if r.mr <= kept[r.form].get(r.nv, 0)}
    found = CostTable(tasks, table.traffic)
    found.check()
    return found


#: name: (machine, table). Few cores and many, and tables that lead to other plans.
SETTINGS = {
    "1 core": lambda: (replace(AVX2, cores=1), shipped_table()),
    "2 cores": lambda: (replace(AVX2, cores=2), shipped_table()),
    "16 cores": lambda: (replace(AVX2, cores=16), shipped_table()),
    "random costs, small caches": lambda: (
        replace(AVX2, cores=3, l1_bytes=8 << 10, l2_bytes=64 << 10, l3_bytes=1 << 20),
        random_table(AVX2, 1),
    ),
    "random costs, few kernels": lambda: (
        replace(AVX2, cores=2, l1_bytes=16 << 10, l2_bytes=128 << 10, l3_bytes=2 << 20),
        uneven_table(AVX2, 6),
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
            b_row=int(rng.choice([0, 0, 0, 1024, 40_960, 40_008])),
        )
        for _ in range(count)
    ]


PRODUCTS = random_products(4000, 7)


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
        shapes = np.array([(p.m, p.n, p.k, p.batch, p.stored) for p in products], np.int64)
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
        assert plan.workers <= machine.cores
        assert plan.workers <= product.batch * plan.splits_m * plan.splits_n
        # one chunk has no part of what one cannot be cut into
        assert plan.splits_m <= -(-product.m // plan.mr)
        assert plan.splits_n <= max((panels - plan.tail_nv) // plan.nv + (plan.tail_nv > 0), 1)


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
        record: TaskCost.of(lambda r, k, c=cost: c.at(r, k) * 50) if record.nv == usual.nv else cost
        for record, cost in table.tasks.items()
    }
    changed = CostTable(dearer, replace(table.traffic, launch=1 << 39))
    (plan,) = NativePlanner(machine, changed)([product])
    assert plan == spec.plan(product, machine, changed)
    assert plan.nv != usual.nv
    assert usual.workers == 2 and plan.workers == 1


@pytest.mark.parametrize("name", ["1 core", "random costs, small caches"])
def test_predicted_cost_is_counts_times_table(name):
    """For each candidate, the cost is a sum of entries of the table."""
    machine, table = SETTINGS[name]()
    checked = 0
    for product in PRODUCTS[:400]:
        for choice in spec.candidates(product, machine, table):
            total = priced(product, choice.plan, machine, table)
            assert total == choice.picoseconds, (product, choice)
            checked += 1
    assert checked > 2000


def test_a_cost_by_hand():
    """20 rows by 5 vectors, two blocks of the reduction, whose operands come from everywhere."""
    machine = replace(AVX2, cores=1, l1_bytes=8 << 10, l2_bytes=64 << 10, l3_bytes=1 << 20)
    base = {r: 1000 * int(r.a) + 100_000 * int(r.b) for r in RESIDENCIES}
    tasks = {
        r: TaskCost.of(lambda res, k, r=r: base[res] + 10 * r.mr * r.nv * k)
        for r in cpu_gemm.family(AVX2)
    }
    traffic = Traffic(**dict.fromkeys((f.name for f in fields(Traffic)), 0))
    table = CostTable(tasks, replace(traffic, tile=7, group=11, c_block=13))
    product, plan = Product(20, 40, 1200), Plan(2, 6, 1, 8, False, BMode.PREPACKED, kc=1024)
    # B: 192 kB come from L3; a block of 2 vectors (38 kB) stays in L2 for its other tiles, and one
    # of 1 vector (19 kB), too; A: 20 rows of 600 are 48 kB, beyond half of L2
    a, far, near_b = Level.L3, Level.L3, Level.L3
    near_tail = Level.L2
    # 20 rows: 4 tiles of 5 in the main region, 7 + 7 + 6 in the tail
    main = 2 * (4 * (base[Residency(a, near_b)] + 10 * 5 * 2 * 600) + 4 * 7 + 11)
    main += 2 * (base[Residency(a, far)] - base[Residency(a, near_b)])
    tail = 2 * (3 * base[Residency(a, near_tail)] + 10 * 20 * 600 + 3 * 7 + 11)
    tail += 2 * (base[Residency(a, far)] - base[Residency(a, near_tail)])
    expected = 2 * main + tail + 13 * 5 * 20
    assert priced(product, plan, machine, table) == expected


@given(st.integers(0, 20_000))
def test_segments_of_trip_counts(k):
    found = segment(k)
    assert 0 <= found < SEGMENTS
    assert found == 0 or TRIPS[found] <= k
    assert found == SEGMENTS - 1 or k < TRIPS[found + 1]


def test_tasks_are_linear_between_their_trip_counts():
    knots = [10, 100, 150, 400, *range(1000, 1009)]
    cost = TaskCost(dict.fromkeys(RESIDENCIES, tuple(knots)))
    here = RESIDENCIES[0]
    for k, value in zip(TRIPS[:-1], knots[:-1], strict=True):
        assert cost.at(here, k) == value
    # a slope is a whole number, so that the end of a line is up to its length below
    assert 1008 - 3072 <= cost.at(here, TRIPS[-1]) <= 1008
    assert [cost.at(here, k) for k in (0, 2, 4, 5)] == [0, 20, 116, 132]
    assert TaskCost.linear(7, 3).at(here, 100_000) == 7 + 3 * 100_000
    falling = TaskCost.of(lambda residency, k: 1000.4 - k if k < 100 else k)
    assert list(falling.knots[here]) == sorted(falling.knots[here])
    assert falling.knots[here][:2] == (999, 999)


def test_costs_with_every_core_busy_are_used_for_several_cores():
    tasks = {r: TaskCost.linear(10, 100) for r in cpu_gemm.family(AVX2)}
    busy = {r: TaskCost.linear(10, 200) for r in tasks}
    table = CostTable(tasks, shipped_table().traffic, busy)
    assert table.for_cores(1).tasks == tasks and table.for_cores(2).tasks == busy
    assert CostTable(tasks, table.traffic).for_cores(2).tasks == tasks
    assert CostTable.from_entries(table.to_entries()) == table
    some = [e if i else {k: v for k, v in e.items() if k != "busy"} for i, e in
            enumerate(table.to_entries())]  # fmt: skip
    with pytest.raises(ValueError, match="^log: it tells costs with every core busy for some"):
        CostTable.from_entries(some)


def test_kernels_on_b_in_place_may_be_missing():
    tasks = {r: TaskCost.linear(10, 100 * r.mr) for r in cpu_gemm.family(AVX2)}
    some = {r: cost for r, cost in tasks.items() if r.form != Form.IN_PLACE_B}
    assert CostTable(some, shipped_table().traffic).tasks == tasks


def test_the_best_is_the_cheapest_and_the_first():
    machine, table = replace(AVX2, cores=1), shipped_table()
    for product in PRODUCTS[:200]:
        choices = spec.candidates(product, machine, table)
        cheapest = min(choice.picoseconds for choice in choices)
        first = next(choice for choice in choices if choice.picoseconds == cheapest)
        assert spec.best(product, machine, table) == first
        assert spec.plan(product, machine, table) == first.plan  # on one core


@pytest.mark.parametrize("product", [Product(9, 500, 5000), Product(300, 500, 5000)])
def test_the_reduction_alone_is_cut_only_for_b_in_place(product):
    machine = replace(AVX2, cores=1)
    table = random_table(machine, 5)
    for stored in READINGS:
        weighed = spec.candidates(replace(product, b_mode=stored), machine, table)
        cut = {c.plan.b_mode for c in weighed if c.plan.kc and not c.plan.mc}
        assert cut == ({BMode.DIRECT} if stored == BMode.DIRECT else set())


def test_work_is_shared_out_when_it_is_worth_a_launch():
    table = shipped_table()
    many = replace(AVX2, cores=16)
    assert spec.plan(Product(1, 8, 1), many, table).workers == 1
    assert spec.plan(Product(2000, 2000, 200), many, table).workers == 16
    wide = spec.plan(Product(1, 20_000, 1000), many, table)
    assert wide.splits_m == 1 and wide.splits_n >= 16
    tall = spec.plan(Product(4000, 16, 1000), many, table)
    assert tall.splits_m >= 16 and tall.splits_n == 1
    batch = spec.plan(Product(64, 64, 64, 128, BMode.DIRECT), many, table)
    assert (batch.splits_m, batch.splits_n, batch.workers) == (1, 1, 16)


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
    narrow = [
        e for e in entries if e.get("record", {}).get("nv", 1) != 2 or e["record"]["packed_a"]
    ]
    narrow = [e for e in narrow if e.get("record", {}).get("nv", 1) < 3 or e["record"]["packed_a"]]
    with pytest.raises(ValueError, match="^log: kernels of 3 vectors on packed A leave columns"):
        CostTable.from_entries(narrow)
    gap = [e for e in entries if e.get("record") != cpu_gemm.Record(2, 1).to_json()]
    assert len(gap) == len(entries) - 1
    with pytest.raises(ValueError, match="^log: tiles of 1 vectors lack heights"):
        CostTable.from_entries(gap)


@pytest.mark.parametrize("value", [None, -1, 1.5, "7", True, 1 << 40])
def test_malformed_costs_are_refused(value):
    entries = random_table(AVX2, 5).to_entries()
    entries[-1]["launch"] = value
    with pytest.raises(ValueError, match="^log: launch must be picoseconds"):
        CostTable.from_entries(entries)


@pytest.mark.parametrize("value", [None, -1, 1.5, "7", True, 1 << 30])
def test_malformed_costs_of_tasks_are_refused(value):
    for position in (0, len(TRIPS) - 1):
        entries = random_table(AVX2, 5).to_entries()
        entries[0]["alone"][3][position] = value
        with pytest.raises(ValueError, match="^log: alone must list the picoseconds of"):
            CostTable.from_entries(entries)


def test_costs_of_tasks_of_another_shape_are_refused():
    for change in (
        lambda rows: rows[:-1],
        lambda rows: [*rows, rows[0]],
        lambda rows: [rows[0][:-1], *rows[1:]],
        lambda rows: [rows[0][::-1], *rows[1:]],
        lambda rows: "rows",
        lambda rows: None,
    ):
        entries = random_table(AVX2, 5).to_entries()
        entries[0]["alone"] = change(entries[0]["alone"])
        with pytest.raises(ValueError, match="^log: alone must"):
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
        shipped_table().task(99, 1, Form.PLAIN)


def test_crowded_rows_are_packed_from_a_few_tiles_on():
    """Read in place, they would be brought from the second-level cache for each tile anew."""
    table = shipped_table()

    def reading(m, row):
        return spec.plan(Product(m, 1024, 1024, 1, BMode.DIRECT, row), AVX2, table).b_mode

    assert [reading(m, 1024) for m in (4, 12, 16, 32)] == [BMode.DIRECT] + [BMode.PACKED] * 3
    assert [reading(m, 1032) for m in (4, 12, 16)] == [BMode.DIRECT] * 3
