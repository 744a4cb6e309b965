"""The planner's bench: its oracle, metrics and planners, mostly on times that are made up."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from core_testing import valid
from rich.console import Console
from test_core_planner import AVX2, random_table, shipped_table, uneven_table

from bench.planner import (
    cli,
    decision,
    figure,
    halving,
    judge,
    metrics,
    page,
    report,
    sensitivity,
    session,
    shapes,
    threads,
)
from bench.planner.halving import Stage, Timer
from bench.planner.judge import Effort
from bench.planner.plans import STREAMED, every_plan, same_work
from bench.planner.variants import (
    LEARNED,
    Variant,
    fixed_rule,
    g_alone,
    line_of,
    peak_picoseconds,
    shared_cost,
    square_tile,
    straightened,
    variants,
    waves_alone,
)
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.costmodel.tasks import RESIDENCIES, TRIPS, Level, Residency, TaskCost
from tvm_moonpoly.microkernels.records import Form
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.counts import priced
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.spec import Choice, Product

ONE_CORE = replace(AVX2, cores=1)

ROOT = Path(__file__).resolve().parents[1]
ENDS = ("begin", "end")

PRODUCTS = [
    Product(1, 768, 768),
    Product(5, 100, 3000),
    Product(33, 384, 384),
    Product(300, 800, 2100),
    Product(97, 8, 1500),
    Product(1, 64, 900, 14, BMode.DIRECT),
    Product(130, 200, 600, 1, BMode.DIRECT),
    Product(250, 136, 1100, 1, BMode.PACKED),
    Product(2, 16, 64, 1, BMode.PACKED),
]


#: A table with few kernels, in the place of a seed.
FEW = "few kernels"


def table_of(seed: int | str | None) -> CostTable:
    if isinstance(seed, str):
        return uneven_table(ONE_CORE, 6)
    table = shipped_table() if seed is None else random_table(ONE_CORE, seed)
    return table.for_cores(1)


# Metrics


def test_the_oracle_is_picked_on_even_rounds_and_compared_on_odd_ones():
    # plan 0 was lucky in the even rounds, plan 2 is as fast as it is in the odd ones
    times = np.array([[1.0, 3.0, 1.5], [2.0, 3.0, 1.6], [1.0, 3.0, 1.5], [2.0, 3.0, 1.6]])
    assert metrics.fastest(times, range(3)) == 0
    assert metrics.loss(times, [0]) == 0
    assert metrics.loss(times, [1]) == pytest.approx(0.5)
    assert metrics.loss(times, [2]) == 0  # 1.6 against 2.0: no loss, but no gain either
    # the best of several is picked on the even rounds as well
    assert metrics.loss(times, [1, 2]) == 0
    assert metrics.loss(times + [[0, 0, 9]] * 4, [1, 2]) == pytest.approx(0.5)


def test_a_loss_is_a_median_of_paired_ratios():
    # the machine is three times slower in one round
    times = np.array([[1.0, 1.1], [1.0, 1.1], [1.0, 1.1], [3.0, 3.3], [1.0, 1.1], [1.0, 1.1]])
    assert metrics.loss(times, [1]) == pytest.approx(0.1)


def test_summary_of_a_hand_example():
    losses = [0.0, 0.01, 0.02, 0.03, 0.5]
    rows = [{"loss": each, "top": each / 2, "spearman": 0.5, "kendall": None} for each in losses]
    found = metrics.summary(rows)
    assert found["mean"] == pytest.approx(0.112)
    assert found["median"] == 0.02
    assert found["p90"] == pytest.approx(0.312)
    assert found["worst"] == 0.5
    assert found["top1"] == pytest.approx(0.6)
    assert found["top3"] == pytest.approx(0.8)
    assert found["large"] == 1
    assert found["spearman"] == 0.5
    assert found["kendall"] is None


#: A summary that meets all targets, just so.
MET = {"mean": 0.02, "p90": 0.05, "worst": 0.12, "top1": 0.75, "top3": 0.92}


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        ({}, []),
        ({"mean": 0.0201, "top3": 0.91}, ["mean", "top3"]),
        ({"p90": 0.051, "worst": 0.2, "top1": 0.74}, ["p90", "worst", "top1"]),
        ({"top3": None}, ["top3"]),
    ],
)
def test_targets_are_met_or_missed(figures, missed):
    met, short = metrics.judged(MET | figures)
    assert [target.figure for target in short] == missed
    assert {target.figure for target in met} == MET.keys() - set(missed)
    told = page.targets(MET | figures)
    assert told.count("**missed**") == len(missed)
    assert told.startswith("Targets that are missed: " if missed else "All targets are met.")
    assert "| worst | at most 12% |" in told


def test_the_report_says_for_which_threads_a_target_is_missed():
    doc = {"threads": 2, "summary": {"all": {LEARNED: MET | {"p90": 0.0504}}}}
    console = Console(width=240)
    with console.capture() as capture:
        report.print_targets(console, doc)
    met, missed = capture.get().splitlines()
    assert met.startswith("targets met, 2 threads: mean loss 2.00% (at most 2%); worst 12.00%")
    assert missed == "targets missed, 2 threads: 90th percentile 5.04% (at most 5%)"


def test_rank_correlations():
    assert metrics.correlations([1, 2, 3, 4], [10, 20, 30, 70]) == {"spearman": 1, "kendall": 1}
    swapped = metrics.correlations([1, 2, 3, 4], [10, 20, 40, 30])
    assert swapped == pytest.approx({"spearman": 0.8, "kendall": 2 / 3})
    assert metrics.correlations([5, 5, 5], [1, 2, 3]) == {"spearman": None, "kendall": None}


# Halving


def noisy(true: list[float], seed: int, noise: float = 0.02) -> Timer:
    """Times around ``true`` ones: sometimes much longer, on a machine that gets slower."""
    rng = np.random.default_rng(seed)

    def timer(plan: int, seconds: float, turn: int) -> float:
        disturbed = 1.5 if rng.random() < 0.03 else 1.0
        return float(true[plan] * (1 + abs(rng.normal(0, noise))) * disturbed * (1 + 0.02 * turn))

    return timer


@pytest.mark.parametrize("seed", range(20))
def test_halving_keeps_the_best(seed):
    rng = np.random.default_rng(seed)
    true = list(rng.uniform(1, 4, 150) * 1e-4)
    halved = halving.halved(len(true), noisy(true, seed))
    assert int(np.argmin(true)) in halved.left
    assert len(halved.left) <= halving.STAGES[-1].most
    # and tells what all of them take, brought to one speed of the machine
    ratios = np.array(halved.seconds) / np.array(true)
    assert np.quantile(ratios, 0.9) / np.quantile(ratios, 0.1) < 1.15


def test_halving_spends_no_time_on_what_is_hopeless():
    calls: dict[int, int] = dict.fromkeys(range(4), 0)

    def timer(plan: int, seconds: float, turn: int) -> float:
        calls[plan] += 1
        return [1.0, 1.05, 1.5, 9.0][plan]

    halved = halving.halved(4, timer, [Stage(3, 0, 1.2, 4), Stage(2, 0, 1.1, 2)])
    assert calls == {0: 5, 1: 5, 2: 3, 3: 1}
    assert halved.left == [0, 1]
    assert halved.seconds == [1.0, 1.05, 1.5, 9.0]


def test_rounds_time_each_plan_once_in_changing_order():
    seen: list[tuple[int, int]] = []

    def timer(plan: int, seconds: float, turn: int) -> float:
        seen.append((turn, plan))
        return float(plan)

    probes: list[int] = []
    times = halving.interleaved([4, 7, 9], timer, 6, 0.0, 1, lambda: probes.append(len(seen)))
    assert times.shape == (6, 3)
    assert (times == [4, 7, 9]).all()
    assert sorted(seen) == [(turn, plan) for turn in range(6) for plan in (4, 7, 9)]
    assert len({tuple(plan for turn, plan in seen if turn == each) for each in range(6)}) > 1
    assert probes == [0, 3, 6, 9, 12, 15]


def test_rounds_fit_the_budget_and_serve_each_set_of_operands_alike():
    effort = Effort(sample=0.01, budget=1.0, least=12, most=48)
    assert effort.rounds([0.001] * 100) == 12
    assert effort.rounds([0.001] * 4) == 24
    assert effort.rounds([0.001]) == 48
    assert effort.rounds([10.0]) == 12


# Plans


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
@pytest.mark.parametrize("seed", [None, 1, 2, 3, FEW])
def test_every_plan_is_valid_and_none_that_the_planner_weighs_is_missing(product, seed):
    table = table_of(seed)
    plans = every_plan(product, ONE_CORE, table)
    assert len(set(plans)) == len(plans)
    for plan in plans:
        valid(plan, product, ONE_CORE, table)
        assert same_work(plan, product, ONE_CORE) == plan
    if product.n // ONE_CORE.lanes >= max(table.widths(Form.PACKED_A)):
        weighed = spec.candidates(product, ONE_CORE, table)
        assert {same_work(choice.plan, product, ONE_CORE) for choice in weighed} <= set(plans)
    assert {plan.b_mode for plan in plans} == set(spec.READINGS[product.b_mode])


def test_all_heights_and_blockings_are_there():
    table = table_of(None)
    plans = every_plan(Product(2400, 96, 3000), ONE_CORE, table)
    assert {plan.mr for plan in plans if plan.nv == 2 and not plan.pack_a} == set(
        table.heights(2, Form.PLAIN)
    )
    assert {(plan.pack_a, plan.kc, plan.mc) for plan in plans} == {
        (blocks.pack_a, blocks.kc, blocks.mc) for blocks in spec.BLOCKINGS
    }
    # one row has one height, and no blocks of rows
    assert {(plan.mr, plan.mc) for plan in every_plan(Product(1, 96, 3000), ONE_CORE, table)} == {
        (1, 0)
    }


def test_plans_that_do_the_same_are_one():
    product = Product(7, 48, 64)
    # 7 rows in tiles of 4 or of 5 are 4 + 3; and a tail of all panels is a main region
    assert same_work(Plan(2, 5, 0, 0, False, BMode.PREPACKED), product, ONE_CORE) == Plan(
        2, 4, 0, 0, False, BMode.PREPACKED
    )
    assert same_work(Plan(4, 2, 6, 1, False, BMode.PREPACKED), product, ONE_CORE) == Plan(
        6, 1, 0, 0, False, BMode.PREPACKED
    )
    assert same_work(replace(STREAMED, mr=3), product, ONE_CORE) == STREAMED


# Planners


def test_g_alone_knows_neither_caches_nor_traffic():
    table = table_of(7)
    without = g_alone(table)
    for record, cost in table.tasks.items():
        expected = cost.knots[Residency(Level.L1, Level.L1)]
        assert set(without.tasks[record].knots.values()) == {expected}
    product = Product(96, 96, 4000)
    plans = every_plan(product, ONE_CORE, table)
    packed = [plan for plan in plans if plan.pack_a and plan.kc == 1024]
    assert without.traffic.pack_a == without.traffic.c_block == without.traffic.tile == 0
    assert without.traffic.dot_step == table.traffic.dot_step
    for plan in packed[:5]:
        assert priced(product, plan, ONE_CORE, without) != priced(product, plan, ONE_CORE, table)


def test_waves_alone_counts_full_tiles():
    table = table_of(None)
    waves = waves_alone(table, ONE_CORE)
    tallest = max(table.heights(2, Form.PLAIN))
    flop = peak_picoseconds(table, ONE_CORE)

    def cost(m: int) -> int:
        plan = Plan(2, tallest, 0, 0, False, BMode.PREPACKED)
        return priced(Product(m, 64, 384), plan, ONE_CORE, waves)

    one_tile = 4 * 2 * tallest * 2 * ONE_CORE.lanes * 384 * flop
    assert cost(1) == pytest.approx(one_tile, rel=0.01)
    assert cost(tallest) == cost(1)
    assert cost(tallest + 1) == 2 * cost(1)


def test_lines_replace_curves():
    line = TaskCost.linear(3000, 500)
    start, step = line_of(line.knots, (Residency(Level.L1, Level.L1),))
    assert (start, step) == pytest.approx((3000, 500))
    table = table_of(7)
    by_residency = straightened(table, [(each,) for each in RESIDENCIES])
    one = straightened(table, [RESIDENCIES])
    for record in table.tasks:
        knots = by_residency.tasks[record].knots
        steps = [np.diff(knots[each]) / np.diff(TRIPS) for each in (RESIDENCIES[0], RESIDENCIES[7])]
        assert all(np.allclose(each, each[-1], rtol=0.2) for each in steps)
        assert len(set(one.tasks[record].knots.values())) == 1
    assert one.tasks != by_residency.tasks != table.tasks


@pytest.mark.parametrize("seed", [None, 7])
def test_the_planners_differ(seed):
    """Each of them decides otherwise for some shape, so that a bench column means something."""
    table = table_of(seed)
    planners = variants(ONE_CORE, table)
    assert [planner.name for planner in planners][0] == LEARNED
    chosen = {
        planner.name: [
            same_work(planner.ranked(product)[0].plan, product, ONE_CORE)
            for product in (shape.product for shape in shapes.chosen_shapes(60, 5))
        ]
        for planner in planners
    }
    if seed is not None:  # a log of straight lines has nothing that could be straightened
        others = [plans for name, plans in chosen.items() if name != LEARNED]
        assert all(plans != chosen[LEARNED] for plans in others)
    for name in ("waves alone", "fixed rule"):
        assert chosen[name] != chosen[LEARNED]


def test_the_learned_planner_is_the_planner():
    table = table_of(7)
    learned = variants(ONE_CORE, table)[0]
    for product in PRODUCTS:
        ranked = learned.ranked(product)
        assert ranked[0].plan == spec.plan(product, ONE_CORE, table)
        assert [choice.picoseconds for choice in ranked] == sorted(
            choice.picoseconds for choice in ranked
        )
        assert learned.priced is not None
        assert learned.priced(product, ranked[-1].plan) == ranked[-1].picoseconds


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
@pytest.mark.parametrize("seed", [None, FEW])
def test_the_fixed_rule_gives_valid_plans(product, seed):
    table = table_of(seed)
    plan = fixed_rule(product, ONE_CORE, table)
    valid(plan, product, ONE_CORE, table)
    assert (plan.b_mode == BMode.STREAM) == (product.m == 1 and product.b_mode != BMode.PREPACKED)


def test_the_fixed_rule_is_the_usual_one():
    table = table_of(1)
    assert square_tile(table, ONE_CORE, Form.PLAIN) == (6, 2)
    assert fixed_rule(Product(500, 1000, 3000), ONE_CORE, table) == Plan(
        2, 6, 1, 6, True, BMode.PREPACKED, 512, 240
    )
    assert fixed_rule(Product(20, 1000, 3000), ONE_CORE, table) == Plan(
        2, 6, 1, 6, False, BMode.PREPACKED
    )
    # by blocks all the same where packed A has low tiles alone
    low = {r: c for r, c in table.tasks.items() if r.form != Form.PACKED_A or r.mr == 1}
    few = CostTable(low, table.traffic)
    assert fixed_rule(Product(500, 1000, 3000), ONE_CORE, few) == Plan(
        2, 6, 1, 6, False, BMode.PREPACKED, 512, 240
    )


# Several threads

TWO_CORES = replace(AVX2, cores=2)


def test_plans_are_shared_out_in_every_way():
    plan = Plan(2, 6, 1, 4, False, BMode.PREPACKED)
    product = Product(13, 72, 100)  # three row tiles, four groups and a tail
    found = list(threads.sharings(plan, product, TWO_CORES))
    assert {(each.splits_m, each.splits_n, each.workers) for each in found} == {
        (1, 1, 1), (1, 2, 2), (1, 4, 2), (1, 5, 2), (2, 1, 2), (2, 2, 2), (2, 4, 2), (2, 5, 2),
        (3, 1, 2), (3, 2, 2), (3, 4, 2), (3, 5, 2),
    }  # fmt: skip
    # whole batch entries are parts as well
    batch = list(threads.sharings(plan, replace(product, batch=5), TWO_CORES))
    assert replace(plan, workers=2) in batch
    alone = list(threads.sharings(plan, Product(6, 16, 100), TWO_CORES))
    assert alone == [plan]
    for each in [*found, *batch]:
        assert Plan.decode(each.encode()) == each
        assert same_work(each, product, TWO_CORES) == each or each.workers == 1


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_the_planners_sharing_is_one_of_them(product):
    table = shipped_table().for_cores(2)
    chosen = spec.plan(product, TWO_CORES, table)
    assert chosen.workers == 1 or chosen in set(threads.sharings(chosen, product, TWO_CORES))


def test_only_the_fastest_on_one_core_are_shared_out():
    product, table = Product(33, 384, 384), shipped_table().for_cores(2)
    planners = variants(TWO_CORES, table)
    plans = threads.one_core_plans(product, TWO_CORES, table, planners)
    assert len(set(plans)) == len(plans) >= len(every_plan(product, TWO_CORES, table))
    assert all(plan.workers == 1 for plan in plans)
    seconds = [1 + 0.001 * ((7 * i) % len(plans)) for i in range(len(plans))]
    seconds[0] = 9
    best = threads.worth_sharing(plans, lambda plan, sample, turn: seconds[plan])
    assert best[-1] == plans[0] and len(best) == threads.BEST + 1
    fastest = sorted(range(len(plans)), key=lambda i: seconds[i])[: threads.BEST]
    assert best[:-1] == [plans[i] for i in fastest]


def test_what_a_shared_plan_costs():
    plan = Plan(2, 6, 0, 0, False, BMode.PREPACKED)
    assert shared_cost(plan, 900, Product(1, 16, 1), 50) == 900
    shared = replace(plan, splits_m=3, workers=2)
    assert shared_cost(shared, 900, Product(1, 16, 1), 50) == 650  # two parts of three
    assert shared_cost(replace(plan, workers=2), 900, Product(1, 16, 1, 4), 400) == 550


# A wrong description of the machine


@pytest.mark.parametrize(("machine", "cores"), [(ONE_CORE, {2}), (TWO_CORES, {1, 4})])
def test_mistakes_change_one_thing(machine, cores):
    told = {name: description for name, _, description in sensitivity.mistakes(machine)}
    assert len(told) == 6 + len(cores)
    assert {each.cores for each in told.values()} - {machine.cores} == cores
    assert told["half the L2"] == replace(machine, l2_bytes=machine.l2_bytes // 2)
    assert told["twice the L1"] == replace(machine, l1_bytes=machine.l1_bytes * 2)
    table = random_table(machine, 3)
    product = Product(300, 800, 2100)
    for planner in sensitivity.mistaken(machine, table):
        expected = spec.plan(product, told[planner.name], table.for_cores(told[planner.name].cores))
        assert planner.ranked(product)[0].plan == expected


# One shape


def made_up(field: judge.Field, table: CostTable) -> Timer:
    """Plans take what ``table`` says, exactly."""
    seconds = [priced(field.product, plan, ONE_CORE, table) / 1e12 for plan in field.plans]
    return lambda plan, sample, turn: seconds[plan]


def judged_by(
    ranked: Callable[[Product], list[Choice]], product: Product, truth: CostTable
) -> judge.Row:
    """A planner's row on a machine where plans take what ``truth`` says."""

    def cost(product: Product, plan: Plan) -> int:
        return priced(product, plan, ONE_CORE, truth)

    planners = [Variant(LEARNED, "", ranked, cost)]
    field = judge.field_of(product, ONE_CORE, every_plan(product, ONE_CORE, truth), planners)
    timer = made_up(field, truth)
    return judge.judged(field, planners, timer, Effort(sample=1, budget=1, least=12), 0)


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_a_perfect_planner_loses_nothing_and_a_bad_one_is_reported(product):
    truth = table_of(3)

    def cheapest_first(product: Product) -> list[Choice]:
        found = every_plan(product, ONE_CORE, truth)
        choices = [Choice(plan, priced(product, plan, ONE_CORE, truth)) for plan in found]
        return sorted(choices, key=lambda choice: choice.picoseconds)

    good = judged_by(cheapest_first, product, truth)
    own = good["planners"][LEARNED]
    assert own["loss"] == 0
    assert own["plan"] == good["best"]
    assert own["spearman"] == pytest.approx(1)
    costs = [picoseconds for _, _, picoseconds in good["plans"]]
    assert good["best_ps"] == min(costs)

    bad = judged_by(lambda product: cheapest_first(product)[::-1], product, truth)
    own = bad["planners"][LEARNED]
    assert own["measured_ps"] == max(costs)
    assert own["loss"] == pytest.approx(max(costs) / min(costs) - 1, rel=1e-3)
    assert own["loss"] > metrics.LARGE
    assert bad["best_ps"] == min(costs)


