"""The dimensions of a model's inputs: names for all of them, and what the caller wants of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from relax_passes.shape_promises import as_range
from relax_passes.shape_range import Range

from .symbolic import Size

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


@dataclass(frozen=True)
class Shapes:
    """The symbolic shapes of all inputs by name, and the ranges of their variables by name."""

    shapes: Mapping[str, list[Size]]
    ranges: Mapping[str, Range]


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


def symbolic_shapes(inputs: Sequence[Input], dims: Mapping[str, Any]) -> Shapes:
    """The shapes of `inputs` with what `dims` says of their dimensions.

    Raises ValueError for a name that no dynamic dimension has, and for what is no size, no name
    and no range.
    """
    wanted = {name: _checked(name, value) for name, value in dims.items()}
    ranges: dict[str, Range] = {}
    chosen: dict[tuple[str, int], int | str] = {}
    replaced: dict[str, int | str] = {}
    known: set[str] = set()
    for each in inputs:
        for axis, (size, names) in enumerate(zip(each.sizes, each.names, strict=True)):
            known.update(names if isinstance(size, str) else ())
            name = next((name for name in names if name in wanted), None)
            if name is None:
                continue
            value = wanted[name]
            if isinstance(size, int):
                if value != size:
                    raise ValueError(f"dims: {name!r} has the fixed size {size}, not {value!r}")
                known.add(name)
                continue
            if isinstance(value, Range):
                if not size.isidentifier():
                    raise ValueError(
                        f"dims: {name!r} is computed ({size}): give the ranges of its parts"
                    )
                ranges[size] = ranges.get(size, Range()) & value
                continue
            chosen[each.name, axis] = value
            if name != names[0]:
                replaced[size] = value
    unknown = sorted(set(wanted) - known)
    if unknown:
        raise ValueError(
            f"dims: no input has a dimension {unknown[0]!r}; dynamic are: {_shown(inputs)}"
        )
    promised: dict[str, Range] = {}
    for size, value in ranges.items():
        new = replaced.get(size, size)
        if isinstance(new, str):
            promised[new] = promised.get(new, Range()) & value
        elif new not in value:
            raise ValueError(f"dims: {size!r} has the size {new}, which is not {value}")
    variables: dict[str, Size] = {}
    shapes: dict[str, list[Size]] = {}
    for each in inputs:
        shapes[each.name] = [
            _size(chosen.get((each.name, axis), size), replaced, variables)
            for axis, size in enumerate(each.sizes)
        ]
    return Shapes(shapes, promised)


def fixed(shapes: Shapes, name: str, size: int) -> Shapes:
    """`shapes` with a number in the place of the variable `name`."""

    def replaced(dim: Size) -> Size:
        if isinstance(dim, int):
            return dim
        value = tirx.const(size, "int64")
        found = tvm_ffi.structural_map(
            dim, (tirx.Var, lambda var: value if var.name == name else var)
        )
        found = Analyzer().simplify(found)
        return int(found) if isinstance(found, tirx.IntImm) else found

    ranges = {each: known for each, known in shapes.ranges.items() if each != name}
    return Shapes(
        {each: [replaced(dim) for dim in dims] for each, dims in shapes.shapes.items()}, ranges
    )


def _shown(inputs: Sequence[Input]) -> str:
    """The name of each dynamic dimension that says most, once, and an example of the other form."""
    shown: dict[str, str] = {}
    for each in inputs:
        for size, names in zip(each.sizes, each.names, strict=True):
            if isinstance(size, str):
                shown.setdefault(names[1], names[0])
    if not shown:
        return "none"
    return f"{', '.join(shown)}, or as INPUT:AXIS, such as {next(iter(shown.values()))}"


def _checked(name: str, value: Any) -> int | str | Range:
    if isinstance(value, bool):
        raise ValueError(f"dims: {name!r} must be a size, a name or a range, not {value!r}")
    if isinstance(value, int):
        if value < 1:
            # 0 in the target of a Reshape stands for another size
            hint = "; leave it dynamic for calls with 0" if value == 0 else ""
            raise ValueError(f"dims: the size of {name!r} must be at least 1, got {value}{hint}")
        return value
    if isinstance(value, str):
        if not value.isidentifier():
            raise ValueError(f"dims: {value!r}, the name for {name!r}, must be an identifier")
        return value
    if isinstance(value, Range) or (isinstance(value, tuple) and len(value) == 2):
        return as_range(name, value)
    raise ValueError(f"dims: {name!r} must be a size, a name or a range, not {value!r}")


def _size(size: int | str, replaced: Mapping[str, int | str], variables: dict[str, Size]) -> Size:
    if isinstance(size, int):
        return size

    def variable(name: str) -> Size:
        value = replaced.get(name, name)
        if isinstance(value, int):
            return value
        if value not in variables:
            variables[value] = tirx.Var(value, "int64")
        return variables[value]

    return _evaluated(ast.parse(size, mode="eval").body, variable)


def _evaluated(node: ast.expr, variable: Any) -> Size:
    if isinstance(node, ast.Name):
        return variable(node.id)
    if isinstance(node, ast.Constant):
        return node.value
    assert isinstance(node, ast.BinOp)
    a, b = _evaluated(node.left, variable), _evaluated(node.right, variable)
    if isinstance(node.op, ast.Add):
        return a + b
    if isinstance(node.op, ast.Sub):
        return a - b
    return a * b if isinstance(node.op, ast.Mult) else a // b


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
