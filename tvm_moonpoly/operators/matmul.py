"""The packed functions of a batched product of two operands that change from call to call.

They check their arguments, make the plan, and share the work out. All write their last argument
(destination passing) and hold no state.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    INT,
    LINE,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    ceil_div,
    div,
    let,
    loop,
    minimum,
    scratch,
    select,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators import chaining
from tvm_moonpoly.operators.activation import Activation
from tvm_moonpoly.operators.chaining import Program
from tvm_moonpoly.operators.gemm_tiles import zeros_row
from tvm_moonpoly.operators.product import PARAMETERS, Product
from tvm_moonpoly.operators.sharing import run_items, share_of
from tvm_moonpoly.operators.tensors import Tensor, View, count_of
from tvm_moonpoly.planner import native
from tvm_moonpoly.planner.groups import CROWDED, PERIOD, WAYS
from tvm_moonpoly.planner.plan import BMode

MATMUL = "moonpoly_matmul_f32"
MATMUL_CHAIN = "moonpoly_matmul_chain_f32"
MATMUL_PLANNED = "moonpoly_matmul_planned_f32"

#: All that are defined here.
NAMES = (MATMUL, MATMUL_CHAIN, MATMUL_PLANNED)

#: What each function is given besides the operands. The last one is given its plan, so that all of
#: them can be measured.
_MORE: dict[str, dict[str, str]] = {
    MATMUL: {},
    MATMUL_CHAIN: chaining.PARAMETERS,
    MATMUL_PLANNED: {"plan": INT},
}

#: Rows of a transposed A that are copied at a time: whole tiles of all usual heights, and so many
#: that packing B anew for each block does not count.
TURNED_ROWS = 240


def emit(functions: Functions, machine: Machine) -> None:
    """Define the packed functions `NAMES` in ``functions``."""
    for name, more in _MORE.items():
        _emit_matmul(functions, machine, name, more)


def _emit_matmul(functions: Functions, machine: Machine, name: str, more: dict[str, str]) -> None:
    @functions.public(name, **PARAMETERS, **more, out="handle")
    def _(**handles: Any) -> None:
        ta, tb, tc = tensors = tuple(Tensor(handles[name], name) for name in ("a", "b", "out"))
        # a plan that is given is for the product as it is, and so is a chain
        product = Product(handles, tensors, adjacent=True, flip=name == MATMUL)
        chain = _program(handles) if "program" in handles else None
        with when(product.not_empty()):
            m, n, k, batch = (let(product[name]) for name in ("m", "n", "k", "batch"))
            a_k, b_k, b_n = (let(product[name]) for name in ("a_k", "b_k", "b_n"))
            # a column on its own has adjacent elements either way: as a column it can be streamed
            by_rows = let(tirx.any(b_n == 1, tirx.all(n == 1, b_k != 1)))
            by_columns = let(tirx.Not(tirx.any(a_k == 1, k <= 1)))
            a, b = _flipped(product, ta.data, tb.data) if name == MATMUL else (ta.data, tb.data)
            plan = scratch(1, INT)
            if "plan" in handles:
                plan[0] = handles["plan"]
            else:
                # the twin of `groups.Product.crowded`
                crowded = tirx.all(k > WAYS, tirx.truncmod(b_k, as_int(PERIOD // 4)) == 0)
                rows = select(crowded, int(BMode.DIRECT) + CROWDED, int(BMode.DIRECT))
                stored = select(by_rows, rows, int(BMode.PACKED))
                functions["moonpoly_plan"](m, n, k, batch, stored, plan.at(0))
            fields = native.decode(plan[0])
            panels = let(div(n, machine.lanes))
            columns = let(n - panels * machine.lanes)
            shares = let(fields["splits_m"] * fields["splits_n"])
            zeros = zeros_row(machine.lanes)
            # columns that follow one another, and are more than stays in the last cache: measured,
            # the order of memory pays from 3/4 of it on
            size = let(n * b_n * product.entries_of_b())
            far = let(tirx.all(size > machine.l3_bytes * 3 // 16, b_n < k + LINE))
            # not a power of two, which would bring all rows into the same places of the caches
            ldt = let((div(k, 16) + 2) * 16)
            turned = let(select(by_columns, minimum(m, TURNED_ROWS) * ldt, 0))

            def item(index: Expr, wa: Expr, wb: Expr, wt: Expr) -> None:
                which = let(div(index, shares))
                share = share_of(index - which * shares, fields, m, panels, columns, machine.lanes)
                at_a, at_b, at_out = product.offsets(which)
                a_m, out_m = let(product["a_m"]), let(product["out_m"])

                def region(left: Expr, lda: Expr, row: Expr, rows: Expr) -> None:
                    out = tc.data.at(at_out + row * out_m + share["column"])
                    right = b.at(at_b + share["column"] * b_n)
                    width = let(share["panels"] * machine.lanes + share["columns"])

                    def streamed() -> None:
                        def through(name: str, ldb: Expr) -> None:
                            functions[name](left, lda, right, ldb, out, out_m, rows, width, k)

                        branch(
                            by_rows,
                            lambda: through("moonpoly_axpy", b_k),
                            lambda: branch(
                                far,
                                lambda: through("moonpoly_dot_far", b_n),
                                lambda: through("moonpoly_dot", b_n),
                            ),
                        )

                    def by_tiles() -> None:
                        functions["moonpoly_region"](
                            left,
                            lda,
                            right,
                            b_k,
                            select(by_rows, 1, b_n),
                            zeros.at(0),
                            0,
                            0,
                            zeros.at(0),
                            0,
                            out,
                            out_m,
                            rows,
                            share["panels"],
                            share["columns"],
                            k,
                            int(Activation.NONE),
                            *share["fields"],
                            wa,
                            wb,
                        )

                    branch(fields["b_mode"] == int(BMode.STREAM), streamed, by_tiles)
                    if chain is not None:
                        chain.apply(out, out_m, which * m + row, rows, share["column"], width)

                def as_stored() -> None:
                    at = let(at_a + share["row"] * a_m)
                    region(a.at(at), a_m, share["row"], share["rows"])

                def transposed() -> None:
                    with loop(ceil_div(share["rows"], TURNED_ROWS)) as block:
                        row = let(share["row"] + block * TURNED_ROWS)
                        rows = let(minimum(share["row"] + share["rows"] - row, TURNED_ROWS))
                        at = let(at_a + row * a_m)
                        functions["moonpoly_turn"](a.at(at), a_k, wt, ldt, rows, k)
                        region(wt, ldt, row, rows)

                branch(by_columns, transposed, as_stored)

            run_items(fields, batch, k, panels, columns, machine.lanes, item, turned)


def _flipped(product: Product, a: Pointer, b: Pointer) -> tuple[Pointer, Pointer]:
    """The operands as ``product`` describes them."""
    flipped = let(product["flipped"])
    return a.unless(flipped > 0, b), b.unless(flipped > 0, a)


def _program(handles: dict[str, Any]) -> Program:
    """The chain; its operands broadcast to the shape of the product."""
    axes = handles["out_axes"]
    ndim = let(count_of(axes))
    return Program(handles, View(handles["out"], "out", axes, "out_axes", ndim).shape, ndim)
