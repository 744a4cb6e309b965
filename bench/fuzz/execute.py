"""Run one case and judge it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import tvm_ffi

from bench.fuzz import hooks, memory
from bench.fuzz.bounds import Value
from bench.fuzz.compiled import Compiled
from bench.fuzz.graph import Form, Role
from bench.fuzz.reference import Mismatch, evaluate, fault
from bench.fuzz.run import Run
from bench.fuzz.values import numpy_dtype


class Verdict(Enum):
    RIGHT = "right"
    RAISED = "raised as expected"
    PLAIN = "plain TVM's fault"
    REFUSED = "TVM cannot compile"
    WRONG = "wrong"
    ERROR = "unexpected error"
    SILENT = "no error"
    STRAY = "stray write"
    CRASHED = "crashed"
    HUNG = "hung"
    BROKEN = "does not compile"

    @property
    def is_fault(self) -> bool:
        return self not in (Verdict.RIGHT, Verdict.RAISED, Verdict.PLAIN, Verdict.REFUSED)


@dataclass(frozen=True)
class Outcome:
    """What became of a case. ``rewritten`` and ``left``: matmuls of its form."""

    case: int
    kind: str
    verdict: Verdict
    detail: str = ""
    rewritten: int = 0
    left: int = 0
    injected: str = ""


@dataclass(frozen=True)
class Injection:
    """A fault that is made on purpose, to test the fuzzer: see `inject`."""

    before: Callable[[Sequence[memory.Placed], memory.Placed], None] | None = None
    result: Callable[[list[np.ndarray], list[Value]], None] | None = None


def execute(
    form: Form, run: Run, compiled: Compiled, injection: Injection | None = None
) -> tuple[Verdict, str]:
    """Run the case and judge it. A crash or a hang of the call is the caller's to see."""
    injection = injection or Injection()
    left = compiled.plain[form.name]
    call = hooks.current
    call.rng = np.random.default_rng(run.seed_of_calls)
    call.guarded, call.detours = run.guarded, True
    call.before = injection.before
    call.faults.clear()
    call.placed.clear()
    given = _place(form, run, compiled, call)
    error: Exception | None = None
    results: list[np.ndarray] = []
    try:
        results = _call(form, run, compiled, given)
    except Exception as raised:
        error = raised
    call.guarded = call.detours = False
    stray = list(call.faults)
    for name, placed in given.items():
        if placed.array.tobytes() != run.arrays[name].tobytes():
            stray.append(f"input {name} was changed")
    # looking beside a tensor spoils its elements: only now
    beside = [name for name, placed in given.items() if placed.stray_write()]
    stray += [f"there was a write beside input {name}" for name in beside]
    if any(placed.stray_write() for placed in call.placed):
        stray.append("there was a write beside a tensor of the virtual machine")
    call.pool.release()
    if stray:
        return Verdict.STRAY, "; ".join(stray)
    return _judge(form, run, left, results, error, injection)


def _judge(
    form: Form,
    run: Run,
    left: frozenset[str],
    results: list[np.ndarray],
    error: Exception | None,
    injection: Injection,
) -> tuple[Verdict, str]:
    try:
        expected = evaluate(form, run.arrays, run.sizes)
    except Mismatch as mismatch:
        return _judge_error(form, run, left, mismatch, error)
    if error is not None:
        return Verdict.ERROR, f"{type(error).__name__}: {first_line(error)}"
    if injection.result is not None:
        injection.result(results, expected)
    wrong = _first_fault(results, expected)
    if wrong is None:
        return Verdict.RIGHT, ""
    if left and _first_fault(results, evaluate(form, run.arrays, run.sizes, left)) is None:
        return Verdict.PLAIN, wrong
    return Verdict.WRONG, wrong


