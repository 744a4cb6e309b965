"""A worker like the real one, with jobs that native code spoils.

``echo`` answers; ``crash`` writes where nothing is; ``hang`` is compiled code that does not return,
``load_tvm`` what it needs; ``fail`` raises; ``noise`` prints; ``garbage`` and ``leave`` do not keep
to the protocol.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from tvm_moonpoly.tuning.measuring.worker import Requests, serve


def crash(request: Any) -> dict[str, Any]:
    ctypes.memset(0, 1, 1)
    return {}


def hang(request: Any) -> dict[str, Any]:
    import numpy as np
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def for_ever(flag: T.handle) -> None:
        memory = T.match_buffer(flag, [1], "int32")
        while memory[0] < 1:
            memory[0] = memory[0] * 2

    tvm.compile(for_ever, "llvm")(tvm.runtime.tensor(np.zeros(1, np.int32)))
    return {}


def load_tvm(request: Any) -> dict[str, Any]:
    import tvm

    return {"version": tvm.__version__}


def fail(request: Any) -> dict[str, Any]:
    raise ValueError("record: it does not fit")


def noise(request: Any) -> dict[str, Any]:
    print("a message of a library")
    os.write(1, b"and one that goes around Python\n")
    return {"quiet": True}


def garbage(request: Any) -> dict[str, Any]:
    os.write(int(request["descriptor"]), b"no JSON\n")
    return {}


def leave(request: Any) -> dict[str, Any]:
    print("cannot go on", file=sys.stderr, flush=True)
    os._exit(3)


JOBS = {job.__name__: job for job in (crash, hang, load_tvm, fail, noise, garbage, leave)}

if __name__ == "__main__":
    # the answers go to a copy of the standard output, the first free descriptor
    free = os.dup(1)
    os.close(free)
    JOBS["garbage"] = lambda request: garbage({"descriptor": free})
    JOBS["echo"] = lambda request: {"pid": os.getpid(), "said": request.get("say")}
    serve(JOBS, Requests())
