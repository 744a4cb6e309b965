"""Peers that are measured beside ours on few sizes, in passes of their own: calls of plain TVM take
so long, and compiling does with torch."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from bench.gemm.run import Effort
from bench.models.build import ORT, PLAIN, TORCH
from bench.models.cases import Case, quick_of, smallest

PEERS = (ORT, TORCH, PLAIN)


@dataclass(frozen=True)
class Beside:
    """A pass of ours and ``engine``, which makes ``flops`` a second or so, after ``starting``
    seconds of loading: ``rounds`` rounds a case, ``fewest`` where calls are long. Its runs have
    ``mode`` in the journal."""

    engine: str
    title: str
    package: str  # whose version it has
    where: str  # it is measured, in words
    rounds: int
    fewest: int
    flops: float
    starting: float
    patience: float  # seconds that a call may take

    @property
    def mode(self) -> str:
        return f"beside {self.title}"

    def cases(self, chosen: Sequence[Case]) -> list[Case]:
        """Those of ``chosen`` that it is measured on: the smallest of each network, or where calls
        are quick those that a quick run has too."""
        if self.engine == PLAIN:
            return smallest(chosen)
        return [case for case in chosen if case in quick_of(case.network)]

    def effort(self, usual: Effort) -> Effort:
        """That of its pass."""
        rounds = min(self.rounds, usual.rounds)
        fewest = min(self.fewest, rounds)
        return replace(usual, rounds=rounds, fewest=fewest, budget=math.inf)

    def expected_seconds(self, case: Case) -> float:
        """Those that a case will take, or so."""
        return self.starting + case.flops * (1 + self.fewest) / self.flops


BESIDE = (
    Beside(
        TORCH,
        "torch.compile",
        "torch",
        "three sizes of each network",
        rounds=6,
        fewest=4,
        flops=20e9,
        starting=15.0,
        patience=120.0,
    ),
    Beside(
        PLAIN,
        "plain TVM",
        "apache-tvm",
        "the smallest size of each network",
        rounds=2,
        fewest=2,
        flops=0.1e9,
        starting=10.0,
        patience=300.0,
    ),
)
"""In the order in which they are measured, and shown in tables."""


def installed(there: Callable[[str], object] = importlib.util.find_spec) -> tuple[str, ...]:
    """The peers whose library is ``there``."""
    return tuple(name for name in PEERS if name != TORCH or there("torch"))


def chosen(engines: Collection[str]) -> list[Beside]:
    """The passes of those in ``engines``."""
    return [one for one in BESIDE if one.engine in engines]
