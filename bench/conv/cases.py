"""Which layers are measured: those of networks, some at other batches and resolutions."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.conv.layer import CLASSES, Layer

FILE = Path(__file__).resolve().parents[1] / "shapes" / "conv2d.csv"
MOST_FLOPS = 20_000_000_000
QUICK_FLOPS = 500_000_000
QUICK_OF_A_CLASS = 7
BATCHES = (2, 8)
RESOLUTIONS = (64, 160, 320, 448, 640)
SAMPLE_BATCHES, SAMPLE_RESOLUTIONS = 5, 3  # every so manieth layer

#: Depthwise layers of recognisers of lines of text: (channels, rows, columns, kernel, strides).
TEXT_LINES = (
    (16, 24, 160, 3, (1, 1)),
    (32, 24, 160, 3, (1, 1)),
    (64, 24, 160, 3, (2, 1)),
    (128, 12, 160, 3, (1, 1)),
    (128, 12, 160, 3, (1, 2)),
    (240, 12, 80, 5, (1, 1)),
    (240, 6, 80, 5, (1, 1)),
    (256, 12, 80, 5, (2, 1)),
    (512, 6, 80, 5, (1, 1)),
    (480, 3, 80, 5, (1, 1)),
    (8, 24, 96, 3, (1, 1)),
    (24, 12, 96, 3, (1, 1)),
    (72, 12, 40, 3, (2, 1)),
    (40, 6, 40, 5, (1, 1)),
    (120, 6, 20, 5, (2, 1)),
    (200, 3, 10, 5, (1, 1)),
    (16, 48, 320, 3, (2, 2)),
)


def all_cases() -> list[Layer]:
    """The full run, each layer once."""
    listed = listed_layers()
    networks = [layer for layer in listed if layer.network != "DeepBench"]
    batches = [
        replace(layer, n=BATCHES[at % len(BATCHES)])
        for at, layer in enumerate(networks[::SAMPLE_BATCHES])
    ]
    scaled = [
        layer.scaled(RESOLUTIONS[at % len(RESOLUTIONS)])
        for at, layer in enumerate(networks[1::SAMPLE_RESOLUTIONS])
        if layer.h > 1
    ]
    return once([*listed, *text_lines(), *batches, *scaled])


def quick_cases() -> list[Layer]:
    """Some small layers of every class."""
    found = []
    small = [layer for layer in all_cases() if layer.flops <= QUICK_FLOPS]
    for name in CLASSES:
        members = [layer for layer in small if layer.group == name]
        step = max(1, len(members) // QUICK_OF_A_CLASS)
        found += members[::step][:QUICK_OF_A_CLASS]
    return found


def listed_layers(path: Path = FILE) -> list[Layer]:
    """The layers of the file that are not too large, each once."""
    with path.open(encoding="utf-8", newline="") as file:
        return once([layer for row in csv.DictReader(file) if (layer := layer_of(row))])


def layer_of(row: dict[str, str]) -> Layer | None:
    """A line of the file; None when its kernel is larger than its input."""
    number = {name: int(row[name]) for name in ("N", "C", "H", "W", "K", "R", "S", "groups")}
    stride, pad, dilation = (int(row[name]) for name in ("stride", "pad", "dilation"))
    network = "DeepBench" if row["source"] == "DeepBench" else row["model"]
    try:
        return Layer(
            number["N"],
            number["C"],
            number["H"],
            number["W"],
            number["K"],
            (number["R"], number["S"]),
            (stride, stride),
            (pad,) * 4,
            (dilation, dilation),
            number["groups"],
            network,
        )
    except ValueError:
        return None


def text_lines() -> list[Layer]:
    """`TEXT_LINES` as layers."""
    return [
        Layer(1, c, h, w, c, (k, k), strides, (k // 2,) * 4, groups=c, network="text lines")
        for c, h, w, k, strides in TEXT_LINES
    ]


def in_turn(layers: Sequence[Layer]) -> list[Layer]:
    """The layers in an order whose beginnings are fair samples: a layer of each class in turn, and
    within a class by bisection of its layers sorted by their work."""
    ranked = []
    for place, name in enumerate(CLASSES):
        members = sorted(
            (layer for layer in layers if layer.group == name), key=lambda one: (one.flops, one.key)
        )
        turns = sorted(range(len(members)), key=reversed_bits)
        ranked += [(turn, place, members[at]) for turn, at in enumerate(turns)]
    return [layer for _, _, layer in sorted(ranked, key=lambda one: one[:2])]


def reversed_bits(number: int, width: int = 16) -> int:
    """The binary digits of ``number`` from the last to the first: 0, 1/2, 1/4, 3/4, ..."""
    return int(f"{number:0{width}b}"[::-1], 2)


def once(layers: list[Layer]) -> list[Layer]:
    """Without those that came before under another name or are too large, the classes one after
    another."""
    found = {layer.key: layer for layer in reversed(layers) if layer.flops < MOST_FLOPS}
    order = list(reversed(found.values()))
    return sorted(order, key=lambda layer: CLASSES.index(layer.group))
