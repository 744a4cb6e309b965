"""What the tests of the core share: calling the packed functions on numpy arrays, and references.

Everything is checked against float64 with a bound that follows from the arithmetic: a sum of K
products in float32 is off by at most about K * eps * (|A| @ |B|).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from hypothesis import strategies as st

from tvm_moonpoly import operators
from tvm_moonpoly.costmodel.tables import BLOCKINGS, CostTable
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators import Activation, OperatorLibrary
from tvm_moonpoly.operators import activation as activations
from tvm_moonpoly.planner.groups import main_form, tail_form
from tvm_moonpoly.planner.plan import FIELDS, READINGS, BMode, Plan

#: The repository, for processes that must import this tree's code.
ROOT = Path(__file__).resolve().parent.parent

SIZES = (0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 63, 65, 127, 129)

EPS = float(np.finfo(np.float32).eps)

#: Written to outputs before a call, to see what was not written.
CANARY_NUMBER = -123
CANARY = np.float32(CANARY_NUMBER)


def tensor(array: np.ndarray) -> Any:
    """The array's memory as a tensor: no copy, with its strides."""
    return tvm_ffi.from_dlpack(array)


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype="float32")


def with_row_stride(array: np.ndarray, extra: int, offset: int = 0) -> tuple[np.ndarray, Any]:
    """A copy of ``array`` (rows evenly spaced, ``extra`` floats between them, ``offset`` floats
    from the start of its memory) and a function that says whether the gaps are as they were."""
    *leading, last = array.shape
    rows = int(np.prod(leading, dtype=np.int64))
    memory = np.full(offset + rows * (last + extra) + 1, CANARY, np.float32)
    body = memory[offset : offset + rows * (last + extra)].reshape(rows, last + extra)
    view = body[:, :last].reshape(array.shape)
    assert view.base is not None or view.size == 0
    view[...] = array

    def untouched() -> bool:
        outside = np.concatenate([memory[:offset], memory[-1:], body[:, last:].ravel()])
        return bool((outside == CANARY).all())

    return view, untouched


@dataclass(frozen=True)
class Weight:
    """A constant weight and bias as the compiler packs them, and the plans."""

    w: np.ndarray
    bias: np.ndarray | None
    packed: np.ndarray
    padded: np.ndarray
    table: np.ndarray

    @classmethod
    def of(
        cls,
        library: OperatorLibrary,
        w: np.ndarray,
        bias: np.ndarray | None = None,
        plan: Plan | None = None,
    ) -> Weight:
        """``plan``, when given, is used for all rows up to 4096 instead of the planner's."""
        k, n = w.shape
        lanes = library.machine.lanes
        packed, padded = operators.pack_weight(w, lanes), operators.pad_bias(bias, n, lanes)
        forced = plan and np.full(4097, plan.encode(), np.int64)
        table = library.plan_table(n, k) if forced is None else forced
        return cls(w, bias, packed, padded, table)


