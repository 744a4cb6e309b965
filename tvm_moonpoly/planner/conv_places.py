"""Which outputs see the input at a place of the kernel, along one axis; the others see padding.

Their twins in native code are in `native_conv_places`.
"""

from __future__ import annotations

from tvm_moonpoly.planner.conv_shapes import Convolution
from tvm_moonpoly.planner.groups import ceil_div

#: The longest side of a kernel whose places are counted.
LONGEST_SIDE = 16

#: Sixteenths of the computed cost that products of single places take: the first tiles of all rows
#: but one find their weights near, which is not counted.
PLACES_SIXTEENTHS = 15

#: Channels below which products of single places are not weighed: each adds to the outputs anew.
PLACES_CHANNELS = 64


def by_places(conv: Convolution) -> bool:
    """Whether products of single places, without those with padding, are weighed."""
    return (
        conv.padded
        and not conv.half
        and not conv.winograd
        and max(conv.kernel) <= LONGEST_SIDE
        and (conv.kernel == (1, 1) or conv.channels >= PLACES_CHANNELS)
    )


def span(at: int, size: int, stride: int, outputs: int) -> tuple[int, int]:
    """The first and the end of the ``outputs`` of which a place sees one of ``size`` inputs, where
    that of the first output is input ``at``, which may be outside."""
    first = min(ceil_div(max(-at, 0), stride), outputs)
    return first, max(min(ceil_div(max(size - at, 0), stride), outputs), first)


def seen(conv: Convolution, axis: int) -> int:
    """Along an axis, how many outputs see the input, summed over the kernel's places."""
    outputs = (conv.oh, conv.ow)[axis]
    total = 0
    for place in range(conv.kernel[axis]):
        at = place * conv.dilation[axis] - conv.padding[axis]
        first, end = span(at, conv.size[axis], conv.strides[axis], outputs)
        total += end - first
    return total


def places_share(conv: Convolution, axis: int, outputs: int) -> int:
    """Of so many neighbouring outputs along an axis, how many see the input at a place, on
    average; 1 at least."""
    every = conv.kernel[axis] * (conv.oh, conv.ow)[axis]
    return max(ceil_div(outputs * seen(conv, axis), every), 1)


def floats_seen(conv: Convolution) -> int:
    """Floats of the input for each output pixel, on average, of which some see padding."""
    each = conv.channels
    for axis in range(2):
        between = min(conv.strides[axis], conv.kernel[axis])
        every = conv.kernel[axis] * (conv.oh, conv.ow)[axis]
        each = ceil_div(each * between * seen(conv, axis), every)
    return each
