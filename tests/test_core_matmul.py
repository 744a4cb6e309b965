"""Batched products of two dynamic operands: broadcast, permuted, strided, of every size."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from core_testing import CANARY, SIZES, check_product, matmul, plans, seen, stored, valid, values
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_moonpoly import native, operators
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.costmodel.tasks import TaskCost
from tvm_moonpoly.microkernels.cpu_gemm import Record
from tvm_moonpoly.operators.matmul import MATMUL_PLANNED
from tvm_moonpoly.operators.operator_library import OperatorLibrary
from tvm_moonpoly.operators.parts import functions
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import BMode, Plan


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture(scope="module")
def eager(target):
    """A library that blocks, packs and shares out whatever it can: of a machine with tiny caches
    and four cores, where reading in place is dear and packing and threads cost nothing."""
    usual = operators.library(target)
    machine = replace(usual.machine, cores=4, l1_bytes=1 << 10, l2_bytes=1 << 12, l3_bytes=1 << 14)
    traffic = replace(
        usual.table.traffic,
        b_direct=10_000,
        pack_rows=1,
        pack_columns=1,
        pack_a=0,
        c_block=0,
        launch=0,
    )
    # few micro-kernels, so that it compiles fast; those on packed A are the cheaper ones
    tasks = {
        record: TaskCost.linear(10, 1 if record.packed_a else 1000)
        for record in usual.table.tasks
        if record.mr <= 3 and record.nv <= 2
    }
    table = CostTable(tasks, traffic)
    module = native.build(functions(machine, table).module(), target)
    return OperatorLibrary(machine, table, module)


@pytest.fixture(scope="module", params=["more on B in place", "more on packed B"])
def uneven(request, target):
    """A library of which each form has tiles that the others lack, as an elite set may be."""
    many = [Record(mr, nv) for nv, highest in ((1, 5), (2, 3), (3, 2)) for mr in range(1, highest)]
    few = [Record(1, 1), Record(2, 1)]
    if request.param == "more on B in place":
        many, few, packed = few, many, 2
    else:
        packed = 3
    tiles = [
        *many,
        *(replace(record, in_place_b=True) for record in few),
        *(Record(mr, packed, packed_a=True) for mr in (1, 2, 3)),
    ]
    usual = operators.library(target)
    table = CostTable({r: TaskCost.linear(10, 10) for r in tiles}, usual.table.traffic)
    table.check()
    module = native.build(functions(usual.machine, table).module(), target)
    return OperatorLibrary(replace(usual.machine, cores=1), table, module)


@pytest.fixture
def rng():
    return np.random.default_rng(23)


def product(library, a, b):
    """Compact operands, no permutation."""
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    return matmul(library, a, b, np.full(shape, CANARY))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("by_columns", [False, True])
def test_every_m_n_k(library, rng, n, by_columns):
    for k, m in itertools.product(SIZES, SIZES):
        a, b = values(rng, m, k), values(rng, k, n)
        if by_columns:
            out = np.full((m, n), CANARY)
            matmul(library, a, stored(b, [1, 0]), out, b_axes=[1, 0])
        else:
            out = product(library, a, b)
        check_product(out, a, b)


@pytest.mark.parametrize("batch", SIZES)
def test_every_batch(library, rng, batch):
    for m, n, k in [
        (1, 1, 1),
        (1, 17, 8),
        (5, 9, 3),
        (16, 8, 13),
        (3, 33, 0),
        (0, 2, 2),
        (7, 31, 64),
    ]:
        a, b = values(rng, batch, m, k), values(rng, batch, k, n)
        check_product(product(library, a, b), a, b)
        check_product(product(library, a, b[:1]), a, b[:1])
        check_product(product(library, a[:1], b), a[:1], b)
        out = np.full((batch, m, n), CANARY)
        matmul(library, a, stored(b, [0, 2, 1]), out, b_axes=[0, 2, 1])
        check_product(out, a, b)


@pytest.mark.parametrize(
    "left,right",
    [
        ((), (3,)),
        ((3,), ()),
        ((2, 3), (3,)),
        ((1,), (2, 3)),
        ((2, 1), (1, 3)),
        ((2, 1, 4), (3, 1)),
        ((0, 1), (1, 3)),
        ((2, 3, 1, 2), (1, 3, 4, 1)),
        ((1, 1, 1, 1, 1, 2), (3, 1, 1, 2, 1, 1)),
    ],
)
@pytest.mark.parametrize("m", [1, 6])
def test_broadcasting(library, rng, left, right, m):
    a, b = values(rng, *left, m, 9), values(rng, *right, 9, 11)
    check_product(product(library, a, b), a, b)


def test_output_larger_than_both(library, rng):
    """A batch dimension that neither operand has is filled with the same product."""
    a, b = values(rng, 4, 5), values(rng, 5, 6)
    out = matmul(library, a, b, np.full((3, 4, 6), CANARY))
    check_product(out, np.broadcast_to(a, (3, 4, 5)), b)


def _axes(ndim, last):
    """All axes in which the last of the stored dimensions is dimension ``last``."""
    return [p for p in itertools.permutations(range(ndim)) if p[last] == ndim - 1]


@pytest.mark.parametrize("ndim", [2, 3, 4])
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_all_axes(library, rng, ndim, by_columns, turned):
    batch = (2, 3)[: ndim - 2]
    a, b = values(rng, *batch, 5, 7), values(rng, *batch, 7, 10)
    for a_axes, b_axes, out_axes in itertools.product(
        _axes(ndim, -2 if turned else -1),
        _axes(ndim, -2 if by_columns else -1),
        _axes(ndim, -1),
    ):
        out = stored(np.full((*batch, 5, 10), CANARY), out_axes)
        matmul(library, stored(a, a_axes), stored(b, b_axes), out, a_axes, b_axes, out_axes)
        check_product(seen(out, out_axes), a, b)


def test_heads_of_attention(library, rng):
    """(batch, seq, heads, size) as it comes from a projection, and back."""
    batch, seq, heads, size = 2, 37, 3, 16
    q, k, v = (values(rng, batch, seq, heads, size) for _ in range(3))
    scores = np.full((batch, heads, seq, seq), CANARY)
    matmul(library, q, k, scores, [0, 2, 1, 3], [0, 2, 3, 1])
    check_product(scores, q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1))
    context = np.full((batch, seq, heads, size), CANARY)
    matmul(library, scores, v, context, None, [0, 2, 1, 3], [0, 2, 1, 3])
    check_product(context.transpose(0, 2, 1, 3), scores, v.transpose(0, 2, 1, 3))


@st.composite
def operands(draw):
    """Logical operands with their permutations and strided memory, and the output's."""
    full = draw(st.lists(st.integers(0, 3), min_size=0, max_size=3))
    size = st.integers(0, 40)
    m, k, n = draw(size), draw(size), draw(size)
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))

    def operand(rows, columns):
        batch = [draw(st.sampled_from([1, s])) for s in full[draw(st.integers(0, len(full))) :]]
        array = values(rng, *batch, rows, columns)
        return (array, *place(array, True))

    def place(array, may_turn=False):
        last = draw(st.sampled_from([-1, -2])) if may_turn else -1
        axes = draw(st.sampled_from(_axes(array.ndim, last)))
        gaps = [draw(st.integers(0, 2)) for _ in range(array.ndim)]
        return axes, stored(array, axes, gaps)

    a, b = operand(m, k), operand(k, n)
    shape = (*full, m, n)
    return a, b, *place(np.full(shape, CANARY))


