"""What one group of panels costs, natively: the twins of the functions in `groups`.

The costs of tasks are constants of the module: pairs of 32-bit integers, the line of each
micro-kernel side by side, for each residency and each segment of trip counts. A *place* is where
those of one residency and segment begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from tvm_moonpoly.constants import constant_array
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.costmodel.tasks import RESIDENCIES, SEGMENTS, TRIPS, Level
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
from tvm_moonpoly.microkernels.records import Form, looks_ahead
from tvm_moonpoly.planner.groups import EIGHTHS, FETCHED_ALL, FETCHED_SOME, tried_heights
from tvm_moonpoly.planner.plan import BMode

#: The type of the costs in memory, and of a pointer to them.
COST, COSTS = "int32", "int32*"

_SYMBOL = "moonpoly_costs"

#: Larger than any cost.
INFINITE = 1 << 62

_FORM_SUFFIX = {Form.PLAIN: "", Form.PACKED_A: "p", Form.IN_PLACE_B: "d"}


class Layout:
    """Where the costs of a table lie in memory."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._tiles = [
            (mr, nv, form)
            for form in Form
            for nv in table.widths(form)
            for mr in table.heights(nv, form)
        ]
        #: integers of one place
        self.step = 2 * len(self._tiles)

    def first(self, nv: int, form: Form) -> int:
        """Where in a place the micro-kernel of one row by ``nv`` vectors is."""
        return 2 * self._tiles.index((1, nv, form))

    def place(self, a: Expr, b: Expr, segment: Expr) -> Expr:
        """The place of a residency and a segment of trip counts."""
        which = (a - int(Level.L1)) * len(Level) + (b - int(Level.L1))
        return (which * SEGMENTS + segment) * self.step

    @property
    def numbers(self) -> list[int]:
        """All of them, in order."""
        costs = [self._table.task(*tile) for tile in self._tiles]
        return [
            number
            for residency in RESIDENCIES
            for segment in range(SEGMENTS)
            for cost in costs
            for number in cost.lines[residency][segment]
        ]


def bind_costs(layout: Layout) -> Pointer:
    """A view of the costs, which become part of the module that is being written."""
    return constant_array(_SYMBOL, layout.numbers, 32)


def with_blocks_name(form: Form) -> str:
    """The function of `native` that weighs plans of one blocking with a main region of ``form``."""
    return f"moonpoly_with_blocks_{form.name.lower()}"


def segment_of(k: Expr) -> Expr:
    """The twin of `tables.segment`."""
    # the number of bits of q is one less than that of 2 q + 1, which is not 0
    q = cell(div(k, TRIPS[1]) * 2 + 1)
    return minimum(63 - tirx.clz(q).astype(INT), SEGMENTS - 1)


