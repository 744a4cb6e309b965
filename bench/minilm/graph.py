"""Writes the ONNX graph of a BERT sentence-embedding model from its weights and configuration.

The graph has the form that the usual exporters give: shapes read at run time by Shape and Gather,
attention as reshape, transpose, matmul, scale, mask and softmax, GELU spelled out with Erf, weights
of linear layers stored as (K, N). The dimensions ``batch`` and ``seq`` are symbolic throughout.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from bench.onnx_graph import WeightedGraph, floats, value

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("last_hidden_state", "sentence_embedding")


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT encoder; field names as in its ``config.json``."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    layer_norm_eps: float
    max_position_embeddings: int
    vocab_size: int
    type_vocab_size: int

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def read(cls, path: Path) -> BertConfig:
        """Reads a ``config.json``. Raises ValueError when it describes another architecture."""
        found = json.loads(path.read_text())
        for key, wanted in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
            if found.get(key, wanted) != wanted:
                raise ValueError(f"{path}: {key} must be {wanted!r}, got {found[key]!r}")
        return cls(**{name: found[name] for name in cls.__dataclass_fields__})


def read_model(folder: Path) -> onnx.ModelProto:
    """The ONNX model of a folder with ``config.json`` and ``model.safetensors``."""
    from safetensors.numpy import load_file

    config = BertConfig.read(folder / "config.json")
    return build_model(config, load_file(folder / "model.safetensors"))


def build_model(config: BertConfig, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The checked ONNX model of an encoder with mean pooling and normalized embeddings.

    ``weights`` are named as in BERT's checkpoints, linear layers stored as (N, K). Inputs are
    int64 (batch, seq); the outputs are float32, (batch, seq, hidden) and (batch, hidden).
    """
    graph = _Graph(config, weights)
    hidden = graph.encoder()
    graph.node("Identity", [hidden], output=OUTPUTS[0])
    graph.pooled(hidden)
    ids = [value(name, TensorProto.INT64, "batch", "seq") for name in INPUTS]
    results = [
        floats(OUTPUTS[0], "batch", "seq", config.hidden_size),
        floats(OUTPUTS[1], "batch", config.hidden_size),
    ]
    return graph.model("encoder", ids, results)


class _Graph(WeightedGraph):
    """The encoder while it is being written; each method returns a value's name."""

    def __init__(self, config: BertConfig, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__(weights)
        self.config = config

    def normalized(self, x: str, name: str) -> str:
        return self.normalize(x, name, self.config.layer_norm_eps)

    def embeddings(self) -> str:
        ids, _, types = INPUTS
        positions = self.constant(
            "position_ids", np.arange(self.config.max_position_embeddings, dtype=np.int64)[None]
        )
        ends = self.dimension(ids, 1)
        used = self.node("Slice", [positions, self.integers(0), ends, self.integers(1)])
        tables = [
            self.node("Gather", [self.weight(f"embeddings.{kind}_embeddings.weight"), index])
            for kind, index in (("word", ids), ("token_type", types), ("position", used))
        ]
        total = self.node("Add", [self.node("Add", tables[:2]), tables[2]])
        return self.normalized(total, "embeddings.LayerNorm")

    def mask(self) -> str:
        """0 where a token counts and the lowest float where it is padding: (batch, 1, 1, seq)."""
        wide = self.node("Unsqueeze", [INPUTS[1], self.integers(1, 2)])
        kept = self.node("Cast", [wide], to=TensorProto.FLOAT)
        lowest = self.scalar(float(np.finfo(np.float32).min))
        return self.node("Mul", [self.node("Sub", [self.scalar(1.0), kept]), lowest])

    def attention(self, x: str, mask: str, name: str) -> str:
        heads, size = self.config.num_attention_heads, self.config.head_size

        def split(part: str, axes: list[int]) -> str:
            rows = self.reshape(self.linear(x, f"{name}.self.{part}"), heads, size)
            return self.node("Transpose", [rows], perm=axes)

        query, key = split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1])
        value = split("value", [0, 2, 1, 3])
        scores = self.node("Div", [self.node("MatMul", [query, key]), self.scalar(math.sqrt(size))])
        weights = self.node("Softmax", [self.node("Add", [scores, mask])], axis=-1)
        context = self.node("Transpose", [self.node("MatMul", [weights, value])], perm=[0, 2, 1, 3])
        joined = self.reshape(context, self.config.hidden_size)
        return self.linear(joined, f"{name}.output.dense")

    def encoder(self) -> str:
        x, mask = self.embeddings(), self.mask()
        for index in range(self.config.num_hidden_layers):
            name = f"encoder.layer.{index}"
            attended = self.attention(x, mask, f"{name}.attention")
            x = self.normalized(
                self.node("Add", [attended, x]), f"{name}.attention.output.LayerNorm"
            )
            inner = self.gelu(self.linear(x, f"{name}.intermediate.dense"))
            outer = self.linear(inner, f"{name}.output.dense")
            x = self.normalized(self.node("Add", [outer, x]), f"{name}.output.LayerNorm")
        return x

    def pooled(self, hidden: str) -> str:
        """Mean of the tokens that count, divided by its length, as sentence-transformers does."""
        wide = self.node("Unsqueeze", [INPUTS[1], self.integers(-1)])
        kept = self.node("Cast", [wide], to=TensorProto.FLOAT)
        axis = self.integers(1)
        total = self.node("ReduceSum", [self.node("Mul", [hidden, kept]), axis], keepdims=0)
        count = self.node("ReduceSum", [kept, axis], keepdims=0)
        mean = self.node("Div", [total, self.node("Max", [count, self.scalar(1e-9)])])
        length = self.node("ReduceL2", [mean], axes=[1], keepdims=1)
        longer = self.node("Max", [length, self.scalar(1e-12)])
        return self.node("Div", [mean, longer], output=OUTPUTS[1])
