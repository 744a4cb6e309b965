"""The worker process that times tasks on another machine, through TVM's RPC.

Kernels are compiled here and run there. A worker holds one session at a time; `fleet` starts one
worker for each server, so that whatever a broken connection does to a process ends only this one.

An answer holds ``refused`` when the kernel cannot be built, ``unreachable`` when there was no
session to be had, and ``lost`` when the session ended before the request was done.
"""

from __future__ import annotations

import gc
import json
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import rpc
from tvm.rpc import base
from tvm.target import Target

from tvm_moonpoly.machine import Machine, cache_sizes
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning.measuring import kernel_loop
from tvm_moonpoly.tuning.measuring.kernel_loop import PROBE_CHAINS
from tvm_moonpoly.tuning.measuring.regions import Loop
from tvm_moonpoly.tuning.measuring.timing import KEPT, Clock, Turns, alone, in_turns
from tvm_moonpoly.tuning.measuring.worker import Request, Requests, serve

#: Seconds after which a session is not used for another job: whoever else waits for a server gets a
#: turn. And seconds after which the server ends a session, as it has to when a kernel hangs.
SESSION_SECONDS, SESSION_LIMIT = 30, 90

#: A kernel that crashes ends the session's process, and with it, as tvm 0.27 takes it, the whole
#: server. A process that leaves of its own accord does not.
_GUARD = """
#include <signal.h>
#include <unistd.h>

static void leave(int number) { (void)number; _exit(0); }

__attribute__((constructor)) static void guard(void) {
    const int signals[] = {SIGSEGV, SIGILL, SIGBUS, SIGFPE, SIGABRT};
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; ++i) signal(signals[i], leave);
}
"""

_CACHES = "/sys/devices/system/cpu/cpu0/cache"
_ONLINE = "/sys/devices/system/cpu/online"


class Unreachable(RuntimeError):
    """No session on a server could be had."""


def summary(host: str, port: int, seconds: float = 10.0) -> dict[str, Any]:
    """What the tracker says of its servers. Raises OSError when no tracker answers there."""
    answer = _tracker(host, port, [base.TrackerCode.SUMMARY], seconds)
    if not isinstance(answer, list) or answer[:1] != [base.TrackerCode.SUCCESS]:
        raise OSError(f"the tracker answers {str(answer)[:80]}")
    return dict(answer[1])


def _tracker(host: str, port: int, message: list[Any], seconds: float) -> Any:
    """The tracker's answer. TVM's own client waits for ever, and tries for a minute to connect."""
    with socket.create_connection((host, port), timeout=seconds) as connection:
        connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
        if struct.unpack("<i", base.recvall(connection, 4))[0] != base.RPC_TRACKER_MAGIC:
            raise OSError("what listens there is no tracker")
        base.sendjson(connection, message)
        try:
            return base.recvjson(connection)
        except ValueError as error:
            raise OSError("what listens there is no tracker") from error


class Session:
    """A session on some server, with what was sent there."""

    def __init__(self, session: Any, machine: Machine, probe: bytearray) -> None:
        self.opened = time.monotonic()
        self._session, self._device = session, session.cpu(0)
        self._modules: dict[Record, Any] = {}
        self._sent = 0
        self._probing = self._loaded(probe)
        self._state = self._floats(PROBE_CHAINS * machine.lanes)
        self._arena = self._floats(1)
        self.probe(1000, 1)

    def probe(self, steps: int, repeats: int) -> list[float]:
        """Nanoseconds of ``steps`` of the probe, so many times."""
        return self._times(self._probing, kernel_loop.PROBE, repeats)(self._state, steps)

    def loop(self, record: Record, loop: Loop, library: bytearray) -> tuple[Clock, Turns]:
        """Runs tasks there, alone or in turns with the probe; ``library`` is sent unless the
        record's kernel is there already."""
        if record not in self._modules:
            if len(self._modules) >= KEPT:
                self._modules.pop(next(iter(self._modules)))
            self._modules[record] = self._loaded(library)
        if self._arena.shape[0] < loop.floats:
            self._arena = self._floats(loop.floats)
        arena = self._arena
        walk = tvm.runtime.tensor(np.array(loop.walk, np.int64), device=self._device)
        module = self._modules[record]
        clock = self._times(module, kernel_loop.TASKS, 1)

        def tasks(count: int) -> float:
            return clock(arena, walk, *loop.strides, loop.k, count)[0]

        def turns(count: int, steps: int, repeats: int) -> list[float]:
            # all in one request: a core that waits for one in between is not the same afterwards
            times = self._times(module, kernel_loop.TURNS, 2 * repeats + 1)
            return times(arena, walk, self._state, *loop.strides, loop.k, count, steps)

        return tasks, turns

    def describe(self) -> dict[str, Any]:
        """The machine: LLVM's name of its CPU, its CPUs in use, bytes of its caches.

        None for what it does not tell.
        """
        name = self._session.get_function("target.llvm_get_system_cpu")
        with tempfile.TemporaryDirectory() as folder:
            for index in range(8):
                if not self._fetched(f"{_CACHES}/index{index}", Path(folder) / f"index{index}"):
                    break
            caches = cache_sizes(Path(folder))
        return {
            "mcpu": str(name()),
            "cores": cpus(self._read(_ONLINE)),
            **{f"l{level}_bytes": size for level, size in caches.items()},
        }

    def _fetched(self, source: str, folder: Path) -> bool:
        folder.mkdir()
        for name in ("type", "level", "size"):
            text = self._read(f"{source}/{name}")
            if text is None:
                return False
            (folder / name).write_text(text)
        return True

    def _read(self, path: str) -> str | None:
        try:
            # the size that the system gives for such a file is larger than what is in it
            return bytes(self._session.download(path)).rstrip(b"\0").decode()
        except (RuntimeError, OSError, ValueError):
            return None

    def _times(self, module: Any, name: str, repeats: int) -> Callable[..., list[float]]:
        """Calls a function one time more than that, and gives the nanoseconds of all calls but the
        first. Tasks walk on in that one, too, and it is their turn: the next one is the probe's."""
        evaluator = module.time_evaluator(name, self._device, number=1, repeat=repeats)
        return lambda *arguments: [t * 1e9 for t in evaluator(*arguments).results]

    def _loaded(self, library: bytearray) -> Any:
        self._sent += 1
        name = f"moonpoly_{self._sent}.so"
        self._session.upload(library, target=name)
        try:
            return self._session.load_module(name)
        finally:
            self._session.remove(name)

    def _floats(self, count: int) -> Any:
        memory = tvm.runtime.empty((count,), "float32", device=self._device)
        self._probing[kernel_loop.FILL](memory, count)
        return memory


