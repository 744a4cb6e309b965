"""The worker process: builds micro-kernels and times their tasks.

Reads requests from its standard input and answers on its standard output, one line of JSON each;
see `serve`. It is started by `processes.Worker`.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Request = Mapping[str, Any]
Jobs = Mapping[str, Callable[[Request], dict[str, Any]]]


class Requests:
    """Lines of the standard input, and whether there is another one."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor, self._read = descriptor, b""

    def __iter__(self) -> Iterator[Request]:
        while True:
            while b"\n" not in self._read:
                read = os.read(self._descriptor, 1 << 16)
                if not read:
                    return
                self._read += read
            line, self._read = self._read.split(b"\n", 1)
            yield json.loads(line)

    def waiting(self) -> bool:
        """Whether a request has come, or the parent is gone."""
        return bool(self._read or select.select([self._descriptor], [], [], 0)[0])


def serve(jobs: Jobs, requests: Requests) -> None:
    """Answer requests until the standard input ends.

    A request names its job as ``op`` and the seconds it may take as ``limit``; when they are over,
    the process dies of its alarm. What a job raises is answered as ``{"error": ...}``.
    """
    # what tvm prints must not come between the answers
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for request in requests:
        # native code that loops for ever does not hear Python's signal handlers
        signal.setitimer(signal.ITIMER_REAL, float(request["limit"]))
        try:
            answer = jobs[request["op"]](request)
        except Exception as error:  # whatever is wrong with one candidate
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    # here, as whoever serves other jobs need not wait for tvm
    from tvm_moonpoly.tuning.measuring.plan_bench import PlanBench
    from tvm_moonpoly.tuning.measuring.timing import Bench

    requests = Requests()
    bench = Bench(requests.waiting)
    plans = PlanBench(bench)
    jobs = {name: getattr(bench, name) for name in ("time", "probe", "prepare", "load", "stop")}
    jobs |= {name: getattr(plans, name) for name in ("library", "plan", "overhead", "launch")}
    serve(jobs, requests)


if __name__ == "__main__":
    main()
