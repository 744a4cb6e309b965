"""Run groups of forms in a process that may die.

A worker compiles the forms of a group as one module and forks; the child runs the cases, and when
one kills it, the next child goes on after that. Nothing parallel may run in the worker itself: a
process that is forked after the first parallel call of its parent hangs in TVM's thread pool.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import IO

from tvm.target import Target

import tvm_moonpoly
from bench.fuzz import hooks
from bench.fuzz.compiled import Compiled, Way, compile_forms, draw_way, plain_compiles
from bench.fuzz.draw import draw_form
from bench.fuzz.execute import Outcome, Verdict, execute, first_line, plain_mismatch
from bench.fuzz.graph import Form
from bench.fuzz.inject import QUICK_KINDS, injection
from bench.fuzz.run import FORMS_IN_MODULE, draw_run, form_of, group_of
from tvm_moonpoly import operators

#: After this many seconds a case hangs, and so does a compiler.
PATIENCE = 60.0
COMPILER_PATIENCE = 180.0

Emit = Callable[[Outcome], None]


@dataclass(frozen=True)
class Options:
    """``inject``: the kind of fault to make in each case, "all" for one after the other, or "".
    ``patience`` and ``compiler_patience`` are in seconds. ``quiet``: without what the compiler
    prints."""

    seed: int
    inject: str = ""
    patience: float = PATIENCE
    compiler_patience: float = COMPILER_PATIENCE
    quiet: bool = True


@dataclass(frozen=True)
class Task:
    """Cases of the forms of one group. ``failure``: how our pipeline failed on the one form, when
    it remains to be seen whether TVM compiles it without us. ``together``: all forms of the group
    are compiled, whatever the cases."""

    cases: tuple[int, ...]
    failure: str = ""
    together: bool = False

    @property
    def forms(self) -> list[int]:
        forms = sorted({form_of(case) for case in self.cases})
        if not self.together:
            return forms
        first = group_of(forms[0]) * FORMS_IN_MODULE
        return list(range(first, first + FORMS_IN_MODULE))

    def apart(self) -> list[Task]:
        """A task for each form that it has cases of."""
        forms = sorted({form_of(case) for case in self.cases})
        return [Task(tuple(c for c in self.cases if form_of(c) == form)) for form in forms]


def serve(connection: Connection, options: Options) -> None:
    """Run the tasks that come through ``connection``; answers are outcomes, then the task."""
    hooks.guard_results()
    if options.quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while (task := connection.recv()) is not None:
        run_task(task, options, connection.send)
        connection.send(task)


def run_task(task: Task, options: Options, emit: Emit) -> None:
    """Compile the forms of ``task`` and run its cases."""
    forms = {index: draw_form(options.seed, index) for index in task.forms}
    group = group_of(task.forms[0])
    way = draw_way(options.seed, group, detours=True if options.inject else None)
    target = tvm_moonpoly.detect_target()
    if task.failure:
        _tell_failure(task, forms[task.forms[0]], options, target, emit)
        return
    try:
        compiled = compile_forms(list(forms.values()), options.seed, way, target)
    except Exception as error:
        if len(forms) > 1:
            for single in task.apart():
                run_task(single, options, emit)
            return
        failed = replace(task, failure=f"{type(error).__name__}: {first_line(error)}")
        _tell_failure(failed, forms[task.forms[0]], options, target, emit)
        return
    _warm(compiled)
    waiting = list(task.cases)
    while waiting:
        _run_in_child(waiting, forms, compiled, options, emit)


def _tell_failure(task: Task, form: Form, options: Options, target: Target, emit: Emit) -> None:
    """A form that TVM compiles without us is ours to compile."""
    possible = plain_compiles(form, options.seed, target)
    verdict = Verdict.BROKEN if possible else Verdict.REFUSED
    for case in task.cases:
        emit(Outcome(case, form.kind, verdict, task.failure))


def _warm(compiled: Compiled) -> None:
    """Have the library's functions compiled by LLVM now and not in each child."""
    library = operators.library(tvm_moonpoly.detect_target()).module
    library[operators.MATMUL]


def _run_in_child(
    waiting: list[int],
    forms: dict[int, Form],
    compiled: Compiled,
    options: Options,
    emit: Emit,
) -> None:
    """Run cases until all are done or one ends the child; removes those that ran."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            reader.close()
            _child(waiting, forms, compiled, options, writer, said)
        writer.close()
        injected = ""
        try:
            while waiting:
                if not reader.poll(options.patience):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    emit(_lost(waiting.pop(0), forms, compiled, options, Verdict.HUNG, injected))
                    return
                message = reader.recv()
                if isinstance(message, Outcome):
                    waiting.pop(0)
                    emit(replace(message, injected=injected))
                    injected = ""
                else:
                    injected = message
        except EOFError:
            pass
        _, status = os.waitpid(child, 0)
        if waiting:
            how = Verdict.CRASHED
            cause = f"{_cause(status)}; {_last_words(said)}"
            emit(_lost(waiting.pop(0), forms, compiled, options, how, injected, cause))


def _child(
    cases: Sequence[int],
    forms: dict[int, Form],
    compiled: Compiled,
    options: Options,
    writer: Connection,
    said: IO[bytes],
) -> None:
    """Run ``cases``; does not return."""
    code = 1
    try:
        os.dup2(said.fileno(), 2)
        kinds = QUICK_KINDS if options.inject == "all" else [options.inject]
        for case in cases:
            form = forms[form_of(case)]
            kind = kinds[case % len(kinds)]
            fault = injection(kind, lambda kind=kind: writer.send(kind)) if kind else None  # type: ignore[misc]
            run = draw_run(form, options.seed, case)
            verdict, detail = execute(form, run, compiled, fault)
            writer.send(_outcome(case, form, compiled, verdict, detail))
        code = 0
    except BaseException:  # a fault of the fuzzer: it is told as a crash, with its last line
        traceback.print_exc()
    finally:
        os._exit(code)


def _outcome(case: int, form: Form, compiled: Compiled, verdict: Verdict, detail: str) -> Outcome:
    left = len(compiled.plain[form.name])
    return Outcome(case, form.kind, verdict, detail, compiled.matmuls[form.name] - left, left)


def _lost(
    case: int,
    forms: dict[int, Form],
    compiled: Compiled,
    options: Options,
    verdict: Verdict,
    injected: str,
    detail: str = "",
) -> Outcome:
    """The outcome of a case that ended its process."""
    form = forms[form_of(case)]
    run = draw_run(form, options.seed, case)
    known = plain_mismatch(form, run, compiled.plain[form.name])
    if verdict is Verdict.CRASHED and not injected and known:
        verdict = Verdict.PLAIN
    return replace(_outcome(case, form, compiled, verdict, detail), injected=injected)


def _cause(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _last_words(said: IO[bytes]) -> str:
    """The line of a crash's backtrace that says most: the first with a name of generated code."""
    said.seek(0)
    lines = said.read().decode(errors="replace").splitlines()
    named = [line.strip() for line in lines if " in " in line and "<unknown>" in line]
    return named[0] if named else (lines[-1] if lines else "nothing was said")


def way_of(case: int, options: Options) -> Way:
    """How the module of ``case`` is compiled."""
    group = group_of(form_of(case))
    return draw_way(options.seed, group, detours=True if options.inject else None)
