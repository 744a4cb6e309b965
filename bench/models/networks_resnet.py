"""ResNet-18 for any number of images of any height and width.

As exporters write it: convolutions without bias, each with its batch normalization, residual blocks
of two, pools at both ends, and a Gemm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from bench.models.weights import Shapes, linear, random_weights
from bench.onnx_graph import WeightedGraph, floats

INPUT, OUTPUT = "image", "logits"
CHANNELS, EPSILON = 3, 1e-5
BLOCKS = 2  # a stage


@dataclass(frozen=True)
class ResnetConfig:
    """Channels of each stage, and of the result; ``stem`` is what the first layer makes."""

    stages: tuple[int, ...] = (64, 128, 256, 512)
    classes: int = 1000

    @property
    def stem(self) -> int:
        return self.stages[0]


BENCH = ResnetConfig()
SMALL = ResnetConfig(stages=(8, 24), classes=10)


@dataclass(frozen=True)
class Block:
    """A residual block: its name, channels in and out, and stride."""

    name: str
    before: int
    channels: int
    stride: int

    @property
    def shortcut(self) -> bool:
        """Whether what is added needs a convolution of its own."""
        return self.stride > 1 or self.before != self.channels


def blocks(config: ResnetConfig) -> list[Block]:
    """All blocks from first to last."""
    found, before = [], config.stem
    for stage, channels in enumerate(config.stages):
        for at in range(BLOCKS):
            stride = 2 if stage and not at else 1
            found.append(Block(f"layer{stage + 1}.{at}", before, channels, stride))
            before = channels
    return found


def feed(
    config: ResnetConfig, batch: int, height: int, width: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random images, float32 (batch, 3, height, width)."""
    rng = np.random.default_rng((seed, batch, height, width))
    return {INPUT: rng.standard_normal((batch, CHANNELS, height, width), np.float32)}


def build(config: ResnetConfig = BENCH, seed: int = 0) -> onnx.ModelProto:
    """The checked model: images float32 (batch, 3, height, width) to float32 (batch, classes)."""
    graph = _Resnet(random_weights(shapes(config), seed, ("bn2.weight", "bn2.bias")))
    x = graph.node("Relu", [graph.convolution(INPUT, "conv1", "bn1", 7, 2)])
    x = graph.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block in blocks(config):
        x = graph.block(x, block)
    x = graph.node("Flatten", [graph.node("GlobalAveragePool", [x])], axis=1)
    head = [graph.weight("fc.weight"), graph.weight("fc.bias")]
    graph.node("Gemm", [x, *head], OUTPUT, alpha=1.0, beta=1.0, transB=1)
    return graph.model(
        "resnet",
        [floats(INPUT, "batch", CHANNELS, "height", "width")],
        [floats(OUTPUT, "batch", config.classes)],
    )


def shapes(config: ResnetConfig) -> Shapes:
    """Of all weights, by name."""
    found: dict[str, tuple[int, ...]] = {"conv1.weight": (config.stem, CHANNELS, 7, 7)}
    found |= batch_norm("bn1", config.stem)
    for block in blocks(config):
        k, c, name = block.channels, block.before, block.name
        found |= {f"{name}.conv1.weight": (k, c, 3, 3), f"{name}.conv2.weight": (k, k, 3, 3)}
        found |= batch_norm(f"{name}.bn1", k) | batch_norm(f"{name}.bn2", k)
        if block.shortcut:
            found |= {f"{name}.downsample.0.weight": (k, c, 1, 1)}
            found |= batch_norm(f"{name}.downsample.1", k)
    return found | linear("fc", config.classes, config.stages[-1])


def batch_norm(name: str, channels: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a batch normalization."""
    return {f"{name}.{part}": (channels,) for part in ("weight", "bias", "mean", "var")}


class _Resnet(WeightedGraph):
    def convolution(self, x: str, name: str, norm: str, kernel: int, stride: int) -> str:
        """A convolution without bias and its batch normalization."""
        pad = kernel // 2
        x = self.node(
            "Conv",
            [x, self.weight(f"{name}.weight")],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad] * 4,
            dilations=[1, 1],
            group=1,
        )
        parts = [self.weight(f"{norm}.{part}") for part in ("weight", "bias", "mean", "var")]
        return self.node("BatchNormalization", [x, *parts], epsilon=EPSILON)

    def block(self, x: str, block: Block) -> str:
        name = block.name
        inner = self.convolution(x, f"{name}.conv1", f"{name}.bn1", 3, block.stride)
        inner = self.node("Relu", [inner])
        inner = self.convolution(inner, f"{name}.conv2", f"{name}.bn2", 3, 1)
        if block.shortcut:
            parts = f"{name}.downsample.0", f"{name}.downsample.1"
            x = self.convolution(x, *parts, 1, block.stride)
        return self.node("Relu", [self.node("Add", [inner, x])])
