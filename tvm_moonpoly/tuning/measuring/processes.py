"""Worker processes that a crash or a hang in native code ends without ending the tuning.

A request and its answer are one line of JSON each, over the worker's standard input and output. A
worker that dies, or that does not answer in time, costs its request; the next one starts another.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import tvm_moonpoly

#: Seconds that a worker may take to start: it imports tvm.
START_SECONDS = 120.0

#: Seconds for a worker that does not speak any more to end by itself.
END_SECONDS = 5.0

#: The command of the worker that builds and times kernels.
WORKER = (sys.executable, "-m", "tvm_moonpoly.tuning.measuring.worker")


class WorkerError(RuntimeError):
    """A request was not answered: the worker crashed, took too long, or says what is wrong.

    In one line that can be printed.
    """

    def __init__(self, reason: str) -> None:
        line = " ".join(reason.split())
        super().__init__("".join(c if c.isprintable() else "?" for c in line))


class Worker:
    """One worker process, started when it is first asked for something."""

    def __init__(self, command: Sequence[str] = WORKER) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._received = b""

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to ``request``.

        Raises WorkerError when there is none within ``seconds``.
        """
        self.send(request, seconds)
        return self.answer(seconds)

    def send(self, request: Mapping[str, Any], seconds: float) -> None:
        """Hand over a request, for which the worker allows itself ``seconds``, too."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        line = json.dumps({**request, "limit": seconds}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def answer(self, seconds: float) -> dict[str, Any]:
        """The answer to the request that was sent last; raises WorkerError."""
        # its own alarm comes first and tells more; this is for a worker that cannot even die
        answer = self._line(seconds + 5)
        if "error" in answer:
            raise WorkerError(str(answer["error"]))
        return answer

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def _start(self) -> None:
        self.close()
        self._received = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        # a worker finds the package where this process did
        root = str(Path(tvm_moonpoly.__file__).resolve().parents[1])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            # an interrupt from the keyboard is for the parent, which ends its workers itself
            start_new_session=True,
        )
        ready = self._line(START_SECONDS)
        if ready != {"ready": True}:
            self.close()
            raise WorkerError(f"a worker did not start: {ready}")

    def _line(self, seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    self.close()
                    raise WorkerError(f"no answer within {seconds:.0f} s")
                read = os.read(process.stdout.fileno(), 1 << 16)
                if not read:
                    raise self._ended()
                self._received += read
        line, self._received = self._received.split(b"\n", 1)
        try:
            answer = json.loads(line, parse_constant=_no_number)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self.close()
            raise WorkerError(f"an answer that is no JSON object: {line[:80]!r}")
        return answer

    def _ended(self) -> WorkerError:
        """Why the worker is gone."""
        assert self._process is not None and self._errors is not None
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.close()
            return WorkerError("it does not answer any more")
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self.close()
        if code == -signal.SIGALRM:
            return WorkerError("it took too long")
        if code < 0:
            return WorkerError(f"crashed with {_signal_name(-code)}")
        return WorkerError(f"ended with exit code {code}" + (f": {lines[-1]}" if lines else ""))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")