def widened(result, *arrays):
    """The operands with all batch dimensions of the result."""
    return [np.broadcast_to(x, (*result.shape[:-2], *x.shape[-2:])) for x in arrays]


@settings(max_examples=250)
@given(drawn=operands())
def test_random_operands(library, drawn):
    (a, a_axes, a_memory), (b, b_axes, b_memory), out_axes, out = drawn
    whole = out if out.base is None else out.base
    matmul(library, a_memory, b_memory, out, a_axes, b_axes, out_axes)
    result = seen(out, out_axes)
    check_product(
        result, *(np.broadcast_to(x, (*result.shape[:-2], *x.shape[-2:])) for x in (a, b))
    )
    # what lies between the elements of the output is as it was
    out[...] = CANARY
    assert (whole == CANARY).all()


@settings(max_examples=100)
@given(drawn=operands())
def test_random_operands_blocked_packed_and_shared_out(eager, drawn):
    (a, a_axes, a_memory), (b, b_axes, b_memory), out_axes, out = drawn
    matmul(eager, a_memory, b_memory, out, a_axes, b_axes, out_axes)
    result = seen(out, out_axes)
    check_product(
        result, *(np.broadcast_to(x, (*result.shape[:-2], *x.shape[-2:])) for x in (a, b))
    )


