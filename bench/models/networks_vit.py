"""A vision transformer (DeiT's and timm's form) with a dynamic batch.

As exporters write it: patches by a convolution, the class token expanded to the batch that the
graph reads by Shape, layer normalization by parts, one product for query, key and value that is
reshaped, transposed and taken apart by Gather, the scale of the scores on both operands, GELU with
Erf.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from bench.models.weights import Shapes, linear, norm, random_weights
from bench.onnx_graph import WeightedGraph, floats

INPUT, OUTPUT = "pixel_values", "logits"
CHANNELS, EPSILON = 3, 1e-6


@dataclass(frozen=True)
class VitConfig:
    """The sizes of a vision transformer; the sides of image and patch in pixels."""

    image: int = 224
    patch: int = 16
    width: int = 384
    layers: int = 12
    heads: int = 6
    classes: int = 1000

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2

    @property
    def inner(self) -> int:
        return 4 * self.width


BENCH = VitConfig()
SMALL = VitConfig(image=48, patch=16, width=48, layers=2, heads=3, classes=10)


def feed(config: VitConfig, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random images, float32 (batch, 3, image, image)."""
    rng = np.random.default_rng((seed, batch))
    return {INPUT: rng.standard_normal((batch, CHANNELS, config.image, config.image), np.float32)}


def build(config: VitConfig = BENCH, seed: int = 0) -> onnx.ModelProto:
    """The checked model: images float32 (batch, 3, image, image) to float32 (batch, classes)."""
    weights = random_weights(shapes(config), seed, ("proj.weight", "fc2.weight"))
    graph = _Vit(config, weights)
    x = graph.tokens()
    for index in range(config.layers):
        x = graph.block(x, f"blocks.{index}")
    x = graph.normalize_by_parts(x, "norm", EPSILON)
    first = graph.node("Gather", [x, graph.integer(0)], axis=1)
    head = [graph.weight("head.weight"), graph.weight("head.bias")]
    graph.node("Gemm", [first, *head], OUTPUT, alpha=1.0, beta=1.0, transB=1)
    return graph.model(
        "vit",
        [floats(INPUT, "batch", CHANNELS, config.image, config.image)],
        [floats(OUTPUT, "batch", config.classes)],
    )


def shapes(config: VitConfig) -> Shapes:
    """Of all weights, by name."""
    width = config.width
    found: dict[str, tuple[int, ...]] = {
        "patch_embed.weight": (width, CHANNELS, config.patch, config.patch),
        "patch_embed.bias": (width,),
        "cls_token": (1, 1, width),
        "pos_embed": (1, config.patches + 1, width),
    }
    for index in range(config.layers):
        name = f"blocks.{index}"
        found |= norm(f"{name}.norm1", width) | norm(f"{name}.norm2", width)
        found |= linear(f"{name}.attn.qkv", 3 * width, width)
        found |= linear(f"{name}.attn.proj", width, width)
        found |= linear(f"{name}.mlp.fc1", config.inner, width)
        found |= linear(f"{name}.mlp.fc2", width, config.inner)
    return found | norm("norm", width) | linear("head", config.classes, width)


class _Vit(WeightedGraph):
    def __init__(self, config: VitConfig, weights: dict[str, np.ndarray]) -> None:
        super().__init__(weights)
        self.config = config

    def tokens(self) -> str:
        """The class token and the patches of every image, and their positions."""
        size = self.config.patch
        kernel = [self.weight("patch_embed.weight"), self.weight("patch_embed.bias")]
        patches = self.node(
            "Conv", [INPUT, *kernel], kernel_shape=[size, size], strides=[size, size]
        )
        begin = self.node("Slice", [self.node("Shape", [patches]), *map(self.integers, (0, 2, 0))])
        flat = self.node("Concat", [begin, self.integers(-1)], axis=0)
        rows = self.transpose(self.node("Reshape", [patches, flat]), 0, 2, 1)
        return self.node(
            "Add", [self.node("Concat", [self.token(), rows], axis=1), self.weight("pos_embed")]
        )

    def token(self) -> str:
        """The class token for every image: ``expand(batch, -1, -1)``."""
        wanted = self.node(
            "Concat", [self.dimension(INPUT, 0), self.integers(-1), self.integers(-1)], axis=0
        )
        ones = self.node(
            "ConstantOfShape",
            [self.integers(3)],
            value=onnx.helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        )
        kept = self.node("Mul", [ones, self.integers(-1)])
        equal = self.node("Equal", [wanted, kept])
        return self.node(
            "Expand", [self.weight("cls_token"), self.node("Where", [equal, ones, wanted])]
        )

    def block(self, x: str, name: str) -> str:
        inner = self.normalize_by_parts(x, f"{name}.norm1", EPSILON)
        x = self.node("Add", [x, self.attention(inner, f"{name}.attn")])
        inner = self.normalize_by_parts(x, f"{name}.norm2", EPSILON)
        inner = self.gelu(self.linear(inner, f"{name}.mlp.fc1"))
        return self.node("Add", [x, self.linear(inner, f"{name}.mlp.fc2")])

    def attention(self, x: str, name: str) -> str:
        heads, depth = self.config.heads, self.config.width // self.config.heads
        parts = self.reshape(self.linear(x, f"{name}.qkv"), 3, heads, depth, like=x)
        parts = self.transpose(parts, 2, 0, 3, 1, 4)
        query, key, value = (
            self.node("Gather", [parts, self.integer(at)], axis=0) for at in range(3)
        )
        scale = self.scalar(depth**-0.25)
        query = self.node("Mul", [query, scale])
        key = self.node("Mul", [self.transpose(key, 0, 1, 3, 2), scale])
        weights = self.node("Softmax", [self.node("MatMul", [query, key])], axis=-1)
        mixed = self.transpose(self.node("MatMul", [weights, value]), 0, 2, 1, 3)
        return self.linear(self.reshape(mixed, self.config.width, like=x), f"{name}.proj")
