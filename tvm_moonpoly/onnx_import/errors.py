"""What a model that cannot be imported is answered with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """Why one node cannot be imported. `node` and `operator` are empty where it is no node."""

    node: str
    operator: str
    reason: str

    def __str__(self) -> str:
        where = " ".join(filter(None, (self.operator, self.node and f"{self.node!r}")))
        return f"{where}: {self.reason}" if where else self.reason


class OnnxImportError(ValueError):
    """A model that cannot be imported; `problems` are the reasons, one for each node."""

    def __init__(self, problems: Sequence[Problem], model: str = "the model") -> None:
        self.problems = tuple(problems)
        self.model = model
        lines = [str(problem) for problem in self.problems]
        text = lines[0] if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)
        super().__init__(f"{model} cannot be imported: {text}")


class Unsupported(Exception):
    """Raised by the conversion of one node: the reason why it cannot be converted."""
