"""Linear layers with constant weights: DeepBench's, and those of public models.

``bench/shapes/gemm.csv`` lists them with their sources. DeepBench's sizes are column-major, where
the weight comes first; the file has them the other way round, as rows of activations times a
weight (k, n). Whether DeepBench transposes the weight makes no difference to a constant one, so
each size is there once.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.gemm.shapes import Shape

FILE = Path(__file__).resolve().parents[1] / "shapes" / "gemm.csv"
DEEPBENCH = "DeepBench"
MOST_ROWS = 1024
MOST_FLOPS = 20_000_000_000
MOST_WEIGHT_BYTES = 256 << 20
# What a dynamic model may call a layer with: small, prime, just past a power of two, round.
ROWS: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 24, 32, 33, 48, 64, 77, 100, 127, 128)
ROWS += (197, 256, 384, 512, 777, 1000, 1024)
ROWS_A_LAYER = 5
# Few products beyond the bounds above: they take long and are easy for everybody.
LARGER = (
    Shape(1500, 3072, 1024, layer="DeepBench"),
    Shape(3000, 1024, 1536, layer="DeepBench"),
    Shape(1500, 7680, 2560, layer="DeepBench"),
)


@dataclass(frozen=True)
class Layer:
    """A line of the file: a weight (k, n), and the fewest and most rows it is called with."""

    source: str
    name: str
    n: int
    k: int
    rows: tuple[int, int]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight."""
        return 4 * self.n * self.k


def read_layers(path: Path = FILE) -> list[Layer]:
    """All lines of the file; raises ValueError when one is malformed."""
    layers = []
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            low, _, high = line["rows"].partition(":")
            name = line["source"] if line["source"] == DEEPBENCH else line["set"]
            name = f"{name} {line['layer']}".strip()
            rows = (int(low), int(high or low))
            layers.append(Layer(line["source"], name, int(line["n"]), int(line["k"]), rows))
    return layers


def linear_cases() -> list[Shape]:
    """DeepBench within the bounds, every layer of the models with some row counts, a few larger.

    Weights above ``MOST_WEIGHT_BYTES`` are left out, see `left_out`: with every library's own
    packed copy of them they would take several GB.
    """
    layers = [layer for layer in read_layers() if layer.weight_bytes <= MOST_WEIGHT_BYTES]
    found: dict[str, Shape] = {}
    for shape in (*deepbench_cases(layers), *model_cases(layers), *LARGER):
        found.setdefault(shape.key, shape)
    return list(found.values())


def left_out() -> list[Layer]:
    """The layers whose weights are too large to be measured, one a size."""
    large = [layer for layer in read_layers() if layer.weight_bytes > MOST_WEIGHT_BYTES]
    return list({(layer.n, layer.k): layer for layer in reversed(large)}.values())


def deepbench_cases(layers: list[Layer]) -> Iterator[Shape]:
    """DeepBench's sizes of at most ``MOST_ROWS`` rows and ``MOST_FLOPS``."""
    for layer in layers:
        shape = Shape(layer.rows[0], layer.n, layer.k, layer=layer.name)
        if layer.source == DEEPBENCH and shape.m <= MOST_ROWS and shape.flops <= MOST_FLOPS:
            yield shape


def model_cases(layers: list[Layer]) -> Iterator[Shape]:
    """Each size of weight with ``ROWS_A_LAYER`` of ``ROWS``, spread so that all of them occur.

    A head of a language model or a classifier is not called with more rows than its line says.
    """
    sizes: dict[tuple[int, int], list[Layer]] = {}
    for layer in layers:
        if layer.source != DEEPBENCH:
            sizes.setdefault((layer.n, layer.k), []).append(layer)
    for at, ((n, k), same) in enumerate(sorted(sizes.items())):
        most = min(MOST_ROWS, max(layer.rows[1] for layer in same), MOST_FLOPS // (2 * n * k))
        rows = [m for m in ROWS if m <= most]
        apart = [step * len(rows) // ROWS_A_LAYER for step in range(ROWS_A_LAYER)]
        picked = {rows[(at + step) % len(rows)] for step in apart}
        for m in sorted(picked):
            yield Shape(m, n, k, layer=same[0].name)
