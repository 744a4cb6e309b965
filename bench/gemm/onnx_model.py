"""The ONNX graph of one case, for onnxruntime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.gemm.operands import Operands

OPSET = 17
IR_VERSION = 8


def case_model(operands: Operands) -> bytes:
    """A serialized model ``y = a @ b`` with dynamic rows, and with the epilogue of the case.

    A constant weight is the initializer ``b``; of two dynamic operands ``b`` is an input in its
    stored order, transposed in the graph where the product needs it. A chain has one initializer a
    product.
    """
    shape = operands.shape
    lead: list[int | str] = ["batch"] if shape.batch > 1 else []
    graph = Graph()
    graph.inputs.append(value("a", [*lead, "m", "k" if shape.dynamic else shape.k]))
    if shape.workload == "chain":
        last = "a"
        for at, weight in enumerate(operands.chain):
            last = graph.node("MatMul", last, graph.constant(f"b{at}", weight))
    elif shape.constant:
        assert operands.b is not None
        last = graph.node("MatMul", "a", graph.constant("b", operands.b))
    else:
        dims: list[int | str] = ["n", "k"] if shape.transposed else ["k", "n"]
        graph.inputs.append(value("b", [*lead, *dims]))
        right = "b"
        if shape.transposed:
            perm = [0, 2, 1] if lead else [1, 0]
            right = graph.node("Transpose", "b", perm=perm)
        last = graph.node("MatMul", "a", right)
    last = add_epilogue(graph, last, operands)
    graph.nodes[-1].output[0] = "y"
    output = value("y", [*lead, "m", "n" if shape.dynamic else shape.n])
    made = helper.make_graph(graph.nodes, "case", graph.inputs, [output], graph.initializers)
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_model(made, opset_imports=opset, ir_version=IR_VERSION).SerializeToString()


class Graph:
    """Nodes, inputs and initializers as they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; returns the name of its output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, name: str, array: np.ndarray) -> str:
        """Add an initializer; returns its name."""
        self.initializers.append(numpy_helper.from_array(array, name))
        return name


def add_epilogue(graph: Graph, last: str, operands: Operands) -> str:
    """What follows the product ``last``: its result's name. Gelu is spelled as exporters do."""
    shape = operands.shape
    if operands.bias is None:
        return last
    last = graph.node("Add", last, graph.constant("bias", operands.bias))
    if operands.residual is not None:
        graph.inputs.append(value("residual", ["m", shape.n]))
        return graph.node("Add", last, "residual")
    scalars = {"root": math.sqrt(2), "one": 1.0, "half": 0.5}
    for name, number in scalars.items():
        graph.constant(name, np.array(number, np.float32))
    erf = graph.node("Erf", graph.node("Div", last, "root"))
    return graph.node("Mul", graph.node("Mul", last, graph.node("Add", erf, "one")), "half")


def value(name: str, dims: list[int | str]) -> onnx.ValueInfoProto:
    """A float32 tensor of the graph; dims that are strings are dynamic."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