def test_what_is_chosen_is_a_finalist_however_slow():
    product, truth = Product(300, 800, 2100), table_of(3)
    planners = variants(ONE_CORE, table_of(4))
    field = judge.field_of(product, ONE_CORE, every_plan(product, ONE_CORE, truth), planners)
    row = judge.judged(field, planners, made_up(field, truth), Effort(1, 1, 12), 0)
    for planner in planners:
        assert row["planners"][planner.name]["plan"] in row["finalists"]
        assert row["planners"][planner.name]["loss"] >= 0
    assert len(field.chosen[LEARNED]) == metrics.TOP
    assert row["planners"][LEARNED]["top"] <= row["planners"][LEARNED]["loss"]
    assert row["planners"]["fixed rule"].get("spearman") is None


# Shapes


def test_shapes_are_many_bounded_and_repeatable():
    count = cli.FULL[1]
    full = shapes.chosen_shapes(count, cli.SEED)
    assert len(full) == count >= 60
    assert full == shapes.chosen_shapes(count, cli.SEED)
    assert full != shapes.chosen_shapes(count, cli.SEED + 1)
    assert max(shape.work for shape in full) <= shapes.LARGEST
    constant = sum(shape.b_mode == BMode.PREPACKED for shape in full)
    assert len(full) / 2 < constant < len(full)
    assert {shape.b_mode for shape in full} == set(shapes.KINDS)
    assert sum(shape.m <= 16 for shape in full) >= 15
    assert sum(shape.random for shape in full) == count / 2
    assert max(shape.work for shape in shapes.chosen_shapes(24, 1, shapes.QUICK_LARGEST)) <= 10**8
    assert len(set(shapes.listed())) == len(shapes.listed())
    for shape in full:
        assert shape.batch == 1 or shape.b_mode != BMode.PREPACKED


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--threads", "3"], "invalid choice: 3"),
        (["--shapes", "1"], "--shapes must be at least 2"),
        (["--seed", "-1"], "--seed"),
        (["--json", "nowhere/at/all.json"], "there is no folder"),
    ],
)
def test_wrong_options_are_one_sentence(arguments, says, capsys):
    with pytest.raises(SystemExit):
        cli.parse(arguments)
    assert says in capsys.readouterr().err


