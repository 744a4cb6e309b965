"""What ONNX's own tools do to a graph before it is imported."""

from __future__ import annotations

import onnx
from onnx import inliner, version_converter

from .errors import Problem

#: TVM's importer reads operators as they are from this version on (some before it as well): Slice,
#: Pad and Resize with inputs in place of attributes, arithmetic with numpy's broadcasting.
OLDEST_OPSET = 11
DEFAULT_DOMAINS = ("", "ai.onnx")


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with functions inlined and, when it is old, operators of opset 11."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    if opset_of(model) < OLDEST_OPSET:
        model = upgraded(model)
    return model


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's operators in `model`."""
    return max(
        (each.version for each in model.opset_import if each.domain in DEFAULT_DOMAINS), default=1
    )


def upgraded(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with operators of opset 11, or as it is where ONNX's converter does not know how."""
    try:
        return version_converter.convert_version(model, OLDEST_OPSET)
    except (RuntimeError, ValueError, onnx.checker.ValidationError):
        return model


def expanded(model: onnx.ModelProto, supported: set[str]) -> onnx.ModelProto:
    """`model` with operators that TVM lacks written out, where ONNX defines them by others."""
    version = opset_of(model)
    wanted = {
        ("", node.op_type)
        for node in model.graph.node
        if node.domain in DEFAULT_DOMAINS
        and node.op_type not in supported
        and onnx.defs.has(node.op_type)
        and _has_body(node.op_type, version)
    }
    if not wanted:
        return model
    return inliner.inline_selected_functions(model, sorted(wanted), inline_schema_functions=True)


def _has_body(operator: str, version: int) -> bool:
    try:
        schema = onnx.defs.get_schema(operator, version, "")
    except onnx.defs.SchemaError:
        return False
    # the stubs of onnx 1.23 lack both
    flags = ("has_function", "has_context_dependent_function")
    return any(getattr(schema, flag) for flag in flags)


def unsupported(model: onnx.ModelProto, supported: set[str]) -> list[Problem]:
    """The nodes whose operators TVM's importer does not have."""
    found = []
    for node in model.graph.node:
        if node.op_type not in supported:
            found.append(
                Problem(label(node), operator_name(node), "TVM's importer has no such operator")
            )
    if model.graph.sparse_initializer:
        found.append(Problem("", "", "sparse initializers are not supported"))
    return found


def label(node: onnx.NodeProto) -> str:
    """What a node is called: its name, or what it computes."""
    return node.name or next(iter(node.output), "")


def operator_name(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}::{node.op_type}"
