"""Products of one row with a B that changes: every width and remainder, every order of memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from core_testing import CANARY, check_product, matmul, stored, values

from tvm_moonpoly import native, operators
from tvm_moonpoly.operators.operator_library import OperatorLibrary
from tvm_moonpoly.operators.parts import functions
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import READINGS, BMode

DEPTHS = (0, 1, 3, 4, 6, 8, 13, 16, 31, 32, 67)


@pytest.fixture(scope="module")
def usual(target):
    return operators.library(target)


@pytest.fixture(scope="module")
def small_caches(target, usual):
    """A library for which a few KiB are beyond the last cache."""
    machine = replace(usual.machine, cores=1, l1_bytes=1 << 10, l2_bytes=1 << 11, l3_bytes=1 << 12)
    tasks = {r: cost for r, cost in usual.table.tasks.items() if r.mr <= 2 and r.nv <= 2}
    table = replace(usual.table, tasks=tasks)
    module = native.build(functions(machine, table).module(), target)
    return OperatorLibrary(machine, table, module)


@pytest.fixture(params=["usual", "small_caches"])
def library(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def rng():
    return np.random.default_rng(41)


def row(library, a, b, axes=(0, 1)):
    out = np.full((a.shape[0], b.shape[1]), CANARY)
    return matmul(library, a, stored(b, axes), out, b_axes=axes)


@pytest.mark.parametrize("k", DEPTHS)
def test_every_width_by_rows(usual, rng, k):
    for n in range(1, 20 * usual.machine.lanes):
        a, b = values(rng, 1, k), values(rng, k, n)
        check_product(row(usual, a, b), a, b)


@pytest.mark.parametrize("k", DEPTHS)
def test_every_width_by_columns(library, rng, k):
    for n in (*range(1, 35), 100):
        a, b = values(rng, 1, k), values(rng, k, n)
        check_product(row(library, a, b, (1, 0)), a, b)


@pytest.mark.parametrize("gap", [1, 40])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
def test_rows_and_columns_apart(library, rng, axes, gap):
    for n, k in ((64, 33), (65, 21), (150, 9), (9, 150), (5, 70)):
        a, b = values(rng, 1, k), values(rng, k, n)
        out = np.full((1, n), CANARY)
        matmul(library, a, stored(b, axes, [0, gap]), out, b_axes=axes)
        check_product(out, a, b)


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1)])
@pytest.mark.parametrize("shared", [False, True])
def test_heads(library, rng, axes, shared):
    """Many small matrices, of their own or one that all rows share."""
    for n, k in ((64, 33), (1, 64), (33, 64), (17, 100)):
        a, b = values(rng, 6, 1, k), values(rng, 1 if shared else 6, k, n)
        out = np.full((6, 1, n), CANARY)
        matmul(library, a, stored(b, axes), out, b_axes=axes)
        check_product(out, a, b)


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
def test_what_is_read_twice_counts_once(library, rng, axes):
    """Vectors overlap at the end of a row: infinities there must not become NaN, nor spread."""
    for n, k in ((13, 13), (63, 21), (141, 30), (20, 9)):
        a, b = np.abs(values(rng, 1, k)) + 1, values(rng, k, n)
        for at in ((k - 2, n - 2), (k - 7, n - 7), (0, 0)):
            marked = b.copy()
            marked[at] = np.inf
            out = row(library, a, marked, axes)
            assert out[0, at[1]] == np.inf
            rest = np.delete(out, at[1], 1)
            check_product(rest, a, np.delete(b, at[1], 1))


@pytest.mark.parametrize("stored_as", [BMode.DIRECT, BMode.PACKED])
def test_only_streaming_is_weighed(usual, stored_as):
    product = spec.Product(1, 300, 200, b_mode=stored_as)
    (choice,) = spec.candidates(product, usual.machine, usual.table)
    assert choice.plan.b_mode == BMode.STREAM
    found = spec.candidates(replace(product, m=2), usual.machine, usual.table)
    assert {choice.plan.b_mode for choice in found} == set(READINGS[stored_as])
