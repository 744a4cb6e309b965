"""Opening a model: a copy of its graph without the weights, which stay where they are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from .errors import OnnxImportError, Problem
from .prepare import DEFAULT_DOMAINS

#: Tensors of at least so many elements are weights; smaller ones may hold a shape, which passes
#: over the graph want to see.
WEIGHT_ELEMENTS = 1024


@dataclass(frozen=True)
class Opened:
    """A copy of a model that may be changed, and the weights that are no longer in it.

    In `model` weights are inputs of the graph. `folder` is where external data lies.
    """

    name: str
    model: onnx.ModelProto
    weights: Mapping[str, onnx.TensorProto]
    folder: str

    def weight(self, name: str) -> np.ndarray:
        return array_of(self.weights[name], self.folder, self.name)


def open_model(model: str | os.PathLike[str] | onnx.ModelProto) -> Opened:
    """Open a file or a model in memory, which is not changed.

    Passes of ONNX over the copy cost nothing for weights, however large, and know no limit of
    2 GB. Raises OnnxImportError for a file that is no ONNX model, and OSError.
    """
    if isinstance(model, onnx.ModelProto):
        name, folder = "the model", ""
    else:
        path = Path(model)
        name, folder = str(path), str(path.parent)
        try:
            model = onnx.load(path, load_external_data=False)
        except DecodeError as error:
            reason = f"this is no ONNX model ({error})"
            raise OnnxImportError([Problem("", "", reason)], name) from error
    if not model.graph.node:
        reason = "this is no ONNX model, or it has no operators"
        raise OnnxImportError([Problem("", "", reason)], name)
    weights = {tensor.name: tensor for tensor in _weights(model.graph)}
    return Opened(name, _without(model, weights, folder), weights, folder)


def array_of(tensor: onnx.TensorProto, folder: str, model: str = "the model") -> np.ndarray:
    """The values of a tensor, which may lie in a file of their own."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        copied = onnx.TensorProto()
        copied.CopyFrom(tensor)  # reading would write them into the caller's
        tensor = copied
    try:
        return numpy_helper.to_array(tensor, base_dir=folder)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        reason = f"the data of the tensor {tensor.name!r} cannot be read: {error}"
        raise OnnxImportError([Problem("", "", reason)], model) from error


def constant_value(node: onnx.NodeProto, folder: str) -> np.ndarray | None:
    """The value of a node `Constant`, or None where it is no numbers."""
    for attribute in node.attribute:
        if attribute.name == "value":
            return array_of(attribute.t, folder)
        if attribute.name in ("value_int", "value_ints"):
            return np.array(onnx.helper.get_attribute_value(attribute), np.int64)
        if attribute.name in ("value_float", "value_floats"):
            return np.array(onnx.helper.get_attribute_value(attribute), np.float32)
    return None


def _weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for tensor in graph.initializer:
        if np.prod(tensor.dims) >= WEIGHT_ELEMENTS:
            yield tensor
    for node in graph.node:
        tensor = _large_constant(node)
        if tensor is not None:
            named = onnx.TensorProto()
            named.CopyFrom(tensor)
            named.name = node.output[0]
            yield named


def _large_constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain not in DEFAULT_DOMAINS:
        return None
    for attribute in node.attribute:
        if attribute.name == "value" and np.prod(attribute.t.dims) >= WEIGHT_ELEMENTS:
            return attribute.t
    return None


def _without(
    model: onnx.ModelProto, weights: Mapping[str, onnx.TensorProto], folder: str
) -> onnx.ModelProto:
    copied = onnx.ModelProto(ir_version=model.ir_version)
    copied.opset_import.extend(model.opset_import)
    copied.functions.extend(model.functions)
    graph = copied.graph
    graph.name = model.graph.name
    graph.node.extend(_kept(model.graph.node))
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    for tensor in model.graph.initializer:
        if tensor.name not in weights:
            graph.initializer.append(numpy_helper.from_array(array_of(tensor, folder), tensor.name))
    listed = {value.name for value in graph.input}
    for name, tensor in weights.items():
        if name not in listed:
            graph.input.append(
                onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
            )
    return copied


def _kept(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    return (node for node in nodes if _large_constant(node) is None)
