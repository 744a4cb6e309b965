"""How a convolution becomes matrix products, in plain Python: the specification that
`native_conv` repeats to the bit.

An output pixel is a row of a product whose depth is the kernel's, steps in the order (kw, kh, c).
Pixels are computed block by block. A block's rows of A are read from the input as they lie, or from
a *band* that is filled before: there each input column of a row of windows is one run of kh * c
floats, so that the window of a pixel is one run too, which shares all but its ends with the next.
"""

from __future__ import annotations

from tvm_moonpoly.costmodel.tables import BlockSizes, CostTable
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.planner.conv_blocks import (
    PATCH,
    Cut,
    band_floats,
    columns_of,
    cut,
    most_floats,
    smaller,
    workers_of,
)
from tvm_moonpoly.planner.conv_places import PLACES_SIXTEENTHS, by_places, places_share
from tvm_moonpoly.planner.conv_shapes import Convolution, ConvPlan, Form
from tvm_moonpoly.planner.groups import Product, ceil_div
from tvm_moonpoly.planner.plan import BMode
from tvm_moonpoly.planner.spec import with_blocks

#: Blocks of the reduction that are weighed, 0 for all of it.
DEPTHS: tuple[int, ...] = (0, 2048, 1024)

#: Output rows below which windows on their own are weighed, of which tiles of any height are made.
NARROW = 64

#: Blocks for each worker.
CHUNKS = 4

#: Vectors of a band cost so many times what a vector added to one in the caches does.
MOVED = 2

#: A pixel of those that lie apart, in an input beyond the second-level cache, costs as much as so
#: many vectors more: no processor fetches its first lines ahead by itself.
SCATTERED = 112

#: The most channels, and steps of the reduction, of windows that are read at offsets.
OFFSETS_CHANNELS, OFFSETS_DEPTH = 4, 512

#: Vectors of outputs in their tiles; those of an odd number of panels have more in the end.
OFFSETS_WIDTH = 2


def forms(conv: Convolution, machine: Machine) -> list[Form]:
    """The forms that are weighed."""
    if conv.winograd:
        return [Form.PATCHES]
    if at_offsets(conv, machine.lanes):
        return [Form.OFFSETS]
    kh, kw = conv.kernel
    in_place = (
        not conv.half
        and not conv.padded
        and kh == 1
        and (kw == 1 or (conv.groups == 1 and conv.dilation[1] == 1))
    )
    if in_place and kw == 1 and conv.strides == (1, 1):
        return [Form.JOINED]
    places = [Form.PLACES] if by_places(conv) else []
    if places and conv.kernel == (1, 1):
        return places
    by_rows = [Form.ROWS] if in_place else [Form.WINDOWS] if conv.dilation[1] == 1 else []
    pixels = [Form.PIXELS] if conv.ow < NARROW or not by_rows else []
    return by_rows + pixels + places


def at_offsets(conv: Convolution, lanes: int) -> bool:
    """Whether windows are read at offsets: of few channels, with outputs in whole vectors."""
    return (
        conv.channels <= OFFSETS_CHANNELS
        and conv.groups == 1
        and conv.outputs % lanes == 0
        and conv.kernel != (1, 1)
        and all(s <= k for s, k in zip(conv.strides, conv.kernel, strict=True))
        and conv.dilation == (1, 1)
        and conv.depth <= OFFSETS_DEPTH
        and not conv.half
        and not conv.residual
    )


