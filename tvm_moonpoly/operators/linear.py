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
from tvm_moonpoly.operators import chaining
from tvm_moonpoly.operators.activation import Activation
from tvm_moonpoly.operators.chaining import Program
from tvm_moonpoly.operators.errors import require, require_match
from tvm_moonpoly.operators.gemm_tiles import zeros_row
from tvm_moonpoly.operators.sharing import run_items, share_of
from tvm_moonpoly.operators.tensors import MAX_DIMS, Tensor, View
from tvm_moonpoly.planner import native
from tvm_moonpoly.planner.plan import BMode

LINEAR = "moonpoly_linear_f32"
LINEAR_RESIDUAL = "moonpoly_linear_residual_f32"
LINEAR_CHAIN = "moonpoly_linear_chain_f32"
PACK = "moonpoly_pack_f32"

#: All that are defined here.
NAMES = (LINEAR, LINEAR_RESIDUAL, LINEAR_CHAIN, PACK)

#: What comes after the table of plans, before the output.
_EPILOGUES = {
    LINEAR: {"activation": INT},
    LINEAR_RESIDUAL: {"activation": INT},
    LINEAR_CHAIN: chaining.PARAMETERS,
}


def emit(functions: Functions, machine: Machine) -> None:
    """Define the packed functions `NAMES` in ``functions``."""
    for name in _EPILOGUES:
        _emit_linear(functions, machine, name)
    _emit_pack(functions, machine)


def _emit_linear(functions: Functions, machine: Machine, name: str) -> None:
    tensors = ["x", "packed", "bias", *(["residual"] if name == LINEAR_RESIDUAL else []), "table"]
    parameters = {**dict.fromkeys(tensors, "handle"), "labels": "handle", **_EPILOGUES[name]}

    @functions.public(name, **parameters, out="handle")
    def _(**handles: Any) -> None:
        x, packed, bias = (Tensor(handles[name], name) for name in ("x", "packed", "bias"))
        table = Tensor(handles["table"], "table", INT)
        out = Tensor(handles["out"], "out")
        activation: Expr = handles.get("activation", as_int(int(Activation.NONE)))
        require(x.ndim >= 1, "x", "must have at least 1 dimension")
        rule = "must have as many dimensions as x: # and #"
        require(out.ndim == x.ndim, "out", rule, out.ndim, x.ndim)
        require(packed.ndim == 3, "packed", "must have 3 dimensions, not #", packed.ndim)
        bias.require_vector()
        table.require_vector()
        if "activation" in handles:
            known = tirx.all(activation >= 0, activation <= int(max(Activation)))
            require(known, "activation", "is no known number: #", activation)
        k = let(x.shape[x.ndim - 1])
        n = let(out.shape[out.ndim - 1])
        m = x.size_of_leading()
        rule = "its last dimension must equal the rows of the weight"
        require_match(k, packed.shape[1], handles["labels"], "x", rule)
        width = let(packed.shape[2])
        require(width == machine.lanes, "packed", f"must be {machine.lanes} wide, not #", width)
        rule = "its last dimension must equal the columns of the weight: # and up to #"
        padded = let(packed.shape[0] * machine.lanes)
        require(tirx.all(n <= padded, n > padded - machine.lanes), "out", rule, n, padded)
        rule = "must have as many elements as the padded weight has columns: # and #"
        require(bias.shape[0] == padded, "bias", rule, bias.shape[0], padded)
        rows = out.size_of_leading()
        require(rows == m, "out", "must have as many rows as x: # and #", rows, m)
        stride = packed.row_stride(width, packed.shape[0] * k)
        require(stride == machine.lanes, "packed", "must be compact")
        lda, ldc = x.row_stride(k, m), out.row_stride(n, m)
        apart = tirx.any(m <= 1, ldc >= n, ldc <= 0 - n)
        require(apart, "out", "its elements must not share memory")
        addend, ld_addend, step = zeros_row(machine.lanes), as_int(0), as_int(0)
        if "residual" in handles:
            added = Tensor(handles["residual"], "residual")
            rule = "must have as many dimensions as out: # and #"
            require(added.ndim == out.ndim, "residual", rule, added.ndim, out.ndim)
            own, rows = let(added.shape[added.ndim - 1]), added.size_of_leading()
            require(own == n, "residual", "must have as many columns as out: # and #", own, n)
            require(rows == m, "residual", "must have as many rows as out: # and #", rows, m)
            addend, ld_addend, step = added.data, added.row_stride(n, m), as_int(1)
        chain: Program | None = None
        if "program" in handles:
            require(
                out.ndim <= MAX_DIMS, "out", f"must have at most {MAX_DIMS} dimensions: #", out.ndim
            )
            chain = Program(handles, out.shape, out.ndim)
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
                if chain is not None:
                    chain.apply(
                        out.data.at(share["row"] * ldc + share["column"]),
                        ldc,
                        share["row"],
                        share["rows"],
                        share["column"],
                        share["panels"] * machine.lanes + share["columns"],
                    )

            run_items(fields, as_int(1), k, panels, columns, machine.lanes, item)


def _emit_pack(functions: Functions, machine: Machine) -> None:
    """``moonpoly_pack_f32(b, b_axes, out)``: a matrix as panels, like `packing.pack_weight`."""

    @functions.public(PACK, b="handle", b_axes=INT, out="handle")
    def _(b: Any, b_axes: Expr, out: Any) -> None:
        tb, tout = Tensor(b, "b"), Tensor(out, "out")
        view = View(tb.handle, "b", b_axes, "b_axes", as_int(2), 2)
        k, n = let(view.shape[0]), let(view.shape[1])
        b_k, b_n = let(view.stride[0]), let(view.stride[1])
        padded = let(ceil_div(n, machine.lanes))
        require(tout.ndim == 3, "out", "must have 3 dimensions, not #", tout.ndim)
        require(
            tirx.all(
                tout.shape[0] == padded,
                tout.shape[1] == k,
                tout.shape[2] == machine.lanes,
                tout.row_stride(as_int(machine.lanes)) == machine.lanes,
            ),
            "out",
            f"must be compact, of shape (#, #, {machine.lanes})",
            padded,
            k,
        )
        require(
            tirx.any(b_k == 1, k <= 1, b_n == 1, n <= 1),
            "b",
            "elements of its rows or of its columns must be adjacent",
        )
        panels = let(div(n, machine.lanes))
        with when(tirx.all(k > 0, n > 0)):
            functions["moonpoly_pack_b"](
                tb.data.at(0),
                b_k,
                b_n,
                tout.data.at(0),
                k,
                panels,
                n - panels * machine.lanes,
                k * machine.lanes,
            )
