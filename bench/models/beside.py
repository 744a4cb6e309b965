"""The peers other than onnxruntime, which are measured beside ours on few sizes: calls of plain TVM
take long, and compiling does with torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from bench.beside import Beside
from bench.models.build import ORT, PLAIN, TORCH
from bench.models.cases import Case, quick_of, smallest

PEERS = (ORT, TORCH, PLAIN)


def compiled_for(chosen: Sequence[Case]) -> list[Case]:
    """Those of ``chosen`` that torch compiles for: what a quick run has of their networks."""
    return [case for case in chosen if case in quick_of(case.network)]


BESIDE = (
    Beside(
        TORCH,
        "torch.compile",
        "torch",
        "three of each line of the table",
        compiled_for,
        rounds=6,
        fewest=4,
        flops=20e9,
        starting=20.0,
        patience=120.0,
    ),
    Beside(
        PLAIN,
        "plain TVM",
        "apache-tvm",
        "the smallest of each line of the table",
        smallest,
        rounds=2,
        fewest=2,
        flops=0.3e9,
        starting=5.0,
        patience=300.0,
    ),
)
"""In the order in which they are measured, and shown in tables."""


def installed(there: Callable[[str], object] = importlib.util.find_spec) -> tuple[str, ...]:
    """The peers whose library is ``there``."""
    return tuple(name for name in PEERS if name != TORCH or there("torch"))
