"""Machine code of CUDA kernels, compiled once for each source and architecture and then cached."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tvm_moonpoly import versions
from tvm_moonpoly.microkernels.cuda import cubin, find_nvcc
from tvm_moonpoly.operators import cache

SUFFIX = ".cubin"

#: Said where `compiler` finds none.
MISSING = (
    "no compiler for CUDA was found (nvcc on PATH or below CUDA_HOME or CUDA_PATH, or the packages "
    "cuda-bindings and nvidia-cuda-nvrtc, -runtime, -crt, -cccl)"
)


def compiler() -> str | None:
    """What machine code is made with here, in words: nvcc where it is installed, else NVRTC where
    the package cuda-bindings and CUDA's headers are; None where there is neither."""
    nvcc = find_nvcc()
    if nvcc is not None:
        return f"nvcc {_release(nvcc)}"
    bindings = versions.installed("cuda-bindings")
    if bindings is None or _cuda_root() is None:
        return None
    return f"NVRTC of cuda-bindings {bindings}"


def compiled(
    sources: Sequence[str], arch: str, done: Callable[[], None] = lambda: None
) -> list[bytes] | None:
    """The machine code of each CUDA source for ``arch`` ("sm_80"), from the cache where it is
    there, and into it as soon as it is made; None where there is no compiler. ``done`` is called
    after each.

    Raises RuntimeError when the compiler does not accept a source.
    """
    made_by = compiler()
    if made_by is None:
        return None
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        futures = [pool.submit(_compiled, source, arch, made_by) for source in sources]
        try:
            for future in as_completed(futures):
                future.result()
                done()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # an error, or Ctrl-C: not minutes later
            raise
        return [future.result() for future in futures]


def _compiled(source: str, arch: str, made_by: str) -> bytes:
    key = cache.key_of([source, arch, made_by])
    path = cache.load(key, SUFFIX)
    if path is not None:
        return path.read_bytes()
    code = cubin(source, arch) if find_nvcc() is not None else _by_nvrtc(source, arch)
    cache.store(key, lambda new: new.write_bytes(code), SUFFIX)
    return code


def _by_nvrtc(source: str, arch: str) -> bytes:
    from tvm.support.nvcc import compile_cuda

    root = _cuda_root()
    assert root is not None, "see `compiler`"
    # where TVM looks for headers; those of the packages lie in another place in it
    os.environ.setdefault("CUDA_PATH", str(root))
    options = [f"-I{path}" for path in (root / "include", root / "include" / "cccl")]
    made = compile_cuda(source, "cubin", arch=arch, options=options, compiler="nvrtc")
    return bytes(made)


def _cuda_root() -> Path | None:
    """A folder with CUDA's headers in ``include``: a toolkit's, or that of NVIDIA's packages."""
    found = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    packages = importlib.util.find_spec("nvidia")
    for place in packages.submodule_search_locations or () if packages is not None else ():
        found += sorted(Path(place).glob("cu[0-9]*"))
    headers = (root for root in found if (root / "include" / "cuda_runtime.h").is_file())
    return next(headers, None)


@functools.cache
def _release(nvcc: str) -> str:
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    words = told.replace(",", " ").split()
    return words[words.index("release") + 1] if "release" in words else str(Path(nvcc))
