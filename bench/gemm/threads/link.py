"""The host's hold on one worker process: start, ask, stop, resume, end.

A worker is a process group of its own, so that Ctrl-C at a terminal reaches the host alone. It dies
with the host in every case, stopped or not: the kernel kills it (`tie_to_parent`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any

PR_SET_PDEATHSIG = 1
GRACE = 2.0  # seconds that a worker has to end by itself


class WorkerLost(RuntimeError):
    """The worker died or did not answer in time. It is gone; its text says what happened."""


def tie_to_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, which started it, ends in any way.

    Raises OSError where the kernel cannot do that, and ends this process when it is too late.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("the parent process has ended")


class Link:
    """A running worker. ``command`` gets two more arguments: the pipe's descriptor and our pid.

    To be used by the thread that made it: when that thread ends, the kernel kills the worker.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 closed by `end`
        self._connection, theirs = Pipe()
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                start_new_session=True,
            )
        except BaseException:
            self._connection.close()
            self._errors.close()
            raise
        finally:
            theirs.close()
        self.stopped = False

    @property
    def pid(self) -> int:
        """The worker's process id, which is also that of its group."""
        return self._process.pid

    def ask(self, request: object, seconds: float) -> Any:
        """The worker's answer to ``request``.

        Raises WorkerLost, with the worker ended, when there is none within ``seconds``.
        """
        assert not self.stopped, "a stopped worker does not answer"
        try:
            self._connection.send(request)
            if self._connection.poll(seconds):
                return self._connection.recv()
        except (EOFError, OSError):
            raise WorkerLost(self._last_words()) from None
        self.end(grace=0)
        raise WorkerLost(f"no answer within {seconds:.0f} s")

    def stop(self) -> None:
        """Stop all threads of the worker, and return when they stand still."""
        if self.stopped:
            return
        os.killpg(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.stopped = True

    def resume(self) -> None:
        """Let a stopped worker run."""
        if self.stopped:
            os.killpg(self.pid, signal.SIGCONT)
            self.stopped = False

    def end(self, grace: float = GRACE) -> None:
        """End the worker, which may be stopped, and wait for it. It may be ended already.

        With its pipe closed it ends by itself; after ``grace`` seconds it is killed.
        """
        self._connection.close()
        if self._process.returncode is None:
            try:
                self.resume()
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if self._process.returncode is None:
                    os.killpg(self.pid, signal.SIGKILL)  # also reaches a stopped process
                    self._process.wait()
        self._errors.close()

    def _last_words(self) -> str:
        """How the worker died, with the last line that it printed; ends it."""
        try:
            status = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.end(grace=0)
            return "the worker closed its pipe"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        self.end(grace=0)
        how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
        return f"the worker {how}" + (f": {last}" if last else "")


def connection_of(descriptor: str, parent: str) -> Connection:
    """The worker's end of the pipe, from the two arguments that `Link` adds to its command."""
    tie_to_parent(int(parent))
    return Connection(int(descriptor))