def test_a_file_of_results_for_each_number_of_threads():
    assert cli.named(Path("a/planner.json"), 1) == Path("a/planner-1-thread.json")
    assert cli.named(Path("a/planner.json"), 2) == Path("a/planner-2-threads.json")


def test_without_threads_each_number_has_a_process(monkeypatch):
    ran: list[list[str]] = []

    def run(command: list[str], check: bool) -> object:
        ran.append(command[3:])
        return subprocess.CompletedProcess(command, len(ran) - 1)

    monkeypatch.setattr(cli.subprocess, "run", run)
    monkeypatch.setattr(cli, "cores", lambda: 2)
    assert cli.main(["--quick", "--json", "out.json"]) == 1  # that of the process that failed
    assert ran == [
        ["--quick", "--json", "out.json", "--threads", "1", "--json", "out-1-thread.json"],
        ["--quick", "--json", "out.json", "--threads", "2", "--json", "out-2-threads.json"],
    ]


# A whole run


@pytest.fixture(scope="module", params=[1, 2])
def document(request) -> dict:
    """A short run on this machine, the instructions left out: valgrind takes a minute."""
    few = [
        shapes.Shape("listed", 40, 200, 96),
        shapes.Shape(shapes.RANDOM, 3, 64, 300, BMode.PACKED),
        shapes.Shape("batch", 5, 48, 64, BMode.DIRECT, 3),
    ]

    def refused(*_: object) -> list[float]:
        raise RuntimeError("valgrind is missing")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decision, "instructions", refused)
        effort = Effort(sample=0.0002, budget=0.1)
        return session.run_bench(few, effort, 1, Console(quiet=True), request.param)


