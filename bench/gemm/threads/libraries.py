"""Which worker processes there are, and the environment in which each library is at its best."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bench.gemm.environment import fair_environment
from bench.gemm.journal import BUSY
from bench.gemm.peers import DIRECT, STATIC, VM
from bench.gemm.run import PROBES
from bench.gemm.threads.crew import Library

# One process each. MKL and oneDNN come in one package, but use different pools within it.
PROCESSES = {
    "numpy": ("openblas", "openblas_bt"),
    "torch MKL": ("torch_mm", "torch_linear", "mkl_packed"),
    "torch oneDNN": ("onednn_packed", "onednn_separate"),
    "onnxruntime": ("onnxruntime", "onnxruntime_separate"),
}

# How threads wait and where they run is left to each library: what it does when nobody tells it.
PLACEMENT = (
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_DYNAMIC",
    "OMP_DYNAMIC",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OMP_SCHEDULE",
    "OMP_THREAD_LIMIT",
    "OMP_WAIT_POLICY",
    "OPENBLAS_THREAD_TIMEOUT",
    "TVM_BIND_THREADS",
    "TVM_THREAD_POOL_SPIN_COUNT",
)


def worker_environment(current: Mapping[str, str], threads: int) -> dict[str, str]:
    """The environment of every worker: ``threads`` threads, and nothing that a user set about how
    they wait and where they run."""
    fair = fair_environment(current, threads)
    return {name: value for name, value in fair.items() if name not in PLACEMENT}


def libraries_for(peer_names: Collection[str], mode: str) -> list[Library]:
    """The probes, ours, and those that have candidates among ``peer_names``.

    With a busy core ours is there with the work split once, too.
    """
    ours = (DIRECT, VM, STATIC) if mode == BUSY else (DIRECT, VM)
    found = [Library("probes", PROBES), Library("tvm_moonpoly", ours)]
    for name, candidates in PROCESSES.items():
        wanted = tuple(each for each in candidates if each in peer_names)
        if wanted:
            found.append(Library(name, wanted))
    return found
