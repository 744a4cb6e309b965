"""Chains of elementwise steps after a product: what they compute, and their form as one integer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tvm_moonpoly.operators import activation as activations
from tvm_moonpoly.operators.activation import Activation


class Step(IntEnum):
    """A step of a chain with an operand ``e``, by its number in a program."""

    ADD = 16
    SUBTRACT = 17
    MULTIPLY = 18
    DIVIDE = 19
    REVERSE_SUBTRACT = 20
    MAXIMUM = 21
    MINIMUM = 22


#: Steps that a program holds, and operands that its steps may have.
MAX_STEPS, MAX_OPERANDS = 7, 3

#: How each step reads; ``v`` is the value so far.
_TEXTS = {
    Step.ADD: "v + e{}",
    Step.SUBTRACT: "v - e{}",
    Step.MULTIPLY: "v * e{}",
    Step.DIVIDE: "v / e{}",
    Step.REVERSE_SUBTRACT: "e{} - v",
    Step.MAXIMUM: "max(v, e{})",
    Step.MINIMUM: "min(v, e{})",
}

_NUMPY: dict[Step, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    Step.ADD: np.add,
    Step.SUBTRACT: np.subtract,
    Step.MULTIPLY: np.multiply,
    Step.DIVIDE: np.divide,
    Step.REVERSE_SUBTRACT: lambda v, e: e - v,
    Step.MAXIMUM: np.maximum,
    Step.MINIMUM: np.minimum,
}


@dataclass(frozen=True)
class Chain:
    """Elementwise steps, the first one first: ``(Step.ADD, 0)``, ``(Activation.RELU, None)``.

    A `Step` names the operand that it takes (0, 1 or 2); an `Activation` has none.

    Raises ValueError when a step is none of these or there are too many.
    """

    steps: tuple[tuple[Step | Activation, int | None], ...] = ()

    def __post_init__(self) -> None:
        if len(self.steps) > MAX_STEPS:
            raise ValueError(f"steps: at most {MAX_STEPS} fit a program, not {len(self.steps)}")
        for step, operand in self.steps:
            if isinstance(step, Step):
                if operand not in range(MAX_OPERANDS):
                    raise ValueError(f"steps: the operand of {step.name} is 0, 1 or 2: {operand}")
            elif not isinstance(step, Activation) or step == Activation.NONE:
                raise ValueError(f"steps: {step!r} is neither a Step nor an activation")
            elif operand is not None:
                raise ValueError(f"steps: {step.name} takes no operand: {operand}")

    def __str__(self) -> str:
        texts = [
            _TEXTS[step].format(operand) if isinstance(step, Step) else f"{step.name.lower()}(v)"
            for step, operand in self.steps
        ]
        return "; ".join(texts) or "v"

    def encode(self) -> int:
        """The program as the packed functions take it: a byte for each step, the first lowest.

        The low 6 bits are the step's number, the others the operand's.
        """
        codes = [int(step) | (operand or 0) << 6 for step, operand in self.steps]
        return sum(code << 8 * i for i, code in enumerate(codes))

    @classmethod
    def decode(cls, program: int) -> Chain:
        """Inverse of `encode`; raises ValueError when ``program`` is no program."""
        if not 0 <= program < 1 << 8 * MAX_STEPS:
            raise ValueError(f"program: {program:#x} has more than {MAX_STEPS} steps")
        steps: list[tuple[Step | Activation, int | None]] = []
        while program:
            number, operand = program & 63, program >> 6 & 3
            if number in _TEXTS and operand < MAX_OPERANDS:
                steps.append((Step(number), operand))
            elif number in range(1, max(Activation) + 1) and operand == 0:
                steps.append((Activation(number), None))
            else:
                raise ValueError(f"program: {program & 255:#x} is no step")
            program >>= 8
        return cls(tuple(steps))


def reference(chain: Chain, value: np.ndarray, operands: Sequence[np.ndarray | None]) -> np.ndarray:
    """``chain`` applied to ``value`` in float64; operands broadcast to it as numpy's do."""
    value = np.asarray(value, np.float64)
    with np.errstate(all="ignore"):
        for step, operand in chain.steps:
            if isinstance(step, Activation):
                value = activations.reference(step, value)
            else:
                assert operand is not None
                value = _NUMPY[step](value, np.asarray(operands[operand], np.float64))
    return value
