"""The twins of `conv_places` as native expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import tirx

from tvm_moonpoly.emit import (
    INT,
    Expr,
    as_int,
    ceil_div,
    cell,
    loop,
    maximum,
    minimum,
    scratch,
)
from tvm_moonpoly.planner.conv_places import LONGEST_SIDE, PLACES_CHANNELS

#: Of each axis what its numbers are called, as in `conv_numbers`: inputs, outputs, the kernel's
#: places, strides, dilation, and padding before.
AXES = (
    ("h", "oh", "kernel_h", "stride_h", "dilation_h", "top"),
    ("w", "ow", "kernel_w", "stride_w", "dilation_w", "left"),
)


def by_places(s: Mapping[str, Expr]) -> Expr:
    """The twin of `conv_places.by_places`, where Winograd's algorithm is not used."""
    return tirx.all(
        s["top"] + s["left"] + s["bottom"] + s["right"] > 0,
        s["half"] == 0,
        s["kernel_h"] <= LONGEST_SIDE,
        s["kernel_w"] <= LONGEST_SIDE,
        tirx.any(s["kernel_h"] * s["kernel_w"] == 1, s["channels"] >= PLACES_CHANNELS),
    )


def span(at: Expr, size: Expr, stride: Expr, outputs: Expr) -> tuple[Expr, Expr]:
    """The twin of `conv_places.span`."""
    first = cell(minimum(ceil_div(maximum(0 - at, 0), stride), outputs))
    last = cell(minimum(ceil_div(maximum(size - at, 0), stride), outputs))
    return first, cell(maximum(last, first))


def seen(s: Mapping[str, Expr], axis: int) -> Expr:
    """The twin of `conv_places.seen`: a loop over at most `LONGEST_SIDE` places."""
    size, outputs, kernel, stride, dilation, before = (s[name] for name in AXES[axis])
    total = scratch(1, INT)
    total[0] = as_int(0)
    with loop(minimum(kernel, LONGEST_SIDE)) as place:
        at = cell(place * dilation - before)
        first, end = span(at, size, stride, outputs)
        total[0] = total[0] + (end - first)
    return cell(total[0])


def places_share(s: Mapping[str, Expr], axis: int, outputs: Expr, sees: Expr) -> Expr:
    """The twin of `conv_places.places_share`, ``sees`` being what `seen` is."""
    _, all_outputs, kernel, *_ = (s[name] for name in AXES[axis])
    return cell(maximum(ceil_div(outputs * sees, kernel * all_outputs), 1))


def floats_seen(s: Mapping[str, Expr], sees: Sequence[Expr]) -> Expr:
    """The twin of `conv_places.floats_seen`."""
    each = s["channels"]
    for axis in range(2):
        _, outputs, kernel, stride, *_ = (s[name] for name in AXES[axis])
        each = cell(ceil_div(each * minimum(stride, kernel) * sees[axis], kernel * outputs))
    return each