#: (batch, m, n, k)
LARGER = [
    (1, 1, 300, 600),
    (1, 100, 70, 530),
    (2, 97, 41, 1100),
    (1, 245, 90, 2100),
    (3, 30, 129, 1025),
    (1, 7, 16, 2500),
    (5, 120, 8, 520),
    (16, 20, 9, 520),
]


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("batch,m,n,k", LARGER)
def test_larger_shapes(library, eager, rng, batch, m, n, k, by_columns, turned):
    a, b = values(rng, batch, m, k), values(rng, batch, k, n)
    as_is, swapped = [0, 1, 2], [0, 2, 1]
    a_axes, b_axes = swapped if turned else as_is, swapped if by_columns else as_is
    for lib in (library, eager):
        out = np.full((batch, m, n), CANARY)
        matmul(lib, stored(a, a_axes), stored(b, b_axes), out, a_axes, b_axes)
        check_product(out, a, b)


def test_the_larger_shapes_meet_every_kind_of_plan(eager):
    """Or else the tests above would prove less than they seem to."""
    met: list[Plan] = []
    for (batch, m, n, k), mode in itertools.product(LARGER, (BMode.DIRECT, BMode.PACKED)):
        shape = spec.Product(m, n, k, batch, mode)
        met.append(spec.plan(shape, eager.machine, eager.table))
        valid(met[-1], shape, eager.machine, eager.table)
    assert any(p.pack_a for p in met) and not all(p.pack_a for p in met)
    assert any(p.kc and p.mc and p.nc for p in met)
    assert any(p.nc and p.tail_nv for p in met)
    assert any(p.splits_m > 1 for p in met) and any(p.splits_n > 1 for p in met)
    assert any(p.workers > 1 and p.splits_m == p.splits_n == 1 for p in met)
    assert {p.b_mode for p in met} >= {BMode.PACKED, BMode.STREAM}