def linear(
    library: OperatorLibrary,
    x: np.ndarray,
    weight: Weight,
    activation: Activation = Activation.NONE,
    residual: np.ndarray | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Call ``moonpoly_linear_f32``, or with a residual ``moonpoly_linear_residual_f32``."""
    if out is None:
        out = np.full((*x.shape[:-1], weight.w.shape[1]), CANARY, np.float32)
    name = operators.LINEAR if residual is None else operators.LINEAR_RESIDUAL
    added = [] if residual is None else [residual]
    arrays = [x, weight.packed, weight.padded, *added, weight.table]
    library.module[name](*map(tensor, arrays), None, int(activation), tensor(out))
    return out


def check_linear(
    result: np.ndarray,
    x: np.ndarray,
    weight: Weight,
    activation: Activation = Activation.NONE,
    residual: np.ndarray | None = None,
) -> None:
    """``result`` is ``act(x @ w + bias + residual)`` within the bound."""
    x64, w64 = x.astype(np.float64), weight.w.astype(np.float64)
    before, size = x64 @ w64, np.abs(x64) @ np.abs(w64)
    for addend in (weight.bias, residual):
        if addend is not None:
            before = before + addend.astype(np.float64)
            size = size + np.abs(addend)
    bound = (x.shape[-1] + 3) * EPS * size
    expected = activations.reference(activation, before)
    if activation > Activation.RELU:
        # slopes of the activations are below 1.2; their own formulas are good to about 1e-6
        bound = 1.2 * bound + 1e-6 * (1 + np.abs(before))
    check_close(result, expected, bound)


def labels_of(text: str) -> np.ndarray:
    """``text`` as the packed functions take labels."""
    return np.array(list(text.encode()), np.uint8)


def stored(logical: np.ndarray, axes: Sequence[int | None], gaps: Any = None) -> np.ndarray:
    """Memory whose dimension ``axes[i]`` is dimension i of ``logical``, with gaps between.

    Dimensions of ``logical`` that are None have size 1 and are left out.
    """
    kept = [axis for axis in axes if axis is not None]
    inner = logical.reshape([s for s, a in zip(logical.shape, axes, strict=True) if a is not None])
    shape = [0] * len(kept)
    for size, axis in zip(inner.shape, kept, strict=True):
        shape[axis] = size
    wide = [s + g for s, g in zip(shape, gaps or [0] * len(shape), strict=True)]
    whole = np.full(wide, logical.dtype.type(CANARY_NUMBER), logical.dtype)
    view = whole[(..., *(slice(s) for s in shape))]
    view.transpose(kept)[...] = inner
    return view


def seen(array: np.ndarray, axes: Sequence[int | None]) -> np.ndarray:
    """``array`` as a product sees it: a view."""
    turned = array.transpose([axis for axis in axes if axis is not None])
    return turned[tuple(np.newaxis if axis is None else slice(None) for axis in axes)]


def matmul(
    library: OperatorLibrary,
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    a_axes: Sequence[int | None] | None = None,
    b_axes: Sequence[int | None] | None = None,
    out_axes: Sequence[int | None] | None = None,
    name: str = operators.MATMUL,
    plan: Plan | None = None,
    labels: str | None = None,
) -> np.ndarray:
    """Call the packed function ``name``; axes are those of the arrays as they are by default."""
    codes = [
        operators.encode_axes(range(array.ndim) if axes is None else axes)
        for axes, array in ((a_axes, a), (b_axes, b), (out_axes, out))
    ]
    given = [] if plan is None else [plan.encode()]
    words = None if labels is None else tensor(labels_of(labels))
    library.module[name](tensor(a), tensor(b), *codes, words, *given, tensor(out))
    return out


def check_product(result: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """``result`` is ``a @ b`` within the bound of float32; all of at least 2 dimensions."""
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    bound = (a.shape[-1] + 2) * EPS * (np.abs(a64) @ np.abs(b64))
    expected = a64 @ b64
    check_close(
        result, np.broadcast_to(expected, result.shape), np.broadcast_to(bound, result.shape)
    )


def check_close(result: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> None:
    assert result.shape == expected.shape
    wrong = ~(np.abs(result.astype(np.float64) - expected) <= bound)
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.size} elements are wrong, the first at {where}: "
            f"{result[where]} instead of {expected[where]} (bound {bound[where]:.3g})"
        )


def valid(plan: Plan, product: Any, machine: Machine, table: CostTable) -> None:
    """Assert all that the loops take for granted in a plan."""
    panels = product.n // machine.lanes
    assert plan.mr in table.heights(plan.nv, main_form(plan.pack_a, plan.b_mode))
    assert 0 <= plan.tail_nv <= panels
    assert (panels - plan.tail_nv) % plan.nv == 0
    if plan.tail_nv:
        assert plan.tail_mr in table.heights(plan.tail_nv, tail_form(plan.b_mode))
    if plan.pack_a:
        assert plan.mc > 0
        assert plan.b_mode in (BMode.PREPACKED, BMode.PACKED)
    assert plan.b_mode in READINGS[product.b_mode]
    assert plan.splits_m >= 1 and plan.splits_n >= 1
    assert plan.workers >= 1
    for name, (bits, unit) in FIELDS.items():
        value = int(getattr(plan, name))
        assert value % unit == 0 and 0 <= value // unit < 1 << bits
    assert Plan.decode(plan.encode()) == plan


def plans(panels: int, table: CostTable, given: BMode = BMode.PREPACKED) -> st.SearchStrategy[Plan]:
    """Every kind of plan that is valid for ``panels`` whole panels, sensible or not."""

    @st.composite
    def draw_plan(draw: Callable[..., Any]) -> Plan:
        mode = draw(st.sampled_from(READINGS[given]))
        pack_a = mode in (BMode.PREPACKED, BMode.PACKED) and draw(st.booleans())
        main, tails_form = main_form(pack_a, mode), tail_form(mode)
        nv = draw(st.sampled_from(table.widths(main)))
        tails = [
            t for t in (0, *table.widths(tails_form)) if t <= panels and (panels - t) % nv == 0
        ]
        if not tails:  # fewer panels than the main group, and no such tail: one panel at a time
            pack_a, nv, tails, main = False, 1, [0], tails_form
        tail = draw(st.sampled_from(tails))
        blocks = {(0, 0), *((b.kc, b.mc) for b in BLOCKINGS)}
        kc = draw(st.sampled_from(sorted({k for k, _ in blocks} | {8, 16, 64})))
        mc = draw(st.sampled_from(sorted({m for _, m in blocks} | {4, 8, 20, 100})))
        return Plan(
            nv=nv,
            mr=draw(st.sampled_from(table.heights(nv, main))),
            tail_nv=tail,
            tail_mr=draw(st.sampled_from(table.heights(tail, tails_form))) if tail else 0,
            pack_a=pack_a,
            b_mode=mode,
            kc=kc,
            mc=mc or (96 if pack_a else 0),
            nc=draw(st.sampled_from((0, 0, 1, 2, 3))),
            splits_m=draw(st.integers(1, 4)),
            splits_n=draw(st.integers(1, 4)),
            workers=draw(st.integers(1, 3)),
        )

    return draw_plan()
