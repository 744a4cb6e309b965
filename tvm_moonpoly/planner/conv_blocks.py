"""How the pixels of a convolution are cut into blocks, and the workspace of each."""

from __future__ import annotations

from typing import NamedTuple

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form as KernelForm
from tvm_moonpoly.planner.conv_places import floats_seen
from tvm_moonpoly.planner.conv_shapes import Convolution, ConvPlan, Form
from tvm_moonpoly.planner.groups import ceil_div
from tvm_moonpoly.planner.shares import most_workers

#: Where the kernel has so many places and an im2col buffer takes so many bytes, all bands together
#: take at most a `BAND_PART`th of it.
BOUNDED_KERNEL, BOUNDED_BYTES, BAND_PART = 4, 1 << 20, 4

#: Of a patch: inputs along each side, products, and outputs along each side that they give.
WIDE, PATCH, SIDE = 4, 16, 2

#: Where transformed weights do not stay in the second-level cache, bands may be so many times its
#: size: then they are read again less often.
PATCHES_CACHES = 2

#: Blocks of form PLACES take all of the second-level cache where the weights are so many times as
#: large: then they are read less often. Others take half, and stay while the weights go through it.
PLACES_CACHES = 2

#: Floats that the offset of each step of the reduction takes.
OFFSET = 2

#: Pixels below which blocks are not made smaller for the sake of more workers.
FEWEST_PIXELS = 24

#: Floats behind a band: vectors may be written beyond its end.
SLACK = 16


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
        Form.PLACES: 0,
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
    if form == Form.PLACES:
        return machine.l2_bytes // (4 if weight > PLACES_CACHES * machine.l2_bytes else 8)
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
    elif form == Form.PLACES:
        images, height, whole = 1, conv.n * conv.oh, conv.ow
        first, step = 0, floats_seen(conv) + outputs
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
    if form == Form.PLACES:
        images, height = 1, conv.n * conv.oh
    most_blocks = max(height // max(fewest // given.width, 1), 1)
    asked = min(ceil_div(wanted, images * given.segments), most_blocks)
    rows = ceil_div(height, max(ceil_div(height, given.rows), asked))
    return given._replace(rows=rows, blocks=images * ceil_div(height, rows) * given.segments)


def workspace_bytes(plan: ConvPlan) -> int:
    """Bytes of workspace that all workers take together."""
    return plan.workers * plan.band * 4
