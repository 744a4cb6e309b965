"""Writes ONNX graphs node by node, in the forms that the usual exporters give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


class Graph:
    """Nodes and initializers while they are being written; methods return the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.names: set[str] = set()

    def node(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        output = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def nodes_of(self, kind: str, inputs: list[str], count: int, **attributes: Any) -> list[str]:
        """A node of ``count`` results."""
        name = f"{kind}_{len(self.nodes)}"
        results = [f"{name}_{at}" for at in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, results, name=name, **attributes))
        return results

    def constant(self, name: str, array: np.ndarray) -> str:
        if name not in self.names:
            self.names.add(name)
            self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def scalar(self, value: float) -> str:
        return self.constant(f"scalar_{value!r}", np.array(value, np.float32))

    def integer(self, value: int) -> str:
        """An integer without dimensions."""
        return self.constant(f"index_{value}", np.array(value, np.int64))

    def integers(self, *values: int) -> str:
        return self.constant("integers_" + "_".join(map(str, values)), np.array(values, np.int64))

    def gelu(self, x: str) -> str:
        """GELU spelled out with Erf."""
        erf = self.node("Erf", [self.node("Div", [x, self.scalar(math.sqrt(2.0))])])
        twice = self.node("Mul", [x, self.node("Add", [erf, self.scalar(1.0)])])
        return self.node("Mul", [twice, self.scalar(0.5)])

    def size(self, x: str, axis: int) -> str:
        """The size of one axis of ``x`` at run time, without dimensions."""
        return self.node("Gather", [self.node("Shape", [x]), self.integer(axis)], axis=0)

    def dimension(self, x: str, axis: int) -> str:
        """The size of one axis of ``x`` at run time, as a tensor of one element."""
        return self.listed(self.size(x, axis))

    def listed(self, number: str) -> str:
        """A number without dimensions as a tensor of one element."""
        return self.node("Unsqueeze", [number, self.integers(0)])

    def reshape(self, x: str, *tail: int, like: str = "") -> str:
        """``x`` with the first two dimensions of ``like``, by default its own, then ``tail``."""
        sizes = [self.dimension(like or x, axis) for axis in (0, 1)]
        sizes += [self.integers(size) for size in tail]
        return self.node("Reshape", [x, self.node("Concat", sizes, axis=0)])

    def transpose(self, x: str, *axes: int) -> str:
        return self.node("Transpose", [x], perm=list(axes))

    def model(
        self,
        name: str,
        inputs: Sequence[onnx.ValueInfoProto],
        results: Sequence[onnx.ValueInfoProto],
    ) -> onnx.ModelProto:
        """The whole as a checked model."""
        model = helper.make_model(
            helper.make_graph(self.nodes, name, inputs, results, self.initializers),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        onnx.checker.check_model(model, full_check=True)
        return model


class WeightedGraph(Graph):
    """A graph whose weights are given by name; linear layers are stored as (N, K)."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.weights = weights

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name].astype(np.float32))

    def linear(self, x: str, name: str) -> str:
        """``x @ W.T + bias``, the weight stored transposed as exporters do."""
        matrix = self.weights[f"{name}.weight"].astype(np.float32).T
        product = self.node("MatMul", [x, self.constant(f"{name}.weight.T", matrix)])
        return self.node("Add", [self.weight(f"{name}.bias"), product])

    def normalize(self, x: str, name: str, epsilon: float) -> str:
        """Layer normalization over the last axis, as one operator."""
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.node("LayerNormalization", [x, scale, bias], axis=-1, epsilon=epsilon)

    def normalize_by_parts(self, x: str, name: str, epsilon: float) -> str:
        """The same, as exporters wrote it before there was an operator."""
        centred = self.node("Sub", [x, self.node("ReduceMean", [x], axes=[-1])])
        squares = self.node("Pow", [centred, self.scalar(2.0)])
        variance = self.node("ReduceMean", [squares], axes=[-1])
        spread = self.node("Sqrt", [self.node("Add", [variance, self.scalar(epsilon)])])
        scaled = self.node(
            "Mul", [self.node("Div", [centred, spread]), self.weight(f"{name}.weight")]
        )
        return self.node("Add", [scaled, self.weight(f"{name}.bias")])


def value(name: str, dtype: int, *shape: int | str) -> onnx.ValueInfoProto:
    """An input or a result; dimensions that are names are symbolic."""
    return helper.make_tensor_value_info(name, dtype, list(shape))


def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return value(name, TensorProto.FLOAT, *shape)
