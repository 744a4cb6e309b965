"""What a caller promises of one dimension: how small, how large, a multiple of what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import lcm
from operator import index

from tvm_moonpoly.arguments import is_whole

LARGEST = (1 << 63) - 1  # of int64, which holds sizes


@dataclass(frozen=True)
class Range:
    """The sizes `smallest`, ..., `largest` (None: any) that are multiples of `multiple_of`.

    `likely` are sizes to be fast for; they promise nothing. Raises ValueError for numbers that
    are no sizes, and for a range without any size in it.
    """

    smallest: int = 0
    largest: int | None = None
    multiple_of: int = 1
    likely: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.likely, Iterable):
            raise ValueError(f"Range: likely must be a list of sizes, not {self.likely!r}")
        object.__setattr__(self, "likely", tuple(self.likely))
        named = {
            "smallest": self.smallest,
            "multiple_of": self.multiple_of,
            **({} if self.largest is None else {"largest": self.largest}),
            **{f"likely[{i}]": size for i, size in enumerate(self.likely)},
        }
        for name, value in named.items():
            if not is_whole(value) or not 0 <= index(value) <= LARGEST:
                raise ValueError(f"Range: {name} must be a whole number from 0 on, not {value!r}")
        for name in ("smallest", "multiple_of"):
            object.__setattr__(self, name, index(getattr(self, name)))
        if self.largest is not None:
            object.__setattr__(self, "largest", index(self.largest))
        object.__setattr__(self, "likely", tuple(map(index, self.likely)))
        if self.multiple_of == 0:
            raise ValueError("Range: multiple_of must be at least 1, not 0")
        if self.largest is not None and self.smallest > self.largest:
            raise ValueError(
                f"Range: smallest must be at most largest, not {self.smallest} with largest "
                f"{self.largest}"
            )
        first = -(-self.smallest // self.multiple_of) * self.multiple_of
        if first > (LARGEST if self.largest is None else self.largest):
            raise ValueError(
                f"Range: no multiple of multiple_of, {self.multiple_of}, is from smallest, "
                f"{self.smallest}, to largest, {self.largest}"
            )
        for size in self.likely:
            if size not in self:
                raise ValueError(f"Range: the likely size {size} is not {self}")

    def __contains__(self, size: int) -> bool:
        below = self.largest is None or size <= self.largest
        return self.smallest <= size and below and size % self.multiple_of == 0

    def __and__(self, other: Range) -> Range:
        """What both promise. Raises ValueError where no size keeps both (see `meets`)."""
        if not self.meets(other):
            raise ValueError(f"Range: no size is {self}, and {other}")
        largest = [each.largest for each in (self, other) if each.largest is not None]
        both = Range(
            max(self.smallest, other.smallest),
            min(largest) if largest else None,
            lcm(self.multiple_of, other.multiple_of),
        )
        likely = dict.fromkeys(size for size in (*self.likely, *other.likely) if size in both)
        return replace(both, likely=tuple(likely))

    def meets(self, other: Range) -> bool:
        """Whether there is a size that both promise."""
        step = lcm(self.multiple_of, other.multiple_of)
        first = -(-max(self.smallest, other.smallest) // step) * step
        ends = [each.largest for each in (self, other) if each.largest is not None]
        return first <= min([*ends, LARGEST])

    def includes(self, other: Range) -> bool:
        """Whether each size that `other` promises is one of these."""
        below = self.largest is None or (
            other.largest is not None and other.largest <= self.largest
        )
        return (
            self.smallest <= other.smallest and below and other.multiple_of % self.multiple_of == 0
        )

    def __str__(self) -> str:
        """`between 1 and 512 and a multiple of 8`."""
        parts = []
        if self.largest is not None:
            parts.append(f"between {self.smallest} and {self.largest}")
        elif self.smallest:
            parts.append(f"at least {self.smallest}")
        if self.multiple_of > 1:
            parts.append(f"a multiple of {self.multiple_of}")
        return " and ".join(parts) or "any size"
