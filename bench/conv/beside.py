"""TVM without tvm_moonpoly, which is measured beside ours on a sample of the layers: every layer is
a module of its own, whose compilation takes seconds, and calls take long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.beside import Beside
from bench.conv.cases import in_turn
from bench.conv.layer import DEPTHWISE, Layer

MOST, ONE_IN = 24, 4  # layers of a sample, and of how many it has one


def sample(
    flops: float, takes: Callable[[Layer], bool]
) -> Callable[[Sequence[Layer]], list[Layer]]:
    """Takes layers of up to ``flops`` operations, spread evenly over classes and work."""

    def pick(layers: Sequence[Layer]) -> list[Layer]:
        found = [layer for layer in layers if layer.flops <= flops and takes(layer)]
        return in_turn(found)[: min(MOST, max(1, len(layers) // ONE_IN))]

    return pick


def without_groups(layer: Layer) -> bool:
    """Whether the schedule that is written by hand takes it."""
    return layer.groups == 1 or layer.group == DEPTHWISE


BESIDE = (
    Beside(
        "tvm_plain",
        "plain TVM",
        "apache-tvm",
        "of at most 0.1 GFLOP each, spread evenly over classes and work",
        sample(0.1e9, lambda layer: True),
        rounds=4,
        fewest=4,
        flops=0.5e9,
        starting=4.0,
        patience=60.0,
    ),
    Beside(
        "tvm_hand",
        "TVM by hand",
        "apache-tvm",
        "of at most 2 GFLOP each, spread evenly over classes and work",
        sample(2e9, without_groups),
        rounds=6,
        fewest=6,
        flops=5e9,
        starting=4.0,
        patience=60.0,
    ),
)
"""In the order in which they are measured, and shown in tables."""
