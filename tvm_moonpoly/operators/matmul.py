"""The packed function of a batched product of two operands that change from call to call.

It checks its arguments, makes the plan, and shares the work out. It writes its last argument
(destination passing) and holds no state.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    INT,
    Expr,
    Functions,
    as_int,
    div,
    let,
    loop,
    scratch,
    select,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators.activation import Activation
from tvm_moonpoly.operators.gemm_tiles import zeros_row
from tvm_moonpoly.operators.sharing import run_items, share_of
from tvm_moonpoly.operators.tensors import MAX_DIMS, Tensor, View, require, require_permutation
from tvm_moonpoly.planner import native
from tvm_moonpoly.planner.plan import BMode

MATMUL = "moonpoly_matmul_f32"
MATMUL_PLANNED = "moonpoly_matmul_planned_f32"


def emit(functions: Functions, machine: Machine) -> None:
    """Define `MATMUL`, and `MATMUL_PLANNED` that is given its plan, in ``functions``."""
    _emit_matmul(functions, machine, planned=False)
    _emit_matmul(functions, machine, planned=True)


def _emit_matmul(functions: Functions, machine: Machine, planned: bool) -> None:
    """``planned``: the caller gives the plan, so that all of them can be measured."""
    permutations = dict.fromkeys(("a_perm", "b_perm", "out_perm"), INT)
    given = {"given": INT} if planned else {}

    @functions.public(
        MATMUL_PLANNED if planned else MATMUL,
        a="handle",
        b="handle",
        **permutations,
        **given,
        out="handle",
    )
    def _(
        a: Any,
        b: Any,
        a_perm: Expr,
        b_perm: Expr,
        out_perm: Expr,
        out: Any,
        given: Expr | None = None,
    ) -> None:
        ta, tb, tc = Tensor(a, "a"), Tensor(b, "b"), Tensor(out, "out")
        ndim = tc.ndim
        require(ndim <= MAX_DIMS, "out", f"must have at most {MAX_DIMS} dimensions")
        for tensor in (ta, tb):
            require(tensor.ndim <= ndim, tensor.name, "has more dimensions than the output")
        for permutation, name, tensor in (
            (a_perm, "a_perm", ta),
            (b_perm, "b_perm", tb),
            (out_perm, "out_perm", tc),
        ):
            require_permutation(permutation, name, tensor)
        va, vb = View(ta, a_perm, ndim), View(tb, b_perm, ndim)
        vc = View(tc, _inverse(out_perm, ndim), ndim)
        m, k, n = let(va.shape[ndim - 2]), let(va.shape[ndim - 1]), let(vb.shape[ndim - 1])
        require(vb.shape[ndim - 2] == k, "b", "its rows must be as many as the columns of a")
        require(vc.shape[ndim - 2] == m, "out", "must have as many rows as a")
        require(vc.shape[ndim - 1] == n, "out", "must have as many columns as b")
        batch_cell = scratch(1, INT)
        batch_cell[0] = as_int(1)
        with loop(ndim - 2) as i:
            size = let(vc.shape[i])
            batch_cell[0] = batch_cell[0] * size
            for view in (va, vb):
                require(
                    tirx.any(view.shape[i] == size, view.shape[i] == 1),
                    view.name,
                    "a batch dimension must be 1 or that of the output",
                )
        batch = let(batch_cell[0])
        with when(tirx.all(batch > 0, m > 0, n > 0)):
            for view, extent in ((va, k), (vc, n)):
                require(
                    tirx.any(view.stride[ndim - 1] == 1, extent <= 1),
                    view.name,
                    "elements of the last dimension must be adjacent",
                )
            b_k, b_n = let(vb.stride[ndim - 2]), let(vb.stride[ndim - 1])
            by_rows = let(tirx.any(b_n == 1, n == 1))
            require(
                tirx.any(by_rows, b_k == 1, k <= 1),
                "b",
                "elements of its rows or of its columns must be adjacent",
            )
            b_mode = select(by_rows, int(BMode.DIRECT), int(BMode.PACKED))
            plan = scratch(1, INT)
            if given is None:
                functions["moonpoly_plan"](m, n, k, batch, b_mode, plan.at(0))
            else:
                plan[0] = given
            fields = native.decode(plan[0])
            panels = let(div(n, machine.lanes))
            columns = let(n - panels * machine.lanes)
            shares = let(fields["splits_m"] * fields["splits_n"])
            zeros = zeros_row(machine.lanes)

            def item(index: Expr, wa: Expr, wb: Expr) -> None:
                which = let(div(index, shares))
                share = share_of(index - which * shares, fields, m, panels, columns, machine.lanes)
                offset = scratch(4, INT)
                offset[3] = which
                for position in range(3):
                    offset[position] = as_int(0)
                with loop(ndim - 2) as i:
                    dim = let(ndim - 3 - i)
                    size = let(vc.shape[dim])
                    rest = let(div(offset[3], size))
                    at = let(offset[3] - rest * size)
                    offset[3] = rest
                    for position, view in enumerate((va, vb, vc)):
                        step = select(view.shape[dim] == 1, 0, view.stride[dim])
                        offset[position] = offset[position] + at * step
                row, column = share["row"], share["column"]
                lda, ldc = va.stride[ndim - 2], vc.stride[ndim - 2]
                functions["moonpoly_region"](
                    ta.data.at(offset[0] + row * lda),
                    lda,
                    tb.data.at(offset[1] + column * b_n),
                    b_k,
                    select(by_rows, 1, b_n),
                    zeros.at(0),
                    0,
                    0,
                    zeros.at(0),
                    0,
                    tc.data.at(offset[2] + row * ldc + column),
                    ldc,
                    share["rows"],
                    share["panels"],
                    share["columns"],
                    k,
                    int(Activation.NONE),
                    *share["fields"],
                    wa,
                    wb,
                )

            run_items(fields, batch, k, panels, columns, machine.lanes, item)


def _inverse(permutation: Expr, ndim: Expr) -> Expr:
    """The permutation that undoes ``permutation`` (4 bits a dimension)."""
    inverse = scratch(1, INT)
    inverse[0] = as_int(0)
    with loop(ndim) as i:
        dim = let(tirx.bitwise_and(tirx.shift_right(permutation, i * 4), as_int(15)))
        inverse[0] = tirx.bitwise_or(inverse[0], tirx.shift_left(i, dim * 4))
    return let(inverse[0])
