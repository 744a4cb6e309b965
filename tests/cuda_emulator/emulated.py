"""A CUDA source that is ready to run, and its launches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cuda_emulator.build import kernel_library, runtime_library
from cuda_emulator.errors import Fault, quoted
from cuda_emulator.translate import Kernel, Parameter, translate

Dim3 = Sequence[int]

_MAX_THREADS = 1024
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_DYNAMIC = 227 * 1024  # of any GPU
_GLOBAL = 1  # emu::Space::global
_SIZES = {"half": 2, "__half": 2, "nv_bfloat16": 2, "__nv_bfloat16": 2, "half2": 4}
_C_TYPES: dict[str, type] = {
    "bool": ctypes.c_bool,
    "char": ctypes.c_int8,
    "signed char": ctypes.c_int8,
    "unsigned char": ctypes.c_uint8,
    "uchar": ctypes.c_uint8,
    "short": ctypes.c_int16,
    "unsigned short": ctypes.c_uint16,
    "ushort": ctypes.c_uint16,
    "int": ctypes.c_int32,
    "unsigned int": ctypes.c_uint32,
    "unsigned": ctypes.c_uint32,
    "uint": ctypes.c_uint32,
    "long long": ctypes.c_int64,
    "unsigned long long": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    **{f"int{bits}_t": getattr(ctypes, f"c_int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}_t": getattr(ctypes, f"c_uint{bits}") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Report:
    """What one launch did.

    Attributes:
        bank_conflicts: passes over the banks of shared memory beyond one an access (ldmatrix,
            plain reads and writes, writes of cp.async), of all warps.
        conflicts_by_line: the same by line of the CUDA source.
        ldmatrix, mma: instructions of warps.
        cp_async: copies of threads.
        barriers: `__syncthreads` of blocks.
    """

    bank_conflicts: int = 0
    conflicts_by_line: dict[int, int] = field(default_factory=dict)
    ldmatrix: int = 0
    mma: int = 0
    cp_async: int = 0
    barriers: int = 0


class _Index(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_int), ("z", ctypes.c_int)]


class _Argument(ctypes.Structure):
    _fields_ = [
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("space", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("owners", ctypes.c_void_p),
        ("pointer", ctypes.c_void_p),
        ("bits", ctypes.c_uint64),
    ]


class _Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64) for name in ("ldmatrix", "mma", "cp_async", "barriers", "conflicts")
    ]


@dataclass(frozen=True)
class Pointer:
    """An address inside an array, for a kernel's pointer argument."""

    address: int
    array: np.ndarray


