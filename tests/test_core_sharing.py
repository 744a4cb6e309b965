"""Chunks: each part of the output is computed once, whoever takes it, and how many there are."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from core_testing import CANARY, Weight, linear, matmul, valid, values
from hypothesis import given, settings
from hypothesis import strategies as st
from test_core_planner import AVX2, shipped_table
from tvm.target import Target

from tvm_moonpoly import operators
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.microkernels.records import Form
from tvm_moonpoly.operators.matmul import MATMUL_PLANNED
from tvm_moonpoly.planner import shares, spec
from tvm_moonpoly.planner.plan import BMode, Plan, largest
from tvm_moonpoly.planner.spec import Product


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture()
def rng():
    return np.random.default_rng(7)


def whole_numbers(rng, *shape):
    """Floats whose products add up without rounding, in any order."""
    return rng.integers(-4, 5, shape).astype(np.float32)


@settings(max_examples=150)
@given(data=st.data())
def test_every_element_is_written_once(library, data):
    """The output is its own addend, so that what is written twice has the product in it twice."""
    m = data.draw(st.integers(1, 90), label="m")
    n = data.draw(st.integers(1, 200), label="n")
    k = data.draw(st.integers(0, 40), label="k")
    panels = n // library.machine.lanes
    nv = data.draw(st.sampled_from([1, 2, 3]), label="nv")
    tail = panels % nv
    plan = Plan(
        nv=nv,
        mr=data.draw(st.integers(1, 4), label="mr"),
        tail_nv=tail,
        tail_mr=3 if tail else 0,
        pack_a=False,
        b_mode=BMode.PREPACKED,
        kc=data.draw(st.sampled_from([0, 16]), label="kc"),
        mc=data.draw(st.sampled_from([0, 20]), label="mc"),
        splits_m=data.draw(st.integers(1, 20), label="splits_m"),
        splits_n=data.draw(st.integers(1, 20), label="splits_n"),
        workers=data.draw(st.integers(1, 16), label="workers"),
    )
    valid(plan, Product(m, n, k), library.machine, library.table)
    rng = np.random.default_rng(n * 1000 + m)
    x, w, before = (whole_numbers(rng, *shape) for shape in ((m, k), (k, n), (m, n)))
    out = before.copy()
    linear(library, x, Weight.of(library, w, None, plan), residual=out, out=out)
    np.testing.assert_array_equal(out, before + x @ w)


@pytest.mark.parametrize("mode", [BMode.DIRECT, BMode.PACKED, BMode.STREAM])
@pytest.mark.parametrize("turned", [False, True])
def test_chunks_of_a_batch(library, rng, mode, turned):
    """Batch entries, rows and columns in chunks, for all numbers of workers up to 16 and the most
    that a plan can name."""
    m, n, k, batch = 23, 75, 33, 5
    a, b = whole_numbers(rng, batch, m, k), whole_numbers(rng, batch, k, n)
    stored = np.ascontiguousarray(a.transpose(0, 2, 1)) if turned else a
    a_axes = [0, 2, 1] if turned else [0, 1, 2]
    tile = (1, 1, 0, 0) if mode == BMode.STREAM else (2, 4, 1, 3)
    for workers in (*range(1, 17), largest("workers")):
        splits = (workers % 5 + 1, workers % 4 + 1)
        plan = Plan(*tile, False, mode, 0, 0, 0, *splits, workers)
        valid(plan, Product(m, n, k, batch, BMode.DIRECT), library.machine, library.table)
        out = np.full((batch, m, n), CANARY)
        matmul(library, stored, b, out, a_axes=a_axes, name=MATMUL_PLANNED, plan=plan)
        np.testing.assert_array_equal(out, a @ b)


def test_results_do_not_depend_on_who_takes_a_chunk(library, rng):
    """To the bit, for any number of workers of the same chunks, each time."""
    m, n, k = 67, 203, 300
    x, w, bias = values(rng, m, k), values(rng, k, n), values(rng, n)
    nv = library.table.widths(Form.PACKED_A)[0]
    mr, tail = library.table.heights(nv, Form.PACKED_A)[-1], n // library.machine.lanes % nv
    chunks = Plan(nv, mr, tail, 1 if tail else 0, True, BMode.PREPACKED, 128, 20, 0, 5, 7)
    valid(chunks, Product(m, n, k), library.machine, library.table)
    results = [
        linear(library, x, Weight.of(library, w, bias, replace(chunks, workers=workers)))
        for workers in (1, 2, 3, 16, *[2] * 30)
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_the_planner_s_own_plans_give_the_same_bits_each_time(target, rng):
    """Large enough for many chunks on two cores."""
    library = operators.library(Target({**json.loads(str(target)), "num-cores": 2}))
    x, w = values(rng, 130, 300), values(rng, 300, 1003)
    weight = Weight.of(library, w)
    plan = Plan.decode(int(weight.table[130]))
    assert plan.workers == 2 and plan.splits_m * plan.splits_n > 2
    first = linear(library, x, weight)
    for _ in range(50):
        np.testing.assert_array_equal(linear(library, x, weight), first)


def _cut(product: Product, cores: int) -> Plan:
    return spec.plan(product, replace(AVX2, cores=cores), shipped_table())


@pytest.mark.parametrize("cores", [2, 3, 4, 7, 16, 31, 64, 96])
def test_large_products_have_chunks_to_spare(cores):
    for product in (Product(1024, 1024, 1024), Product(512, 3072, 768), Product(64, 16384, 4096)):
        plan = _cut(product, cores)
        assert plan.workers == cores
        assert plan.splits_m * plan.splits_n >= (2 if cores <= 16 else 1) * cores


def test_entries_of_a_batch_are_cut_so_that_all_work():
    """5 entries by 16 workers: 16 parts of each, not 4, of which some workers would get two."""
    plan = _cut(Product(256, 256, 256, 5, BMode.DIRECT), 16)
    chunks = plan.splits_m * plan.splits_n * 5
    assert plan.workers == 16
    turns = -(-chunks // 16)
    assert turns * 16 / chunks < 1.1


def test_chunks_are_worth_their_cost():
    """The less there is to do, the fewer; none of their own for what is not worth a launch."""
    counts = [
        plan.splits_m * plan.splits_n
        for plan in (_cut(Product(m, 256, 256), 2) for m in (1, 16, 64, 512))
    ]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] >= 2 * shares.CHUNKS[-1]


def test_packing_counts_in_each_chunk():
    """By columns each chunk packs A, by rows B: the dearer one decides."""
    machine, table = replace(AVX2, cores=2), shipped_table()
    packs_a = Plan(2, 6, 0, 0, True, BMode.PREPACKED, 512, 240)
    packs_b = Plan(2, 6, 0, 0, False, BMode.PACKED)
    cost = 10**10

    def cut(plan: Plan, mode: BMode, **dearer: int) -> tuple[int, int]:
        traffic = replace(table.traffic, **dearer)
        product = Product(960, 1024, 512, b_mode=mode)
        changed = CostTable(table.tasks, traffic)
        found = shares.cheapest_cut(plan, cost, product, machine, changed)
        return found.splits_m, found.splits_n

    assert cut(packs_a, BMode.PREPACKED, pack_a=0)[0] == 1
    assert cut(packs_a, BMode.PREPACKED, pack_a=10_000)[1] == 1
    assert cut(packs_b, BMode.DIRECT, pack_rows=50_000)[0] == 1


def test_rows_in_memory_are_not_cut_finely():
    product = Product(1, 4096, 4096, b_mode=BMode.DIRECT)
    streamed = Plan(1, 1, 0, 0, False, BMode.STREAM)
    machine = replace(AVX2, cores=2)
    found = shares.cheapest_cut(streamed, 10**9, product, machine, shipped_table())
    assert (found.splits_m, found.splits_n) == (1, 2)


def test_the_price_of_a_cut_by_hand():
    """40 tiles by 8 groups, all in one direction, two workers."""
    table = shipped_table()
    table = CostTable(table.tasks, replace(table.traffic, launch=8_000_000))
    machine = replace(AVX2, cores=2)
    plan = Plan(2, 5, 0, 0, False, BMode.PREPACKED)
    found = shares.cheapest_cut(plan, 320_000_000, Product(200, 128, 100), machine, table)
    # a tile of a group takes 1 us, a chunk 0.5 us, and 2 ns a row where columns are cut. By column,
    # 2 chunks: 160.9 us and an eighth of that; 6, of which some have 2 groups: 2 x 54.2 us and
    # 80.9 us and an eighth; 16, 20 tiles each: 8 x 20.7 us and an eighth of one. By rows, 16, some
    # with 3 tiles: 7 x 20.5 us, 24.5 us and an eighth of that, and a sixteenth of all
    assert found == (2, 8, 168_187_500)


def test_rows_are_cut_where_columns_would_meet_in_many_lines():
    machine = replace(AVX2, cores=2)
    plan = Plan(3, 4, 0, 0, False, BMode.PREPACKED)
    found = shares.cheapest_cut(plan, 170_000_000, Product(3136, 96, 24), machine, shipped_table())
    assert found.splits_n == 1
