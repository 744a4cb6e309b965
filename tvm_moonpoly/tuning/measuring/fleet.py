"""Measuring tasks on machines behind a TVM RPC tracker, several at once.

Each server has a thread here, which asks a worker process (see `remote`) to compile a kernel and to
time it in a session on the server. What a server loses is asked for again, of whichever is free; a
kernel that is lost twice is taken to be at fault. When no server is to be had any more, the stage
ends.
"""

from __future__ import annotations

import json
import queue
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from tvm.target import Target

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.tuning.measuring import robust
from tvm_moonpoly.tuning.measuring.lab import LIMIT, PROBING, loop_of, steadiest, timing_request
from tvm_moonpoly.tuning.measuring.processes import Worker, WorkerError
from tvm_moonpoly.tuning.measuring.tasks import Task, Timing
from tvm_moonpoly.tuning.measuring.trials import Job, Measured, in_turn

#: The command of the workers, which also takes a description: see `remote.main`.
COMMAND = (sys.executable, "-m", "tvm_moonpoly.tuning.measuring.remote")

#: Seconds to wait for a free server, and between two tries; every thread tries so many times in a
#: row before the stage ends.
WAIT, PAUSE, TRIES = 20.0, 2.0, 3

#: Seconds that requests get to end when the fleet is closed.
GRACE = 10.0

#: A job is asked for so many times; when so many jobs in a row were, it is not the kernels' fault.
ASKED, LOST = 2, 6


class FleetError(RuntimeError):
    """There is no tracker, or no server that can be used: in one sentence."""


class _Lost(RuntimeError):
    """The session ended, or never was, before the request was done."""


class _Client(Worker):
    """A worker that another thread can end."""

    def kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()


@dataclass(frozen=True)
class _Asked:
    """Job ``number``, asked for the ``times``-th time; ``job`` is None for the probe."""

    number: int
    job: Job | None
    times: int = 1


@dataclass(frozen=True)
class _Told:
    """What a thread says: the result of ``asked``, why it has no session, or what ended it."""

    thread: int
    asked: _Asked | None = None
    result: Any = None
    lost: bool = False
    trouble: str | None = None


