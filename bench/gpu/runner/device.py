"""The GPU as the measurements see it, and the one that CUDA's runtime offers.

`Device` is small on purpose: tests put another one in its place.
"""

from __future__ import annotations

import ctypes
import glob
import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.gpu.runner.memory import DeviceTensor

CUDART = "libcudart.so.13"

#: The first driver that CUDA 13 accepts, as cudaDriverGetVersion tells it.
DRIVER = 13000

#: Events that are kept, each one used again and again.
MARKS = 1024

_ATTRIBUTES = {"clock_khz": 13, "multiprocessors": 16, "l2_bytes": 38, "major": 75, "minor": 76}


class NoGpu(Exception):
    """Nothing can be measured on this machine; the text says what is missing."""


class DeviceLost(Exception):
    """The GPU reports an error that only a new process gets rid of."""


@dataclass(frozen=True)
class GpuFacts:
    """What the driver tells of a GPU."""

    name: str
    arch: str
    multiprocessors: int
    l2_bytes: int
    clock_mhz: int | None
    driver: str
    memory_bytes: int


class Device(Protocol):
    """Memory, events and tensors of one GPU. What is asked for is done in order, one after the
    other, and not waited for unless said so. Addresses are numbers."""

    @property
    def facts(self) -> GpuFacts:
        """What the GPU is."""

    def allocate(self, size: int) -> int:
        """The address of ``size`` new bytes."""

    def free(self, address: int) -> None:
        """Give memory back."""

    def free_bytes(self) -> int:
        """Bytes that can still be allocated."""

    def write(self, address: int, values: np.ndarray) -> None:
        """Copy an array to the device and wait for it."""

    def read(self, address: int, pitch: int, width: int, height: int) -> np.ndarray:
        """``height`` rows of ``width`` bytes that are ``pitch`` apart, as (height, width) bytes;
        waits for what was asked for before."""

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy on the device."""

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set each of ``size`` bytes."""

    def mark(self) -> Any:
        """A mark in the order of what is done."""

    def between(self, first: Any, second: Any) -> float:
        """Seconds from one mark to another; waits for the second."""

    def synchronize(self) -> None:
        """Wait for all; raises DeviceLost where something went wrong."""

    def tensor(self, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """What packed functions take; strides in elements. Memory stays the caller's."""


def find_cudart(folder: Path) -> ctypes.CDLL:
    """CUDA's runtime: one that came with other Python packages, the system's, or the bundle's.

    In this order, as torch may need a newer one than the bundle's, and TVM takes any. Raises NoGpu
    where there is none.
    """
    patterns = [os.path.join(p, "nvidia", "*", "lib", CUDART) for p in sys.path if p]
    places = [*(hit for p in patterns for hit in glob.glob(p)), CUDART, str(folder / CUDART)]
    for place in places:
        try:
            return ctypes.CDLL(place, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise NoGpu(f"{CUDART} was not found: pip install 'nvidia-cuda-runtime==13.*' brings it")


def find_driver() -> None:
    """Load the driver's library; raises NoGpu where there is none."""
    try:
        ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    except OSError:
        raise NoGpu(
            "no NVIDIA driver: libcuda.so.1 was not found, so this machine has no usable GPU"
        ) from None


class CudaDevice:
    """The first GPU that CUDA shows, through CUDA's runtime library, on the default stream."""

    def __init__(self, cudart: ctypes.CDLL) -> None:
        self._cudart = cudart
        self._events: deque[ctypes.c_void_p] = deque()
        count = ctypes.c_int(0)
        status = cudart.cudaGetDeviceCount(ctypes.byref(count))
        if status or count.value < 1:
            driver = ctypes.c_int(0)
            cudart.cudaDriverGetVersion(ctypes.byref(driver))
            if 0 < driver.value < DRIVER:
                found = f"{driver.value // 1000}.{driver.value % 1000 // 10}"
                raise NoGpu(
                    f"the driver is for CUDA {found}, the bundle needs one for CUDA 13 (580 or "
                    "later)"
                )
            raise NoGpu(f"no GPU: cudaGetDeviceCount says {self._text(status)}")
        for name, arguments in (("cudaSetDevice", (0,)), ("cudaFree", (None,))):
            status = getattr(cudart, name)(*arguments)
            if status:
                raise NoGpu(f"the GPU cannot be used: {name} says {self._text(status)}")
        self.facts = self._facts()

    def _text(self, status: int) -> str:
        self._cudart.cudaGetErrorString.restype = ctypes.c_char_p
        return f"{self._cudart.cudaGetErrorString(status).decode()} (error {status})"

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._cudart, name)(*arguments)
        if status:
            raise DeviceLost(f"{name}: {self._text(status)}")

    def _facts(self) -> GpuFacts:
        values = {}
        for name, code in _ATTRIBUTES.items():
            value = ctypes.c_int(0)
            status = self._cudart.cudaDeviceGetAttribute(ctypes.byref(value), code, 0)
            values[name] = 0 if status else value.value
        # the structure begins with the name; its size differs from one version to the next
        properties = ctypes.create_string_buffer(1 << 14)
        self._call("cudaGetDeviceProperties", properties, 0)
        total = ctypes.c_size_t(0)
        self._call("cudaMemGetInfo", ctypes.byref(ctypes.c_size_t(0)), ctypes.byref(total))
        return GpuFacts(
            name=properties.raw[:256].split(b"\0")[0].decode(errors="replace"),
            arch=f"sm_{values['major']}{values['minor']}",
            multiprocessors=values["multiprocessors"],
            l2_bytes=values["l2_bytes"],
            clock_mhz=values["clock_khz"] // 1000 or None,
            driver=driver_version(),
            memory_bytes=total.value,
        )

    def allocate(self, size: int) -> int:
        """See `Device`; raises MemoryError where there is not so much."""
        address = ctypes.c_void_p(0)
        status = self._cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        if status:
            self._cudart.cudaGetLastError()
            raise MemoryError(f"cudaMalloc of {size} bytes: {self._text(status)}")
        return int(address.value or 0)

    def free(self, address: int) -> None:
        """See `Device`."""
        self._call("cudaFree", ctypes.c_void_p(address))

    def free_bytes(self) -> int:
        """See `Device`."""
        free = ctypes.c_size_t(0)
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(ctypes.c_size_t(0)))
        return int(free.value)

    def write(self, address: int, values: np.ndarray) -> None:
        """See `Device`."""
        values = np.ascontiguousarray(values)
        self._call("cudaMemcpy", *_range(address, values.ctypes.data, values.nbytes), 1)

    def read(self, address: int, pitch: int, width: int, height: int) -> np.ndarray:
        """See `Device`."""
        found = np.empty((height, width), np.uint8)
        if found.size:
            self._call(
                "cudaMemcpy2D",
                ctypes.c_void_p(found.ctypes.data),
                ctypes.c_size_t(width),
                ctypes.c_void_p(address),
                ctypes.c_size_t(pitch),
                ctypes.c_size_t(width),
                ctypes.c_size_t(height),
                2,
            )
        return found

    def copy(self, to: int, source: int, size: int) -> None:
        """See `Device`."""
        self._call("cudaMemcpyAsync", *_range(to, source, size), 3, None)

    def fill(self, address: int, byte: int, size: int) -> None:
        """See `Device`."""
        count = ctypes.c_size_t(size)
        self._call("cudaMemsetAsync", ctypes.c_void_p(address), byte, count, None)

    def mark(self) -> ctypes.c_void_p:
        """See `Device`. The last `MARKS` can be asked for."""
        if len(self._events) < MARKS:
            event = ctypes.c_void_p(0)
            self._call("cudaEventCreate", ctypes.byref(event))
        else:
            event = self._events.popleft()
        self._events.append(event)
        self._call("cudaEventRecord", event, None)
        return event

    def between(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> float:
        """See `Device`."""
        self._call("cudaEventSynchronize", second)
        milliseconds = ctypes.c_float(0)
        self._call("cudaEventElapsedTime", ctypes.byref(milliseconds), first, second)
        return milliseconds.value * 1e-3

    def synchronize(self) -> None:
        """See `Device`."""
        self._call("cudaDeviceSynchronize")

    def tensor(self, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """See `Device`."""
        return DeviceTensor(address, dtype, shape, strides)


def _range(to: int, source: int, size: int) -> tuple[Any, Any, Any]:
    return ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size)


def driver_version() -> str:
    """The driver's version, "unknown" where nothing tells it."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split("\n")[0].split()
        return next(word for word in words if word[0].isdigit() and "." in word)
    except (OSError, StopIteration):
        return smi("driver_version") or "unknown"


def smi(*fields: str) -> str:
    """What nvidia-smi says of the first GPU, with commas; empty where it says nothing."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
