"""What a compiled kernel takes: registers, shared memory, spills, as ptxas reports them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resources:
    """Registers a thread; bytes of static shared memory, of spills (None where that is not known)
    and of stack, on which what is spilled lies.

    Dynamic shared memory is chosen at launch: see `tile.shared_bytes`.
    """

    registers: int
    shared_bytes: int
    spill_stores: int | None
    spill_loads: int | None
    stack: int

    @property
    def spilled(self) -> int:
        """Bytes that spilled registers are stored and loaded by; where that is not known, those of
        the stack, which are 0 where nothing is spilled."""
        if self.spill_stores is None or self.spill_loads is None:
            return self.stack
        return self.spill_stores + self.spill_loads


_KERNEL = re.compile(r"Compiling entry function '(\w+)' for")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def find_nvcc() -> str | None:
    """The path of nvcc: on PATH, or below CUDA_HOME or CUDA_PATH; None where there is none."""
    return _tool("nvcc")


def find_nvdisasm() -> str | None:
    """The path of nvdisasm: where nvcc would be, or of the package nvidia-cuda-nvdisasm.

    None where there is none.
    """
    return _tool("nvdisasm", *sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin")))


def _tool(name: str, *more: Path) -> str | None:
    """The first of this name: on PATH, in a CUDA toolkit, or in ``more`` folders."""
    roots = [os.environ.get(root) for root in ("CUDA_HOME", "CUDA_PATH")]
    folders = [None, *(Path(root, "bin") for root in roots if root), *more]
    found = (shutil.which(name, path=folder) for folder in folders)
    return next(filter(None, found), None)


def resources(cuda_source: str, arch: str) -> dict[str, Resources]:
    """Compile CUDA source for ``arch`` ("sm_80") and return what each of its kernels takes.

    Raises RuntimeError when nvcc is missing, or does not accept the source.
    """
    return parse(compiled(cuda_source, arch)[0])


def compiled(cuda_source: str, arch: str, options: Sequence[str] = ()) -> tuple[str, bytes]:
    """What ptxas reports of CUDA source compiled for ``arch``, for `parse`, and the machine code.

    ``options``: more of nvcc's. Raises RuntimeError when nvcc is missing, or does not accept the
    source.
    """
    return _nvcc(cuda_source, arch, ["-cubin", "-Xptxas", "-v", *options])


def parse(report: str) -> dict[str, Resources]:
    """What ``ptxas -v`` reports, by kernel."""
    found = {}
    # the lines of a kernel follow the one that names it
    names = list(_KERNEL.finditer(report))
    ends = [name.start() for name in names[1:]] + [len(report)]
    for name, end in zip(names, ends, strict=True):
        text = report[name.end() : end]
        stack, used, shared = _STACK.search(text), _REGISTERS.search(text), _SHARED.search(text)
        if stack is None or used is None:
            raise RuntimeError(f"ptxas: no resources reported for {name[1]}")
        frame, stores, loads = (int(value) for value in stack.groups())
        static = int(shared[1]) if shared else 0
        found[name[1]] = Resources(int(used[1]), static, stores, loads, frame)
    return found


def ptx(cuda_source: str, arch: str) -> str:
    """The PTX that nvcc makes of CUDA source.

    Raises RuntimeError when nvcc is missing, or does not accept the source.
    """
    return _nvcc(cuda_source, arch, ["-ptx"])[1].decode()


def cubin(cuda_source: str, arch: str) -> bytes:
    """The machine code that nvcc makes of CUDA source.

    Raises RuntimeError when nvcc is missing, or does not accept the source.
    """
    return _nvcc(cuda_source, arch, ["-cubin"])[1]


def sass(machine_code: bytes) -> str:
    """The instructions of what `cubin` returns, kernel by kernel (each begins at ``.text.NAME:``).

    Raises RuntimeError when nvdisasm is missing, or does not accept the machine code.
    """
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        raise RuntimeError(
            "nvdisasm: not found on PATH, below CUDA_HOME or CUDA_PATH, nor among Python's packages"
        )
    with tempfile.TemporaryDirectory(prefix="moonpoly-nvdisasm-") as folder:
        path = Path(folder, "kernels.cubin")
        path.write_bytes(machine_code)
        command = [nvdisasm, "-c", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvdisasm: {done.stderr.strip()[-500:]}")
    return done.stdout


def _nvcc(cuda_source: str, arch: str, options: list[str]) -> tuple[str, bytes]:
    """nvcc's messages and output."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise RuntimeError("nvcc: not found on PATH, nor below CUDA_HOME or CUDA_PATH")
    with tempfile.TemporaryDirectory(prefix="moonpoly-nvcc-") as folder:
        source, output = Path(folder, "kernels.cu"), Path(folder, "output")
        source.write_text(cuda_source, encoding="utf-8")
        command = [nvcc, f"-arch={arch}", "-O3", *options, str(source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            said = "\n".join(errors[:5]) or done.stderr[-500:]
            raise RuntimeError(f"nvcc: {arch}: {said}")
        return done.stderr, output.read_bytes()
