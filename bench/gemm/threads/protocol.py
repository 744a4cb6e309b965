"""What the host asks a worker and what the worker answers, one answer to each question."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Describe:
    """Load everything and say what is there; answered by `Described`."""


@dataclass(frozen=True)
class Described:
    """What a worker has: how each candidate is called, which of them allocate their output, why
    others are absent, versions, the thread pools as loaded, and FLOP a call of a fixed probe."""

    modes: dict[str, str]
    allocating: tuple[str, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    pools: tuple[dict[str, object], ...] = ()
    flops: int | None = None


@dataclass(frozen=True)
class Prepare:
    """Make operands from ``seed`` and check every candidate on them; answered by `Prepared`."""

    shape: Any
    seed: int


@dataclass(frozen=True)
class Prepared:
    """Candidates that can be timed, and why the others cannot."""

    ready: tuple[str, ...]
    absent: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """Time ``name`` for ``min_seconds`` by the wall clock, after an untimed warm-up if ``warm``.

    Answered by seconds a call (float), or by `Failed`.
    """

    name: str
    min_seconds: float
    warm: bool = True


@dataclass(frozen=True)
class Failed:
    """The candidate raised; ``reason`` is the first line of its error."""

    reason: str


@dataclass(frozen=True)
class Release:
    """Drop the operands and everything made for them; answered by None."""
