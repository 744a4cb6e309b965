"""Faults made on purpose, to see that the fuzzer finds them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

import numpy as np

from bench.fuzz.bounds import Value
from bench.fuzz.execute import Injection, Verdict
from bench.fuzz.memory import Placed

#: Told the moment before a fault is made: a crash leaves no time to say it afterwards.
Announce = Callable[[], None]
Faulty = Callable[[Announce], Injection]


def injection(kind: str, announce: Announce) -> Injection:
    """The fault ``kind``, one of `KINDS`."""
    return KINDS[kind][0](announce)


def _value(announce: Announce) -> Injection:
    """One element of a result is off by a little more than its bound."""

    def spoil(results: list[np.ndarray], expected: list[Value]) -> None:
        where = _checked(results[0], expected[0])
        if where is not None:
            announce()
            value = expected[0]
            error = value.error[where]
            step = 3 if value.is_integer else 2.5 * error + 2 * np.spacing(results[0][where])
            results[0][where] = np.asarray(value.exact[where] + step).astype(results[0].dtype)

    return Injection(result=spoil)


def _leak(announce: Announce) -> Injection:
    """One finite element of a result becomes NaN."""

    def spoil(results: list[np.ndarray], expected: list[Value]) -> None:
        where = _checked(results[0], expected[0])
        if where is not None and not expected[0].is_integer:
            announce()
            results[0][where] = np.nan

    return Injection(result=spoil)


def _checked(result: np.ndarray, value: Value) -> tuple[int, ...] | None:
    """The last element that is judged by its bound."""
    if result.shape != value.exact.shape:
        return None
    found = np.argwhere(np.isfinite(value.exact) & ~value.anything & (value.error < 1e30))
    return tuple(int(i) for i in found[-1]) if len(found) else None


def _past(placed: Placed) -> int:
    """The address right behind the guarded memory of a tensor."""
    return int(placed.memory.ctypes.data) + len(placed.memory)


def _beyond(announce: Announce) -> Injection:
    """A packed function writes one byte on the protected page behind its result."""

    def spoil(operands: Sequence[Placed], result: Placed) -> None:
        if len(result.memory):
            announce()
            ctypes.c_uint8.from_address(_past(result)).value = 1

    return Injection(before=spoil)


def _read(announce: Announce) -> Injection:
    """A packed function reads one byte of the protected page behind its first operand."""

    def spoil(operands: Sequence[Placed], result: Placed) -> None:
        if len(operands[0].memory):
            announce()
            _ = ctypes.c_uint8.from_address(_past(operands[0])).value

    return Injection(before=spoil)


def _beside(announce: Announce) -> Injection:
    """A packed function writes one byte beside its result, not on the protected page."""

    def spoil(operands: Sequence[Placed], result: Placed) -> None:
        if result.array.size == 0:
            return
        begins = result.array.ctypes.data == result.memory.ctypes.data
        used = (np.array(result.array.shape) - 1) @ np.array(result.array.strides, int)
        if used + result.array.itemsize < len(result.memory):
            announce()
            result.memory[-1 if begins else 0] = 0

    return Injection(before=spoil)


def _operand(announce: Announce) -> Injection:
    """A packed function changes its first operand."""

    def spoil(operands: Sequence[Placed], result: Placed) -> None:
        if operands[0].array.size:
            announce()
            first = operands[0].array
            first[(0,) * first.ndim] = 77

    return Injection(before=spoil)


def _hang(announce: Announce) -> Injection:
    """A packed function does not return."""

    def spoil(operands: Sequence[Placed], result: Placed) -> None:
        announce()
        time.sleep(3600)

    return Injection(before=spoil)


#: Each fault, and what the fuzzer must say of it.
KINDS: dict[str, tuple[Faulty, Verdict]] = {
    "value": (_value, Verdict.WRONG),
    "leak": (_leak, Verdict.WRONG),
    "beyond": (_beyond, Verdict.CRASHED),
    "read": (_read, Verdict.CRASHED),
    "beside": (_beside, Verdict.STRAY),
    "operand": (_operand, Verdict.STRAY),
    "hang": (_hang, Verdict.HUNG),
}

#: Those that take no time to be found.
QUICK_KINDS = [kind for kind in KINDS if kind != "hang"]
