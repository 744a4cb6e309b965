"""Chains of elementwise steps after a product: right for every step, shape, stride and plan."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from core_chain import (
    EVERY_STEP,
    LAYOUTS,
    chains_of_steps,
    check_chain,
    check_linear_chain,
    given,
    laid_out,
    linear_chain,
    operand_values,
    operands_for,
)
from core_testing import (
    CANARY,
    EPS,
    ROOT,
    SIZES,
    Weight,
    linear,
    plans,
    tensor,
    valid,
    values,
    with_row_stride,
)
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st

from tvm_moonpoly import operators
from tvm_moonpoly.operators import Activation, Chain, Step, encode_axes
from tvm_moonpoly.operators import chain as chains
from tvm_moonpoly.operators.chaining import COLUMNS
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import Plan


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture
def rng():
    return np.random.default_rng(17)


# programs


def test_a_chain_as_text_and_as_a_program():
    chain = Chain(
        ((Step.ADD, 0), (Activation.GELU_TANH, None), (Step.REVERSE_SUBTRACT, 2), (Step.MINIMUM, 1))
    )
    assert str(chain) == "v + e0; gelu_tanh(v); e2 - v; min(v, e1)"
    assert chain.encode() == 16 | 3 << 8 | (20 | 2 << 6) << 16 | (22 | 1 << 6) << 24
    assert Chain.decode(chain.encode()) == chain
    assert str(Chain()) == "v"
    assert Chain().encode() == 0
    assert Chain.decode(0) == Chain()


@given_by(chain=chains_of_steps())
def test_decoding_undoes_encoding(chain):
    assert 0 <= chain.encode() < 1 << 56
    assert Chain.decode(chain.encode()) == chain


def test_every_text_is_what_is_computed():
    v, e0 = np.float64(3.5), np.float64(-1.25)
    words = {"v": v, "e0": e0, "max": max, "min": min}
    for step in Step:
        chain = Chain(((step, 0),))
        assert eval(str(chain), words) == chains.reference(chain, v, [e0])


@pytest.mark.parametrize(
    "steps,message",
    [
        (((Step.ADD, 3),), "^steps: the operand of ADD is 0, 1 or 2: 3"),
        (((Step.ADD, -1),), "^steps: the operand of ADD is 0, 1 or 2: -1"),
        (((Step.DIVIDE, None),), "^steps: the operand of DIVIDE is 0, 1 or 2: None"),
        (((Activation.RELU, 0),), "^steps: RELU takes no operand: 0"),
        (((Activation.NONE, None),), "^steps: .*NONE.* is neither a Step nor an activation"),
        (((16, 0),), "^steps: 16 is neither a Step nor an activation"),
        ((("add", 0),), "^steps: 'add' is neither a Step nor an activation"),
        (((Step.ADD, 0),) * 8, "^steps: at most 7 fit a program, not 8"),
    ],
)
def test_no_chain_of_bad_steps(steps, message):
    with pytest.raises(ValueError, match=message):
        Chain(steps)


#: What is no program, and the packed functions' words for it.
BAD_PROGRAMS = {
    -1: "^program: must have at most 7 steps",
    1 << 56: "^program: must have at most 7 steps",
    8: "^program: has a step of no known number: 8",
    15: "^program: has a step of no known number: 15",
    23: "^program: has a step of no known number: 23",
    63: "^program: has a step of no known number: 63",
    16 << 8: "^program: has a step of no known number: 0",
    1 << 6 | 1: "^program: has a step of no known number: 1",
    3 << 6 | 16: "^program: has a step with operand 3",
    (3 << 6 | 18) << 48 | 0x010101010101: "^program: has a step with operand 3",
}


@pytest.mark.parametrize("program", BAD_PROGRAMS)
def test_no_chain_of_bad_programs(program):
    with pytest.raises(ValueError, match="^program: "):
        Chain.decode(program)


# steps


def _points():
    """Floats of all sizes, infinities and NaN, each with each."""
    sizes = [0.0, 1e-45, 1e-38, 1e-20, 0.3, 1.0, 1.5, 6.0, 1e10, 3e38, np.inf]
    points = np.array([*sizes, *(-s for s in sizes), np.nan], np.float32)
    return (np.ascontiguousarray(each.ravel()) for each in np.meshgrid(points, points))


@pytest.mark.parametrize("kind", ["elements", "scalar", "strided"])
@pytest.mark.parametrize("step", Step, ids=lambda step: step.name)
def test_each_step_is_numpys(library, step, kind):
    """To the bit, by vectors and by elements: with K = 0 the value is the bias."""
    v, e = _points()
    exact = {Step.REVERSE_SUBTRACT: lambda a, b: b - a}
    compute = exact.get(step) or getattr(np, step.name.lower())
    weight = Weight.of(library, np.zeros((0, len(v)), np.float32), v)
    x, chain = np.zeros((2, 0), np.float32), Chain(((step, 2),))
    with np.errstate(all="ignore"):
        if kind == "scalar":
            for value in np.unique(e):
                scalar = np.full(1, value)
                result = linear_chain(library, x, weight, chain, [None, None, scalar])
                np.testing.assert_array_equal(result, np.tile(compute(v, scalar), (2, 1)))
        else:
            operand = laid_out(e, "gaps" if kind == "strided" else "compact")
            result = linear_chain(library, x, weight, chain, [None, None, operand])
            np.testing.assert_array_equal(result, np.tile(compute(v, e), (2, 1)))


@pytest.mark.parametrize("step", EVERY_STEP, ids=lambda step: step[0].name)
def test_each_step_alone(library, rng, step):
    chain = Chain((step,))
    for n in SIZES[1:]:
        weight = Weight.of(library, values(rng, 9, n), values(rng, n))
        x, e = values(rng, 5, 9), operand_values(rng, 5, n)
        operands = [e] if step[1] is not None else []
        check_linear_chain(
            linear_chain(library, x, weight, chain, operands), x, weight, chain, operands
        )


def test_an_activation_of_a_chain_is_that_of_the_epilogue(library, rng):
    weight = Weight.of(library, values(rng, 20, 43), values(rng, 43))
    x = values(rng, 11, 20)
    for activation in Activation:
        steps = ((activation, None),) if activation else ()
        result = linear_chain(library, x, weight, Chain(steps))
        np.testing.assert_array_equal(result, linear(library, x, weight, activation))


def test_steps_go_in_order(library, rng):
    """Seven of them, each operand more than once."""
    chain = Chain(
        (
            (Step.ADD, 0),
            (Step.MULTIPLY, 1),
            (Activation.TANH, None),
            (Step.SUBTRACT, 2),
            (Step.DIVIDE, 1),
            (Step.MAXIMUM, 0),
            (Step.REVERSE_SUBTRACT, 2),
        )
    )
    weight = Weight.of(library, values(rng, 30, 50), values(rng, 50))
    x = values(rng, 8, 30)
    operands = [operand_values(rng, 50), operand_values(rng, 8, 1), operand_values(rng, 8, 50)]
    check_linear_chain(
        linear_chain(library, x, weight, chain, operands), x, weight, chain, operands
    )


# shapes and strides of operands

MIXED = Chain(
    (
        (Step.MULTIPLY, 0),
        (Activation.RELU, None),
        (Step.ADD, 1),
        (Step.MAXIMUM, 2),
        (Step.DIVIDE, 0),
    )
)

#: Output shapes and shapes that broadcast to them, with the name of each kind.
BROADCASTS = [
    ((5, 19), ["()", "(1,)", "(N,)", "(1,N)", "(M,1)", "(1,1)", "(M,N)"]),
    ((2, 3, 19), ["()", "(N,)", "(M,1)", "(M,N)", "(B,1,1)", "(B,1,N)", "(B,M,1)", "(B,M,N)"]),
    ((2, 1, 3, 16), ["(B,1,1,N)", "(1,M,N)", "(B,1,M,1)", "(1,1,1,1)", "(M,1)"]),
    ((19,), ["()", "(1,)", "(N,)"]),
]


def _shape(text, out):
    sizes = {"B": out[0], "M": out[-2] if len(out) > 1 else 1, "N": out[-1]}
    return tuple(sizes.get(word) or int(word) for word in text.strip("()").split(",") if word)


@pytest.mark.parametrize("out,kinds", BROADCASTS, ids=lambda case: str(case).replace(" ", ""))
def test_every_broadcast(library, rng, out, kinds):
    weight = Weight.of(library, values(rng, 7, out[-1]), values(rng, out[-1]))
    x = values(rng, *out[:-1], 7)
    for triple in itertools.product(kinds, repeat=3):
        operands = [operand_values(rng, *_shape(kind, out)) for kind in triple]
        result = linear_chain(library, x, weight, MIXED, operands)
        check_linear_chain(result, x, weight, MIXED, operands)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(library, rng, layout):
    """Also dimensions of size 1 and operands without elements that are told any stride."""
    out = (2, 3, 4, 21)
    weight = Weight.of(library, values(rng, 7, 21), values(rng, 21))
    x = values(rng, 2, 3, 4, 7)
    for own in ((), (21,), (4, 21), (3, 1, 21), (2, 3, 4, 1), (2, 1, 1, 1), out):
        operands = [laid_out(operand_values(rng, *own), layout), *[operand_values(rng)] * 2]
        result = linear_chain(library, x, weight, MIXED, operands)
        check_linear_chain(result, x, weight, MIXED, operands)
    wide = operand_values(rng, 4, 9)
    for single in (wide[:, :1], wide[1:2, 1:2], wide[::3, ::9]):
        out_rows = single.shape[0]
        operands = [single, single, single]
        x = values(rng, out_rows, 7)
        result = linear_chain(library, x, weight, MIXED, operands)
        check_linear_chain(result, x, weight, MIXED, operands)


@settings(max_examples=200)
@given_by(data=st.data())
def test_random_chains(library, data):
    size = st.integers(0, 50)
    leading = data.draw(st.lists(st.integers(0, 4), min_size=0, max_size=4), label="leading")
    k, n = data.draw(size, label="k"), data.draw(size, label="n")
    chain = data.draw(chains_of_steps(), label="chain")
    operands = data.draw(operands_for((*leading, n), chain), label="operands")
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32), label="seed"))
    gaps = [data.draw(st.integers(0, 9), label="gap") for _ in range(2)]
    weight = Weight.of(library, values(rng, k, n), values(rng, n))
    x, _ = with_row_stride(values(rng, *leading, k), gaps[0])
    out, untouched = with_row_stride(np.full((*leading, n), CANARY), gaps[1], 3)
    linear_chain(library, x, weight, chain, operands, out)
    check_linear_chain(out, x, weight, chain, operands)
    assert untouched()


def test_rows_wider_than_what_stays_near(library, rng):
    n = 2 * COLUMNS + 5
    weight = Weight.of(library, values(rng, 3, n), values(rng, n))
    x = values(rng, 4, 3)
    strided = operand_values(rng, 4, 2 * n)[:, ::2]
    operands = [operand_values(rng, n), strided, operand_values(rng, 4, 1)]
    result = linear_chain(library, x, weight, MIXED, operands)
    check_linear_chain(result, x, weight, MIXED, operands)


def test_eight_dimensions(library, rng):
    shape = (2, 1, 3, 2, 1, 2, 2, 11)
    weight = Weight.of(library, values(rng, 5, 11), values(rng, 11))
    x = values(rng, *shape[:-1], 5)
    operands = [
        operand_values(rng, *shape),
        operand_values(rng, 2, 1, 1, 2, 1, 1, 2, 1),
        operand_values(rng, 3, 1, 1, 2, 1, 11),
    ]
    result = linear_chain(library, x, weight, MIXED, operands)
    check_linear_chain(result, x, weight, MIXED, operands)


def test_the_input_as_an_operand(library, rng):
    """A layer and its skip connection share one tensor; an operand may come twice."""
    weight = Weight.of(library, values(rng, 24, 24), values(rng, 24))
    x = values(rng, 3, 5, 24)
    shared = tensor(x)
    chain = Chain(((Activation.SILU, None), (Step.ADD, 0), (Step.MULTIPLY, 1)))
    out = np.full(x.shape, CANARY)
    constants = map(tensor, (weight.packed, weight.padded, weight.table))
    library.module[operators.LINEAR_CHAIN](
        shared, *constants, None, chain.encode(), shared, shared, shared, tensor(out)
    )
    check_linear_chain(out, x, weight, chain, [x, x])


# empty shapes


@pytest.mark.parametrize("leading", [(0,), (3, 0), (0, 3), (2, 0, 2), (3,), ()])
@pytest.mark.parametrize("n", [0, 1, 13])
@pytest.mark.parametrize("k", [0, 5])
def test_empty_shapes(library, rng, leading, n, k):
    weight = Weight.of(library, values(rng, k, n), values(rng, n))
    x, operands = values(rng, *leading, k), [operand_values(rng, *leading, n)] * 3
    result = linear_chain(library, x, weight, MIXED, operands)
    check_linear_chain(result, x, weight, MIXED, operands)
    operands = [operand_values(rng, 1), operand_values(rng, n), operand_values(rng, *leading, 1)]
    result = linear_chain(library, x, weight, MIXED, operands)
    check_linear_chain(result, x, weight, MIXED, operands)


# NaN


def test_a_row_of_nan_stays_in_its_row(library, rng):
    weight = Weight.of(library, values(rng, 6, 21), values(rng, 21))
    clean = values(rng, 9, 6)
    for chain in (MIXED, *(Chain((step,)) for step in EVERY_STEP)):
        operands = [operand_values(rng, 9, 21), operand_values(rng, 21), operand_values(rng, 9, 1)]
        expected = linear_chain(library, clean, weight, chain, operands)
        x = clean.copy()
        x[4] = np.nan
        result = linear_chain(library, x, weight, chain, operands)
        assert np.isnan(result[4]).all()
        others = np.arange(9) != 4
        np.testing.assert_array_equal(result[others], expected[others])


def test_nan_of_an_operand_stays_where_it_is(library, rng):
    weight = Weight.of(library, values(rng, 6, 21), values(rng, 21))
    x = values(rng, 9, 6)
    for step in Step:
        operand = operand_values(rng, 9, 21)
        operand[2, 20] = operand[7, 3] = np.nan
        chain = Chain(((step, 1), (Activation.GELU, None)))
        result = linear_chain(library, x, weight, chain, [None, operand])
        np.testing.assert_array_equal(np.isnan(result), np.isnan(operand))


# plans


@settings(max_examples=200)
@given_by(data=st.data())
def test_any_valid_plan_gives_the_right_answer(library, data):
    m = data.draw(st.integers(1, 60), label="m")
    n = data.draw(st.integers(1, 130), label="n")
    k = data.draw(st.integers(0, 70), label="k")
    chain = data.draw(chains_of_steps(), label="chain")
    operands = data.draw(operands_for((m, n), chain), label="operands")
    plan = data.draw(plans(n // library.machine.lanes, library.table), label="plan")
    valid(plan, spec.Product(m, n, k), library.machine, library.table)
    rng = np.random.default_rng(n * 1000 + k)
    weight = Weight.of(library, values(rng, k, n), values(rng, n), plan)
    x = values(rng, m, k)
    result = linear_chain(library, x, weight, chain, operands)
    check_linear_chain(result, x, weight, chain, operands)


@pytest.mark.parametrize("splits", [(1, 2), (2, 1), (2, 2), (3, 2), (7, 5)])
@pytest.mark.parametrize("workers", [2, 3])
def test_many_workers_agree_with_one(library, rng, splits, workers):
    weight = Weight.of(library, values(rng, 300, 203), values(rng, 203))
    x = values(rng, 3, 19, 300)
    operands = [operand_values(rng, 203), operand_values(rng, 3, 19, 203), values(rng, 3, 1, 1)]
    serial = Plan(3, 4, 1, 5, False, 0, kc=128, mc=20)
    shared = replace(serial, splits_m=splits[0], splits_n=splits[1], workers=workers)
    results = []
    for plan in (serial, shared, shared):
        valid(plan, spec.Product(57, 203, 300), library.machine, library.table)
        forced = replace(weight, table=np.full(58, plan.encode()))
        results.append(linear_chain(library, x, forced, MIXED, operands))
    # rows that are shared out are tiled in other heights, whose kernels may add up otherwise
    if splits[0] == 1:
        np.testing.assert_array_equal(*results[:2])
    np.testing.assert_array_equal(*results[1:])
    check_linear_chain(results[1], x, weight, MIXED, operands)


@pytest.mark.parametrize("m,n,k", [(1, 3000, 500), (600, 700, 16), (1500, 33, 20), (97, 511, 2049)])
def test_large_shapes_as_planned(library, rng, m, n, k):
    weight = Weight.of(library, values(rng, k, n), values(rng, n))
    x = values(rng, m, k)
    operands = [operand_values(rng, n), operand_values(rng, m, n), operand_values(rng, m, 1)]
    result = linear_chain(library, x, weight, MIXED, operands)
    check_linear_chain(result, x, weight, MIXED, operands)


# memory


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect is called as on Linux")
def test_operands_against_protected_pages(library):
    """In a process of its own: a crash names the case that it came from."""
    worker = Path(__file__).with_name("core_chain_worker.py")
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(worker)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(worker.parent)])},
        timeout=600,
    )
    lines = ran.stdout.splitlines() or ["nothing ran"]
    assert ran.returncode == 0, f"ended with {ran.returncode} in: {lines[-1]}\n{ran.stderr[-3000:]}"
    assert lines[-1] == "all cases ran"


# products of two operands


def matmul_chain(library, a, b, chain, operands, axes=(None, None), out_axes=None):
    """Call the function; ``a`` and ``b`` are stored as their axes say. Returns the product."""
    stored, codes = [], []
    for operand, order in zip((a, b), axes, strict=True):
        order = tuple(range(operand.ndim)) if order is None else order
        stored.append(np.ascontiguousarray(operand.transpose(np.argsort(order))))
        codes.append(encode_axes(order))
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    order = tuple(range(len(shape))) if out_axes is None else out_axes
    out = np.full([shape[i] for i in np.argsort(order)], CANARY)
    padded = [*operands, *[None] * (3 - len(operands))]
    library.module[operators.MATMUL_CHAIN](
        *map(tensor, stored),
        *codes,
        encode_axes(order),
        None,
        chain.encode(),
        *map(given, padded),
        tensor(out),
    )
    return out.transpose(order)


def check_matmul_chain(result, a, b, chain, operands):
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    bound = (a.shape[-1] + 2) * EPS * (np.abs(a64) @ np.abs(b64))
    check_chain(result, a64 @ b64, bound, chain, operands)


@pytest.mark.parametrize(
    "a,b,axes,out_axes",
    [
        ((5, 7), (7, 19), (None, None), None),
        ((1, 9), (9, 33), (None, None), None),
        ((3, 5, 7), (3, 7, 19), (None, (0, 2, 1)), None),
        ((3, 5, 7), (7, 19), ((0, 2, 1), None), None),
        ((2, 3, 5, 7), (1, 3, 7, 19), ((0, 2, 1, 3), None), (0, 2, 1, 3)),
        ((4, 1, 5, 7), (3, 7, 16), (None, (1, 0, 2)), (2, 0, 1, 3)),
        ((3, 260, 5), (3, 5, 9), ((0, 2, 1), None), None),
        ((2, 5, 0), (2, 0, 9), (None, None), None),
        ((2, 0, 4), (2, 4, 9), (None, None), None),
        ((0, 3, 4), (1, 4, 9), (None, None), None),
    ],
    ids=str,
)
def test_products(library, rng, a, b, axes, out_axes):
    left, right = values(rng, *a), values(rng, *b)
    batch, (m, n) = np.broadcast_shapes(a[:-2], b[:-2]), (a[-2], b[-1])
    for shapes in (
        [(), (n,), (m, 1)],
        [(m, n), (*batch, m, n), (1,)],
        [(*batch, 1, 1), (*batch, m, 1), (*batch, 1, n)],
    ):
        operands = [operand_values(rng, *shape) for shape in shapes]
        result = matmul_chain(library, left, right, MIXED, operands, axes, out_axes)
        check_matmul_chain(result, left, right, MIXED, operands)


@settings(max_examples=150)
@given_by(data=st.data())
def test_random_products(library, data):
    batch = data.draw(st.lists(st.integers(0, 4), max_size=3), label="batch")
    m, n = data.draw(st.integers(0, 40), label="m"), data.draw(st.integers(0, 40), label="n")
    k = data.draw(st.integers(0, 40), label="k")
    chain = data.draw(chains_of_steps(), label="chain")
    operands = data.draw(operands_for((*batch, m, n), chain), label="operands")
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32), label="seed"))
    # one of both has each batch dimension
    kept = [data.draw(st.booleans(), label="kept") for _ in batch]
    of_a = [size if keep else 1 for size, keep in zip(batch, kept, strict=True)]
    a, b = values(rng, *of_a, m, k), values(rng, *batch, k, n)
    turn = [*range(len(batch)), len(batch) + 1, len(batch)]
    axes = [turn if data.draw(st.booleans(), label="transposed") else None for _ in range(2)]
    result = matmul_chain(library, a, b, chain, operands, axes)
    check_matmul_chain(result, a, b, chain, operands)


@pytest.mark.parametrize("by_columns", [False, True])
def test_products_by_many_workers(library, rng, by_columns):
    """Large enough to be shared out."""
    a, b = values(rng, 6, 150, 80), values(rng, 6, 80, 140)
    operands = [operand_values(rng, 6, 1, 1), operand_values(rng, 150, 140), values(rng, 140)]
    axes = (None, (0, 2, 1) if by_columns else None)
    result = matmul_chain(library, a, b, MIXED, operands, axes)
    check_matmul_chain(result, a, b, MIXED, operands)
    a, b = values(rng, 400, 300), values(rng, 300, 200)
    operands = [operand_values(rng, 200), operand_values(rng, 400, 200), values(rng, 400, 1)]
    axes = (None, (1, 0) if by_columns else None)
    result = matmul_chain(library, a, b, MIXED, operands, axes)
    check_matmul_chain(result, a, b, MIXED, operands)


# errors

M, N, K = 5, 21, 13
F32 = np.float32


def _linear_arguments(library):
    rng = np.random.default_rng(5)
    weight = Weight.of(library, values(rng, K, N), values(rng, N))
    return {
        "x": values(rng, M, K),
        "packed": weight.packed,
        "bias": weight.padded,
        "table": weight.table,
        "labels": None,
        "program": MIXED.encode(),
        "e0": operand_values(rng, M, N),
        "e1": operand_values(rng, N),
        "e2": operand_values(rng, 1),
        "out": np.full((M, N), CANARY),
    }


def _matmul_arguments(library):
    rng = np.random.default_rng(5)
    identity = encode_axes((0, 1))
    return {
        "a": values(rng, M, K),
        "b": values(rng, K, N),
        "a_axes": identity,
        "b_axes": identity,
        "out_axes": identity,
        "labels": None,
        "program": MIXED.encode(),
        "e0": operand_values(rng, M, N),
        "e1": operand_values(rng, N),
        "e2": operand_values(rng, 1),
        "out": np.full((M, N), CANARY),
    }


FUNCTIONS = {
    operators.LINEAR_CHAIN: _linear_arguments,
    operators.MATMUL_CHAIN: _matmul_arguments,
}

#: (arguments that are replaced, the message, its type)
FAULTS = {
    "e0 float64": ({"e0": np.zeros((M, N))}, "^e0: must be float32", TypeError),
    "e1 float16": ({"e1": np.zeros(N, np.float16)}, "^e1: must be float32", TypeError),
    "e2 int32": ({"e2": np.zeros(1, np.int32)}, "^e2: must be float32", TypeError),
    "no e0": ({"e0": None}, "^e0: must be a tensor, not None", TypeError),
    "no e1": ({"e1": None}, "^e1: must be a tensor, not None", TypeError),
    "no e2": ({"e2": None}, "^e2: must be a tensor, not None", TypeError),
    "e0 of another N": (
        {"e0": np.zeros((M, N - 1), F32)},
        "^e0: a dimension must be 1 or that of the output: 20 and 21",
        ValueError,
    ),
    "e1 of another N": (
        {"e1": np.zeros(M, F32)},
        "^e1: a dimension must be 1 or that of the output: 5 and 21",
        ValueError,
    ),
    "e1 empty": (
        {"e1": np.zeros(0, F32)},
        "^e1: a dimension must be 1 or that of the output: 0 and 21",
        ValueError,
    ),
    "e2 of another M": (
        {"e2": np.zeros((M + 1, 1), F32)},
        "^e2: a dimension must be 1 or that of the output: 6 and 5",
        ValueError,
    ),
    "e2 of more dimensions": (
        {"e2": np.zeros((1, M, N), F32)},
        "^e2: must not have more dimensions than the output: 3 and 2",
        ValueError,
    ),
    **{
        f"program {program:#x}": ({"program": program}, message, ValueError)
        for program, message in BAD_PROGRAMS.items()
    },
}


def _refused(library, name, replaced, message, error):
    arguments = FUNCTIONS[name](library) | replaced
    before = arguments["out"].copy()
    passed = [tensor(v) if isinstance(v, np.ndarray) else v for v in arguments.values()]
    with pytest.raises(error, match=message) as caught:
        library.module[name](*passed)
    assert type(caught.value) is error
    np.testing.assert_array_equal(arguments["out"], before)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_arguments(library, name, fault):
    _refused(library, name, *FAULTS[fault])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_good_arguments_are_accepted(library, name):
    """Or else the other tests would prove nothing."""
    _accepted(library, name, {})


def _accepted(library, name, replaced):
    arguments = FUNCTIONS[name](library) | replaced
    passed = [tensor(v) if isinstance(v, np.ndarray) else v for v in arguments.values()]
    library.module[name](*passed)
    assert not (arguments["out"] == CANARY).any()


@pytest.mark.parametrize("unused", [None, np.zeros((7, 7, 7)), np.zeros((2, 2), F32)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operands_that_the_program_does_not_name_may_be_anything(library, name, unused):
    for program in (0, Chain(((Activation.TANH, None),)).encode()):
        _accepted(library, name, {"program": program, "e0": unused, "e1": unused, "e2": unused})
    for which in range(3):
        program = Chain(((Step.ADD, which),)).encode()
        operands = {f"e{i}": np.ones(1, F32) if i == which else unused for i in range(3)}
        _accepted(library, name, {"program": program, **operands})


def test_bad_operands_of_an_empty_output(library):
    """Shapes are checked whether or not there is something to compute."""
    message = "^e0: a dimension must be 1 or that of the output: 5 and 0"
    replaced = {"x": np.zeros((0, K), F32), "out": np.zeros((0, N), F32)}
    _refused(library, operators.LINEAR_CHAIN, replaced, message, ValueError)


def test_nine_dimensions(library):
    shape = (1,) * 7 + (M,)
    replaced = {"x": np.zeros((*shape, K), F32), "out": np.full((*shape, N), CANARY)}
    message = "^out: must have at most 8 dimensions: 9"
    _refused(library, operators.LINEAR_CHAIN, replaced, message, ValueError)


def test_a_contraction_that_does_not_match(library):
    labels = np.frombuffer(b"matmul (n, k) x (13, 21): k = #, the weight has #", np.uint8).copy()
    replaced = {"x": np.zeros((M, K + 2), F32), "labels": labels}
    message = (
        r"^x: its last dimension must equal the rows of the weight; "
        r"matmul \(n, k\) x \(13, 21\): k = 15, the weight has 13$"
    )
    _refused(library, operators.LINEAR_CHAIN, replaced, message, ValueError)
    replaced["labels"] = None
    _refused(library, operators.LINEAR_CHAIN, replaced, r"of the weight; 15 and 13$", ValueError)
