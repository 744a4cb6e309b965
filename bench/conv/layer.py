"""One case of the bench: a convolution with its attributes and the size of its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

DEPTHWISE, POINTWISE, FIRST, WINDOW = "depthwise", "1x1", "first layer", "window"
CLASSES = (WINDOW, POINTWISE, DEPTHWISE, FIRST)


@dataclass(frozen=True)
class Layer:
    """A convolution of (n, c, h, w) with a weight (k, c / groups, *kernel) and a bias, in float32.

    ``padding`` is (top, left, bottom, right).
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    network: str = ""

    def __post_init__(self) -> None:
        for name in ("kernel", "strides", "padding", "dilation"):
            object.__setattr__(self, name, tuple(map(int, getattr(self, name))))
        if self.c % self.groups or self.k % self.groups:
            raise ValueError(f"groups must divide the channels, got {self}")
        if min(self.output) < 1:
            raise ValueError(f"the kernel must not be larger than the padded input, got {self}")

    @property
    def output(self) -> tuple[int, int]:
        """Rows and columns of the output."""
        sizes = zip((self.h, self.w), self.kernel, self.strides, self.dilation, strict=True)
        pads = (self.padding[0] + self.padding[2], self.padding[1] + self.padding[3])
        first, second = (
            (size + pad - (kernel - 1) * dilation - 1) // stride + 1
            for (size, kernel, stride, dilation), pad in zip(sizes, pads, strict=True)
        )
        return first, second

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiplication and an addition counted as two."""
        taps = self.kernel[0] * self.kernel[1] * (self.c // self.groups)
        return 2 * self.n * self.output[0] * self.output[1] * self.k * taps

    @property
    def group(self) -> str:
        """The class under which it is summed up, one of ``CLASSES``."""
        if 1 < self.groups == self.c:
            return DEPTHWISE
        if self.c <= 4:
            return FIRST
        return POINTWISE if self.kernel == (1, 1) else WINDOW

    @property
    def key(self) -> str:
        """A string that no other layer has; the name of the network has no part in it."""
        words = [f"{self.n}x{self.c}x{self.h}x{self.w}", f"k{self.k}", joined(self.kernel)]
        words.append(f"s{joined(self.strides)}")
        words.append(f"p{joined(self.padding)}")
        if self.dilation != (1, 1):
            words.append(f"d{joined(self.dilation)}")
        if self.groups > 1:
            words.append(f"g{self.groups}")
        return "/".join(words)

    def scaled(self, resolution: int, usual: int = 224) -> Layer:
        """The layer where the network's input has ``resolution`` rows and columns."""
        h, w = (max(1, -(-size * resolution // usual)) for size in (self.h, self.w))
        return replace(self, h=h, w=w)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layer:
        """The layer of ``to_json``; raises ValueError when a field is unknown."""
        if set(data) - {field.name for field in fields(cls)}:
            raise ValueError(f"not a layer: {dict(data)}")
        return cls(**data)


def joined(numbers: tuple[int, ...]) -> str:
    """One number where all are the same, else all of them."""
    return "x".join(map(str, numbers if len(set(numbers)) > 1 else numbers[:1]))
