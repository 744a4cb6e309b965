"""What is measured: which sizes of which network, and what is to be reached there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.minilm.sentences import SIZES


@dataclass(frozen=True)
class Group:
    """Sizes of a network that are judged together.

    ``sizes`` are arguments of the network's ``feed``, whose names are ``axes``. ``targets`` are of
    the geometric mean of the ratios to onnxruntime, by the number of threads; the upper 95 % bound
    of no size may be below ``floor``. ``flops`` are those of one item, such as a token or a pixel;
    the dimensions ``item`` of a size count them. ``quick`` are positions in ``sizes``.
    """

    name: str
    title: str
    network: str
    axes: str
    sizes: tuple[tuple[int, ...], ...]
    targets: Mapping[int, float]
    floor: float
    flops: float
    item: Sequence[int]
    quick: tuple[int, ...] = (0, 1, 2)

    def work(self, size: Sequence[int]) -> float:
        """Floating-point operations of a call, or so."""
        return self.flops * math.prod(size[at] for at in self.item)


GROUPS = {
    group.name: group
    for group in (
        Group(
            "minilm",
            "MiniLM",
            "minilm",
            "batch, seq",
            SIZES,
            {1: 1.12, 2: 1.05},
            0.95,
            45e6,
            (0, 1),
            (1, 2, 4),
        ),
        Group(
            "recogniser",
            "PP-OCRv4 recogniser",
            "recogniser",
            "lines, width",
            (
                (1, 96),
                (1, 320),
                (2, 160),
                (1, 641),
                (3, 241),
                (1, 200),
                (4, 320),
                (6, 320),
                (2, 481),
            ),
            {1: 1.45, 2: 1.30},
            0.95,
            6e6,
            (0, 1),
        ),
        Group(
            "classifier",
            "PP-OCR classifier",
            "classifier",
            "lines, width",
            (
                (1, 192),
                (1, 96),
                (3, 160),
                (1, 641),
                (6, 192),
                (2, 241),
                (4, 320),
                (1, 320),
            ),
            {1: 1.20, 2: 1.10},
            0.95,
            1e6,
            (0, 1),
        ),
        Group(
            "vit",
            "ViT-S/16",
            "vit",
            "batch",
            ((1,), (3,), (2,), (8,), (5,), (4,), (6,)),
            {1: 1.10, 2: 1.05},
            0.92,
            9e9,
            (0,),
        ),
        Group(
            "prefill",
            "decoder, prefill",
            "decoder",
            "batch, seq, past",
            (
                (1, 7, 0),
                (1, 128, 0),
                (2, 33, 0),
                (1, 512, 0),
                (4, 64, 0),
                (1, 64, 0),
                (1, 255, 0),
                (8, 16, 0),
            ),
            {1: 1.10, 2: 1.05},
            0.92,
            55e6,
            (0, 1),
        ),
        Group(
            "decode",
            "decoder, one token after its cache",
            "decoder",
            "batch, seq, past",
            (
                (1, 1, 1),
                (1, 1, 128),
                (4, 1, 63),
                (1, 1, 1023),
                (2, 1, 333),
                (1, 1, 511),
                (8, 1, 200),
                (1, 1, 37),
            ),
            {1: 1.10, 2: 1.05},
            0.92,
            60e6,
            (0, 1),
        ),
        Group(
            "resnet",
            "ResNet-18",
            "resnet",
            "batch, height, width",
            (
                (1, 160, 160),
                (4, 160, 160),
                (1, 224, 224),
                (1, 512, 512),
                (4, 224, 224),
                (1, 320, 253),
                (1, 384, 384),
                (4, 301, 400),
                (4, 512, 512),
            ),
            {1: 1.05, 2: 1.00},
            0.90,
            73e3,
            (0, 1, 2),
        ),
    )
}


@dataclass(frozen=True)
class Case:
    """A size of a group: what the journal keeps and workers are asked for."""

    group: str
    size: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"{self.group}/{'x'.join(map(str, self.size))}"

    @property
    def network(self) -> str:
        return GROUPS[self.group].network

    @property
    def flops(self) -> float:
        return GROUPS[self.group].work(self.size)

    def to_json(self) -> dict[str, Any]:
        return {"group": self.group, "size": list(self.size)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        return cls(data["group"], tuple(data["size"]))


def all_cases(groups: Sequence[str] = tuple(GROUPS), quick: bool = False) -> list[Case]:
    """The cases of ``groups``, a network's together: it is loaded once."""
    return [
        Case(name, GROUPS[name].sizes[at])
        for name in GROUPS
        if name in groups
        for at in (GROUPS[name].quick if quick else range(len(GROUPS[name].sizes)))
    ]


def quick_of(network: str) -> list[Case]:
    """The cases of a quick run that are of ``network``."""
    return [case for case in all_cases(quick=True) if case.network == network]


def smallest(cases: Sequence[Case]) -> list[Case]:
    """That of each group with the least work."""
    found: dict[str, Case] = {}
    for case in cases:
        if case.group not in found or case.flops < found[case.group].flops:
            found[case.group] = case
    return list(found.values())
