"""What the search finds, in the operator library: kernels of all kinds of decisions."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from core_testing import Weight, check_linear, check_product, linear, matmul, plans, valid, values
from hypothesis import given, settings
from hypothesis import strategies as st
from tuning_testing import MACHINE, SETTINGS, stage_of

from tvm_moonpoly import native
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.operators import OperatorLibrary
from tvm_moonpoly.operators.parts import functions
from tvm_moonpoly.planner import spec
from tvm_moonpoly.tuning import findings, plan_steps
from tvm_moonpoly.tuning.journal import Journal
from tvm_moonpoly.tuning.measuring.plans import placeholder
from tvm_moonpoly.tuning.origin import origin


def varied(machine):
    """One record of each form, each with decisions of its own."""
    rng = random.Random(5)
    for form in cpu_gemm.family(machine):
        space = cpu_gemm.space(form, machine)
        yield replace(form, decisions={n: rng.choice(options) for n, options in space.items()})


@pytest.fixture(scope="module")
def library(target):
    machine = Machine.from_target(target)
    table = placeholder(varied(machine))
    assert sum(bool(r.decisions) for r in table.tasks) > len(table.tasks) * 0.9
    defined = functions(machine, table)
    return OperatorLibrary(machine, table, native.build(defined.module(), target, defined.marks))


@settings(max_examples=100)
@given(data=st.data())
def test_any_plan_gives_the_right_answer(library, data):
    m = data.draw(st.integers(1, 60) | st.integers(1, 200), label="m")
    n = data.draw(st.integers(1, 130), label="n")
    k = data.draw(st.integers(0, 70) | st.integers(0, 300), label="k")
    plan = data.draw(plans(n // library.machine.lanes, library.table), label="plan")
    valid(plan, spec.Product(m, n, k), library.machine, library.table)
    rng = np.random.default_rng(n * 1000 + k)
    weight = Weight.of(library, values(rng, k, n), values(rng, n), plan)
    x = values(rng, m, k)
    check_linear(linear(library, x, weight), x, weight)


def test_operands_in_place(library):
    rng = np.random.default_rng(3)
    for m, n, k in [(1, 1, 1), (5, 40, 0), (7, 64, 3), (13, 100, 33), (40, 48, 129)]:
        a, b = values(rng, m, k), values(rng, k, n)
        out = np.full((m, n), np.nan, np.float32)
        check_product(matmul(library, a, b, out), a, b)


def test_a_library_has_the_best_records(tmp_path, target):
    """Of the stage's journal, which is left as it is; forms that were not searched stay."""
    machine = Machine.from_target(target)
    path = tmp_path / "journal"
    form = cpu_gemm.family(machine)[1]
    with Journal(path, origin(machine)) as journal:
        (tile,) = stage_of(journal, settings=replace(SETTINGS, trials=99)).run([form]).tiles
        before = path.read_bytes()
        stored = Journal(path, origin(machine), read_only=True)
        best = findings.read(stored, machine).best()
    assert best == [tile.best.record] and best[0].decisions
    assert path.read_bytes() == before
    records = plan_steps.library_records(best, machine)
    assert [replace(r, decisions={}) for r in records] == cpu_gemm.family(machine)
    assert [r for r in records if r.decisions] == best
    with pytest.raises(ValueError, match="^journal: .* is of another machine or version"):
        Journal(path, {"mcpu": MACHINE.mcpu}, read_only=True)
    with pytest.raises(FileNotFoundError):
        Journal(tmp_path / "nothing", origin(machine), read_only=True)
    assert not list(tmp_path.glob("*.old"))
