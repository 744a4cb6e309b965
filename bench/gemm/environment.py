"""The environment that the libraries read when they are loaded, set before any of them is.

Imports nothing outside the standard library: numpy's BLAS fixes its threads and its kernel when it
is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TVM_NUM_THREADS",
)

# Each of these would make a peer slower than its own choice for this processor, or chatty.
HANDICAPS = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "OPENBLAS_VERBOSE",
    "GOTO_NUM_THREADS",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_VERBOSE",
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_VERBOSE",
    "ONEDNN_VERBOSE",
)

# numpy asks for large pages for its arrays, which nobody else here does for tensors or packed
# weights: the same weight would be read faster by those that read it where numpy put it.
PAGES = {"NUMPY_MADVISE_HUGEPAGE": "0"}

REMOVED = "BENCH_GEMM_REMOVED"


def fair_environment(current: Mapping[str, str], threads: int) -> dict[str, str]:
    """``current`` with ``threads`` threads for every library and without what slows a peer down.

    The names of the variables that were taken away are kept in ``BENCH_GEMM_REMOVED``.
    """
    fair = {name: value for name, value in current.items() if name not in HANDICAPS}
    fair.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    fair.update(PAGES)
    removed = [name for name in HANDICAPS if name in current]
    if removed:
        fair[REMOVED] = " ".join(removed)
    return fair


def restart_in_fair_environment(threads: int) -> None:
    """Replace this process by itself in the fair environment; returns if it is in it already."""
    fair = fair_environment(os.environ, threads)
    if fair != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], fair)


def removed_variables() -> list[str]:
    """Names of the variables that were taken out of the environment for this run."""
    return os.environ.get(REMOVED, "").split()