@settings(max_examples=400)
@given(data=st.data())
def test_any_valid_plan_gives_the_right_answer(library, data):
    """The planner decides how fast, never what: B in place, packed or streamed, by rows or by
    columns, blocks and tiles and workers of any number."""
    m = data.draw(st.integers(1, 20) | st.integers(1, 130), label="m")
    n = data.draw(st.integers(1, 130), label="n")
    k = data.draw(st.integers(0, 70) | st.integers(0, 300), label="k")
    batch = data.draw(st.integers(1, 3), label="batch")
    mode = data.draw(st.sampled_from([BMode.DIRECT, BMode.PACKED]), label="mode")
    plan = data.draw(plans(n // library.machine.lanes, library.table, mode), label="plan")
    valid(plan, spec.Product(m, n, k, batch, mode), library.machine, library.table)
    rng = np.random.default_rng(n * 1000 + k)
    a, b = values(rng, batch, m, k), values(rng, batch, k, n)
    axes = [0, 2, 1] if mode == BMode.PACKED else [0, 1, 2]
    a_axes = data.draw(st.sampled_from([[0, 1, 2], [0, 2, 1]]), label="axes of a")
    out = np.full((batch, m, n), CANARY)
    a_stored, b_stored = (stored(x, x_axes, [0, 1, 2]) for x, x_axes in ((a, a_axes), (b, axes)))
    matmul(library, a_stored, b_stored, out, a_axes, axes, None, MATMUL_PLANNED, plan)
    check_product(out, a, b)


@pytest.mark.parametrize("panels", [*range(1, 17), 23])
def test_packing_any_number_of_panels(library, rng, panels):
    """Eights, a four, and what is left of them, in blocks of rows; nothing beyond is taken."""
    lanes = library.machine.lanes
    for k, columns in itertools.product((1, 2, 63, 64, 65, 130), (0, 1)):
        n = panels * lanes + columns
        plan = Plan(1, 4, 0, 0, False, BMode.PACKED)
        a, b = values(rng, 5, k), values(rng, k, n)
        for gap in (0, 3, 1024 - n):
            out = np.full((5, n), CANARY)
            matmul(library, a, stored(b, [0, 1], [2, gap]), out, name=MATMUL_PLANNED, plan=plan)
            check_product(out, a, b)


@pytest.mark.parametrize("side", ["a", "b"])
def test_one_row_or_one_column_of_memory(library, rng, side):
    """Strides of dimensions of size 1 say nothing: here they are those of the whole."""
    whole = values(rng, 3, 6, 20)
    if side == "a":
        a, b = whole[:1, :1], values(rng, 20, 9)
    else:
        a, b = values(rng, 5, 1), whole[0, :1]
    check_product(product(library, a, b), a, b)
    turned = values(rng, 20, 1)  # a column, whose elements are adjacent both ways
    check_product(product(library, whole, turned), whole, turned)
    column = values(rng, 20, 4)[:, 2:3]
    check_product(product(library, whole, column), whole, column)


def test_both_operands_may_be_the_same(library, rng):
    a = values(rng, 2, 19, 19)
    check_product(product(library, a, a), a, a)
    out = np.full((2, 19, 19), CANARY)
    matmul(library, a, a, out, b_axes=[0, 2, 1])
    check_product(out, a, a.transpose(0, 2, 1))


def test_negative_and_zero_strides(library, rng):
    a = values(rng, 4, 10, 12)[::-1, ::-2]
    one = values(rng, 12, 7)
    b = np.lib.stride_tricks.as_strided(one, (4, 12, 7), (0, *one.strides))
    assert a.strides[0] < 0 and a.strides[1] < 0 and b.strides[0] == 0
    check_product(product(library, a, b), a, b)


def test_forms_need_not_have_the_same_tiles(uneven, rng):
    """Every plan that is weighed, also where rows of B in place are one vector apart, as those of
    packed B are: a matrix one vector wide, and rows that overlap."""
    machine, table, lanes = uneven.machine, uneven.table, uneven.machine.lanes
    met = set()

    def check(a, b, mode, b_axes=None):
        (m, k), n = a.shape, b.shape[1]
        stored = b if b_axes is None else np.ascontiguousarray(b.T)
        for choice in spec.candidates(spec.Product(m, n, k, b_mode=mode), machine, table):
            out = np.full((m, n), CANARY)
            matmul(uneven, a, stored, out, b_axes=b_axes, name=MATMUL_PLANNED, plan=choice.plan)
            check_product(out, a, b)
            met.add((choice.plan.b_mode, choice.plan.pack_a))

    for m, n in itertools.product((1, 3, 4, 9), (lanes, 3 * lanes, 5 * lanes + 3)):
        a = values(rng, m, 11)
        memory = values(rng, 10 * lanes + n)
        rows = np.lib.stride_tricks.as_strided(memory, (11, n), (4 * lanes, 4))
        check(a, rows, BMode.DIRECT)
        check(a, rows.copy(), BMode.DIRECT)
        check(a, rows.copy(), BMode.PACKED, (1, 0))
    check(values(rng, 100, 1030), values(rng, 1030, 5 * lanes + 3), BMode.DIRECT)
    assert met >= {(mode, False) for mode in BMode if mode != BMode.PREPACKED}
    assert (BMode.PACKED, True) in met
