"""Statements: loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tvm.tirx.script import builder as T

from tvm_moonpoly.emit.values import Expr, as_int


def loop(extent: Expr) -> AbstractContextManager[Expr]:
    """``for i in range(extent)`` over int64."""
    return T.serial(0, as_int(extent))


@contextmanager
def when(condition: Expr) -> Any:
    """``if condition:`` without an else."""
    with T.If(condition), T.Then():
        yield


def unless(
    condition: Expr, rare: Callable[[], None], usual: Callable[[], None] | None = None
) -> None:
    """``rare()`` unless ``condition`` holds, else ``usual()`` or nothing.

    tvm tells LLVM that an ``if`` without an else is taken; this one has both.
    """
    nothing = T.call_llvm_intrin("void", "llvm.donothing")
    branch(condition, usual or (lambda: T.evaluate(nothing)), rare)


def branch(condition: Expr, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """``if condition: then() else: otherwise()``."""
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            otherwise()


def switch(value: Expr, cases: Sequence[int], emit: Callable[[int], None]) -> None:
    """Emit ``emit(case)`` for the case equal to ``value``, found by bisection.

    A value that is no case takes the nearest one above it, or the last.
    """
    if len(cases) == 1:
        emit(cases[0])
        return
    middle = len(cases) // 2
    branch(
        value < cases[middle],
        lambda: switch(value, cases[:middle], emit),
        lambda: switch(value, cases[middle:], emit),
    )