class Fleet:
    """Measures tasks on all servers of a tracker that have a key."""

    def __init__(
        self, address: tuple[str, int], key: str, target: Target, same_cpu: bool = False
    ) -> None:
        """``same_cpu``: the servers must be of the target's CPU.

        Raises FleetError when there is no tracker or no server of the key that can be used.
        """
        self.address, self.key = address, key
        #: jobs that are measured at the same time
        self.width = _servers(address, key)
        self._jobs: queue.Queue[_Asked | None] = queue.Queue()
        self._told: queue.Queue[_Told] = queue.Queue()
        self._closing = threading.Event()
        self._troubles, self._lost = [0] * self.width, 0
        self._folder = tempfile.TemporaryDirectory(prefix="moonpoly-fleet-")
        described = {
            "address": address,
            "key": key,
            "target": json.loads(str(target)),
            "folder": self._folder.name,
        }
        command = [*COMMAND, json.dumps(described)]
        self._clients = [_Client(command) for _ in range(self.width)]
        self._threads = ThreadPoolExecutor(self.width, "fleet")
        self._serving: list[Future[None]] = []
        try:
            self.machine = self._described(target, same_cpu)
        except BaseException:
            self.close()
            raise
        self._serving = [self._threads.submit(self._serve, n) for n in range(self.width)]

    def many(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measured]]:
        """See `trials.MeasureMany`. Raises FleetError when no server can be used any more."""
        coming = enumerate(jobs)
        flying = 0
        while True:
            while flying < self.width:
                following = next(coming, None)
                if following is None:
                    break
                self._jobs.put(_Asked(*following))
                flying += 1
            if not flying:
                return
            told = self._next()
            assert told.asked is not None
            flying -= 1
            yield told.asked.number, told.result

    def reference(self) -> float:
        """Nanoseconds of one step of the probe at the undisturbed speed of a server."""
        self._jobs.put(_Asked(0, None))
        result = self._next().result
        if isinstance(result, Measured):
            raise FleetError(f"rpc: no server has timed the probe: {result.error}")
        return float(result)

    def close(self) -> None:
        self._closing.set()
        for _ in self._clients:
            self._jobs.put(None)
        # a server of tvm 0.27 ends when its client does in the middle of a request
        wait(self._serving, GRACE)
        while wait(self._serving, 0.1).not_done:
            # whoever waits for an answer hears that there will be none
            for client in self._clients:
                client.kill()
        self._threads.shutdown()
        for client in self._clients:
            client.close()
        self._folder.cleanup()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _described(self, target: Target, same_cpu: bool) -> Machine:
        """The target's machine, with the caches and cores of a server."""
        try:
            _connect(self._clients[0])
            told = _asked(self._clients[0], {"op": "describe"})
        except (WorkerError, _Lost) as error:
            raise FleetError(f"rpc: no server of key {self.key!r} can be used: {error}") from error
        machine = Machine.from_target(target)
        if same_cpu and told["mcpu"] != machine.mcpu:
            raise FleetError(
                f"rpc: the servers of key {self.key!r} are of CPU {told['mcpu']}, this machine is "
                f"{machine.mcpu}: give --target {told['mcpu']}"
            )
        sizes = {name: told[name] for name in ("l1_bytes", "l2_bytes", "l3_bytes")}
        return replace(machine, cores=told["cores"] or machine.cores, **sizes)

    def _next(self) -> _Told:
        """The next result; raises FleetError when every thread tries in vain."""
        while True:
            told = self._told.get()
            if told.trouble is None:
                self._troubles[told.thread] = 0
                if isinstance(told.result, Exception):
                    raise told.result
                if told.asked is not None:
                    self._lost = self._lost + 1 if told.lost else 0
                    if self._lost >= LOST:
                        raise self._ended(str(told.result.error))
                    return told
                continue
            self._troubles[told.thread] += 1
            if min(self._troubles) >= TRIES:
                raise self._ended(told.trouble)

    def _ended(self, reason: str) -> FleetError:
        return FleetError(
            f"rpc: no server of key {self.key!r} can be used any more: {reason}; "
            "what was measured is kept, the same command goes on"
        )

    def _serve(self, number: int) -> None:
        """What a thread does. Whatever ends it early is told: nobody may wait for it in vain."""
        try:
            self._take_jobs(number)
        except Exception as error:  # a fault of this program or of the system: for the stage
            self._told.put(_Told(number, result=error))

    def _take_jobs(self, number: int) -> None:
        """Have a session, then take a job, until the fleet is closed."""
        client = self._clients[number]
        while not self._closing.is_set():
            try:
                # without a job in hand: the others can have it meanwhile
                _connect(client)
            except _Lost as error:
                self._told.put(_Told(number, trouble=str(error)))
                self._closing.wait(PAUSE)
                continue
            self._told.put(_Told(number))
            asked = self._jobs.get()
            if asked is None:
                return
            try:
                _connect(client)
            except _Lost:
                self._jobs.put(asked)
                continue
            try:
                self._told.put(_Told(number, asked, self._result(client, asked.job)))
            except _Lost as error:
                if asked.times < ASKED:
                    self._jobs.put(replace(asked, times=asked.times + 1))
                    continue
                failed = Measured([], f"lost {asked.times} times: {error}")
                self._told.put(_Told(number, asked, failed, lost=True))

    def _result(self, client: _Client, job: Job | None) -> Measured | float:
        if job is None:
            return robust.undisturbed(_asked(client, PROBING)["probe"])
        return in_turn(job, lambda task: self._timing(client, task))

    def _timing(self, client: _Client, task: Task) -> Timing:
        request = timing_request(task, loop_of(task, self.machine))

        def answer() -> dict[str, Any]:
            if self._closing.is_set():
                raise _Lost("the fleet is closed")
            return _asked(client, request)

        return steadiest(answer)


def _servers(address: tuple[str, int], key: str) -> int:
    """How many servers of a key the tracker has; raises FleetError when there are none."""
    from tvm_moonpoly.tuning.measuring import remote

    where = f"{address[0]}:{address[1]}"
    try:
        summary = remote.summary(*address)
    except OSError as error:
        raise FleetError(f"rpc: there is no tracker at {where}: {error}") from error
    keys = [str(server.get("key", "")) for server in summary["server_info"]]
    count = keys.count(f"server:{key}")
    if not count:
        others = sorted({name.removeprefix("server:") for name in keys})
        has = f"it has {', '.join(others)}" if others else "it has none at all"
        raise FleetError(f"rpc: the tracker at {where} has no server of key {key!r}: {has}")
    return count


def _connect(client: _Client) -> None:
    """Have a session that is not old; raises _Lost."""
    _asked(client, {"op": "connect", "wait": WAIT}, WAIT + LIMIT)


def _asked(client: _Client, request: Mapping[str, Any], limit: float = LIMIT) -> dict[str, Any]:
    """The answer of a client. Raises _Lost when it has no session any more, WorkerError when what
    is asked for cannot be built."""
    try:
        answer = client.ask(request, limit)
    except WorkerError as error:
        # of the client, which dies with its session: nothing is known of the kernel
        raise _Lost(str(error)) from error
    for reason in ("lost", "unreachable"):
        if reason in answer:
            raise _Lost(str(answer[reason]))
    if "refused" in answer:
        raise WorkerError(str(answer["refused"]))
    return answer