def level(size: Expr, machine: Machine) -> Expr:
    """The twin of `groups.level`."""
    size = cell(size)
    found: Expr = as_int(int(Level.MEMORY))
    for each, cache in (
        (Level.L3, machine.l3_bytes),
        (Level.L2, machine.l2_bytes),
        (Level.L1, machine.l1_bytes),
    ):
        found = select(size <= cache // 2, int(each), found)
    return cell(found)


@dataclass(frozen=True)
class Blocks:
    """The twin of `groups.Blocks`, with the levels and the segment that follow from them.

    ``tiles`` holds, for each greatest height from 1 up, the small tiles' rows, the number of large
    ones, and of all.
    """

    k_blocks: Expr
    m_blocks: Expr
    depth: Expr
    rows: Expr
    a: Expr
    far: Expr
    again: Expr
    segment: Expr
    tiles: Pointer


def blocks_of(
    m: Expr, n: Expr, k: Expr, kc: Expr, mc: Expr, mode: Expr, machine: Machine, highest: int
) -> Blocks:
    """The twin of `groups.blocks_of` and `groups.sources`."""
    k_blocks = cell(maximum(ceil_div(k, _or_all(kc)), 1))
    depth = cell(ceil_div(k, k_blocks))
    m_blocks = cell(ceil_div(m, _or_all(mc)))
    rows = cell(ceil_div(m, m_blocks))
    far = level(n * k * 4, machine)
    near_by = select(mode == int(BMode.PACKED), int(Level.L2), int(Level.MEMORY))
    far = cell(minimum(far, near_by))
    again = cell(minimum(far, level(n * depth * 4, machine)))
    a = cell(minimum(level(rows * depth * 4, machine), int(Level.L3)))
    tiles = scratch(3 * highest, INT)
    for mr in range(1, highest + 1):
        for i, number in enumerate(balanced(rows, mr, keep=cell)):
            tiles[3 * (mr - 1) + i] = number
    return Blocks(k_blocks, m_blocks, depth, rows, a, far, again, cell(segment_of(depth)), tiles)


def _or_all(size: Expr) -> Expr:
    """A block size, where 0 stands for all."""
    return cell(select(size == 0, 1 << 40, size))


def emit(
    functions: Functions,
    layout: Layout,
    machine: Machine,
    table: CostTable,
    forms: Sequence[Form],
) -> None:
    """Define the functions behind `edge_group`, and behind `group` of ``forms``."""
    for form in forms:
        for nv in table.widths(form):
            _emit(
                functions, _name(nv, form), nv, form, tried_heights(nv, form, table), layout, table
            )
    height = table.edge_height(machine.lanes)
    _emit(functions, _EDGE, 1, Form.PLAIN, [height], layout, table)


def group(
    functions: Functions,
    nv: int,
    form: Form,
    costs: Pointer,
    blocks: Blocks,
    layout: Layout,
    machine: Machine,
) -> tuple[Expr, Expr]:
    """The twin of `groups.tallest`: the cost of a group of ``nv`` panels, and its height."""
    return _call(functions, _name(nv, form), nv, costs, blocks, layout, machine)


def edge_group(
    functions: Functions, costs: Pointer, blocks: Blocks, layout: Layout, machine: Machine
) -> Expr:
    """The cost of the micro-kernels of the partial panel."""
    return _call(functions, _EDGE, 1, costs, blocks, layout, machine)[0]


_EDGE = "moonpoly_edge_cost"


def _name(nv: int, form: Form) -> str:
    return f"moonpoly_group_cost_{nv}{_FORM_SUFFIX[form]}"


def _call(
    functions: Functions,
    name: str,
    nv: int,
    costs: Pointer,
    blocks: Blocks,
    layout: Layout,
    machine: Machine,
) -> tuple[Expr, Expr]:
    near = minimum(blocks.far, level(as_int(nv * machine.lanes * 4) * blocks.depth, machine))
    near = cell(near)
    # the twin of `groups.brought`
    ahead = [maximum(near, minimum(b, int(Level.L2))) for b in (blocks.far, blocks.again)]
    places = [
        cell(layout.place(blocks.a, b, blocks.segment))
        for b in (near, blocks.far, blocks.again, *ahead)
    ]
    found = scratch(2, INT)
    functions[name](
        *(costs.at(place) for place in places),
        blocks.depth,
        blocks.k_blocks,
        blocks.m_blocks,
        blocks.tiles.at(0),
        found.at(0),
    )
    return cell(found[0]), cell(found[1])


def _emit(
    functions: Functions,
    name: str,
    nv: int,
    form: Form,
    tried: Sequence[int],
    layout: Layout,
    table: CostTable,
) -> None:
    """found[0..1] = the cost of the cheapest of the heights that are ``tried``, and the height."""
    at = {name: COSTS for name in ("near", "far", "again", "far_ahead", "again_ahead")}

    @functions.separate(name, **at, depth=INT, k_blocks=INT, m_blocks=INT, tiles=INTS, found=INTS)
    def _(
        near: Pointer,
        far: Pointer,
        again: Pointer,
        far_ahead: Pointer,
        again_ahead: Pointer,
        depth: Expr,
        k_blocks: Expr,
        m_blocks: Expr,
        tiles: Pointer,
        found: Pointer,
    ) -> None:
        heights = table.heights(nv, form)
        count = cell(k_blocks * m_blocks)
        repeated = cell(count - k_blocks)
        # of one tile of each height in all blocks; and with columns of B from each place
        usual = scratch(len(heights) + 2, INT)
        costs = {place: scratch(len(heights) + 2, INT) for place in at}

        given = dict(zip(at, (near, far, again, far_ahead, again_ahead), strict=True))

        def load(*places: str) -> None:
            for h in heights:
                start = layout.first(nv, form) + 2 * (h - 1)
                for place in places:
                    line = given[place][start], given[place][start + 1]
                    costs[place][h] = line[0].astype(INT) + line[1].astype(INT) * depth

        looking = [h for h in heights if looks_ahead(h, nv, form)]
        ahead = ["_ahead"] if looking else []
        load("near", *(f"far{each}" for each in ["", *ahead]))
        with when(repeated > 0):
            load(*(f"again{each}" for each in ["", *ahead]))
        for h in heights:
            usual[h] = count * (costs["near"][h] + table.traffic.tile)

        def more(place: str, top: Expr, share: Expr) -> Expr:
            """What the first tile, of ``top`` rows, costs more than the others."""
            found = costs[place][top]
            if looking:
                # the twin of `groups.arriving`
                whole = (EIGHTHS - share) * found + share * costs[f"{place}_ahead"][top]
                found = div(whole, EIGHTHS)
            return found - costs["near"][top]

        # read, and multiplied by no tiles, when all tiles have the greatest height
        usual[len(heights) + 1] = as_int(0)
        best, best_mr = as_int(INFINITE), as_int(tried[0])
        for mr in tried:
            small, large, number = (cell(tiles[3 * (mr - 1) + i]) for i in range(3))
            total = (number - large) * usual[small] + large * usual[small + 1]
            top = cell(select(large > 0, small + 1, small))
            sums, share = scratch(1, INT), as_int(0)
            if looking:
                # the twin of `groups.fetched_share`
                share = select(number >= nv, as_int(FETCHED_ALL), as_int(FETCHED_SOME))
                share = cell(select(top >= looking[0], share, as_int(0)))

            sums[0] = total + k_blocks * more("far", top, share)
            with when(repeated > 0):
                sums[0] = sums[0] + repeated * more("again", top, share)
            total = cell(sums[0])
            better = total < best
            best = cell(select(better, total, best))
            best_mr = cell(select(better, mr, best_mr))
        found[0] = best + count * table.traffic.group
        found[1] = best_mr
