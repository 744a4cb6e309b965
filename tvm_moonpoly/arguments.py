"""Arguments of public functions: one sentence, which names the argument and the rule, for what is
of a wrong type. All of them raise ValueError."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Integral
from operator import index
from typing import Any, SupportsIndex, TypeGuard

import numpy as np
from tvm.target import Target


def require(holds: bool, argument: str, rule: str, value: object) -> None:
    """Raise ValueError unless the rule holds: ``argument: must be RULE, not VALUE``."""
    if not holds:
        raise ValueError(f"{argument}: must be {rule}, not {value!r}")


def require_flags(**values: object) -> None:
    """Raise for a value, by the name of its argument, that is neither True nor False."""
    for argument, value in values.items():
        require(isinstance(value, bool | np.bool_), argument, "True or False", value)


def sizes(**given: object) -> list[int]:
    """The sizes as Python's integers; raises for one, by the name of its argument, that is no whole
    number from 1 on."""
    for argument, size in given.items():
        holds = is_whole(size) and index(size) >= 1
        require(holds, argument, "a whole number of at least 1", size)
    return [index(size) for size in given.values()]  # type: ignore[arg-type]


def size_or_none(argument: str, size: object) -> int | None:
    """The same of one size, that may be None."""
    return None if size is None else sizes(**{argument: size})[0]


def is_whole(value: object) -> TypeGuard[SupportsIndex]:
    """Whether it is an integer, of Python or of numpy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def names(argument: str, value: object) -> Collection[str]:
    """A collection of names; None is none. A name alone would be taken for its letters."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ValueError(f"{argument}: must be a list of names, such as ['A'], not {value!r}")
    for each in value:
        require(isinstance(each, str), argument, "a list of names", value)
    return value


def by_name(argument: str, value: object) -> Mapping[str, Any]:
    """A map from names; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{argument}: must be a dict by names, such as {{'n': ...}}, not {value!r}"
        )
    for each in value:
        require(isinstance(each, str), argument, "a dict by names, of which each is a string", each)
    return value


def target_of(value: object) -> Target:
    """A target, or what TVM makes one of: a tag, or a dict of its attributes."""
    if isinstance(value, Target):
        return value
    if not isinstance(value, str | dict):
        raise ValueError(f"target: must be a tvm Target, its tag or a dict, not {value!r}")
    try:
        return Target(value)
    except ValueError as error:
        raise ValueError(f"target: {value!r} is none: {error}") from error