def _judge_error(
    form: Form, run: Run, left: frozenset[str], mismatch: Mismatch, error: Exception | None
) -> tuple[Verdict, str]:
    """Of a call that has no result: it must have raised, and said why."""
    if error is None:
        return (Verdict.PLAIN if plain_mismatch(form, run, left) else Verdict.SILENT), str(mismatch)
    if _says(error, mismatch, form):
        return Verdict.RAISED, ""
    verdict = Verdict.PLAIN if plain_mismatch(form, run, left) else Verdict.ERROR
    return verdict, f"{mismatch}, but: {type(error).__name__}: {first_line(error)}"


def _says(error: Exception, mismatch: Mismatch, form: Form) -> bool:
    """Whether ``error`` is of the right type and names what does not fit: both sizes, and for a
    contraction the symbols whose values they are."""
    if mismatch.how == "reshape":  # told by a `match_cast`, hence the type
        return isinstance(error, RuntimeError) and "changes the number of elements" in str(error)
    wanted = [str(size) for size in mismatch.sizes]
    if mismatch.how == "contraction":
        pairs = [pair for pair in form.pairs if pair.how == mismatch.how]
        wanted += [dim.symbol for pair in pairs for dim in (pair.left, pair.right) if dim.symbol]
    named = all(re.search(rf"\b{word}\b", str(error)) for word in wanted)
    return isinstance(error, ValueError) and named


def plain_mismatch(form: Form, run: Run, left: frozenset[str]) -> bool:
    """Whether the call has no result, and it is plain TVM that would have to see it: it reads
    beyond the operands, and may crash."""
    try:
        evaluate(form, run.arrays, run.sizes, left)
    except Mismatch as mismatch:
        return mismatch.plain
    return False


def first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")


def _first_fault(results: Sequence[np.ndarray], expected: Sequence[Value]) -> str | None:
    if len(results) != len(expected):
        return f"{len(results)} results, not {len(expected)}"
    for i, (result, value) in enumerate(zip(results, expected, strict=True)):
        wrong = fault(result, value)
        if wrong is not None:
            return f"output {i}: {wrong}"
    return None


def _place(form: Form, run: Run, compiled: Compiled, call: hooks.Call) -> dict[str, memory.Placed]:
    """Each parameter against a protected page. Those of one array share it."""
    placed: dict[str, memory.Placed] = {}
    by_array: dict[int, memory.Placed] = {}
    exact = compiled.exact_ends[form.name]
    for each in form.of_role(Role.DYNAMIC, Role.CONDITION, Role.WEIGHT):
        array = run.arrays[each.name]
        twin = by_array.get(id(array))
        if twin is None:
            dtype = numpy_dtype(each.dtype)
            names = [n for n, other in run.arrays.items() if other is array]
            free = all(name in exact for name in names)
            alignment = dtype.itemsize if free else memory.ALIGNMENT
            gaps = run.gaps.get(each.name, 0) if free else 0
            twin = call.pool.place(array.shape, dtype, run.sides[each.name], alignment, gaps)
            twin.array[...] = array
            by_array[id(array)] = twin
        placed[each.name] = twin
    return placed


def _call(
    form: Form, run: Run, compiled: Compiled, given: Mapping[str, memory.Placed]
) -> list[np.ndarray]:
    vm = compiled.vm
    tensors = {name: memory.tensor(placed.array) for name, placed in given.items()}
    undefined = form.undefined_symbols()
    arguments: list[Any] = []
    if undefined:
        arguments.append(tvm_ffi.Shape(tuple(run.sizes[name] for name in undefined)))
    arguments += [tensors[each.name] for each in form.of_role(Role.DYNAMIC, Role.CONDITION)]
    weights = [tensors[each.name] for each in form.of_role(Role.WEIGHT)]
    if form.name in compiled.lifted:
        weights = list(vm[f"{form.name}_transform_params"](weights))
    result = vm[form.name](*arguments, *weights)
    parts = [result] if len(form.outputs) == 1 else list(result)
    return [memory.copied(part) for part in parts]
