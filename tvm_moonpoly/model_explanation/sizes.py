"""The sizes of one call of a model: its inputs, and what follows for expressions of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm.ir import Var

from relax_passes.shape_range import Range
from relax_passes.shapes import show_dim
from relax_passes.tir_terms import value_of, variables

Inputs = Sequence[tuple[str, str, Sequence[Any]]]


class SizeError(ValueError):
    """Sizes that do not fit a model."""


def dynamic_dims(inputs: Inputs) -> dict[str, str]:
    """The symbolic dimensions of `inputs` (name, dtype and sizes of each), and where the first of
    each is."""
    found: dict[str, str] = {}
    for name, _, shape in inputs:
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                for var in sorted(variables(size), key=lambda each: each.name):
                    found.setdefault(var.name, f"{name}:{axis}")
    return found


def sizes_of_call(
    inputs: Inputs, given: Mapping[str, int], promised: Mapping[str, Range]
) -> dict[str, int]:
    """The size of each dynamic dimension, from `given`, whose keys are names or INPUT:AXIS, or
    else the first one that is promised to be likely.

    Raises SizeError for names that are none, sizes that are missing, and broken promises.
    """
    dynamic = dynamic_dims(inputs)
    places = {
        f"{name}:{axis}": size.name
        for name, _, shape in inputs
        for axis, size in enumerate(shape)
        if isinstance(size, Var)
    }
    found: dict[str, int] = {}
    for key, size in given.items():
        name = places.get(key, key)
        if name not in dynamic:
            known = ", ".join(dynamic) or "none"
            raise SizeError(f"{key!r} is no dynamic dimension; these are: {known}")
        if found.setdefault(name, size) != size:
            raise SizeError(f"{name!r} is given as {found[name]} and as {size}")
        if name in promised and size not in promised[name]:
            raise SizeError(f"{name!r} must be {promised[name]}, not {size}")
    for name in dynamic:
        likely = promised[name].likely if name in promised else ()
        if name not in found and likely:
            found[name] = likely[0]
    missing = [name for name in dynamic if name not in found]
    if missing:
        raise SizeError(f"a size is missing for {', '.join(missing)}")
    return found


def are_likely(inputs: Inputs, promised: Mapping[str, Range]) -> bool:
    """Whether a likely size is known of each dynamic dimension: so it is where there are none."""
    return all(name in promised and promised[name].likely for name in dynamic_dims(inputs))


def made_inputs(inputs: Inputs, sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Values for `inputs`: floats around 0, and ones for all else, as masks and tokens are.

    Raises SizeError for a size below 0.
    """
    rng = np.random.default_rng(0)
    arrays = []
    for name, dtype, shape in inputs:
        found: list[int] = []
        for axis, size in enumerate(shape):
            value = value_of(size, sizes)
            if value is None or value < 0:
                raise SizeError(f"{name}:{axis}, {show_dim(size)}, is {value}")
            found.append(value)
        floats = np.dtype(dtype).kind == "f"
        made = rng.standard_normal(found) if floats else np.ones(found)
        arrays.append(made.astype(dtype))
    return arrays
