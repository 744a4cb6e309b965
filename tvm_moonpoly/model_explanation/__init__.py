"""What a whole model is compiled to, and where its time goes: before and after our passes."""

from __future__ import annotations

from .changes import Change, changes
from .explained import Compiled, ModelExplanation, explained_model
from .memory import Memory, planned_memory
from .sizes import SizeError

__all__ = [
    "Change",
    "Compiled",
    "Memory",
    "ModelExplanation",
    "SizeError",
    "changes",
    "explained_model",
    "planned_memory",
]
