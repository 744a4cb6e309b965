"""The search: MetaSchedule over a tile's decisions, XGBoost as its cost model."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tuning_testing import MACHINE
from tvm.target import Target

from tvm_moonpoly.microkernels import cpu_gemm, gemm_schedule
from tvm_moonpoly.microkernels.cpu_gemm import Record
from tvm_moonpoly.tuning.searching import metaschedule
from tvm_moonpoly.tuning.searching.search import CostModel, search
from tvm_moonpoly.tuning.searching.session import Effort

TARGET = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})

EFFORT = Effort(trials=24, batch=8, population=48)


def landscape(record):
    """Costs that depend on all decisions, with one optimum."""
    decision = record.decision
    return 1e-3 * (
        1.0
        + 0.30 * (decision("row_block") != record.mr)
        + 0.10 * abs(math.log2(decision("unroll")) - 2)
        + 0.10 * (decision("prefetch_b") != 64)
        + 0.05 * (decision("prefetch_c") == 0)
        + 0.20 * (decision("sums") != 2)
    )


FORM = Record(2, 2)


def searched(form=FORM, cost=landscape, **options):
    arguments = {"known": {}, "model": CostModel(), "effort": EFFORT, "seed": 0, **options}
    measured = []

    def measure(records):
        measured.extend(records)
        return [cost(record) for record in records]

    known = arguments.pop("known")
    costs = search(form, MACHINE, TARGET, known, measure, **arguments)
    assert len(set(measured)) == len(measured), "measured twice"
    return costs, measured


def whole_space(form):
    space = cpu_gemm.space(form, MACHINE)
    for choice in itertools.product(*space.values()):
        yield replace(form, decisions=dict(zip(space, choice, strict=True)))


def test_it_finds_the_optimum_among_the_first_few():
    for form in (Record(2, 2), Record(1, 5)):
        costs, measured = searched(form)
        assert measured[0] == form and len(measured) == EFFORT.trials
        assert set(measured) <= set(whole_space(form))
        assert len(set(whole_space(form))) >= 64
        best = min(costs, key=costs.get)
        assert best.decisions and costs[best] == min(map(landscape, whole_space(form)))


def test_the_cost_model_is_what_finds_it():
    """Without one, as many trials find less."""
    forms = (Record(2, 2), Record(4, 3), Record(3, 2, packed_a=True))

    def excess(kind):
        found = []
        for seed, form in enumerate(forms):
            costs, _ = searched(form, model=CostModel(kind), seed=seed)
            found.append(min(costs.values()) / min(map(landscape, whole_space(form))) - 1)
        return statistics.mean(found)

    assert excess("xgb") < 0.02
    assert excess("random") > 0.05


def test_what_is_learnt_of_one_tile_serves_the_next():
    """Of a model that has seen another tile, the first proposals are better."""
    short = Effort(trials=9, batch=8, population=48)
    fresh, taught = CostModel(), CostModel()
    searched(Record(1, 4), model=taught)
    searched(Record(2, 1), model=taught)
    first = [
        list(searched(Record(2, 2), model=m, effort=short)[0].values())[1:] for m in (fresh, taught)
    ]
    assert statistics.mean(first[1]) < statistics.mean(first[0]) * 0.95


def test_the_model_predicts_what_it_has_not_seen():
    model = CostModel()
    costs, _ = searched(model=model)
    unseen = [r for r in whole_space(Record(2, 2)) if r not in costs]
    rows = [np.array([metaschedule.features(r)], np.float32) for r in unseen]
    predicted = model.model._predict(rows)
    true = np.array([1 / landscape(r) for r in unseen])
    ranks = [np.argsort(np.argsort(values)) for values in (predicted, true)]
    assert np.corrcoef(*ranks)[0, 1] > 0.7


def test_features_tell_all_records_apart():
    forms = [Record(2, 2), Record(2, 2, packed_a=True), Record(4, 2), Record(4, 1)]
    records = [r for form in forms for r in whole_space(form)]
    rows = {tuple(metaschedule.features(r)) for r in records}
    assert len(rows) == len(records)
    assert all(map(math.isfinite, itertools.chain.from_iterable(rows)))


def test_the_same_measurements_lead_to_the_same_search():
    _, first = searched(seed=3)
    _, again = searched(seed=3)
    _, other = searched(seed=4)
    assert first == again != other


def test_what_cannot_be_built_is_learnt():
    """Records that fail, which half of the space does here, cost one trial each; after the first
    batch hardly any is proposed."""
    later = 0
    for seed in (1, 2):
        costs, measured = searched(
            cost=lambda r: None if r.decision("sums") == 2 else landscape(r), seed=seed
        )
        assert len(measured) == EFFORT.trials
        assert any(costs[r] is None for r in measured)
        later += sum(costs[r] is None for r in measured[1 + EFFORT.batch :])
        found = min(cost for cost in costs.values() if cost)
        possible = (r for r in whole_space(Record(2, 2)) if r.decision("sums") == 1)
        assert found == min(map(landscape, possible))
    assert later <= 5


def test_when_nothing_can_be_built():
    costs, measured = searched(cost=lambda r: None, effort=Effort(10, 4, 16))
    assert len(measured) == 10 and set(costs.values()) == {None}


def test_what_is_known_is_not_measured():
    """A search that is gone on with: it counts what is known, and goes on from there."""
    first, _ = searched(effort=Effort(12, 4, 48))
    costs, measured = searched(known=first)
    assert not set(measured) & set(first) and len(measured) == 12
    assert set(costs) == {*first, *measured}
    assert min(costs.values()) == min(map(landscape, whole_space(Record(2, 2))))
    same, none = searched(known=costs)
    assert same == costs and none == []


def test_it_stops_when_asked():
    answers = iter([False, True])
    _, measured = searched(stop=lambda: next(answers))
    assert 1 < len(measured) <= 1 + EFFORT.batch
    _, measured = searched(stop=lambda: True)
    assert measured == [Record(2, 2)]


def test_a_space_that_is_exhausted():
    """More trials than there are records: all are measured, and the search ends."""
    form = Record(3, 3)  # no partial sums fit, and it has few ways to divide its rows
    count = len(list(whole_space(form)))
    costs, measured = searched(form, effort=Effort(count + 40, 16, 64))
    assert len(measured) > 0.9 * count


@pytest.mark.parametrize("kind", ["", "constant", None])
def test_there_are_two_cost_models(kind):
    with pytest.raises(ValueError, match="^kind: .* is neither 'xgb' nor 'random'"):
        CostModel(kind)


def test_a_record_that_was_found_is_a_kernel_for_any_trip_count():
    """Found at constant shapes; its decisions, through JSON, make the symbolic kernel."""
    costs, _ = searched()
    best = min(costs, key=costs.get)
    record = Record.from_json(json.loads(json.dumps(best.to_json())))
    kernel = cpu_gemm.build(record, MACHINE)
    assert "k_extent" in kernel.script()
    assert kernel.script() != cpu_gemm.build(Record(2, 2), MACHINE).script()


def test_what_is_missing_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ImportError, match=r"xgboost.*: pip install 'tvm_moonpoly\[tune\]'"):
        metaschedule.load()


def test_tensor_intrinsics_are_not_imported():
    """They take a minute, here and in every process that searches. Others may still import them."""
    program = (
        "import sys\n"
        "from test_tuning_search import searched, Effort\n"
        "searched(effort=Effort(6, 4, 16))\n"
        "print([n for n in sys.modules if n.startswith('tvm.s_tir.tensor_intrin')])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "[]\n"


def test_steps_of_the_search_are_a_multiple_of_what_is_unrolled():
    for record in cpu_gemm.family(MACHINE):
        space = cpu_gemm.space(record, MACHINE)
        assert 256 % (max(space["unroll"]) * max(space["sums"])) == 0
        static = gemm_schedule.at_trip_count(record, MACHINE.lanes, 256)
        assert len(static.params) == 5
