"""The operands of ONNX's operators on small tensors that hold sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .elements import Unknown
from .known import Known
from .symbolic import Sizes

Attributes = Mapping[str, Any]
Operator = Callable[[Sizes, Sequence[Known | None], Attributes], Known]


def given(inputs: Sequence[Known | None], at: int) -> Known:
    """The operand `at`; raises Unknown where it is not known."""
    if at >= len(inputs) or inputs[at] is None:
        raise Unknown
    found = inputs[at]
    assert found is not None
    return found


def given_integers(inputs: Sequence[Known | None], at: int) -> list[int]:
    """The operand `at`, all of it numbers; raises Unknown."""
    elements = given(inputs, at).elements
    if not all(isinstance(each, int) for each in elements):
        raise Unknown
    return elements


def axes_of(inputs: Sequence[Known | None], attributes: Attributes) -> list[int] | None:
    """The axes, which are an attribute up to opset 12 and an input after it."""
    if len(inputs) > 1 and inputs[1] is not None:
        return given_integers(inputs, 1)
    return list(attributes["axes"]) if "axes" in attributes else None