class Remote:
    """Answers requests, each in the session that there is or in a new one."""

    def __init__(self, address: tuple[str, int], key: str, target: Target) -> None:
        self._address, self._key, self._target = address, key, target
        self._machine = Machine.from_target(target)
        self._probe: bytearray | None = None
        self._built: dict[Record, bytearray] = {}
        self._session: Session | None = None

    def connect(self, request: Request) -> dict[str, Any]:
        """Have a session that is not old: within ``wait`` seconds."""
        if self._session is not None and time.monotonic() - self._session.opened < SESSION_SECONDS:
            return {}
        # the server takes the next one when this one has gone
        self._session = None
        gc.collect()
        try:
            self._session = self._opened(float(request["wait"]))
        except Unreachable as error:
            return {"unreachable": str(error)}
        return {}

    def describe(self, request: Request) -> dict[str, Any]:
        """The machine there: see `Session.describe`."""
        return self._in_session(Session.describe)

    def probe(self, request: Request) -> dict[str, Any]:
        """See `timing.Bench.probe`."""
        return self._in_session(lambda session: alone(session.probe, request))

    def time(self, request: Request) -> dict[str, Any]:
        """See `timing.Bench.time`."""
        record = Record.from_json(request["record"])
        loop = Loop.from_json(request["loop"])
        try:
            library = self._library(record)
        except Exception as error:  # whatever is wrong with one candidate
            return {"refused": f"{type(error).__name__}: {error}"[:2000]}

        def timed(session: Session) -> dict[str, Any]:
            return in_turns(*session.loop(record, loop, library), request)

        return self._in_session(timed)

    def _in_session(self, work: Callable[[Session], dict[str, Any]]) -> dict[str, Any]:
        if self._session is None:
            return {"lost": "there is no session"}
        try:
            return work(self._session)
        except Exception as error:  # of any kind: the connection may be of no use any more
            self._session = None
            return {"lost": _short(error)}

    def _opened(self, wait: float) -> Session:
        if self._probe is None:
            try:
                module = kernel_loop.build_probe(self._machine, self._target)
                self._probe = exported(module, guarded=True)
            except Exception as error:
                reason = f"the probe cannot be built for {self._machine.triple}"
                raise Unreachable(f"{reason}: {_short(error)}") from error
        message = [base.TrackerCode.REQUEST, self._key, "", 1]
        try:
            url, port, matchkey = _tracker(*self._address, message, wait)[1]
        except TimeoutError:
            raise Unreachable(f"no server was free within {wait:.0f} s") from None
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise Unreachable(f"the tracker does not answer: {error}") from error
        try:
            session = rpc.connect(url, port, matchkey, session_timeout=SESSION_LIMIT)
            return Session(session, self._machine, self._probe)
        except Exception as error:
            reason = f"{url}:{port} does not run the probe of a {self._machine.mcpu}"
            raise Unreachable(f"{reason}: {_short(error)}") from error

    def _library(self, record: Record) -> bytearray:
        if record not in self._built:
            if len(self._built) >= KEPT:
                self._built.pop(next(iter(self._built)))
            module = kernel_loop.build(record, self._machine, self._target)
            self._built[record] = exported(module)
        return self._built[record]


def exported(module: Any, guarded: bool = False) -> bytearray:
    """The module as a shared library; ``guarded``: a process that loads it leaves when it would
    crash. Linked by the compiler that the environment variable ``CXX`` names, if it is set."""
    with tempfile.TemporaryDirectory() as folder:
        addons, path = [], Path(folder) / "kernel.so"
        if guarded:
            guard = Path(folder) / "guard.c"
            guard.write_text(_GUARD)
            addons.append(str(guard))
        module.export_library(str(path), addons=addons, workspace_dir=folder)
        return bytearray(path.read_bytes())


def cpus(text: str | None) -> int | None:
    """How many CPUs a list like ``0-3,8`` names; None when it is none."""
    try:
        ranges = [[int(end) for end in part.split("-")] for part in (text or "").split(",")]
    except ValueError:
        return None
    return sum(each[-1] - each[0] + 1 for each in ranges)


def _short(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"[:300]


def main(described: Mapping[str, Any]) -> None:
    # whoever started this process removes what lies there
    tempfile.tempdir = described["folder"]
    host, port = described["address"]
    remote = Remote((host, int(port)), described["key"], Target(described["target"]))
    jobs = {name: getattr(remote, name) for name in ("connect", "describe", "probe", "time")}
    serve(jobs, Requests())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
