"""A convolution and its plan, as the planner sees them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


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
    #: in the input, of each place of the kernel those of an output row that see the input
    PLACES = 6


@dataclass(frozen=True)
class Convolution:
    """The sizes of a convolution, as far as plans depend on them; of channels, those of a group.

    ``size`` is the height and the width of the input, ``padding`` (top, left, bottom, right).
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
    size: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    half: bool = False
    winograd: bool = False
    residual: bool = False

    @property
    def padded(self) -> bool:
        """Whether there is any padding."""
        return any(self.padding)

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
    ``rows`` is 1. In form PATCHES rows and pixels are those of patches; in this form and in PLACES
    the rows are those of all images. There are ``blocks`` for each group, each cut by columns in
    ``splits_n``. ``band`` is how many floats of workspace each of the ``workers`` takes. The other
    fields are those of `plan.Plan`, ``picoseconds`` the cost of all on one core.
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
