"""A decoder of text (GPT-2's form): any number of tokens after any number that are in its cache.

As exporters write it: keys and values so far are inputs and outputs of every layer, positions and
the causal mask are computed in the graph from the sizes of inputs, linear layers are Gemm on rows
between two Reshapes, GELU is spelled out with Tanh. With an empty cache it is the prefill, with one
token the step of decoding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from bench.models.weights import Shapes, linear, norm, random_weights
from bench.onnx_graph import WeightedGraph, floats, value

INPUT, OUTPUT = "input_ids", "logits"
EPSILON = 1e-5


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes of a decoder."""

    width: int = 512
    layers: int = 6
    heads: int = 8
    words: int = 8192
    longest: int = 1024

    @property
    def inner(self) -> int:
        return 4 * self.width

    @property
    def depth(self) -> int:
        return self.width // self.heads


BENCH = DecoderConfig()
SMALL = DecoderConfig(width=48, layers=2, heads=3, words=61, longest=64)


def caches(config: DecoderConfig, kind: str) -> list[str]:
    """Names of keys and values, those of the first layer first; ``kind`` is past_key_values or
    present."""
    return [f"{kind}.{at}.{part}" for at in range(config.layers) for part in ("key", "value")]


def feed(
    config: DecoderConfig, batch: int, seq: int, past: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random tokens, int64 (batch, seq), and a cache of ``past`` tokens of random numbers, float32
    (batch, heads, past, depth) each."""
    rng = np.random.default_rng((seed, batch, seq, past))
    shape = batch, config.heads, past, config.depth
    return {
        INPUT: rng.integers(0, config.words, (batch, seq)),
        **{
            name: rng.standard_normal(shape, np.float32)
            for name in caches(config, "past_key_values")
        },
    }


def build(config: DecoderConfig = BENCH, seed: int = 0) -> onnx.ModelProto:
    """The checked model: int64 (batch, seq) and caches (batch, heads, past, depth) to logits
    (batch, seq, words) and caches (batch, heads, past + seq, depth)."""
    weights = random_weights(shapes(config), seed, ("attn.c_proj.weight", "mlp.c_proj.weight"))
    graph = _Decoder(config, weights)
    graph.logits()
    cache = "batch", config.heads
    return graph.model(
        "decoder",
        [
            value(INPUT, TensorProto.INT64, "batch", "seq"),
            *(
                floats(name, *cache, "past", config.depth)
                for name in caches(config, "past_key_values")
            ),
        ],
        [
            floats(OUTPUT, "batch", "seq", config.words),
            *(floats(name, *cache, "total", config.depth) for name in caches(config, "present")),
        ],
    )


def shapes(config: DecoderConfig) -> Shapes:
    """Of all weights, by name."""
    width = config.width
    found: dict[str, tuple[int, ...]] = {
        "wte": (config.words, width),
        "wpe": (config.longest, width),
    }
    for index in range(config.layers):
        name = f"h.{index}"
        found |= norm(f"{name}.ln_1", width) | norm(f"{name}.ln_2", width)
        found |= linear(f"{name}.attn.c_attn", 3 * width, width)
        found |= linear(f"{name}.attn.c_proj", width, width)
        found |= linear(f"{name}.mlp.c_fc", config.inner, width)
        found |= linear(f"{name}.mlp.c_proj", width, config.inner)
    return found | norm("ln_f", width)


class _Decoder(WeightedGraph):
    def __init__(self, config: DecoderConfig, weights: dict[str, np.ndarray]) -> None:
        super().__init__(weights)
        self.config = config

    def rows(self, x: str, name: str) -> str:
        """A linear layer as a Gemm of all rows, the weight stored as (K, N)."""
        matrix = self.weights[f"{name}.weight"].T
        n, k = self.weights[f"{name}.weight"].shape
        flat = self.node("Reshape", [x, self.integers(-1, k)])
        operands = [
            flat,
            self.constant(f"{name}.weight", matrix.copy()),
            self.weight(f"{name}.bias"),
        ]
        product = self.node("Gemm", operands, alpha=1.0, beta=1.0)
        return self.reshape(product, n, like=x)

    def gelu_tanh(self, x: str) -> str:
        cube = self.node("Mul", [self.node("Pow", [x, self.scalar(3.0)]), self.scalar(0.044715)])
        inner = self.node("Mul", [self.node("Add", [x, cube]), self.scalar(math.sqrt(2 / math.pi))])
        outer = self.node("Add", [self.node("Tanh", [inner]), self.scalar(1.0)])
        return self.node("Mul", [self.node("Mul", [x, self.scalar(0.5)]), outer])

    def logits(self) -> None:
        """The whole graph."""
        past = self.size(caches(self.config, "past_key_values")[0], 2)
        total = self.node("Add", [past, self.size(INPUT, 1)])
        one = self.integer(1)
        positions = self.node("Range", [past, total, one])
        words = self.node("Gather", [self.weight("wte"), INPUT])
        where = self.node("Unsqueeze", [positions, self.integers(0)])
        x = self.node("Add", [words, self.node("Gather", [self.weight("wpe"), where])])
        keys = self.node("Range", [self.integer(0), total, one])
        later = self.node(
            "Greater",
            [
                self.node("Unsqueeze", [keys, self.integers(0)]),
                self.node("Unsqueeze", [positions, self.integers(1)]),
            ],
        )
        lowest = self.scalar(float(np.finfo(np.float32).min))
        mask = self.node("Where", [later, lowest, self.scalar(0.0)])
        mask = self.node("Unsqueeze", [mask, self.integers(0, 1)])
        for index in range(self.config.layers):
            name = f"h.{index}"
            inner = self.normalize(x, f"{name}.ln_1", EPSILON)
            x = self.node("Add", [self.attention(inner, mask, index), x])
            inner = self.normalize(x, f"{name}.ln_2", EPSILON)
            inner = self.gelu_tanh(self.rows(inner, f"{name}.mlp.c_fc"))
            x = self.node("Add", [x, self.rows(inner, f"{name}.mlp.c_proj")])
        x = self.normalize(x, "ln_f", EPSILON)
        table = self.constant("wte.T", self.weights["wte"].T.copy())
        self.node("MatMul", [x, table], OUTPUT)

    def attention(self, x: str, mask: str, index: int) -> str:
        """Queries of the new tokens on keys and values of all, which are outputs as well."""
        config, name = self.config, f"h.{index}.attn"
        width = config.width
        parts = self.nodes_of(
            "Split", [self.rows(x, f"{name}.c_attn"), self.integers(*[width] * 3)], 3, axis=2
        )
        query, key, value = (
            self.transpose(self.reshape(part, config.heads, config.depth), 0, 2, 1, 3)
            for part in parts
        )
        key, value = (
            self.node(
                "Concat",
                [f"past_key_values.{index}.{part}", new],
                f"present.{index}.{part}",
                axis=2,
            )
            for part, new in (("key", key), ("value", value))
        )
        scores = self.node("MatMul", [query, self.transpose(key, 0, 1, 3, 2)])
        scores = self.node("Div", [scores, self.scalar(math.sqrt(config.depth))])
        weights = self.node("Softmax", [self.node("Add", [scores, mask])], axis=-1)
        mixed = self.transpose(self.node("MatMul", [weights, value]), 0, 2, 1, 3)
        return self.rows(self.reshape(mixed, width), f"{name}.c_proj")
