"""The planner as a native function: the specification in `spec`, emitted as TensorIR.

The costs of tasks lie in memory, the others are folded into the code as constants. Every step has
its twin in `spec` or in `groups`; a test compares their decisions on thousands of shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from tvm import tirx

from tvm_moonpoly.costmodel.tables import BLOCKINGS, BlockSizes, CostTable
from tvm_moonpoly.emit import (
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
    ceil_div,
    cell,
    div,
    maximum,
    minimum,
    scratch,
    select,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form
from tvm_moonpoly.planner import native_groups, native_shares
from tvm_moonpoly.planner.groups import (
    CROWDED,
    CROWDED_ROWS,
    CROWDED_TILES,
    kept_bytes,
    main_form,
)
from tvm_moonpoly.planner.native_groups import INFINITE, Layout
from tvm_moonpoly.planner.native_shares import SHARED_OUT
from tvm_moonpoly.planner.native_words import decode, encode
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.shares import most_workers
from tvm_moonpoly.planner.spec import suits

__all__ = ["column_blocks", "decode", "emit", "encode"]

#: The product at hand, as parameters of the native functions.
_PRODUCT = {"m": INT, "n": INT, "k": INT, "b_mode": INT, "crowded": INT}


def emit(functions: Functions, machine: Machine, table: CostTable) -> None:
    """Define ``moonpoly_plan(m, n, k, batch, stored, out)``; out[0] is the encoded plan.

    ``stored`` is that of `Product.stored`.
    """
    emit_blocks(functions, machine, table, list(Form))
    native_shares.emit(functions, machine, table)
    _emit_plan(functions, Layout(table), machine, table)


def emit_blocks(
    functions: Functions, machine: Machine, table: CostTable, forms: Sequence[Form]
) -> None:
    """Define `native_groups.with_blocks_name` of those ``forms`` whose tails are among them too."""
    layout = Layout(table)
    native_groups.emit(functions, layout, machine, table, forms)
    for form in forms:
        _emit_with_blocks(functions, form, layout, machine, table)


def _emit_with_blocks(
    functions: Functions, main: Form, layout: Layout, machine: Machine, table: CostTable
) -> None:
    """One blocking whose main region is of the form ``main``, B being read in ``mode``:
    best[0], best[1] = cost and plan, if a plan of it is cheaper."""
    lanes, traffic = machine.lanes, table.traffic
    pack_a, in_place = main == Form.PACKED_A, main == Form.IN_PLACE_B
    tails = Form.PLAIN if pack_a else main
    highest = max(record.mr for record in table.tasks)

    @functions.private(
        native_groups.with_blocks_name(main), **_PRODUCT, mode=INT, kc=INT, mc=INT,
        costs=native_groups.COSTS, best=INTS,
    )  # fmt: skip
    def _(
        m: Expr,
        n: Expr,
        k: Expr,
        b_mode: Expr,
        crowded: Expr,
        mode: Expr,
        kc: Expr,
        mc: Expr,
        costs: Pointer,
        best: Pointer,
    ) -> None:
        panels = cell(div(n, lanes))
        blocks = native_groups.blocks_of(m, n, k, kc, mc, mode, machine, highest)
        groups = {
            (form, nv): native_groups.group(functions, nv, form, costs, blocks, layout, machine)
            for form in dict.fromkeys((tails, main))
            for nv in table.widths(form)
        }
        common = scratch(1, INT)
        common[0] = as_int(traffic.c_block) * panels * m * (blocks.k_blocks - 1)
        if in_place:
            vectors = cell(panels * k)
            # the twin of `groups.b_anew`
            tiles = cell(ceil_div(m, CROWDED_ROWS))
            halves = select(tiles > CROWDED_TILES, 2 * (tiles - 1), 1)
            anew = div(vectors * halves * crowded, 2)
            common[0] = common[0] + vectors * traffic.b_direct + anew * traffic.pack_rows
        else:
            common[0] = common[0] + _packing(b_mode, crowded, mode, k, n, machine, table)
        with when(n - panels * lanes > 0):
            edge = native_groups.edge_group(functions, costs, blocks, layout, machine)
            common[0] = common[0] + edge + as_int(traffic.edge_row) * m * blocks.k_blocks
        shared = cell(common[0])
        # the twin of `groups.a_again`
        kept = blocks.rows * blocks.depth * 4 <= kept_bytes(machine)
        vectors_of_a = cell(select(kept, as_int(0), div(m * k, lanes)))

        def consider(nv: int, tail: Expr, tail_cost: Expr, tail_mr: Expr) -> None:
            """Main groups of ``nv`` panels, with this tail."""
            main_cost, mr = groups[main, nv]
            count = cell(div(panels - tail, nv))
            nc, n_blocks = column_blocks(mode, count, nv, blocks.depth, machine)
            cost = shared + main_cost * count + tail_cost
            all_groups = count + select(tail > 0, 1, 0) + select(n - panels * lanes > 0, 1, 0)
            cost = cost + as_int(traffic.a_memory) * vectors_of_a * (all_groups - 1)
            if pack_a:
                cost = cost + as_int(traffic.pack_a) * m * k * n_blocks
            cost = cell(cost)
            with when(cost < best[0]):
                best[0] = cost
                best[1] = encode(
                    {
                        "nv": as_int(nv),
                        "mr": mr,
                        "tail_nv": tail,
                        "tail_mr": tail_mr,
                        "pack_a": as_int(int(pack_a)),
                        "b_mode": mode,
                        "kc": kc,
                        "mc": mc,
                        "nc": nc,
                        "splits_m": as_int(1),
                        "splits_n": as_int(1),
                        "workers": as_int(1),
                    }
                )

        for nv in table.widths(main):
            narrow = cell(panels - div(panels, nv) * nv)
            cost_of, mr_of = as_int(0), as_int(0)
            for width in range(1, nv):
                cost_of = select(narrow == width, groups[tails, width][0], cost_of)
                mr_of = select(narrow == width, groups[tails, width][1], mr_of)
            consider(nv, narrow, cell(cost_of), cell(mr_of))
            for width in range(nv + 1, 2 * nv):
                if (tails, width) in groups:
                    with when(tirx.all(narrow == width - nv, panels >= width)):
                        consider(nv, as_int(width), *groups[tails, width])


#: For packed weights, and for two operands that change.
_UNPLANNED = tuple(
    Plan(1, 1, 0, 0, False, mode).encode() for mode in (BMode.PREPACKED, BMode.STREAM)
)


def _emit_plan(functions: Functions, layout: Layout, machine: Machine, table: CostTable) -> None:
    @functions.separate("moonpoly_plan", m=INT, n=INT, k=INT, batch=INT, stored=INT, out=INTS)
    def _(m: Expr, n: Expr, k: Expr, batch: Expr, stored: Expr, out: Pointer) -> None:
        crowded = cell(select(stored >= CROWDED, 1, 0))
        b_mode = cell(stored - CROWDED * crowded)
        costs = native_groups.bind_costs(layout)
        best = scratch(2, INT)
        best[0] = as_int(INFINITE)
        # a valid plan, should all costs of a forged table overflow
        best[1] = select(b_mode == int(BMode.PREPACKED), *_UNPLANNED)

        def weigh(blocks: BlockSizes, form: Form, mode: Expr) -> None:
            functions[native_groups.with_blocks_name(form)](
                m, n, k, b_mode, crowded, mode, blocks.kc, blocks.mc, costs.at(0), best.at(0)
            )

        prepacked = b_mode == int(BMode.PREPACKED)
        mode = cell(select(prepacked, int(BMode.PREPACKED), int(BMode.PACKED)))
        streamed = scratch(1, INT)
        streamed[0] = as_int(INFINITE)
        with when(b_mode != int(BMode.PREPACKED)):
            streamed[0] = _streamed(m, n, k, b_mode, machine, table)
        stream = cell(streamed[0])
        packing = cell(_packing(b_mode, crowded, mode, k, n, machine, table))

        def weigh_all() -> None:
            for blocks in BLOCKINGS:
                applies = _applies(blocks, m, k)
                with nullcontext() if applies is None else when(applies):
                    if suits(blocks, BMode.DIRECT):
                        with when(b_mode == int(BMode.DIRECT)):
                            weigh(blocks, Form.IN_PLACE_B, as_int(int(BMode.DIRECT)))
                    if suits(blocks, BMode.PACKED):
                        # where packing B alone costs as much, no plan that does it is taken
                        with when(tirx.all(packing < best[0], packing <= stream)):
                            weigh(blocks, main_form(blocks.pack_a, BMode.PACKED), mode)

        with when(tirx.any(prepacked, m > 1)):
            weigh_all()
        with when(stream < best[0]):
            best[0] = stream
            best[1] = as_int(Plan(1, 1, 0, 0, False, BMode.STREAM).encode())
        out[0] = best[1]
        if most_workers(machine) > 1:
            with when(best[0] * batch >= 2 * table.traffic.launch):
                functions[SHARED_OUT](m, n, k, batch, b_mode, crowded, best[0], out.at(0))


def _packing(
    b_mode: Expr,
    crowded: Expr,
    mode: Expr,
    k: Expr,
    n: Expr,
    machine: Machine,
    table: CostTable,
) -> Expr:
    """What packing B costs, where ``mode`` says that it is packed."""
    traffic = table.traffic
    rows = as_int(traffic.pack_rows) * (1 + crowded)
    per_vector = select(b_mode == int(BMode.DIRECT), rows, traffic.pack_columns)
    whole = per_vector * k * ceil_div(n, machine.lanes)
    return select(mode == int(BMode.PACKED), whole, 0)


def _streamed(m: Expr, n: Expr, k: Expr, b_mode: Expr, machine: Machine, table: CostTable) -> Expr:
    traffic, lanes = table.traffic, machine.lanes

    def each(size: Expr, step: int, rest: int) -> Expr:
        vectors = cell(div(size, lanes))
        return as_int(step) * vectors + as_int(rest) * (size - vectors * lanes)

    axpy = m * k * (traffic.axpy_start + each(n, traffic.axpy_step, traffic.axpy_rest))
    dot = m * n * (traffic.dot_start + each(k, traffic.dot_step, traffic.dot_rest))
    return select(b_mode == int(BMode.DIRECT), axpy, dot)


def _applies(blocks: BlockSizes, m: Expr, k: Expr) -> Expr | None:
    conditions = []
    if blocks.kc:
        conditions.append(k > blocks.kc)
    if blocks.mc:
        conditions.append(m > blocks.mc)
    return tirx.all(*conditions) if conditions else None


def column_blocks(
    mode: Expr, groups: Expr, nv: int, depth: Expr, machine: Machine
) -> tuple[Expr, Expr]:
    group_bytes = maximum(as_int(nv * machine.lanes * 4) * depth, 1)
    nc = cell(minimum(maximum(div(machine.l2_bytes // 2, group_bytes), 1), 1023))
    all_groups = tirx.any(mode != int(BMode.PACKED), groups <= nc)
    return cell(select(all_groups, 0, nc)), cell(select(all_groups, 1, ceil_div(groups, nc)))
