"""What the caller wants of the dimensions of a model's inputs."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from relax_passes.shape_promises import agreed, as_range
from relax_passes.shape_range import Range
from tvm_moonpoly.arguments import is_whole

from .inputs import Input
from .symbolic import Size


@dataclass(frozen=True)
class Shapes:
    """The symbolic shapes of all inputs by name, and the ranges of their variables by name."""

    shapes: Mapping[str, list[Size]]
    ranges: Mapping[str, Range]


def symbolic_shapes(inputs: Sequence[Input], dims: Mapping[str, Any]) -> Shapes:
    """The shapes of `inputs` with what `dims` says of their dimensions.

    Raises ValueError for a name that no dynamic dimension has, and for what is no size, no name
    and no range.
    """
    wanted = {name: _checked(name, value) for name, value in dims.items()}
    ranges: dict[str, dict[str, Range]] = {}
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
                _require_fits(name, size, value)
                known.add(name)
                continue
            if isinstance(value, Range):
                if not size.isidentifier():
                    raise ValueError(
                        f"dims: {name!r} is computed ({size}): give the ranges of its parts"
                    )
                ranges.setdefault(size, {})[f"dims[{name!r}]"] = value
                continue
            chosen[each.name, axis] = value
            if name != names[0]:
                replaced[size] = value
    unknown = sorted(set(wanted) - known)
    if unknown:
        raise ValueError(
            f"dims: no input has a dimension {unknown[0]!r}; dynamic are: {_shown(inputs)}"
        )
    promises: dict[str, dict[str, Range]] = {}
    for dimension, given in ranges.items():
        new = replaced.get(dimension, dimension)
        if isinstance(new, str):
            promises.setdefault(new, {}).update(given)
            continue
        for key, value in given.items():
            if new not in value:
                raise ValueError(f"dims: {dimension!r} has the size {new}, not {value} ({key})")
    promised = {dimension: agreed(dimension, each) for dimension, each in promises.items()}
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


def _require_fits(name: str, size: int, value: int | str | Range) -> None:
    """Raise unless `value` can be said of a dimension that is `size` in the model."""
    if isinstance(value, str):
        raise ValueError(f"dims: {name!r} has the fixed size {size}: it cannot be called {value!r}")
    holds = size in value if isinstance(value, Range) else size == value
    if not holds:
        raise ValueError(f"dims: {name!r} has the fixed size {size}, not {value}")


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
    if is_whole(value):
        value = index(value)
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