def test_a_run_says_all_that_is_needed(document):
    doc = json.loads(json.dumps(document, allow_nan=False))
    assert {"machine", "target", "log", "seed", "summary", "shapes", "threads"} <= set(doc)
    assert len(doc["log"]["digest"]) == 16
    assert doc["log"]["header"]["kind"] == "header"
    assert set(doc["summary"]["all"]) == set(doc["about"])
    for row in doc["shapes"]:
        words = [word for word, _, _ in row["plans"]]
        assert row["best"] in words
        assert all(measured > 0 and predicted > 0 for _, predicted, measured in row["plans"])
        assert row["rounds"] % 6 == 0
        for own in row["planners"].values():
            assert own["plan"] in words and own["plan"] in row["finalists"]
            # how large is no matter of a test: tasks of microseconds, beside whatever else runs
            assert 0 <= own["loss"] < math.inf
    assert set(doc["sensitivity"]) == set(doc["mistakes"])
    for mistake, own in doc["sensitivity"].items():
        losses = [row["planners"][mistake]["loss"] for row in doc["shapes"]]
        assert own["mean"] == pytest.approx(np.mean(losses))
        assert 0 <= own["differs"] <= 1
        assert own["mean"] == pytest.approx(doc["summary"]["all"][LEARNED]["mean"] + own["more"])
    assert ("decision" in doc) == (doc["threads"] == 1)
    if "decision" not in doc:
        return
    assert set(doc["decision"]["ns"]) == {"all", "constant", "by rows", "by columns"}
    assert all(0 < ns < math.inf for ns in doc["decision"]["ns"].values())
    assert doc["decision"]["no_instructions"] == "valgrind is missing"


