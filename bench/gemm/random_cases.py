"""Cases drawn at random from a seed: that a list is fast does not say that others are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from bench.gemm.shapes import Shape

COUNTS = {"linear": 24, "dynamic": 10, "attention": 10}
MOST_FLOPS = 4_000_000_000
HEADS = (12, 14, 16, 32)
WIDTHS = (64, 96, 128)


def random_cases(seed: int) -> list[Shape]:
    """``COUNTS`` cases of each workload, none above ``MOST_FLOPS``; the same for the same seed."""
    draws = {"linear": draw_linear, "dynamic": draw_dynamic, "attention": draw_attention}
    cases: list[Shape] = []
    for at, (workload, count) in enumerate(COUNTS.items()):
        rng = np.random.default_rng([seed, at])
        cases += islice(distinct(rng, draws[workload]), count)
    return cases


def distinct(
    rng: np.random.Generator, draw: Callable[[np.random.Generator], Shape]
) -> Iterator[Shape]:
    """Cases without end, each once, none too large."""
    seen = set()
    while True:
        shape = draw(rng)
        if shape.flops <= MOST_FLOPS and shape.key not in seen:
            seen.add(shape.key)
            yield shape


def log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    """A whole number whose logarithm is evenly spread, both ends counted."""
    return int(math.exp(rng.uniform(math.log(low), math.log(high + 1))))


def draw_linear(rng: np.random.Generator) -> Shape:
    """Any sizes: 1 to 1024 rows, a weight of 64 to 4096 each way."""
    m, n, k = log_uniform(rng, 1, 1024), log_uniform(rng, 64, 4096), log_uniform(rng, 64, 4096)
    return Shape(m, n, k, layer="random", source="random")


def draw_dynamic(rng: np.random.Generator) -> Shape:
    """The same with a right operand that is new at each call, half of them with rows far apart."""
    m, n, k = log_uniform(rng, 2, 1024), log_uniform(rng, 64, 4096), log_uniform(rng, 64, 4096)
    transposed = bool(rng.integers(2))
    apart = int(rng.integers(1, 2048)) if rng.integers(2) else 0
    stride = (k if transposed else n) + apart if apart else None
    return Shape(m, n, k, 1, "random", transposed, "dynamic", False, stride, source="random")


def draw_attention(rng: np.random.Generator) -> Shape:
    """One of the two products of attention: any lengths, one query in a quarter of the cases."""
    heads, width = int(rng.choice(HEADS)), int(rng.choice(WIDTHS))
    keys = log_uniform(rng, 1, 2048)
    rows = 1 if rng.integers(4) == 0 else log_uniform(rng, 1, 2048)
    if rng.integers(2):
        return Shape(rows, keys, width, heads, "random", transposed=True, source="random")
    return Shape(rows, width, keys, heads, "random", source="random")
