"""The packed functions of a product with a constant weight that was packed at compile time.

They check their arguments, look up or make the plan, and share the work out. All write their last
argument (destination passing) and hold no state.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    INT,
    Expr,
    Functions,
    as_int,
    branch,
    ceil_div,
    div,
    let,
    scratch,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators.activation import Activation
from tvm_moonpoly.operators.gemm_tiles import zeros_row
from tvm_moonpoly.operators.sharing import run_items, share_of
from tvm_moonpoly.operators.tensors import Tensor, View, require, require_permutation
from tvm_moonpoly.planner import native
from tvm_moonpoly.planner.plan import BMode

LINEAR = "moonpoly_linear_f32"
LINEAR_RESIDUAL = "moonpoly_linear_residual_f32"
PACK = "moonpoly_pack_f32"


def emit(functions: Functions, machine: Machine) -> None:
    """Define `LINEAR`, `LINEAR_RESIDUAL` and `PACK` in ``functions``."""
    _emit_linear(functions, machine, residual=False)
    _emit_linear(functions, machine, residual=True)
    _emit_pack(functions, machine)


def _emit_linear(functions: Functions, machine: Machine, residual: bool) -> None:
    tensors = ["x", "packed", "bias", *(["residual"] if residual else []), "table"]
    parameters = {**dict.fromkeys(tensors, "handle"), "activation": INT, "out": "handle"}

    @functions.public(LINEAR_RESIDUAL if residual else LINEAR, **parameters)
    def _(**handles: Any) -> None:
        x, packed, bias = (Tensor(handles[name], name) for name in ("x", "packed", "bias"))
        table = Tensor(handles["table"], "table", INT)
        out = Tensor(handles["out"], "out")
        activation = handles["activation"]
        require(x.ndim >= 1, "x", "must have at least 1 dimension")
        require(out.ndim == x.ndim, "out", "must have as many dimensions as x")
        require(packed.ndim == 3, "packed", "must have 3 dimensions")
        bias.require_vector()
        table.require_vector()
        require(
            tirx.all(activation >= 0, activation <= int(max(Activation))),
            "activation",
            "is no known number",
        )
        k = let(x.shape[x.ndim - 1])
        n = let(out.shape[out.ndim - 1])
        m = x.size_of_leading()
        require(packed.shape[1] == k, "x", "its last dimension must equal the rows of the weight")
        require(
            tirx.all(
                packed.shape[0] == ceil_div(n, machine.lanes),
                packed.shape[2] == machine.lanes,
                bias.shape[0] == packed.shape[0] * machine.lanes,
            ),
            "out",
            "its last dimension must equal the columns of the weight",
        )
        require(out.size_of_leading() == m, "out", "must have as many rows as x")
        require(
            packed.row_stride(as_int(machine.lanes)) == machine.lanes, "packed", "must be compact"
        )
        lda, ldc = x.row_stride(k), out.row_stride(n)
        addend, ld_addend, step = zeros_row(machine.lanes), as_int(0), as_int(0)
        if residual:
            added = Tensor(handles["residual"], "residual")
            require(
                tirx.all(
                    added.ndim == out.ndim,
                    added.shape[added.ndim - 1] == n,
                    added.size_of_leading() == m,
                ),
                "residual",
                "must have the shape of out",
            )
            addend, ld_addend, step = added.data, added.row_stride(n), as_int(1)
        panels = let(div(n, machine.lanes))
        columns = let(n - panels * machine.lanes)
        with when(tirx.all(m > 0, n > 0)):
            plan = scratch(1, INT)
            branch(
                m < table.shape[0],
                lambda: plan.__setitem__(0, table.data[m]),
                lambda: functions["moonpoly_plan"](m, n, k, 1, int(BMode.PREPACKED), plan.at(0)),
            )
            fields = native.decode(plan[0])

            def item(index: Expr, wa: Expr, wb: Expr) -> None:
                share = share_of(index, fields, m, panels, columns, machine.lanes)
                functions["moonpoly_region"](
                    x.data.at(share["row"] * lda),
                    lda,
                    packed.data.at(share["panel"] * machine.lanes * k),
                    0,
                    0,
                    addend.at(share["row"] * ld_addend + share["column"] * step),
                    ld_addend,
                    step,
                    bias.data.at(share["column"]),
                    1,
                    out.data.at(share["row"] * ldc + share["column"]),
                    ldc,
                    share["rows"],
                    share["panels"],
                    share["columns"],
                    k,
                    activation,
                    *share["fields"],
                    wa,
                    wb,
                )

            run_items(fields, as_int(1), k, panels, columns, machine.lanes, item)


def _emit_pack(functions: Functions, machine: Machine) -> None:
    """``moonpoly_pack_f32(b, b_perm, out)``: a matrix as panels, like `packing.pack_weight`."""

    @functions.public(PACK, b="handle", b_perm=INT, out="handle")
    def _(b: Any, b_perm: Expr, out: Any) -> None:
        tb, tout = Tensor(b, "b"), Tensor(out, "out")
        require(tb.ndim == 2, "b", "must have 2 dimensions")
        require_permutation(b_perm, "b_perm", tb)
        view = View(tb, b_perm, as_int(2))
        k, n = let(view.shape[0]), let(view.shape[1])
        require(
            tirx.all(
                tout.ndim == 3,
                tout.shape[0] == ceil_div(n, machine.lanes),
                tout.shape[1] == k,
                tout.shape[2] == machine.lanes,
                tout.row_stride(as_int(machine.lanes)) == machine.lanes,
            ),
            "out",
            "must be compact, of shape (ceil(n / lanes), k, lanes)",
        )
        require(
            tirx.any(view.stride[0] == 1, view.stride[1] == 1),
            "b",
            "elements of its rows or of its columns must be adjacent",
        )
        panels = let(div(n, machine.lanes))
        with when(tirx.all(k > 0, n > 0)):
            functions["moonpoly_pack_b"](
                tb.data.at(0),
                view.stride[0],
                view.stride[1],
                tout.data.at(0),
                k,
                panels,
                n - panels * machine.lanes,
            )