def test_the_report_tells_the_losses(document):
    bad = json.loads(json.dumps(document))
    bad["shapes"][0]["planners"][LEARNED]["loss"] = 0.123
    console = Console(record=True, width=240, quiet=True)
    with console.capture():
        report.print_document(console, bad)
    quiet = Console(width=240)
    with quiet.capture() as capture:
        report.print_document(quiet, bad)
    text = capture.get()
    assert "All losses above 5%" in text
    assert "12.3%" in text
    assert "waves alone" in text and "fixed rule" in text
    assert ("a decision for a new shape" in text) == ("decision" in document)
    assert text.index("All losses above") < text.index("waves alone")
    assert "L2 of" in text
    assert f"targets met, {report.threads(document)}" in text or "targets missed" in text


def test_the_page_of_a_run(document, tmp_path: Path):
    results, text = tmp_path / "results.json", tmp_path / "page.md"
    results.write_text(json.dumps(document))
    marks = [f"<!-- {name}: {end} -->" for name in ("example", "results") for end in ENDS]
    text.write_text("\n".join(["before", *marks, "after"]))
    for _ in range(2):  # what was put there is replaced
        assert page.main([str(results), str(results), str(text), "--shape", "40,200,96"]) == 0
    written = text.read_text()
    assert written.startswith("before") and written.endswith("after")
    assert written.count("$ moonpoly explain matmul 40 200 96") == 1
    about = document["mistakes"]["half the L2"]
    assert written.count("| waves alone |") == written.count(f"| {about} |") == 2
    own = document["sensitivity"]["half the L2"]
    assert written.count(f"| {report.points(own['more'])} points |") >= 2
    assert written.count("| target | wanted | reached |  |") == 2
    assert ("A decision for a new shape takes" in written) == ("decision" in document)
    text.write_text("no marks")
    with pytest.raises(SystemExit):
        page.main([str(results), str(text)])


def test_the_documentation_has_the_marks():
    written = (ROOT / "docs" / "how-a-plan-is-chosen.md").read_text()
    assert page.put(page.put(written, "results", "x"), "example", "y")


def test_the_figure_of_a_run(document, tmp_path: Path):
    pytest.importorskip("matplotlib")
    results, drawn = tmp_path / "results.json", tmp_path / "img" / "figure.svg"
    results.write_text(json.dumps(document))
    assert figure.main([str(results), str(drawn), "--shape", "40,200,96"]) == 0
    text = drawn.read_text()
    assert text.startswith("<?xml") and len(text) < 150_000
    with pytest.raises(SystemExit):
        figure.main([str(results), str(drawn), "--shape", "1,1,1"])
