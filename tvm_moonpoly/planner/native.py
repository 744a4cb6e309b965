"""The planner as a native function: the specification in `spec`, emitted as TensorIR.

The cost table is folded into the code as constants. Every step has its twin in `spec`, under the
same name; a test compares their decisions on thousands of shapes.
"""

from __future__ import annotations

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
    balanced,
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
from tvm_moonpoly.planner.plan import FIELDS, BMode, Plan
from tvm_moonpoly.planner.spec import INFINITE

#: The product at hand, as parameters of the native functions.
_PRODUCT = {"m": INT, "n": INT, "k": INT, "b_mode": INT}


def emit(functions: Functions, machine: Machine, table: CostTable) -> None:
    """Define ``moonpoly_plan(m, n, k, batch, b_mode, out)``; out[0] is the encoded plan."""
    for packed in (False, True):
        for nv in table.widths(packed):
            _emit_tallest(functions, nv, packed, table)
    for packed in sorted({blocks.pack_a for blocks in BLOCKINGS}):
        _emit_with_blocks(functions, packed, machine, table)
    _emit_plan(functions, machine, table)


def _tallest_name(nv: int, packed: bool) -> str:
    return f"moonpoly_tallest_{nv}{'p' if packed else ''}"


def _emit_tallest(functions: Functions, nv: int, packed: bool, table: CostTable) -> None:
    """found[0..2] = the cheapest height's cost, the height, the tiles."""

    @functions.private(_tallest_name(nv, packed), rows=INT, depth=INT, found=INTS)
    def _(rows: Expr, depth: Expr, found: Pointer) -> None:
        heights = table.heights(nv, packed)
        costs = scratch(len(heights) + 2, INT)
        for h in heights:
            cost = table.task(h, nv, packed)
            costs[h] = as_int(cost.start) + as_int(cost.step) * depth
        # read, and multiplied by no tiles, when all tiles have the greatest height
        costs[len(heights) + 1] = as_int(0)
        best, best_mr, best_tiles = as_int(INFINITE), as_int(1), as_int(1)
        for mr in heights:
            small, large, tiles = balanced(rows, mr, keep=cell)
            cost = cell((tiles - large) * costs[small] + large * costs[small + 1])
            better = cost < best
            best = cell(select(better, cost, best))
            best_mr = cell(select(better, mr, best_mr))
            best_tiles = cell(select(better, tiles, best_tiles))
        found[0] = best
        found[1] = best_mr
        found[2] = best_tiles


def _blocks_name(packed: bool) -> str:
    return f"moonpoly_with_blocks{'_packed' if packed else ''}"


