"""The ONNX graph of one product, for onnxruntime."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.gemm.operands import Operands

OPSET = 17
IR_VERSION = 8


def product_model(operands: Operands) -> bytes:
    """A serialized model ``y = a @ b`` with dynamic rows.

    A constant weight is the initializer ``b``; of two dynamic operands ``b`` is an input in its
    stored order, transposed in the graph where the product needs it.
    """
    shape = operands.shape
    nodes, inputs, initializers = [], [], []
    if not shape.dynamic:
        assert operands.b is not None
        inputs.append(value("a", ["m", shape.k]))
        initializers.append(numpy_helper.from_array(operands.b, "b"))
        nodes.append(helper.make_node("MatMul", ["a", "b"], ["y"]))
        output = value("y", ["m", shape.n])
    else:
        inputs.append(value("a", ["batch", "m", "k"]))
        right = "b"
        if shape.transposed:
            inputs.append(value("b", ["batch", "n", "k"]))
            nodes.append(helper.make_node("Transpose", ["b"], ["right"], perm=[0, 2, 1]))
            right = "right"
        else:
            inputs.append(value("b", ["batch", "k", "n"]))
        nodes.append(helper.make_node("MatMul", ["a", right], ["y"]))
        output = value("y", ["batch", "m", "n"])
    graph = helper.make_graph(nodes, "product", inputs, [output], initializers)
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def value(name: str, dims: list[int | str]) -> onnx.ValueInfoProto:
    """A float32 tensor of the graph; dims that are strings are dynamic."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
