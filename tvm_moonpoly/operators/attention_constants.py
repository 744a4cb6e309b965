"""What an attention is at compile time: its attributes, and where its operands find their dims.

All in numpy. The packed functions get it as one int64 vector, see `AttentionSpec.encode`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tvm_moonpoly.operators.tensors import ABSENT, COUNT_BIT

ATTENTION = "moonpoly_attention_f32"
ATTENTION_MASKED = "moonpoly_attention_masked_f32"
NAMES = (ATTENTION, ATTENTION_MASKED)

#: The operands that a `Place` is told of, and what it tells.
TENSORS = ("q", "k", "v", "out")
PLACE = ("axes", "merged", "offset")

#: The vector, in order.
ATTRIBUTES = (
    "heads",
    "kv_heads",
    "size",
    "value_size",
    "causal",
    "scale",
    *(f"{tensor}_{field}" for tensor in TENSORS for field in PLACE),
    "mask_axes",
)


class Causal(IntEnum):
    """Which keys a row of queries sees: all, or none later than itself.

    Rows and keys are counted from the first ones, or so that the last row is where the last key
    is. (With fewer keys than rows, as many more are seen: so it is in TVM's own attention.)
    """

    NONE = 0
    FROM_FIRST = 1
    FROM_LAST = 2


@dataclass(frozen=True)
class Place:
    """How (batch, head, row, element) lie in a stored tensor.

    Each is the stored dimension of that number, or of size 1 and not stored where it is None. Where
    the heads are not stored and ``merged``, they lie side by side in the dimension of the elements.
    ``offset`` elements of that dimension come before the first one.
    """

    axes: tuple[int | None, int | None, int | None, int | None] = (0, 1, 2, 3)
    merged: bool = False
    offset: int = 0

    @classmethod
    def columns(cls, offset: int = 0) -> Place:
        """(batch, row, heads * elements), from the column ``offset`` on."""
        return cls((0, None, 1, 2), True, offset)


@dataclass(frozen=True)
class AttentionSpec:
    """``softmax(scale * q @ k.T + mask) @ v`` for each batch entry and head.

    ``size`` elements of a row of q and k, ``value_size`` of v and the output. Each head of k and v
    serves ``heads / kv_heads`` of q that follow one another. ``mask`` tells the dimensions (batch,
    head, row, key) of the mask, which is added and may lack all but the last.

    Raises ValueError where that makes no sense.
    """

    heads: int
    size: int
    value_size: int
    scale: float
    kv_heads: int = 0
    causal: Causal = Causal.NONE
    q: Place = Place()
    k: Place = Place()
    v: Place = Place()
    out: Place = Place()
    mask: tuple[int | None, int | None, int | None, int | None] = (0, 1, 2, 3)

    def __post_init__(self) -> None:
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        if min(self.heads, self.kv_heads, self.size, self.value_size) < 1:
            raise ValueError("heads, kv_heads, size, value_size: must be at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads} must divide the heads, {self.heads}")
        for name in TENSORS:
            place: Place = getattr(self, name)
            if place.offset < 0 or (place.merged and place.axes[1] is not None):
                raise ValueError(f"{name}: {place} must not be")

    def encode(self) -> np.ndarray:
        """The attributes as the packed functions read them, in the order of `ATTRIBUTES`."""
        places = [getattr(self, name) for name in TENSORS]
        scale = int(np.float32(self.scale).view(np.int32))
        numbers = [self.heads, self.kv_heads, self.size, self.value_size, int(self.causal), scale]
        for place in places:
            numbers += [_axes_code(place.axes), int(place.merged), place.offset]
        return np.array([*numbers, _axes_code(self.mask)], np.int64)


def _axes_code(axes: tuple[int | None, ...]) -> int:
    """An axes code, as `encode_axes` makes it of those that name each stored dimension once."""
    code = len(axes) << COUNT_BIT
    for i, axis in enumerate(axes):
        code |= (ABSENT if axis is None else axis) << 4 * i
    return code