def _emit_with_blocks(
    functions: Functions, pack_a: bool, machine: Machine, table: CostTable
) -> None:
    """One blocking: best[0], best[1] = cost and plan, if a plan of it is cheaper."""
    lanes, traffic = machine.lanes, table.traffic

    @functions.private(_blocks_name(pack_a), **_PRODUCT, kc=INT, mc=INT, best=INTS)
    def _(m: Expr, n: Expr, k: Expr, b_mode: Expr, kc: Expr, mc: Expr, best: Pointer) -> None:
        panels = cell(div(n, lanes))
        k_blocks = cell(maximum(ceil_div(k, _or_all(kc)), 1))
        depth = cell(ceil_div(k, k_blocks))
        m_blocks = cell(ceil_div(m, _or_all(mc)))
        rows = cell(ceil_div(m, m_blocks))
        block_count = cell(k_blocks * m_blocks)
        a_bytes = cell(rows * depth * 4)
        a_again = cell(
            select(
                a_bytes > machine.l2_bytes // 2,
                m * k * traffic.a_l3,
                select(a_bytes > machine.l1_bytes // 2, m * k * traffic.a_l2, 0),
            )
        )
        # all of a group's cost but the first touch of B, which depends on where B is read
        groups: dict[tuple[bool, int], tuple[Expr, Expr]] = {}
        for packed in (False, True) if pack_a else (False,):
            for nv in table.widths(packed):
                found = scratch(3, INT)
                functions[_tallest_name(nv, packed)](rows, depth, found.at(0))
                again = select(
                    as_int(nv * lanes * 4) * depth > machine.l1_bytes // 2,
                    as_int(nv * traffic.b_l2) * depth * found[2] * block_count,
                    0,
                )
                cost = found[0] * block_count + again
                groups[packed, nv] = cell(cost if packed else cost + a_again), cell(found[1])
        edge = as_int(traffic.edge_row) * m * k_blocks
        c_again = cell(as_int(traffic.c_block) * panels * m * (k_blocks - 1))

        def with_mode(mode: Expr) -> None:
            b_once = cell(k * _first_touch(n * k * 4, mode, machine, table))
            far = n * depth * 4 > machine.l2_bytes // 2
            b_once = cell(select(far, b_once * m_blocks, b_once))
            costs = {
                (packed, nv): (cell(cost + b_once * nv), mr)
                for (packed, nv), (cost, mr) in groups.items()
            }
            partial = select(n - panels * lanes > 0, costs[False, 1][0] + edge, 0)
            per_vector = select(
                b_mode == int(BMode.DIRECT), traffic.pack_rows, traffic.pack_columns
            )
            packing_b = select(mode == int(BMode.PACKED), per_vector * k * ceil_div(n, lanes), 0)
            common = cell(c_again + partial + packing_b)
            for nv in table.widths(pack_a):
                _consider_width(
                    nv, pack_a, mode, (m, k, panels, depth, kc, mc), common, costs, best,
                    machine, table,
                )  # fmt: skip

        if pack_a:  # only where B is packed as well
            with_mode(cell(select(b_mode == int(BMode.DIRECT), int(BMode.PACKED), b_mode)))
        else:
            with_mode(b_mode)
            with when(b_mode == int(BMode.DIRECT)):
                with_mode(as_int(int(BMode.PACKED)))


def _consider_width(
    nv: int,
    pack_a: bool,
    mode: Expr,
    sizes: tuple[Expr, Expr, Expr, Expr, Expr, Expr],
    common: Expr,
    costs: dict[tuple[bool, int], tuple[Expr, Expr]],
    best: Pointer,
    machine: Machine,
    table: CostTable,
) -> None:
    """Main groups of ``nv`` panels, with each tail that is possible."""
    m, k, panels, depth, kc, mc = sizes
    main_cost, mr = costs[pack_a, nv]
    narrow = cell(panels - div(panels, nv) * nv)

    def consider(tail: Expr, tail_cost: Expr, tail_mr: Expr) -> None:
        count = cell(div(panels - tail, nv))
        nc, n_blocks = column_blocks(mode, count, nv, depth, machine)
        cost = common + main_cost * count + tail_cost
        if pack_a:
            cost = cost + as_int(table.traffic.pack_a) * m * k * n_blocks
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

    cost_of, mr_of = as_int(0), as_int(0)
    for width in range(1, nv):
        cost_of = select(narrow == width, costs[False, width][0], cost_of)
        mr_of = select(narrow == width, costs[False, width][1], mr_of)
    consider(narrow, cell(cost_of), cell(mr_of))
    for width in range(nv + 1, 2 * nv):
        if (False, width) in costs:
            with when(tirx.all(narrow == width - nv, panels >= width)):
                consider(as_int(width), *costs[False, width])


#: For packed weights, and for two operands that change.
_UNPLANNED = tuple(
    Plan(1, 1, 0, 0, False, mode).encode() for mode in (BMode.PREPACKED, BMode.STREAM)
)


def _emit_plan(functions: Functions, machine: Machine, table: CostTable) -> None:
    @functions.separate("moonpoly_plan", m=INT, n=INT, k=INT, batch=INT, b_mode=INT, out=INTS)
    def _(m: Expr, n: Expr, k: Expr, batch: Expr, b_mode: Expr, out: Pointer) -> None:
        best = scratch(2, INT)
        best[0] = as_int(INFINITE)
        # a valid plan, should all costs of a forged table overflow
        best[1] = select(b_mode == int(BMode.PREPACKED), *_UNPLANNED)

        for blocks in BLOCKINGS:
            applies = _applies(blocks, m, k)
            with nullcontext() if applies is None else when(applies):
                functions[_blocks_name(blocks.pack_a)](
                    m, n, k, b_mode, blocks.kc, blocks.mc, best.at(0)
                )
        with when(b_mode != int(BMode.PREPACKED)):
            cost = cell(_streamed(m, n, k, b_mode, machine, table))
            with when(cost < best[0]):
                best[0] = cost
                best[1] = as_int(Plan(1, 1, 0, 0, False, BMode.STREAM).encode())
        out[0] = best[1]
        cores = min(machine.cores, 63)
        if cores > 1:
            with when(best[0] * batch >= 2 * table.traffic.launch):
                out[0] = _shared_out(best[1], m, n, batch, cores, machine.lanes)


def _streamed(m: Expr, n: Expr, k: Expr, b_mode: Expr, machine: Machine, table: CostTable) -> Expr:
    traffic, lanes = table.traffic, machine.lanes
    axpy = m * (as_int(traffic.axpy_start) + as_int(traffic.axpy_step) * k * ceil_div(n, lanes))
    dot = m * n * (as_int(traffic.dot_start) + as_int(traffic.dot_step) * ceil_div(k, lanes))
    return select(b_mode == int(BMode.DIRECT), axpy, dot)


def _applies(blocks: BlockSizes, m: Expr, k: Expr) -> Expr | None:
    conditions = []
    if blocks.kc:
        conditions.append(k > blocks.kc)
    if blocks.mc:
        conditions.append(m > blocks.mc)
    return tirx.all(*conditions) if conditions else None


def _or_all(size: Expr) -> Expr:
    """A block size, where 0 stands for all."""
    return cell(select(size == 0, 1 << 40, size))


def _first_touch(size: Expr, mode: Expr, machine: Machine, table: CostTable) -> Expr:
    traffic = table.traffic
    size = cell(size)
    far = select(
        size > machine.l3_bytes // 2,
        traffic.b_memory,
        select(size > machine.l2_bytes // 2, traffic.b_l3, 0),
    )
    return select(
        mode == int(BMode.PACKED),
        0,
        far + select(mode == int(BMode.DIRECT), traffic.b_direct, 0),
    )


def column_blocks(
    mode: Expr, groups: Expr, nv: int, depth: Expr, machine: Machine
) -> tuple[Expr, Expr]:
    group_bytes = maximum(as_int(nv * machine.lanes * 4) * depth, 1)
    nc = cell(minimum(maximum(div(machine.l2_bytes // 2, group_bytes), 1), 1023))
    all_groups = tirx.any(mode != int(BMode.PACKED), groups <= nc)
    return cell(select(all_groups, 0, nc)), cell(select(all_groups, 1, ceil_div(groups, nc)))


def _shared_out(word: Expr, m: Expr, n: Expr, batch: Expr, cores: int, lanes: int) -> Expr:
    fields = decode(word)
    splits = cell(ceil_div(cores, batch))
    groups = cell(maximum(div(div(n, lanes) - fields["tail_nv"], fields["nv"]), 1))
    tiles = cell(ceil_div(m, fields["mr"]))
    by_rows = ceil_div(tiles, splits) * groups < ceil_div(groups, splits) * tiles
    return encode(
        {
            **fields,
            "splits_m": select(by_rows, splits, 1),
            "splits_n": select(by_rows, 1, splits),
            "workers": minimum(cores, splits * batch),
        }
    )


def encode(fields: dict[str, Expr]) -> Expr:
    """The twin of `Plan.encode`."""
    word, shift = as_int(0), 0
    for name, (bits, unit) in FIELDS.items():
        value = fields[name] if unit == 1 else div(fields[name], unit)
        word = tirx.bitwise_or(word, tirx.shift_left(value, as_int(shift)))
        shift += bits
    return cell(word)


def decode(word: Expr) -> dict[str, Expr]:
    """The twin of `Plan.decode`."""
    word = cell(word)
    fields, shift = {}, 0
    for name, (bits, unit) in FIELDS.items():
        moved = tirx.shift_right(word, as_int(shift))
        fields[name] = cell(tirx.bitwise_and(moved, as_int((1 << bits) - 1)) * unit)
        shift += bits
    return fields
