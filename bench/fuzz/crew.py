"""Deal tasks out to worker processes, and replace those that die."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from bench.fuzz.draw import draw_form
from bench.fuzz.execute import Outcome, Verdict
from bench.fuzz.run import form_of, group_of
from bench.fuzz.worker import Emit, Options, Task, serve


def tasks_of(cases: int) -> list[Task]:
    """The cases from 0 on, by groups."""
    groups: dict[int, list[int]] = {}
    for case in range(cases):
        groups.setdefault(group_of(form_of(case)), []).append(case)
    return [Task(tuple(each)) for each in groups.values()]


@dataclass
class _Member:
    process: BaseProcess
    connection: Connection
    task: Task | None = None
    reported: set[int] = field(default_factory=set)
    heard: float = 0.0

    def give(self, task: Task) -> None:
        self.task, self.reported, self.heard = task, set(), time.monotonic()
        self.connection.send(task)


def run_tasks(tasks: Sequence[Task], jobs: int, options: Options, emit: Emit) -> None:
    """Run all ``tasks`` in ``jobs`` processes; their outcomes go to ``emit`` as they come."""
    waiting = deque(tasks)
    limit = options.patience + options.compiler_patience
    members = [_hire(options) for _ in range(min(jobs, len(tasks)))]
    try:
        while True:
            for member in members:
                if member.task is None and waiting:
                    member.give(waiting.popleft())
            busy = {each.connection: each for each in members if each.task is not None}
            if not busy:
                return
            for ready in wait(list(busy), timeout=1):
                assert isinstance(ready, Connection)
                member = busy[ready]
                if not _listen(member, emit):
                    waiting.extendleft(_after_death(member, options, emit))
                    members[members.index(member)] = _hire(options)
            for member in members:
                silent = time.monotonic() - member.heard
                if member.task is not None and silent > limit:
                    member.process.kill()  # seen as its death in the next round
    finally:
        for member in members:
            member.process.terminate()
            member.process.join()


def _hire(options: Options) -> _Member:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, options), daemon=True)
    process.start()
    theirs.close()
    return _Member(process, ours)


def _listen(member: _Member, emit: Emit) -> bool:
    """Take one message; False when the process has ended."""
    try:
        message = member.connection.recv()
    except (EOFError, ConnectionResetError):
        return False
    member.heard = time.monotonic()
    if isinstance(message, Outcome):
        member.reported.add(message.case)
        emit(message)
    else:
        member.task = None
    return True


def _after_death(member: _Member, options: Options, emit: Emit) -> list[Task]:
    """A worker ends, or is ended, only while it compiles. The forms of its task are tried one by
    one, and the one that ends a worker on its own is compiled without us."""
    member.process.join()
    task = member.task
    assert task is not None
    left = Task(tuple(case for case in task.cases if case not in member.reported))
    if len(left.forms) > 1:
        return left.apart()
    code = member.process.exitcode
    how = "did not end in time" if code == -signal.SIGKILL else f"ended with exit status {code}"
    if not task.failure:
        return [replace(left, failure=f"the compiler {how}")]
    for case in left.cases:
        kind = draw_form(options.seed, form_of(case)).kind
        detail = f"{task.failure}; without us, it {how}"
        emit(Outcome(case, kind, Verdict.REFUSED, detail))
    return []
