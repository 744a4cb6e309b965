"""How much the tuning stage does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How much the stage does. ``budget`` in seconds: after the three shares of it, searching,
    measuring tasks and measuring plans end, and the rest is for learning.

    ``trials`` records of each tile are measured at most, ``finalists`` of them and the default one
    again in ``rounds`` turns. ``thorough``, ``busy``: which tasks, see `tasks.samples_of`.
    ``plans``: at most. ``shapes``: products that kernels are selected by.
    """

    budget: float = 45 * 60.0
    search_share: float = 0.45
    tasks_share: float = 0.8
    plans_share: float = 0.95
    plans: int = 5000
    shapes: int = 240
    trials: int = 32
    batch: int = 8
    finalists: int = 3
    rounds: int = 3
    thorough: bool = True
    busy: bool = True
    seed: int = 0


#: Three minutes in all, less what starting and ending take.
QUICK = Settings(
    budget=165.0,
    search_share=0.3,
    tasks_share=0.6,
    plans_share=0.86,
    plans=1500,
    shapes=80,
    trials=8,
    batch=4,
    finalists=1,
    rounds=1,
    thorough=False,
)
