"""The inputs of a model as it tells them: names for all of their dimensions."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

#: What exporters write for a dimension that has no name; two of them need not be equal.
NAMELESS = frozenset({"", "?", "None", "none", "-1"})


@dataclass(frozen=True)
class Input:
    """An input of the model: its sizes are numbers and names of dynamic dimensions, or
    expressions of those (`past + 1`). `names` are those under which a caller finds each."""

    name: str
    sizes: tuple[int | str, ...]
    names: tuple[tuple[str, ...], ...]


def inputs_of(graph: onnx.GraphProto, constants: set[str]) -> list[Input]:
    """The inputs that are tensors of known rank and no constants, every dimension with a name."""
    named = _identifiers(graph, constants)
    found = []
    for value in graph.input:
        if value.name in constants or not value.type.tensor_type.HasField("shape"):
            continue
        sizes: list[int | str] = []
        names: list[tuple[str, ...]] = []
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            position = f"{value.name}:{axis}"
            if dim.dim_value > 0:
                sizes.append(dim.dim_value)
                names.append((position,))
            elif dim.dim_param in NAMELESS:
                own = _identifier(f"{value.name}_{axis}")
                sizes.append(own)
                names.append((position, own))
            else:
                sizes.append(named[dim.dim_param])
                names.append((position, dim.dim_param, named[dim.dim_param]))
        found.append(Input(value.name, tuple(sizes), tuple(names)))
    return found


def with_shapes(graph: onnx.GraphProto, constants: set[str], dims: Mapping[str, Any]) -> None:
    """Give inputs of unknown rank the one that the keys `NAME:0`, `NAME:1`, ... tell, in place."""
    for value in graph.input:
        if value.name in constants or value.type.tensor_type.HasField("shape"):
            continue
        rank = 0
        while f"{value.name}:{rank}" in dims:
            rank += 1
        if rank:
            shape = value.type.tensor_type.shape
            for axis in range(rank):
                shape.dim.add().dim_param = f"{value.name}_{axis}"


def _identifiers(graph: onnx.GraphProto, constants: set[str]) -> dict[str, str]:
    """What each name of a dimension becomes: TVM takes `dynamic-batch` for a difference.

    Arithmetic on names that other dimensions have by themselves is kept as that.
    """
    names = {
        dim.dim_param
        for value in graph.input
        if value.name not in constants
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param not in NAMELESS and dim.dim_value <= 0
    }
    plain = {name for name in names if name.isidentifier()}
    found = {name: name for name in plain}
    for name in sorted(names - plain):
        if _is_arithmetic(name, plain):
            found[name] = name.strip().replace("/", "//").replace("////", "//")
            continue
        fresh = _identifier(name)
        while fresh in found.values():
            fresh += "_"
        found[name] = fresh
    return found


def _is_arithmetic(text: str, names: set[str]) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return False
    operators = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv)

    def is_ours(node: ast.expr) -> bool:
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, operators) and is_ours(node.left) and is_ours(node.right)
        if isinstance(node, ast.Name):
            return node.id in names
        return isinstance(node, ast.Constant) and type(node.value) is int

    return is_ours(tree)


def _identifier(text: str) -> str:
    fresh = re.sub(r"\W", "_", text)
    return fresh if fresh[:1].isalpha() or fresh[:1] == "_" else f"dim_{fresh}"
