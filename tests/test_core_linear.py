"""Linear layers with constant weights: right on every shape, by every plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from core_testing import (
    CANARY,
    SIZES,
    Weight,
    check_linear,
    linear,
    plans,
    tensor,
    valid,
    values,
    with_row_stride,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_moonpoly import operators
from tvm_moonpoly.costmodel.tables import BLOCKINGS
from tvm_moonpoly.operators import Activation
from tvm_moonpoly.operators import activation as activations
from tvm_moonpoly.operators.linear import PACK
from tvm_moonpoly.operators.operator_library import TABLE_ROWS
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import BMode, Plan

ALL = tuple(Activation)


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.mark.parametrize("n", SIZES)
def test_every_m_n_k(library, rng, n):
    for k in SIZES:
        weight = Weight.of(library, values(rng, k, n), values(rng, n))
        for m in SIZES:
            x = values(rng, m, k)
            # of the activations, each shape takes one: all of them meet all kinds of shapes
            activation = ALL[(m + n + k) % len(ALL)]
            check_linear(linear(library, x, weight, activation), x, weight, activation)


@pytest.mark.parametrize("n", SIZES)
def test_every_m_n_k_with_residual(library, rng, n):
    for k in SIZES[::2]:
        weight = Weight.of(library, values(rng, k, n), values(rng, n))
        for m in SIZES[1::2]:
            x, residual = values(rng, m, k), values(rng, m, n)
            activation = ALL[(m + n + k) % len(ALL)]
            result = linear(library, x, weight, activation, residual)
            check_linear(result, x, weight, activation, residual)


@pytest.mark.parametrize("activation", ALL)
@pytest.mark.parametrize("k", [0, 1, 33])
@pytest.mark.parametrize("with_residual", [False, True])
def test_activations(library, rng, activation, k, with_residual):
    weight = Weight.of(library, values(rng, k, 43), 3 * values(rng, 43))
    x = values(rng, 19, k)
    residual = values(rng, 19, 43) if with_residual else None
    check_linear(linear(library, x, weight, activation, residual), x, weight, activation, residual)


@pytest.mark.parametrize("activation", ALL)
def test_activations_over_all_floats(library, activation):
    """With K = 0 the result is act(bias): sizes from denormal to infinite, and NaN."""
    magnitudes = [0.0, 1e-45, 1e-38, 1e-20, 1e-3, *np.linspace(0.01, 20, 150), 88, 89, 104, 1e4]
    magnitudes += [1e10, 1e19, 1e30, 3.4e38, np.inf]
    points = np.array([*magnitudes, *(-m for m in magnitudes), np.nan], np.float32)
    weight = Weight.of(library, np.zeros((0, len(points)), np.float32), points)
    result = linear(library, np.zeros((3, 0), np.float32), weight, activation)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = activations.reference(activation, points)
        finite = np.isfinite(expected)
        error = np.abs(result.astype(np.float64) - expected)[:, finite]
    np.testing.assert_array_equal(np.isnan(result), np.tile(np.isnan(expected), (3, 1)))
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(result[:, infinite], np.tile(expected[infinite], (3, 1)))
    # relative for large values, 4e-7 (of gelu's formula, for |x| near 1) for the rest
    assert (error <= 1e-6 * np.maximum(np.abs(expected[finite]), 0.5)).all()


@pytest.mark.parametrize("activation", [Activation.RELU6, Activation.SIGMOID, Activation.TANH])
def test_activations_over_all_exponents(library, rng, activation):
    """Within 4 units in the last place, for floats of every exponent; around 0 and the ends too."""
    mantissas = np.r_[1.0, np.linspace(1, 2, 37, endpoint=False), rng.uniform(1, 2, 90)]
    sizes = np.concatenate([np.ldexp(mantissas, e) for e in range(-149, 128)])
    points = np.r_[sizes, np.linspace(0, 110, 20000), 0.0, 6.0, np.nextafter(np.float32(6), 7)]
    points = np.r_[points, -points].astype(np.float32)
    weight = Weight.of(library, np.zeros((0, len(points)), np.float32), points)
    result = linear(library, np.zeros((1, 0), np.float32), weight, activation)[0]
    expected = activations.reference(activation, points)
    # an expected value below the normal numbers may come out as one that is
    unit = np.maximum(np.spacing(np.abs(expected).astype(np.float32)), np.finfo(np.float32).tiny)
    normal = np.abs(expected) >= np.finfo(np.float32).tiny
    unit[normal] = np.spacing(np.abs(expected[normal]).astype(np.float32))
    error = np.abs(result.astype(np.float64) - expected) / unit
    worst = int(np.argmax(error))
    assert error[worst] <= 4, f"{error[worst]} units at {points[worst]!r}"


def test_no_bias_and_no_rows_of_the_weight_give_zeros(library):
    weight = Weight.of(library, np.zeros((0, 21), np.float32))
    result = linear(library, np.zeros((4, 0), np.float32), weight)
    np.testing.assert_array_equal(result, np.zeros((4, 21), np.float32))


@pytest.mark.parametrize(
    "leading", [(), (1,), (6,), (2, 3), (1, 1), (3, 1), (0, 3), (3, 0), (2, 1, 3), (2, 2, 2, 2)]
)
def test_any_number_of_dimensions(library, rng, leading):
    weight = Weight.of(library, values(rng, 17, 29), values(rng, 29))
    x, residual = values(rng, *leading, 17), values(rng, *leading, 29)
    for activation in (Activation.NONE, Activation.RELU, Activation.GELU):
        check_linear(linear(library, x, weight, activation), x, weight, activation)
        result = linear(library, x, weight, activation, residual)
        check_linear(result, x, weight, activation, residual)


@settings(max_examples=150)
@given(data=st.data())
def test_random_shapes_values_and_strides(library, data):
    size = st.integers(0, 70)
    leading = data.draw(st.lists(st.integers(0, 5), min_size=0, max_size=3), label="leading")
    k, n = data.draw(size, label="k"), data.draw(size, label="n")
    activation = data.draw(st.sampled_from(ALL), label="activation")
    with_residual = data.draw(st.booleans(), label="residual")
    scale = data.draw(st.sampled_from([1e-30, 1e-6, 1.0, 1e6]), label="scale")
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32), label="seed"))
    gaps = [data.draw(st.integers(0, 9), label="gap") for _ in range(3)]
    offsets = [data.draw(st.integers(0, 3), label="offset") for _ in range(3)]

    weight = Weight.of(library, values(rng, k, n), values(rng, n) * np.float32(scale))
    x, _ = with_row_stride(values(rng, *leading, k) * np.float32(scale), gaps[0], offsets[0])
    residual = None
    if with_residual:
        added = values(rng, *leading, n) * np.float32(scale)
        residual, _ = with_row_stride(added, gaps[1], offsets[1])
    empty = np.full((*leading, n), CANARY, np.float32)
    out, untouched = with_row_stride(empty, gaps[2], offsets[2])
    linear(library, x, weight, activation, residual, out)
    check_linear(out, x, weight, activation, residual)
    assert untouched()


def test_strides_that_no_element_depends_on_may_be_anything(library, rng):
    weight = Weight.of(library, values(rng, 8, 11), values(rng, 11))
    whole = values(rng, 4, 9, 8)
    for x in (whole[:1, :5], whole[:, :1], whole[:1, :1], whole[::2, 3], whole[:0, :5]):
        check_linear(linear(library, x, weight), x, weight)


def test_rows_backwards(library, rng):
    weight = Weight.of(library, values(rng, 24, 35), values(rng, 35))
    x = values(rng, 13, 24)[::-1]
    assert x.strides[0] < 0
    check_linear(linear(library, x, weight), x, weight)


def _large(library, rng, m, n, k):
    return Weight.of(library, values(rng, k, n), values(rng, n)), values(rng, m, k)


@pytest.mark.parametrize(
    "blocks", [blocks for blocks in BLOCKINGS if spec.suits(blocks, BMode.PREPACKED)], ids=str
)
def test_every_candidate_of_every_blocking(library, rng, blocks):
    """A shape that all blockings apply to; each candidate of the planner is forced in turn."""
    m, n, k = 251, 75, 2100
    product = spec.Product(m, n, k)
    assert spec.applies(blocks, product)
    weight, x = _large(library, rng, m, n, k)
    residual = values(rng, m, n)
    chosen = [
        choice.plan
        for choice in spec.candidates(product, library.machine, library.table)
        if (choice.plan.pack_a, choice.plan.kc, choice.plan.mc)
        == (blocks.pack_a, blocks.kc, blocks.mc)
    ]
    assert chosen
    for plan in chosen:
        forced = replace(weight, table=np.full(m + 1, plan.encode()))
        result = linear(library, x, forced, Activation.SILU, residual)
        check_linear(result, x, weight, Activation.SILU, residual)


@pytest.mark.parametrize(
    "m,n,k", [(1, 1000, 3000), (2, 64, 5000), (250, 130, 600), (600, 40, 1030), (97, 511, 2049)]
)
@pytest.mark.parametrize("activation", [Activation.NONE, Activation.GELU])
def test_large_shapes_as_planned(library, rng, m, n, k, activation):
    weight, x = _large(library, rng, m, n, k)
    check_linear(linear(library, x, weight, activation), x, weight, activation)


@pytest.mark.parametrize("m", [TABLE_ROWS - 1, TABLE_ROWS, TABLE_ROWS + 1, 3 * TABLE_ROWS + 5])
def test_around_and_beyond_the_table(library, rng, m):
    weight, x = _large(library, rng, m, 45, 37)
    assert len(weight.table) == TABLE_ROWS + 1
    check_linear(linear(library, x, weight, Activation.RELU), x, weight, Activation.RELU)


def test_without_a_table_plans_are_made_at_the_call(library, rng):
    weight, x = _large(library, rng, 50, 45, 37)
    planned = replace(weight, table=np.zeros(0, np.int64))
    np.testing.assert_array_equal(linear(library, x, planned), linear(library, x, weight))


@settings(max_examples=500)
@given(data=st.data())
def test_any_valid_plan_gives_the_right_answer(library, data):
    """The planner decides how fast, never what: workers, blocks and tiles of any size."""
    m = data.draw(st.integers(1, 60) | st.integers(1, 260), label="m")
    n = data.draw(st.integers(1, 130), label="n")
    k = data.draw(st.integers(0, 70) | st.integers(0, 300), label="k")
    activation = data.draw(st.sampled_from(ALL), label="activation")
    with_residual = data.draw(st.booleans(), label="residual")
    plan = data.draw(plans(n // library.machine.lanes, library.table), label="plan")
    valid(plan, spec.Product(m, n, k), library.machine, library.table)
    rng = np.random.default_rng(n * 1000 + k)
    weight = Weight.of(library, values(rng, k, n), values(rng, n), plan)
    x = values(rng, m, k)
    residual = values(rng, m, n) if with_residual else None
    result = linear(library, x, weight, activation, residual)
    check_linear(result, x, weight, activation, residual)


@pytest.mark.parametrize("splits", [(1, 2), (2, 1), (2, 2), (3, 2), (7, 5)])
@pytest.mark.parametrize("workers", [2, 3])
def test_many_workers_agree_with_one(library, rng, splits, workers):
    """To the bit where the columns are shared out. Rows that are shared out are tiled in other
    heights, whose kernels may add up in another order; but each time in the same."""
    weight, x = _large(library, rng, 57, 203, 300)
    serial = Plan(3, 4, 1, 5, False, 0, kc=128, mc=20)
    shared = replace(serial, splits_m=splits[0], splits_n=splits[1], workers=workers)
    results = []
    for plan in (serial, shared, shared):
        valid(plan, spec.Product(57, 203, 300), library.machine, library.table)
        forced = replace(weight, table=np.full(58, plan.encode()))
        results.append(linear(library, x, forced, Activation.GELU_TANH))
    if splits[0] == 1:
        np.testing.assert_array_equal(*results[:2])
    np.testing.assert_array_equal(*results[1:])
    check_linear(results[1], x, weight, Activation.GELU_TANH)


def test_packing_of_weights():
    w = np.arange(3 * 10, dtype=np.float32).reshape(3, 10)
    packed = operators.pack_weight(w, 4)
    assert packed.shape == (3, 3, 4) and packed.dtype == np.float32
    for panel in range(3):
        for k in range(3):
            columns = w[k, panel * 4 : panel * 4 + 4]
            expected = [*columns, *[0.0] * (4 - len(columns))]
            np.testing.assert_array_equal(packed[panel, k], expected)
    np.testing.assert_array_equal(operators.pack_weight(w.T.copy().T, 4), packed)
    assert operators.pack_weight(np.zeros((0, 5), np.float32), 8).shape == (1, 0, 8)
    assert operators.pack_weight(np.zeros((5, 0), np.float32), 8).shape == (0, 5, 8)


def test_padding_of_biases():
    bias = np.arange(1, 6, dtype=np.float32)
    np.testing.assert_array_equal(operators.pad_bias(bias, 5, 4), [1, 2, 3, 4, 5, 0, 0, 0])
    np.testing.assert_array_equal(operators.pad_bias(None, 5, 4), np.zeros(8))
    assert operators.pad_bias(None, 0, 8).shape == (0,)


def test_native_packing_equals_packing_at_compile_time(library, rng):
    """``moonpoly_pack_f32`` on weights by rows, by columns, and strided."""
    lanes = library.machine.lanes
    for k, n in [(1, 1), (5, 3), (8, 8), (9, 40), (33, 67), (64, 31), (17, 129)]:
        for w, axes in [
            (values(rng, k, n), (0, 1)),
            (values(rng, k, n + 5)[:, :n], (0, 1)),
            (values(rng, n, k).T, (0, 1)),
            (values(rng, n, k), (1, 0)),
        ]:
            out = np.full((-(-n // lanes), k, lanes), CANARY, np.float32)
            library.module[PACK](tensor(w), operators.encode_axes(axes), tensor(out))
            logical = w.transpose(axes)
            np.testing.assert_array_equal(out, operators.pack_weight(logical, lanes))
