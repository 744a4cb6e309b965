"""The packed functions of the library: arguments checked, planned, shared out, computed.

``moonpoly_linear_f32`` and ``moonpoly_linear_residual_f32`` multiply by a constant weight that was
packed at compile time; ``moonpoly_matmul_f32`` multiplies two operands that change. All write
their last argument (destination passing) and hold no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    INT,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    ceil_div,
    div,
    let,
    loop,
    maximum,
    minimum,
    scratch,
    select,
    vector,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators.activation import Activation
from tvm_moonpoly.operators.tensors import MAX_DIMS, Tensor, View, require, require_permutation
from tvm_moonpoly.planner import native
from tvm_moonpoly.planner.plan import BMode

LINEAR = "moonpoly_linear_f32"
LINEAR_RESIDUAL = "moonpoly_linear_residual_f32"
MATMUL = "moonpoly_matmul_f32"
MATMUL_PLANNED = "moonpoly_matmul_planned_f32"
PACK = "moonpoly_pack_f32"

#: Lanes of zeros that stand for an absent addend: as wide as the widest group of panels.
_ZEROS = 128


def emit(functions: Functions, machine: Machine) -> None:
    """Define the packed functions in ``functions``."""
    _emit_linear(functions, machine, residual=False)
    _emit_linear(functions, machine, residual=True)
    _emit_matmul(functions, machine, planned=False)
    _emit_matmul(functions, machine, planned=True)
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
        zeros = _zeros(machine.lanes)
        addend, ld_addend, step = zeros.at(0), as_int(0), as_int(0)
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
            addend, ld_addend, step = added.data.at(0), added.row_stride(n), as_int(1)
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

            def item(index: Expr, wa: Pointer, wb: Pointer) -> None:
                share = _share(index, fields, m, panels, columns, machine.lanes)
                functions["moonpoly_region"](
                    x.data.at(share["row"] * lda),
                    lda,
                    packed.data.at(share["panel"] * machine.lanes * k),
                    0,
                    0,
                    addend
                    if not residual
                    else added.data.at(share["row"] * ld_addend + share["column"]),
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
                    wa.at(0),
                    wb.at(0),
                )

            _run(fields, as_int(1), k, panels, machine.lanes, item)


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
            zeros = _zeros(machine.lanes)

            def item(index: Expr, wa: Pointer, wb: Pointer) -> None:
                which = let(div(index, shares))
                share = _share(index - which * shares, fields, m, panels, columns, machine.lanes)
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
                    wa.at(0),
                    wb.at(0),
                )

            _run(fields, batch, k, panels, machine.lanes, item)


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


def _inverse(permutation: Expr, ndim: Expr) -> Expr:
    """The permutation that undoes ``permutation`` (4 bits a dimension)."""
    inverse = scratch(1, INT)
    inverse[0] = as_int(0)
    with loop(ndim) as i:
        dim = let(tirx.bitwise_and(tirx.shift_right(permutation, i * 4), as_int(15)))
        inverse[0] = tirx.bitwise_or(inverse[0], tirx.shift_left(i, dim * 4))
    return let(inverse[0])


def _zeros(lanes: int) -> Pointer:
    zeros = scratch(_ZEROS)
    for i in range(_ZEROS // lanes):
        zeros[vector(i * lanes, lanes)] = T.Broadcast(tirx.const(0.0, FLOAT), lanes)
    return zeros


def _share(
    index: Expr, fields: dict[str, Expr], m: Expr, panels: Expr, columns: Expr, lanes: int
) -> dict[str, Any]:
    """The rows and panels of one of the plan's workers, and its plan.

    Rows are shared out in whole tiles and panels in whole groups; the last worker of a row also
    takes the tail region and the partial panel.
    """
    i = let(div(index, fields["splits_n"]))
    j = let(index - i * fields["splits_n"])
    tiles = ceil_div(m, fields["mr"])
    chunk = let(ceil_div(tiles, fields["splits_m"]) * fields["mr"])
    row = let(minimum(i * chunk, m))
    groups = let(div(panels - fields["tail_nv"], fields["nv"]))
    group_chunk = let(ceil_div(groups, fields["splits_n"]))
    first = let(minimum(j * group_chunk, groups))
    count = let(minimum(group_chunk, groups - first))
    last = let(j == fields["splits_n"] - 1)
    tail = let(select(last, fields["tail_nv"], 0))
    panel = let(first * fields["nv"])
    return {
        "row": row,
        "rows": let(minimum(chunk, m - row)),
        "panel": panel,
        "column": let(panel * lanes),
        "panels": let(count * fields["nv"] + tail),
        "columns": let(select(last, columns, 0)),
        "fields": [
            fields["nv"],
            fields["mr"],
            tail,
            fields["tail_mr"],
            fields["pack_a"],
            fields["b_mode"],
            *(select(fields[name] == 0, as_int(1 << 40), fields[name]) for name in _BLOCKS),
        ],
    }


_BLOCKS = ("kc", "mc", "nc")


def _run(
    fields: dict[str, Expr],
    batch: Expr,
    k: Expr,
    panels: Expr,
    lanes: int,
    item: Callable[[Expr, Pointer, Pointer], None],
) -> None:
    """All items (a batch entry's share each), serially or by the workers of tvm's pool.

    Each worker has workspace for one packed block of A and one of B.
    """
    items = let(batch * fields["splits_m"] * fields["splits_n"])
    depth = let(select(fields["kc"] == 0, k, minimum(fields["kc"], k)))
    # the last block also takes the tail region
    block = fields["nc"] * fields["nv"] + fields["tail_nv"]
    wide = let(select(fields["nc"] == 0, panels, minimum(block, panels)))
    wa = let(fields["pack_a"] * fields["mc"] * depth)
    # one panel more than a block has: the partial one
    wb = let(
        select(
            fields["b_mode"] == int(BMode.PACKED),
            (wide + 1) * lanes * depth,
            select(fields["b_mode"] == int(BMode.DIRECT), lanes * depth, 0),
        )
    )

    def work(first: Expr, count: Expr) -> None:
        def with_workspace() -> None:
            space_a = _heap(maximum(wa, 1))
            space_b = _heap(maximum(wb, 1))
            with loop(count) as i:
                item(let(first + i), space_a, space_b)

        def without() -> None:
            none = scratch(1)
            with loop(count) as i:
                item(let(first + i), none, none)

        branch(wa + wb > 0, with_workspace, without)

    workers = let(fields["workers"])
    with T.attr({"device_id": 0}), T.attr({"device_type": 1}), T.If(workers > 1):
        with T.Then(), T.parallel(0, workers) as w:
            chunk = let(ceil_div(items, workers))
            first = let(minimum(w * chunk, items))
            work(first, let(minimum(chunk, items - first)))
        with T.Else():
            work(as_int(0), items)


def _heap(elements: Expr) -> Pointer:
    """Workspace from tvm's pool, until the end of the enclosing scope."""
    pointer = Pointer.__new__(Pointer)
    pointer.buffer = T.alloc_buffer((elements,), FLOAT, scope="global", layout=None)
    return pointer
