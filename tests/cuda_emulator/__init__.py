"""CUDA kernels as TVM prints them, run on the CPU: a test tool that needs g++ and no GPU.

`emulate` compiles a source, `Emulated.launch` runs one of its kernels, `run_host` runs generated
host code with its launches, and `machine.Machine` whole executables on TVM's virtual machine. It
says whether a kernel is right, not how fast it is.

Each CUDA thread is a fiber; warps and blocks run in an order that the seed shuffles. Modelled are
ldmatrix, mma.sync m16n8k16 (float16, bfloat16, sums in float32), cp.async, barriers, shuffles and
the functions of epilogues. Not modelled, and refused: wmma, wgmma, TMA, mbarriers, other PTX.

The emulator is strict where a GPU is lenient. A launch ends with a `Fault` when a thread
* leaves an argument, an array or the block's shared memory, or is misaligned;
* reads what cp.async brings before it has waited for it, or shared memory that nobody wrote;
* touches bytes of shared memory that another one writes, or wrote, or reads, with no barrier in
  between, or bytes of an argument that another block wrote;
* waits at a barrier, or for its warp, where others do not come, or never ends.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from cuda_emulator.build import SHARED, missing_compiler
from cuda_emulator.emulated import Emulated, Report
from cuda_emulator.errors import Fault, TranslationError
from cuda_emulator.host import Launch, run_host

__all__ = [
    "Emulated",
    "Fault",
    "Launch",
    "Report",
    "TranslationError",
    "emulate",
    "missing_compiler",
    "run_host",
]


def emulate(cuda_source: str, workdir: Path | str | None = None) -> Emulated:
    """Translates and compiles a CUDA source; what `workdir` holds already is not compiled again.

    Without a `workdir` the libraries go to the folder that the environment names (`build.SHARED`),
    else to one that is removed when Python ends.

    Raises:
        TranslationError: for a construct that is not modelled; it quotes the line.
    """
    return Emulated(cuda_source, Path(workdir or os.environ.get(SHARED) or _session_folder().name))


@cache
def _session_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="moonpoly-emulator-")
