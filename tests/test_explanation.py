"""Explanations of every shape: their parts add up, their drawings cover the output."""

from __future__ import annotations

from functools import lru_cache

from core_testing import SIZES
from hypothesis import given
from hypothesis import strategies as st
from tvm.target import Target

from tvm_moonpoly.explanation import explained, name, plan_json, why
from tvm_moonpoly.explanation_costs import KERNELS, PARTS, READING_A, READING_B
from tvm_moonpoly.explanation_text import drawing, text
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import BMode

sizes = st.sampled_from([size for size in SIZES if size]) | st.integers(1, 5000)


@lru_cache(maxsize=1)
def target() -> Target:
    return Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


@given(m=sizes, n=sizes, k=sizes, constant=st.booleans())
def test_the_parts_of_a_cost_add_up_to_it(m, n, k, constant):
    found = explained(m, n, k, target(), constant_weights=constant)
    for choice in found.ranked:
        parts = found.parts(choice)
        assert sum(parts.values()) == choice.picoseconds
        assert set(parts) <= {*PARTS.values(), KERNELS, READING_A, READING_B}
        assert min(parts.values()) > 0
        whole = n % found.machine.lanes == 0 or choice.plan.b_mode == BMode.STREAM
        assert not (whole and PARTS["edge_row"] in parts)


@given(m=sizes, n=sizes, k=sizes, constant=st.booleans())
def test_regions_and_their_drawing_cover_the_output(m, n, k, constant):
    found = explained(m, n, k, target(), constant_weights=constant)
    covered = 0
    for region in found.regions:
        assert region.first == covered and region.last >= region.first
        assert region.groups * region.columns == region.last - region.first + 1
        assert region.partial or sum(number * rows for number, rows in region.tiles) == m
        covered = region.last + 1
    assert covered == n
    lines = drawing(found.regions, m)
    assert all(line.isascii() for line in lines) and max(map(len, lines)) <= 90
    _, top, *body, bottom = lines
    assert top.strip() == bottom.strip() and set(top.strip()) == {"+", "-"}
    # a rectangle, whose inner borders are where the outer ones have them
    borders = [i for i, letter in enumerate(top) if letter == "+"]
    assert len(borders) == len(found.regions) + 1
    for line in body:
        assert len(line) == len(top) and all(line[i] in "|+" for i in borders)
    drawn = "\n".join(body)
    for i, region in enumerate(found.regions):
        assert f"region {i + 1}" in drawn
        if region.kernel and len(region.tiles) == 2:
            assert any("--" in line for line in body)


@given(m=sizes, n=sizes, k=sizes)
def test_the_reason_is_about_the_first_two_plans(m, n, k):
    found = explained(m, n, k, target())
    reason = why(found)
    first, second = found.ranked[:2]
    assert found.best == first == spec.best(found.product, found.machine, found.table)
    assert f"the next one, {name(second.plan)}, costs" in reason
    assert ("costs the same" in reason) == (first.picoseconds == second.picoseconds)
    assert reason in text(found)


def test_names_of_plans():
    found = explained(1000, 1000, 3000, target(), constant_weights=False)
    names = [name(choice.plan) for choice in found.ranked]
    assert len(set(names)) == len(names)
    assert "streaming" in names
    for choice, said in zip(found.ranked, names, strict=True):
        plan = choice.plan
        assert ("packed A" in said) == plan.pack_a
        assert ("packed B" in said) == (plan.b_mode == BMode.PACKED)
        assert plan_json(plan)["kc"] == plan.kc and plan_json(plan)["b_mode"] == (
            plan.b_mode.name.lower()
        )
