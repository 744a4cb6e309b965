"""The planner for CUDA: its specification, and the native one that decides alike."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_moonpoly
from tvm_moonpoly import native
from tvm_moonpoly.costmodel.cuda import BlockCost, CudaTable
from tvm_moonpoly.emit import INT, Functions, loop
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner.cuda import native as native_planner
from tvm_moonpoly.planner.cuda import spec
from tvm_moonpoly.planner.cuda.spec import Axis, Plan, Product

LARGE = BlockCost("128x128x32", 128, 128, 32, 3_000_000, (400_000, 650_000))
SMALL = BlockCost("64x64x32", 64, 64, 32, 1_500_000, (180_000, 240_000, 330_000, 420_000))
ROW = BlockCost("16x64x64", 16, 64, 64, 1_200_000, (160_000, 170_000, 190_000))
TABLE = CudaTable(108, 2_500_000, (LARGE, SMALL, ROW))


def random_table(seed: int) -> CudaTable:
    rng = np.random.default_rng(seed)
    kernels = []
    for i in range(int(rng.integers(1, 20))):
        resident = int(rng.integers(1, 9))
        steps = np.sort(rng.integers(50_000, 900_000, resident))
        m, n, k = (
            int(rng.choice(sizes)) for sizes in ((16, 32, 64, 128, 256),) * 2 + ((16, 32, 64),)
        )
        around = int(rng.integers(0, 4_000_000))
        kernels.append(BlockCost(f"kernel {i}", m, n, k, around, tuple(int(s) for s in steps)))
    return CudaTable(int(rng.integers(1, 200)), int(rng.integers(0, 5_000_000)), tuple(kernels))


TABLES = {"three kernels": TABLE, **{f"random {seed}": random_table(seed) for seed in range(5)}}


def random_products(count: int, seed: int) -> list[Product]:
    rng = np.random.default_rng(seed)

    def size(high: int) -> int:
        kind = rng.integers(0, 4)
        if kind == 0:
            return int(rng.choice([0, 1, 2, 7, 15, 16, 17, 127, 128, 129, 1023, 1024, 4096]))
        return int(np.exp(rng.uniform(0, np.log(high))))

    return [
        Product(size(20_000), size(60_000), size(20_000), int(rng.choice([1, 1, 1, 2, 12, 96, 0])))
        for _ in range(count)
    ]


PRODUCTS = random_products(1500, 3)


class NativePlanner:
    """The native planner for a table, compiled alone."""

    def __init__(self, table: CudaTable) -> None:
        defined = Functions()
        native_planner.emit(defined, table)

        @defined.public("plan_many", shapes="handle", out="handle")
        def _(shapes, out):
            told, plans = Tensor(shapes, "shapes", INT), Tensor(out, "out", INT)
            with loop(told.shape[0]) as i:
                sizes = (told.data[i * 4 + j] for j in range(4))
                defined[native_planner.PLAN](*sizes, plans.data.at(i * native_planner.RESULTS))

        self._function = native.build(defined.module(), tvm_moonpoly.detect_target())["plan_many"]

    def __call__(self, products: list[Product]) -> list[spec.Choice]:
        shapes = np.array([(p.m, p.n, p.k, p.batch) for p in products], np.int64)
        out = tvm.runtime.tensor(np.zeros((len(products), native_planner.RESULTS), np.int64))
        self._function(tvm.runtime.tensor(shapes), out)
        return [
            spec.Choice(Plan(first, Axis(axis), cut, second), cost)
            for first, axis, cut, second, cost in out.numpy().tolist()
        ]


@pytest.mark.parametrize("name", TABLES)
def test_both_planners_decide_alike(name):
    table = TABLES[name]
    for product, choice in zip(PRODUCTS, NativePlanner(table)(PRODUCTS), strict=True):
        assert choice == spec.best(product, table), product


def test_every_kind_of_plan_is_met():
    axes = {spec.plan(p, table).axis for table in TABLES.values() for p in PRODUCTS}
    assert axes == set(Axis)


@settings(deadline=None)
@given(
    st.integers(0, 3000),
    st.integers(0, 3000),
    st.integers(0, 500),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_regions_cover_every_element_once(m, n, k, batch, seed):
    product, table = Product(m, n, k, batch), random_table(seed)
    plan = spec.plan(product, table)
    covered = np.zeros((m, n), np.int8)
    for region in spec.regions(plan, product):
        rows = slice(region.row, region.row + region.rows)
        covered[rows, region.column : region.column + region.columns] += 1
    assert (covered == 1).all()
    if plan.axis != Axis.NONE:
        kernel = table.kernels[plan.first]
        assert plan.cut % (kernel.block_m if plan.axis == Axis.ROWS else kernel.block_n) == 0


def test_the_cost_of_a_plan_is_that_of_its_waves():
    # 2560 / 128 = 20 by 1280 / 128 = 10: 200 blocks, of which 108 x 2 fit at once, 2 on each of 92
    steps = 1024 // 32
    whole = 2_500_000 + 3_000_000 + steps * 650_000
    only = CudaTable(108, 2_500_000, (LARGE,))
    assert spec.best(Product(2560, 1280, 1024), only) == spec.Choice(Plan(0), whole)
    # 1280 x 1280: 100 blocks, one on a multiprocessor
    one = 2_500_000 + 3_000_000 + steps * 400_000
    assert spec.best(Product(1280, 1280, 1024), only) == spec.Choice(Plan(0), one)


def test_full_waves_and_the_rest_get_a_kernel_each():
    # 23 lines of 10 blocks are 230; a wave holds 216: 21 lines. The rest is 2 lines and a bit
    product = Product(23 * 128, 1280, 4096)
    table = CudaTable(108, 2_500_000, (LARGE, SMALL))
    choice = spec.best(product, table)
    assert choice.plan == Plan(0, Axis.ROWS, 21 * 128, 1)
    alone = min(
        spec.best(product, CudaTable(108, 2_500_000, (kernel,))).picoseconds
        for kernel in (LARGE, SMALL)
    )
    assert choice.picoseconds < 0.85 * alone
    head, rest = spec.regions(choice.plan, product)
    assert (head.rows, rest.row, rest.rows) == (2688, 2688, 256)


def test_few_rows_go_to_the_low_block():
    assert TABLE.kernels[spec.plan(Product(1, 4096, 4096), TABLE).first] == ROW


@pytest.mark.parametrize("m, n, batch", [(0, 5, 1), (5, 0, 1), (5, 5, 0)])
def test_an_empty_result_is_one_launch_of_no_blocks(m, n, batch):
    assert spec.best(Product(m, n, 64, batch), TABLE) == spec.Choice(Plan(0), TABLE.launch)


def test_a_log_keeps_the_table():
    entries = [{**entry, "sum": "checked elsewhere"} for entry in TABLE.to_entries()]
    assert CudaTable.from_entries(entries) == TABLE


@pytest.mark.parametrize(
    "change, message",
    [
        ({"block_m": 0}, "128x128x32: block_m: an integer in 1..65535 is needed, not 0"),
        ({"block_k": 2.5}, "128x128x32: block_k: an integer in 1..65535 is needed, not 2.5"),
        ({"around": -1}, "128x128x32: around"),
        ({"steps": []}, "128x128x32: steps: 1 to 32 numbers"),
        ({"steps": [5, 4]}, "128x128x32: steps: more blocks cannot be faster"),
        ({"steps": 7}, "128x128x32: steps: a list of numbers is needed, not 7"),
        ({"more": 1}, "log: .*more"),
    ],
)
def test_bad_costs_are_told(change, message):
    first, *others = TABLE.to_entries()
    with pytest.raises(ValueError, match=message):
        CudaTable.from_entries([{**first, **change}, *others])


@pytest.mark.parametrize("kind", ["gpu", "cuda kernel"])
def test_a_log_without_a_part_is_refused(kind):
    with pytest.raises(ValueError, match="log: it holds no GPU or none of its kernels"):
        CudaTable.from_entries([e for e in TABLE.to_entries() if e["kind"] != kind])


def test_a_table_tells_whether_it_was_measured():
    gpu = TABLE.to_entries()[-1]
    with pytest.raises(ValueError, match="log: measured must be true or false"):
        CudaTable.from_entries([*TABLE.to_entries()[:-1], {**gpu, "measured": 1}])