def offsets_heights(machine: Machine) -> dict[int, int]:
    """Of tiles that read windows at offsets the most pixels, by vectors of outputs: as many as
    registers hold beside a vector of each panel and an element of A."""
    registers = machine.vector_registers
    most = 8 if registers <= 16 else 12
    return {nv: min((registers - 1 - nv) // nv, most) for nv in (1, 2, 3)}


def plan(conv: Convolution, machine: Machine, table: CostTable) -> ConvPlan:
    """The cheapest plan, shared out over the machine's cores. No size may be 0."""
    return min(candidates(conv, machine, table), key=lambda choice: choice.picoseconds)


def candidates(conv: Convolution, machine: Machine, table: CostTable) -> list[ConvPlan]:
    """The cheapest plans of all forms that are weighed."""
    return [of_form(conv, form, machine, table) for form in forms(conv, machine)]


def of_form(conv: Convolution, form: Form, machine: Machine, table: CostTable) -> ConvPlan:
    """The cheapest plan of one form."""
    workers = workers_of(conv, machine)
    blocks = cut(conv, form, most_floats(conv, form, workers, machine), machine, table)
    rows, width, times, depths = blocks.rows, blocks.width, 1, DEPTHS
    if form == Form.PATCHES:
        padded = ceil_div(conv.outputs, machine.lanes) * machine.lanes
        product, times, depths = Product(rows * width, padded, conv.channels), PATCH, (0,)
    else:
        if form == Form.PLACES:
            rows, width = places_share(conv, 0, rows), places_share(conv, 1, width)
            depths = (conv.channels,)
        product = Product(rows * width, conv.outputs, conv.depth)
    apart = rows > 1 and form != Form.PATCHES
    choices = [
        choice
        for kc in depths
        if product.k > kc or form == Form.PLACES
        for choice in with_blocks(
            product,
            BMode.PREPACKED,
            BlockSizes(False, kc, width if apart else 0),
            machine,
            table,
        )
    ]
    best = min(choices, key=lambda choice: choice.picoseconds)
    tiles = best.plan.nv, best.plan.mr, best.plan.tail_nv, best.plan.tail_mr
    if form == Form.OFFSETS:
        tiles = offsets_tiles(conv, machine)
    nv, mr, tail_nv, tail_mr = tiles
    around = filling(conv, form, blocks, machine, table)
    each = times * best.picoseconds + around
    if form == Form.PLACES:
        each = each * PLACES_SIXTEENTHS // 16
    cost = blocks.blocks * each * conv.groups
    splits_n = 1
    if workers > 1 and cost >= 2 * table.traffic.launch:
        blocks = smaller(conv, form, blocks, ceil_div(CHUNKS * workers, conv.groups))
        chunks = blocks.blocks * conv.groups
        if chunks < 2 * workers:
            panels = product.n // machine.lanes - tail_nv
            columns = panels // nv + (tail_nv > 0)
            splits_n = min(ceil_div(2 * workers, chunks), max(columns, 1))
        workers = min(workers, chunks * splits_n)
    else:
        workers = 1
    return ConvPlan(
        form=form,
        **blocks._asdict(),
        splits_n=splits_n,
        workers=workers,
        band=band_floats(conv, form, blocks.rows, blocks.width, machine, table),
        nv=nv,
        mr=mr,
        tail_nv=tail_nv,
        tail_mr=tail_mr,
        kc=0 if form == Form.PLACES else best.plan.kc,
        picoseconds=cost,
    )


def offsets_tiles(conv: Convolution, machine: Machine) -> tuple[int, int, int, int]:
    """Vectors and pixels of the tiles of form OFFSETS, and those of the last one in a row."""
    heights, panels = offsets_heights(machine), conv.outputs // machine.lanes
    tail = panels % OFFSETS_WIDTH and min(OFFSETS_WIDTH + 1, panels)
    return OFFSETS_WIDTH, heights[OFFSETS_WIDTH], tail, heights.get(tail, 0)


def filling(conv: Convolution, form: Form, blocks: Cut, machine: Machine, table: CostTable) -> int:
    """Picoseconds of a block around its products: as much as moving so many vectors."""
    channels, pixels = ceil_div(conv.channels, machine.lanes), blocks.rows * blocks.width
    if form == Form.PATCHES:
        outputs = ceil_div(conv.outputs, machine.lanes)
        return pixels * PATCH * (channels + outputs) * table.traffic.axpy_step
    if form == Form.PLACES:
        # the first values of all outputs
        return pixels * ceil_div(conv.outputs, machine.lanes) * MOVED * table.traffic.axpy_step
    if form in (Form.JOINED, Form.ROWS) or (form == Form.OFFSETS and not conv.padded):
        return 0
    if form == Form.OFFSETS:
        floats = band_floats(conv, form, blocks.rows, blocks.width, machine, table)
        return ceil_div(floats, machine.lanes) * MOVED * table.traffic.axpy_step
    overlapping = blocks.rows * columns_of(conv, blocks.width)
    columns = overlapping if form == Form.WINDOWS else pixels * conv.kernel[1]
    vectors = columns * conv.kernel[0] * channels * MOVED
    if form == Form.PIXELS and scattered(conv, machine):
        vectors += pixels * SCATTERED
    return vectors * table.traffic.axpy_step


def scattered(conv: Convolution, machine: Machine) -> bool:
    """Whether single pixels are read, which lie apart and beyond the second-level cache."""
    floats = conv.n * conv.size[0] * conv.size[1] * conv.channels * conv.groups
    alone = conv.kernel == (1, 1) and conv.strides != (1, 1)
    return alone and not conv.half and floats * 4 > machine.l2_bytes
