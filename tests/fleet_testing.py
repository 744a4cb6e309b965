"""A tracker and servers of TVM's RPC on the loopback address, for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from patience import wait_until

from tvm_moonpoly.tuning.measuring import remote

KEY = "made/up"

#: A server takes the first of so many ports that is free. The tracker must get the one that it is
#: asked for; where that was taken meanwhile, so many are tried.
_PORTS, _TRIES = 50, 5


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class Servers:
    """A tracker and its servers, each in a process group of its own: tvm starts others in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for _ in range(_TRIES):
            self.address = ("127.0.0.1", free_port())
            host, port = self.address
            self._start("tracker", "rpc_tracker", f"--host={host}", *_ports(port, 1))
            self._until(lambda: self._ended("tracker") or self.registered() is not None)
            if not self._ended("tracker"):
                break
        assert not self._ended("tracker"), self.log("tracker")

    @property
    def rpc(self) -> str:
        return f"127.0.0.1:{self.address[1]}"

    def add(self, *names: str) -> None:
        """Start servers; their log files have these names."""
        before = self.registered() or 0
        for name in names:
            place = ["--host=127.0.0.1", *_ports(free_port(), _PORTS)]
            self._start(name, "rpc_server", f"--tracker={self.rpc}", f"--key={KEY}", *place)
        self._until(lambda: self.registered() == before + len(names))

    def registered(self) -> int | None:
        """How many servers the tracker has; None when there is no tracker."""
        try:
            return len(remote.summary(*self.address)["server_info"])
        except OSError:
            return None

    def loads(self, name: str) -> int:
        """Libraries that a server has loaded."""
        return self.log(name).count("load_module")

    def log(self, name: str) -> str:
        return (self.folder / name).read_text()

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def _start(self, name: str, module: str, *arguments: str) -> None:
        with open(self.folder / name, "wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", f"tvm.exec.{module}", *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _ended(self, name: str) -> bool:
        return self._processes[name].poll() is not None

    def _until(self, there: Callable[[], object]) -> None:
        assert wait_until(there), [self.log(name) for name in self._processes]


def _ports(first: int, count: int) -> list[str]:
    return [f"--port={first}", f"--port-end={first + count}"]
