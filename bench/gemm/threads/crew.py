"""All workers of a run: one runs, the others are stopped; a lost one is started again."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from bench.gemm.threads.link import Link, WorkerLost
from bench.gemm.threads.protocol import (
    Describe,
    Described,
    Failed,
    Prepare,
    Prepared,
    Release,
    Sample,
)

START_SECONDS = 180.0  # a first start compiles our library
LOSSES = 3  # after so many a worker is given up


@dataclass(frozen=True)
class Library:
    """What one worker process measures.

    ``candidates`` are known to the worker by their names without ``suffix``, and to everybody else
    with it. ``environment`` is added to that of all workers.
    """

    name: str
    candidates: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""
    command: tuple[str, ...] = ()

    def command_for(self, threads: int) -> list[str]:
        """The worker's command without the arguments that `Link` adds."""
        if self.command:
            return list(self.command)
        module = [sys.executable, "-m", "bench.gemm.threads.worker"]
        return [*module, str(threads), ",".join(self.candidates)]


class Crew:
    """The workers of ``libraries``, with ``threads`` threads each.

    A context manager: leaving it ends all of them, in whatever state they are. At any time at most
    one worker is not stopped.
    """

    def __init__(
        self, libraries: Sequence[Library], environment: Mapping[str, str], threads: int
    ) -> None:
        self._libraries = {library.name: library for library in libraries}
        self._environment = dict(environment)
        self._threads = threads
        self._links: dict[str, Link] = {}
        self._losses = dict.fromkeys(self._libraries, 0)
        self.described: dict[str, Described] = {}
        self.absent: dict[str, str] = {}

    def __enter__(self) -> Crew:
        try:
            for name in self._libraries:
                self._start(name)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """End all workers."""
        links, self._links = self._links, {}
        for link in links.values():
            link.end()

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the workers that there are, by library."""
        return {name: link.pid for name, link in self._links.items()}

    def prepare(
        self, shape: Any, seed: int, seconds: float
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Have every worker prepare ``shape`` within ``seconds``.

        Returns the candidates that can be timed, each with its library, and why others cannot.
        """
        ready: dict[str, str] = {}
        absent: dict[str, str] = {}
        for name, library in self._libraries.items():
            try:
                if name not in self._links and not self._start(name):
                    continue
                prepared = self.ask(name, Prepare(shape, seed), seconds)
            except WorkerLost as reason:
                absent.update({each + library.suffix: str(reason) for each in self._known(name)})
                continue
            assert isinstance(prepared, Prepared)
            ready.update({each + library.suffix: name for each in prepared.ready})
            absent.update({each + library.suffix: why for each, why in prepared.absent.items()})
        return ready, absent

    def sample(
        self, library: str, candidate: str, min_seconds: float, warm: bool, limit: float
    ) -> float:
        """Seconds a call of ``candidate``, while all but its worker are stopped.

        Raises WorkerLost when the worker is, and RuntimeError when the candidate raised.
        """
        name = candidate.removesuffix(self._libraries[library].suffix)
        answer = self.ask(library, Sample(name, min_seconds, warm), limit)
        if isinstance(answer, Failed):
            raise RuntimeError(answer.reason)
        assert isinstance(answer, float)
        return answer

    def release(self) -> None:
        """Have every worker drop its operands."""
        for name in list(self._links):
            try:
                self.ask(name, Release(), START_SECONDS)
            except WorkerLost:
                continue  # it is started again for the next shape

    def ask(self, library: str, request: object, seconds: float) -> object:
        """The answer of a worker that runs alone. Raises WorkerLost."""
        link = self._links.get(library)
        if link is None:
            raise WorkerLost("the worker was lost before")
        for name, other in self._links.items():
            if name != library:
                other.stop()
        link.resume()
        try:
            return link.ask(request, seconds)
        except WorkerLost:
            del self._links[library]
            self._losses[library] += 1
            raise

    def _start(self, name: str) -> bool:
        """Start a worker and let it load; says whether there is one.

        Raises WorkerLost when it had started before and does not again, or is given up.
        """
        library = self._libraries[name]
        if self._losses[name] >= LOSSES:
            if name in self.described:
                raise WorkerLost(f"its worker was lost {LOSSES} times")
            return False
        for other in self._links.values():
            other.stop()
        environment = self._environment | dict(library.environment)
        self._links[name] = Link(library.command_for(self._threads), environment)
        try:
            described = self.ask(name, Describe(), START_SECONDS)
        except WorkerLost as reason:
            if name in self.described:
                raise
            self._losses[name] = LOSSES  # one that cannot start is not tried again
            self.absent.update({each + library.suffix: str(reason) for each in library.candidates})
            return False
        assert isinstance(described, Described)
        self.described[name] = described
        self.absent.update({each + library.suffix: why for each, why in described.absent.items()})
        return True

    def _known(self, name: str) -> Sequence[str]:
        """The candidates that a worker has had at its start."""
        described = self.described.get(name)
        return list(described.modes) if described else self._libraries[name].candidates
