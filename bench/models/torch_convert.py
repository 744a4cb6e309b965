"""An ONNX graph as a torch module of the same function and weights, for sizes of any kind.

Attention that is spelled out becomes ``scaled_dot_product_attention``, the form that torch is fast
in. Everything else is translated operator by operator.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import fx

from bench.models.torch_attention import Attention, find_attention
from bench.models.torch_layers import attention
from bench.models.torch_operators import ELEMENTWISE, OPERATORS

LONGEST = 16  # whole numbers that are a shape, or positions in one, rather than weights
Constant = np.ndarray


def convert(model: onnx.ModelProto) -> fx.GraphModule:
    """A module whose arguments and results are those of ``model``, in their order.

    Raises NotImplementedError where there is an operator that `OPERATORS` lacks, or an attribute
    that its function does not take.
    """
    return _Converter(model).module()


def inputs_of(graph: onnx.GraphProto) -> list[str]:
    """Names of the inputs that are no weights."""
    weights = {each.name for each in graph.initializer}
    return [each.name for each in graph.input if each.name not in weights]


def constants_of(graph: onnx.GraphProto) -> dict[str, Constant]:
    """Initializers and results of Constant nodes, by name."""
    found = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            (value,) = node.attribute
            found[node.output[0]] = numpy_helper.to_array(value.t)
    return found


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes as Python values; a tensor of one element is that."""
    found = {}
    for each in node.attribute:
        value = onnx.helper.get_attribute_value(each)
        tensor = isinstance(value, onnx.TensorProto)
        found[each.name] = numpy_helper.to_array(value).item() if tensor else value
    return found


@dataclass
class _Converter:
    model: onnx.ModelProto

    def module(self) -> fx.GraphModule:
        source = self.model.graph
        self.root = torch.nn.Module()
        self.graph = fx.Graph()
        self.constants: Mapping[str, Constant] = constants_of(source)
        self.weights: dict[str, fx.Node] = {}
        self.values: dict[str, Any] = {}
        for at, name in enumerate(inputs_of(source)):
            self.values[name] = self.graph.placeholder(f"input_{at}")
        fused = find_attention(source, self.constants)
        for node in source.node:
            if node.op_type != "Constant":
                found = fused.get(node.output[0])
                if found is None:
                    self.translate(node)
                else:
                    self.attend(found)
        self.graph.output(tuple(self.value(each.name) for each in source.output))
        self.graph.eliminate_dead_code()
        return fx.GraphModule(self.root, self.graph).eval()

    def translate(self, node: onnx.NodeProto) -> None:
        if node.op_type not in OPERATORS:
            raise NotImplementedError(f"torch's peer has no operator {node.op_type}")
        numbers = node.op_type in ELEMENTWISE
        operands = tuple(self.value(name, numbers) for name in node.input)
        result = self.graph.call_function(OPERATORS[node.op_type], operands, attributes_of(node))
        if len(node.output) == 1:
            self.values[node.output[0]] = result
            return
        for at, name in enumerate(node.output):
            self.values[name] = self.graph.call_function(operator.getitem, (result, at))

    def attend(self, found: Attention) -> None:
        operands = tuple(self.value(name) for name in found.operands)
        self.values[found.result] = self.graph.call_function(
            attention, (*operands, found.scale, found.axis)
        )

    def value(self, name: str, number: bool = False) -> Any:
        """What is known by ``name``: a constant is a number where that is one, or where it is used
        as ``number``."""
        if not name:
            return None
        if name in self.values:
            return self.values[name]
        array = self.constants[name]
        if array.dtype.kind in "iub" and array.ndim < 2 and array.size <= LONGEST:
            return array.tolist()
        if number and array.size == 1 and array.ndim < 2:
            return array.item()
        if name not in self.weights:
            attribute = f"weight_{len(self.weights)}"
            tensor = torch.from_numpy(array.copy())
            self.root.register_buffer(attribute, tensor)
            self.weights[name] = self.graph.get_attr(attribute)
        return self.weights[name]
