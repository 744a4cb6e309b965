"""Promises about the dimensions of a function's parameters: written down, and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import tvm
from tvm import relax, tirx
from tvm.ir import Call, Expr, Var

from tvm_moonpoly.arguments import by_name

from .functions import with_rewritten
from .run_time_checks import assert_equal
from .shape_range import LARGEST, Range

#: What a caller says of a dimension: a `Range`, or its smallest and largest size.
Promise: TypeAlias = Range | tuple[int, int]

# Attributes of functions, all of them maps from the names of symbolic variables. TVM plans memory
# by the first one.
UPPER, LOWER = "tir_var_upper_bound", "tir_var_lower_bound"
MULTIPLE, LIKELY = "moonpoly.multiple_of", "moonpoly.likely"
CHECKED = "moonpoly.checked"  # the ranges that the function checks itself, as `_numbers` of each


@dataclass(frozen=True, eq=False)
class Place:
    """An axis of a parameter, and its size. It is no dimension where the parameter is a shape,
    whose numbers may be anything."""

    parameter: str
    axis: int
    size: Expr
    is_dimension: bool

    def __str__(self) -> str:
        return f"{self.parameter}:{self.axis}"


def promised(func: relax.Function | tirx.PrimFunc) -> dict[str, Range]:
    """What the attributes of `func` tell of its symbolic variables, by their names."""
    attrs = func.attrs or {}
    told = {key: dict(attrs.get(key) or {}) for key in (UPPER, LOWER, MULTIPLE, LIKELY)}
    names = dict.fromkeys(name for each in told.values() for name in each)
    return {
        str(name): Range(
            max(0, int(told[LOWER].get(name, 0))),
            int(told[UPPER][name]) if name in told[UPPER] else None,
            int(told[MULTIPLE].get(name, 1)),
            tuple(int(size) for size in told[LIKELY].get(name, ())),
        )
        for name in names
    }


def with_promised(
    func: relax.Function | tirx.PrimFunc, ranges: Mapping[str, Range]
) -> relax.Function | tirx.PrimFunc:
    """`func` with attributes that tell `ranges`, in place of what they told."""
    attributes: dict[str, dict[str, object]] = {
        UPPER: {n: each.largest for n, each in ranges.items() if each.largest is not None},
        LOWER: {n: each.smallest for n, each in ranges.items() if each.smallest},
        MULTIPLE: {n: each.multiple_of for n, each in ranges.items() if each.multiple_of > 1},
        LIKELY: {n: list(each.likely) for n, each in ranges.items() if each.likely},
    }
    for name, value in attributes.items():
        if value:
            func = func.with_attr(name, value)
        elif func.attrs is not None and name in func.attrs:
            func = func.without_attr(name)
    return func


@tvm.transform.module_pass(opt_level=0, name="PromiseShapes")
class PromiseShapes:
    """Write what is promised of dimensions into the attributes of functions, and let each call
    check it.

    `dims` maps the name of a symbolic dimension, or `PARAMETER:AXIS`, to a `Range` or to its
    smallest and largest size. What attributes of functions promise already is checked as well:
    TVM plans memory by `tir_var_upper_bound`, and does not. A call with another size raises a
    RuntimeError that names function, dimension, parameter and range.

    To be run first, for any target. Raises ValueError for a name that no function has as a
    dimension, and for what is no range.
    """

    def __init__(self, dims: Mapping[str, Promise] | None = None) -> None:
        self.dims = {name: as_range(name, value) for name, value in by_name("dims", dims).items()}

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        known = {
            name: place.size
            for func in mod.functions.values()
            if isinstance(func, relax.Function)
            for place in places(func)
            for name in (str(place), *([place.size.name] if isinstance(place.size, Var) else []))
        }
        for name in self.dims:
            if name not in known:
                dynamic = dict.fromkeys(e.name for e in known.values() if isinstance(e, Var))
                names = ", ".join(dynamic) or "none"
                raise ValueError(
                    f"dims: no function has a dimension {name!r}; dynamic are: {names}"
                )
        return with_rewritten(mod, self._with_checks)

    def _with_checks(self, func: relax.Function, name: str) -> relax.Function:
        found: dict[str, Place] = {}
        ranges = promised(func)
        promises = {each: {f"attributes of {name}": known} for each, known in ranges.items()}
        for place in places(func):
            size = place.size
            keys = [key for key in (str(place),) if key in self.dims]
            if not isinstance(size, Var):
                for key in keys:
                    _require_inside(key, size, self.dims[key])
                continue
            found.setdefault(size.name, place)
            keys += [size.name] if size.name in self.dims else []
            for key in keys:
                promises.setdefault(size.name, {})[f"dims[{key!r}]"] = self.dims[key]
        ranges = {each: agreed(each, promises[each]) for each in promises if each in found}
        if not ranges:
            return func
        checked = _checked(func)
        new = {
            each: found[each]
            for each, known in ranges.items()
            if not known.includes(checked.get(each, Range()))
        }
        if ranges != {n: each for n, each in promised(func).items() if n in found}:
            func = with_promised(func, {**promised(func), **ranges})
        if not new:
            return func
        calls = [_check(name, each, ranges[each], place) for each, place in new.items()]
        func = _with_first(func, calls)
        numbers = {each: _numbers(ranges[each]) for each in new}
        kept = {each: _numbers(known) for each, known in checked.items() if each not in new}
        return func.with_attr(CHECKED, {**kept, **numbers})


def as_range(name: str, value: object) -> Range:
    """The range that `dims[name]` promises; raises ValueError for anything else."""
    if isinstance(value, Range):
        return value
    if isinstance(value, tuple) and len(value) == 2 and all(type(each) is int for each in value):
        if not 0 <= value[0] <= value[1]:
            raise ValueError(f"dims: the range of {name!r} must rise from 0 or more, got {value}")
        return Range(*value)
    raise ValueError(f"dims: {name!r} must be a Range or two numbers, not {value!r}")


def agreed(dimension: str, promises: Mapping[str, Range]) -> Range:
    """What all `promises` of a dimension say, by where they come from. Raises ValueError, which
    names dimension and sources, where one contradicts another."""
    found = Range()
    for i, (source, each) in enumerate(promises.items()):
        if not found.meets(each):
            before = " and ".join(
                f"{known} ({other})" for other, known in islice(promises.items(), i)
            )
            raise ValueError(f"dims: no size of {dimension!r} is {before}, and {each} ({source})")
        found = found & each
    return found


def places(func: relax.Function) -> Iterator[Place]:
    """Each dimension of each parameter that is a tensor or a shape."""

    def of_type(name: str, ty: relax.Type) -> Iterator[Place]:
        if isinstance(ty, relax.TupleType):
            for i, each in enumerate(ty.fields):
                yield from of_type(f"{name}[{i}]", each)
        elif isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
            for axis, size in enumerate(ty.shape.values):
                yield Place(name, axis, size, True)
        elif isinstance(ty, relax.ShapeType) and ty.values is not None:
            for axis, size in enumerate(ty.values):
                yield Place(name, axis, size, False)

    for param in func.params:
        yield from of_type(param.name, param.ty)


def _checked(func: relax.Function) -> dict[str, Range]:
    attrs = func.attrs or {}
    found = {}
    for name, numbers in dict(attrs.get(CHECKED) or {}).items():
        smallest, largest, multiple_of = (int(each) for each in numbers)
        found[str(name)] = Range(smallest, None if largest == LARGEST else largest, multiple_of)
    return found


def _numbers(known: Range) -> list[int]:
    largest = LARGEST if known.largest is None else known.largest
    return [known.smallest, largest, known.multiple_of]


def _require_inside(place: str, size: Expr, wanted: Range) -> None:
    if isinstance(size, tirx.IntImm):
        if int(size) not in wanted:
            raise ValueError(f"dims: {place!r} has the fixed size {int(size)}, not {wanted}")
        return
    raise ValueError(f"dims: {place!r} is computed ({size}): give the ranges of its parts")


def _check(func: str, dim: str, known: Range, place: Place) -> Call:
    """A call that raises unless the dimension is the size within its range that is nearest."""
    size, step = place.size, known.multiple_of
    nearest: Expr = size
    if known.largest is not None:
        nearest = tirx.min(nearest, tirx.const(known.largest // step * step, "int64"))
    first = -(-known.smallest // step) * step
    if first:
        nearest = tirx.max(nearest, tirx.const(first, "int64"))
    if step > 1:
        nearest = nearest // step * step
    where = f"axis {place.axis} of the input {place.parameter}"
    text = f"{func}: the dimension {dim} must be {known} ({where});"
    return assert_equal(size, nearest, text)


def _with_first(func: relax.Function, calls: list[Call]) -> relax.Function:
    """`func` with `calls` before all else, such that no pass drops them (see `emit_kept`)."""
    builder, bindings = relax.BlockBuilder(), []
    blocks = list(func.body.blocks)
    in_dataflow = bool(blocks) and isinstance(blocks[0], relax.DataflowBlock)
    make = relax.DataflowVar if in_dataflow else relax.Var
    for call in calls:
        call = builder.normalize(call)
        check, kept = make("check", call.ty), make("kept", relax.ObjectType())
        bindings += [relax.VarBinding(check, call), relax.MatchCast(kept, check, kept.ty)]
    if in_dataflow:
        blocks[0] = relax.DataflowBlock([*bindings, *blocks[0].bindings])
    else:
        blocks.insert(0, relax.BindingBlock(bindings))
    body = builder.normalize(relax.SeqExpr(blocks, func.body.body))
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