class Emulated:
    """The kernels of one CUDA source, compiled for the CPU."""

    def __init__(self, source: str, workdir: Path) -> None:
        translation = translate(source)
        self.source = source
        self.kernels = {kernel.name: kernel for kernel in translation.kernels}
        self.path = kernel_library(translation.cpp, source, workdir)
        self.runtime = ctypes.CDLL(str(runtime_library(workdir)))
        self._library = ctypes.CDLL(str(self.path))

    def launch(
        self,
        kernel: str,
        grid: Dim3,
        block: Dim3,
        dynamic_shared_bytes: int,
        args: Sequence[np.ndarray | Pointer | int | float],
        seed: int = 0,
    ) -> Report:
        """Runs a kernel to its end; arrays are device memory, written in place.

        Args:
            kernel: its name in the source.
            grid, block: up to three extents, x first.
            dynamic_shared_bytes: of a block.
            args: C-contiguous arrays for pointers, numbers for the rest.
            seed: shuffles the order of the blocks and, between barriers, of the warps.

        Raises:
            Fault: where the kernel does what it must not, or the launch is not possible.
            ValueError: for arguments that do not fit the kernel's parameters.
        """
        if kernel not in self.kernels:
            raise ValueError(f"kernel {kernel!r} is not among {sorted(self.kernels)}")
        description = self.kernels[kernel]
        extents = [tuple(int(n) for n in (*dims, 1, 1, 1)[:3]) for dims in (grid, block)]
        _check_geometry(description, *extents, dynamic_shared_bytes)
        if len(args) != len(description.parameters):
            raise ValueError(
                f"kernel {kernel} takes {len(description.parameters)} arguments, not {len(args)}"
            )
        arguments = (_Argument * max(1, len(args)))(*map(_argument, description.parameters, args))
        counts, line, text = _Counts(), ctypes.c_int(), ctypes.create_string_buffer(1024)
        status = self.runtime.emu_launch(
            ctypes.cast(getattr(self._library, f"emu_enter_{kernel}"), ctypes.c_void_p),
            *(ctypes.byref(_Index(*dims)) for dims in extents),
            ctypes.c_int64(dynamic_shared_bytes),
            ctypes.c_uint32(seed),
            ctypes.c_int(len(args)),
            arguments,
            ctypes.byref(counts),
            ctypes.byref(line),
            text,
            ctypes.c_size_t(len(text)),
        )
        if status != 0:
            where = quoted(self.source, line.value)
            raise Fault(f"{kernel}, {text.value.decode()}; {where}")
        return Report(
            counts.conflicts,
            self._conflicts(),
            counts.ldmatrix,
            counts.mma,
            counts.cp_async,
            counts.barriers,
        )

    def _conflicts(self) -> dict[int, int]:
        count = self.runtime.emu_conflicts(0, None, None)
        lines, extra = (ctypes.c_int * count)(), (ctypes.c_int64 * count)()
        self.runtime.emu_conflicts(count, lines, extra)
        return dict(zip(lines, extra, strict=True))


def _check_geometry(
    kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], shared: int
) -> None:
    threads = block[0] * block[1] * block[2]
    most = min(_MAX_THREADS, kernel.max_threads or _MAX_THREADS)
    if min(block) < 1 or threads > most:
        raise Fault(f"{kernel.name}: a block of {block} threads; 1 to {most} are possible")
    if any(not 0 < n <= most for n, most in zip(grid, _MAX_GRID, strict=True)):
        raise Fault(f"{kernel.name}: a grid of {grid} blocks is not possible")
    if not 0 <= shared <= _MAX_DYNAMIC:
        raise Fault(f"{kernel.name}: {shared} bytes of dynamic shared memory are not possible")


def _argument(parameter: Parameter, value: np.ndarray | Pointer | int | float) -> _Argument:
    name = f"argument {parameter.name}".encode()
    if not parameter.pointer:
        if isinstance(value, np.ndarray | Pointer):
            raise ValueError(f"argument {parameter.name} is a number, got an array")
        return _Argument(None, 0, _GLOBAL, name, None, None, _bits(parameter, value))
    if isinstance(value, np.ndarray):
        value = Pointer(value.ctypes.data, value)
    if not isinstance(value, Pointer):
        raise ValueError(f"argument {parameter.name} is a pointer, got {value!r}")
    array = value.array
    size = _SIZES.get(parameter.type) or ctypes.sizeof(_C_TYPES.get(parameter.type, ctypes.c_byte))
    if not array.flags.c_contiguous or array.dtype.itemsize != size:
        raise ValueError(
            f"argument {parameter.name} must be a C-contiguous array with elements of {size} "
            f"bytes ({parameter.type}), got {array.dtype} with strides {array.strides}"
        )
    return _Argument(array.ctypes.data, array.nbytes, _GLOBAL, name, None, value.address, 0)


def _bits(parameter: Parameter, value: int | float) -> int:
    """The value as the kernel's type holds it, in the low bytes of 64 bits."""
    if parameter.type in ("half", "__half"):
        return int(np.float16(value).view(np.uint16))
    kind = _C_TYPES.get(parameter.type)
    if kind is None:
        raise ValueError(f"argument {parameter.name}: no numbers of type {parameter.type}")
    if kind not in (ctypes.c_float, ctypes.c_double):
        value = int(value)
        if kind(value).value != value:
            raise ValueError(f"argument {parameter.name}: {value} does not fit {parameter.type}")
    return int.from_bytes(bytes(kind(value)), "little")
