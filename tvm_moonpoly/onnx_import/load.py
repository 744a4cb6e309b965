"""The steps from a model to a module."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import tvm
from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

from relax_passes.shape_promises import PromiseShapes

from . import prepare
from .conversions import CONVERSIONS
from .dims import Shapes, fixed, symbolic_shapes
from .errors import OnnxImportError, Problem
from .importer import Importer
from .inputs import inputs_of, with_shapes
from .model import Opened, open_model
from .operand_rules import FixedSize
from .symbolic import Size

#: Converted by the importer itself.
STRUCTURAL = frozenset({"Constant", "If"})


@dataclass(frozen=True)
class Loaded:
    """A module, and the inputs of its function `main`: name, element type and sizes."""

    module: tvm.IRModule
    inputs: list[tuple[str, str, list[Size]]]


def load(model: str | os.PathLike[str] | onnx.ModelProto, dims: Mapping[str, Any]) -> Loaded:
    """Import a model; see `import_onnx`."""
    opened = open_model(model)
    _check_names(opened)
    supported = {*_get_convert_map(), *CONVERSIONS, *STRUCTURAL}
    prepared = prepare.expanded(prepare.prepared(opened.model), supported)
    problems = prepare.unsupported(prepared, supported)
    if problems:
        raise OnnxImportError(problems, opened.name)
    graph = prepared.graph
    constants = {tensor.name for tensor in graph.initializer} | set(opened.weights)
    with_shapes(graph, constants, dims)
    found = symbolic_shapes(inputs_of(graph, constants), dims)
    _check_inputs(graph, constants, opened.name)
    free = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(free)
    module, found = _converted(opened, graph, prepare.opset_of(prepared), found)
    module = tvm.transform.Sequential([PromiseShapes(found.ranges)])(module)
    inputs = [
        (
            value.name,
            str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
            found.shapes[value.name],
        )
        for value in free
    ]
    return Loaded(module, inputs)


def _converted(
    opened: Opened, graph: onnx.GraphProto, opset: int, shapes: Shapes
) -> tuple[tvm.IRModule, Shapes]:
    """The module of `graph`, and `shapes` with numbers for the dimensions that can have one size
    alone: the channels that the weights of a convolution take."""
    while True:
        importer = Importer(opened, shapes)
        try:
            return importer.convert(graph, opset), shapes
        except FixedSize as found:
            promised = shapes.ranges.get(found.name)
            if promised is not None and found.size not in promised:
                reason = f"{found}, which is not {promised}"
                raise importer.error(found.node, reason) from found
            shapes = fixed(shapes, found.name, found.size)


def _check_names(opened: Opened) -> None:
    """Each tensor of a model has one origin, and no other one its name."""
    graph = opened.model.graph
    known = {value.name for value in (*graph.input, *graph.initializer)} | set(opened.weights)
    for node in graph.node:
        for name in filter(None, node.output):
            if name in known:
                reason = f"the tensor {name!r} is defined twice"
                raise OnnxImportError([Problem(node.name, node.op_type, reason)], opened.name)
            known.add(name)


def _check_inputs(graph: onnx.GraphProto, constants: set[str], name: str) -> None:
    for value in graph.input:
        if value.name in constants:
            continue
        if not value.type.HasField("tensor_type"):
            reason = f"the input {value.name!r} is no tensor"
        elif not value.type.tensor_type.HasField("shape"):
            reason = (
                f"the rank of the input {value.name!r} is not known: give its dimensions, as "
                f"dims={{'{value.name}:0': 'n', ...}}"
            )
        elif value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            reason = f"the input {value.name!r} holds strings"
        else:
            continue
        raise OnnxImportError([Problem("", "", reason)], name)
