"""How a convolution becomes matrix products, in plain Python: the specification that
`native_conv` repeats to the bit.

An output pixel is a row of a product whose depth is the kernel's, steps in the order (kw, kh, c).
Pixels are computed block by block. A block's rows of A are read from the input as they lie, or from
a *band* that is filled before: there each input column of a row of windows is one run of kh * c
floats, so that the window of a pixel is one run too, which shares all but its ends with the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tvm_moonpoly.costmodel.tables import BlockSizes, CostTable
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form as KernelForm
from tvm_moonpoly.planner.groups import Product, ceil_div
from tvm_moonpoly.planner.plan import BMode
from tvm_moonpoly.planner.shares import most_workers
from tvm_moonpoly.planner.spec import with_blocks


class Form(IntEnum):
    """Where the rows of A of a block are."""

    #: in the input, all pixels evenly spaced: 1x1 without strides or padding
    JOINED = 0
    #: in the input, those of an output row evenly spaced
    ROWS = 1
    #: in a band, windows of an output row overlapping
    WINDOWS = 2
    #: in a band, the window of each pixel on its own
    PIXELS = 3
    #: in a band, transformed patches of 4x4 inputs, for 2x2 outputs each
    PATCHES = 4
    #: in the input, or in a band of its rows, each step at the same offset from all pixels
    OFFSETS = 5


#: Blocks of the reduction that are weighed, 0 for all of it.
DEPTHS = (0, 2048, 1024)

#: Output rows below which windows on their own are weighed, of which tiles of any height are made.
NARROW = 64

#: Blocks for each worker, and the pixels below which they are not made smaller for that.
CHUNKS, FEWEST_PIXELS = 4, 24

#: Where the kernel has so many places and an im2col buffer takes so many bytes, all bands together
#: take at most a `BAND_PART`th of it.
BOUNDED_KERNEL, BOUNDED_BYTES, BAND_PART = 4, 1 << 20, 4

#: Vectors of a band cost so many times what a vector added to one in the caches does.
MOVED = 2

#: Of a patch: inputs along each side, products, and outputs along each side that they give.
WIDE, PATCH, SIDE = 4, 16, 2

#: Where transformed weights do not stay in the second-level cache, bands may be so many times its
#: size: then they are read again less often.
PATCHES_CACHES = 2

#: The most channels, and steps of the reduction, of windows that are read at offsets, each of which
#: takes so many floats.
OFFSETS_CHANNELS, OFFSETS_DEPTH, OFFSET = 4, 512, 2

#: Vectors of outputs in their tiles; those of an odd number of panels have more in the end.
OFFSETS_WIDTH = 2

#: Floats behind a band: vectors may be written beyond its end.
SLACK = 16


@dataclass(frozen=True)
class Convolution:
    """The sizes of a convolution, as far as plans depend on them; of channels, those of a group.

    ``half``: operands are float16, so that bands and outputs are converted.
    """

    n: int
    oh: int
    ow: int
    channels: int
    outputs: int
    groups: int = 1
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padded: bool = False
    half: bool = False
    winograd: bool = False
    residual: bool = False

    @property
    def depth(self) -> int:
        """Steps of the reduction."""
        return self.kernel[0] * self.kernel[1] * self.channels

    @property
    def pixels(self) -> int:
        """Output pixels of all images."""
        return self.n * self.oh * self.ow


@dataclass(frozen=True)
class ConvPlan:
    """How a convolution is cut and tiled.

    A block has ``rows`` output rows of one image, of each at most ``width`` pixels, an output row
    being cut in ``segments``. In forms JOINED and PIXELS it has ``width`` pixels of all images, and
    ``rows`` is 1. In form PATCHES rows and pixels are those of patches, the rows those of all
    images. There are ``blocks`` for each group, each cut by columns in ``splits_n``.
    ``band`` is how many floats of workspace each of the ``workers`` takes. The other fields are
    those of `plan.Plan`, ``picoseconds`` the cost of all on one core.
    """

    form: Form
    rows: int
    width: int
    segments: int
    blocks: int
    splits_n: int
    workers: int
    band: int
    nv: int
    mr: int
    tail_nv: int
    tail_mr: int
    kc: int
    picoseconds: int


#: The fields of a plan, in the order in which the native planner writes them.
PLAN_FIELDS = tuple(ConvPlan.__dataclass_fields__)


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
    by_rows = [Form.ROWS] if in_place else [Form.WINDOWS] if conv.dilation[1] == 1 else []
    return by_rows + ([Form.PIXELS] if conv.ow < NARROW or not by_rows else [])


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


def columns_of(conv: Convolution, width: int) -> int:
    """Input columns that the windows of ``width`` neighbouring pixels cover."""
    return (width - 1) * conv.strides[1] + conv.kernel[1]


def patch_floats(conv: Convolution, machine: Machine, table: CostTable) -> int:
    """Floats of workspace for each patch of a block: its inputs, and its outputs in the widest
    group of panels."""
    return PATCH * (conv.channels + max(table.widths(KernelForm.PLAIN)) * machine.lanes)


def band_floats(
    conv: Convolution, form: Form, rows: int, width: int, machine: Machine, table: CostTable
) -> int:
    """Floats of workspace for a block: its band, and its outputs where they are converted."""
    pixels = rows * width
    if form == Form.PATCHES:
        # and a patch that is not yet transformed
        return pixels * patch_floats(conv, machine, table) + PATCH * conv.channels + SLACK
    if form == Form.OFFSETS:
        runs = (rows - 1) * conv.strides[0] + conv.kernel[0]
        band = runs * columns_of(conv, width) * conv.channels if conv.padded else 0
        return band + OFFSET * conv.depth + SLACK
    band = {
        Form.JOINED: 0,
        Form.ROWS: 0,
        Form.WINDOWS: rows * columns_of(conv, width) * conv.kernel[0] * conv.channels,
        Form.PIXELS: pixels * conv.depth,
    }[form]
    outputs = pixels * ceil_div(conv.outputs, machine.lanes) * machine.lanes if conv.half else 0
    return band + outputs + SLACK if band + outputs else 0


def most_floats(conv: Convolution, form: Form, workers: int, machine: Machine) -> int:
    """Floats that a block may take: what stays in the second-level cache beside the
    weights, and the bound on the workspace."""
    steps = PATCH * conv.channels if conv.winograd else conv.depth
    weight = steps * conv.outputs * 4
    if weight <= machine.l2_bytes // 4:
        most = machine.l2_bytes // 16
    elif conv.winograd:
        most = machine.l2_bytes // 4 * PATCHES_CACHES
    else:
        most = machine.l2_bytes // 8
    columns = conv.pixels * conv.depth * conv.groups
    if conv.kernel[0] * conv.kernel[1] >= BOUNDED_KERNEL and columns * 4 >= BOUNDED_BYTES:
        beside = SLACK + (PATCH * conv.channels if conv.winograd else 0)
        beside += OFFSET * conv.depth if form == Form.OFFSETS else 0
        most = min(most, max(columns // (BAND_PART * workers) - beside, 1))
    return most


def workers_of(conv: Convolution, machine: Machine) -> int:
    """Workers that there can be: with too few pixels for that, one band alone would break the
    bound on the workspace."""
    fitting = max(conv.pixels * conv.groups // (2 * BAND_PART), 1)
    return min(most_workers(machine), fitting)


class Cut(NamedTuple):
    """How pixels, or patches, are cut into blocks: see `ConvPlan`."""

    rows: int
    width: int
    segments: int
    blocks: int


def cut(conv: Convolution, form: Form, most: int, machine: Machine, table: CostTable) -> Cut:
    """Blocks, of about one size, of which the rows of A and the outputs take at most ``most``
    floats; those of one pixel or patch may take more."""
    outputs = ceil_div(conv.outputs, machine.lanes) * machine.lanes
    if form in (Form.JOINED, Form.PIXELS):
        width = min(max(most // (conv.depth + outputs), 1), conv.pixels)
        blocks = ceil_div(conv.pixels, width)
        return Cut(1, ceil_div(conv.pixels, blocks), 1, blocks)
    # of a row of windows the first column is wider
    if form == Form.PATCHES:
        images, height, whole = 1, conv.n * ceil_div(conv.oh, SIDE), ceil_div(conv.ow, SIDE)
        first, step = 0, patch_floats(conv, machine, table)
    else:
        images, height, whole = conv.n, conv.oh, conv.ow
        column = conv.kernel[0] * conv.channels
        first, step = (
            (conv.kernel[1] - conv.strides[1]) * column,
            conv.strides[1] * column + outputs,
        )
    row = first + whole * step
    fitting = max(max(most - max(first, 0), 0) // step, 1)
    segments = ceil_div(whole, min(whole, fitting)) if row > most else 1
    rows = max(most // row, 1) if segments == 1 else 1
    row_blocks = ceil_div(height, rows)
    rows = ceil_div(height, row_blocks)
    blocks = images * ceil_div(height, rows) * segments
    return Cut(rows, ceil_div(whole, segments), segments, blocks)


def smaller(conv: Convolution, form: Form, given: Cut, wanted: int) -> Cut:
    """About ``wanted`` blocks in place of fewer, but none of few pixels."""
    if form in (Form.JOINED, Form.PIXELS):
        blocks = max(given.blocks, min(wanted, max(conv.pixels // FEWEST_PIXELS, 1)))
        width = ceil_div(conv.pixels, blocks)
        return Cut(1, width, 1, ceil_div(conv.pixels, width))
    images, height, fewest = conv.n, conv.oh, FEWEST_PIXELS
    if form == Form.PATCHES:
        images, height, fewest = 1, conv.n * ceil_div(conv.oh, SIDE), FEWEST_PIXELS // SIDE**2
    most_blocks = max(height // max(fewest // given.width, 1), 1)
    asked = min(ceil_div(wanted, images * given.segments), most_blocks)
    rows = ceil_div(height, max(ceil_div(height, given.rows), asked))
    return given._replace(rows=rows, blocks=images * ceil_div(height, rows) * given.segments)


def of_form(conv: Convolution, form: Form, machine: Machine, table: CostTable) -> ConvPlan:
    """The cheapest plan of one form."""
    workers = workers_of(conv, machine)
    blocks = cut(conv, form, most_floats(conv, form, workers, machine), machine, table)
    if form == Form.PATCHES:
        padded = ceil_div(conv.outputs, machine.lanes) * machine.lanes
        product, times = Product(blocks.rows * blocks.width, padded, conv.channels), PATCH
    else:
        product, times = Product(blocks.rows * blocks.width, conv.outputs, conv.depth), 1
    apart = blocks.rows > 1 and form != Form.PATCHES
    choices = [
        choice
        for kc in DEPTHS
        if not kc or (product.k > kc and form != Form.PATCHES)
        for choice in with_blocks(
            product,
            BMode.PREPACKED,
            BlockSizes(False, kc, blocks.width if apart else 0),
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
    cost = blocks.blocks * (times * best.picoseconds + around) * conv.groups
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
        kc=best.plan.kc,
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
    if form in (Form.JOINED, Form.ROWS) or (form == Form.OFFSETS and not conv.padded):
        return 0
    if form == Form.OFFSETS:
        floats = band_floats(conv, form, blocks.rows, blocks.width, machine, table)
        return ceil_div(floats, machine.lanes) * MOVED * table.traffic.axpy_step
    overlapping = blocks.rows * columns_of(conv, blocks.width)
    columns = overlapping if form == Form.WINDOWS else pixels * conv.kernel[1]
    return columns * conv.kernel[0] * channels * MOVED * table.traffic.axpy_step


def workspace_bytes(plan: ConvPlan) -> int:
    """Bytes of workspace that all workers take together."""
    return plan.workers * plan.band * 4
