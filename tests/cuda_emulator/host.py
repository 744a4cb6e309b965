"""Generated host code, run as it is: its launches go to the emulator.

A host function looks a kernel up among the modules that its own module imports. For the time of a
run a library takes the place of the CUDA module: it exports each kernel as a packed function that
takes the arguments and then the extents of the launch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi

from cuda_emulator.device_tensor import DeviceTensor
from cuda_emulator.emulated import Emulated, Pointer, Report
from cuda_emulator.translate import Kernel

_DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"
_AXES = {
    f"{kind}Idx.{axis}": (kind, i) for kind in ("block", "thread") for i, axis in enumerate("xyz")
}


@dataclass(frozen=True)
class Launch:
    """One launch of a host function: its geometry as the host computed it, and what it did."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    report: Report


class _Any(ctypes.Structure):
    """A value of a packed call (TVMFFIAny)."""

    _fields_ = [("type", ctypes.c_int32), ("padding", ctypes.c_uint32), ("bits", ctypes.c_uint64)]

    def number(self) -> int | float:
        packed = struct.pack("<Q", self.bits)
        return struct.unpack("<d" if self.type == _FLOAT else "<q", packed)[0]


_FLOAT = 3  # the type index of floats in packed calls
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(_Any), ctypes.c_int)

#: The tensor's memory that an address is in, or None.
Find = Callable[[int], np.ndarray | None]


class Launcher:
    """Takes the launches of host code and gives them to the emulator.

    Attributes:
        launches: those that were done.
        failure: what the first one raised that failed; none is done after it.
    """

    def __init__(self, find: Find, seed: int = 0) -> None:
        self.launches: list[Launch] = []
        self.failure: Exception | None = None
        self._find = find
        self._seed = seed
        self._kernels: dict[str, tuple[Emulated, list[str]]] = {}
        self._callback = _CALLBACK(self._launch)

    def add(self, emulated: Emulated, tags: dict[str, list[str]]) -> None:
        """Make kernels of `emulated` known, by name, with what follows their arguments."""
        self._kernels.update({name: (emulated, each) for name, each in tags.items()})

    def listen(self, emulated: Emulated) -> ctypes.c_void_p:
        """Take the launches of all that was compiled with the runtime of `emulated` from now on;
        what is returned ends that when its value is set to None."""
        slot = ctypes.c_void_p.in_dll(emulated.runtime, "emu_host_launch")
        slot.value = ctypes.cast(self._callback, ctypes.c_void_p).value
        return slot

    def _launch(self, kernel_name: bytes, values: ctypes.Array[_Any], count: int) -> None:
        if self.failure is not None:
            return
        try:
            emulated, tags = self._kernels[kernel_name.decode()]
            kernel = emulated.kernels[kernel_name.decode()]
            done = _launch(kernel, tags, values[:count], emulated, self._find, self._seed)
            self.launches.append(done)
        except Exception as error:  # noqa: BLE001 (it must not cross C code)
            self.failure = error


def run_host(
    module: tvm.runtime.Module,
    emulated: Emulated,
    name: str,
    args: Sequence[np.ndarray | int | float],
    seed: int = 0,
    caller: tvm.runtime.Module | None = None,
) -> list[Launch]:
    """Calls a host function with arrays that stand for tensors on the device.

    Args:
        module: the compiled host module, which imports the CUDA module.
        emulated: what its launches run on (of the module's source, or of an edited one).
        name: the function.
        args: arrays (written in place) and numbers.
        seed: see `Emulated.launch`.
        caller: where the function is, if not in ``module``: it imports that.

    Returns: the launches in their order.
    Raises:
        Fault: of the first launch that has one.
    """
    tensors = {i: DeviceTensor(arg) for i, arg in enumerate(args) if isinstance(arg, np.ndarray)}
    launcher = Launcher(within([tensor.memory for tensor in tensors.values()]), seed)
    launcher.add(emulated, _launch_tags(module, emulated))
    imports = list(module.imports)
    slot = launcher.listen(emulated)
    try:
        module.clear_imports()
        module.import_module(tvm.runtime.load_module(str(emulated.path)))
        values = [tensors[i].tensor if i in tensors else arg for i, arg in enumerate(args)]
        (caller or module)[name](*values)
    finally:
        slot.value = None
        module.clear_imports()
        for imported in imports:
            module.import_module(imported)
    if launcher.failure is not None:
        raise launcher.failure
    for tensor in tensors.values():
        tensor.copy_back()
    return launcher.launches


def within(memories: Iterable[np.ndarray]) -> Find:
    """Finds addresses in some pieces of memory."""

    def find(address: int) -> np.ndarray | None:
        for memory in memories:
            begin = memory.ctypes.data
            if begin <= address < begin + max(1, memory.nbytes):
                return memory
        return None

    return find


def _launch(
    kernel: Kernel,
    tags: list[str],
    values: list[_Any],
    emulated: Emulated,
    find: Find,
    seed: int,
) -> Launch:
    count = len(kernel.parameters)
    if len(values) != count + len(tags):
        raise ValueError(
            f"kernel {kernel.name} was launched with {len(values)} values; it takes {count} "
            f"arguments and {tags}"
        )
    extents = {"block": [1, 1, 1], "thread": [1, 1, 1]}
    shared = 0
    for tag, value in zip(tags, values[count:], strict=True):
        if tag == _DYNAMIC_SHARED:
            shared = int(value.number())
        elif tag in _AXES:
            kind, axis = _AXES[tag]
            extents[kind][axis] = int(value.number())
        else:
            raise ValueError(f"kernel {kernel.name}: the launch parameter {tag} is not modelled")
    arguments = [
        _pointer(value.bits, find, parameter.name) if parameter.pointer else value.number()
        for parameter, value in zip(kernel.parameters, values, strict=False)
    ]
    grid, block = extents["block"], extents["thread"]
    report = emulated.launch(kernel.name, grid, block, shared, arguments, seed)
    return Launch(kernel.name, tuple(grid), tuple(block), shared, report)


def _pointer(address: int, find: Find, name: str) -> Pointer:
    memory = find(address)
    if memory is None:
        raise ValueError(f"the host passes a pointer as {name} that is in none of its arguments")
    return Pointer(address, memory)


def _launch_tags(module: tvm.runtime.Module, emulated: Emulated) -> dict[str, list[str]]:
    """What follows the arguments in a launch, by kernel: from the CUDA module's own table.

    It is written with the module: name, types of the arguments, launch parameters.
    """
    pack = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")
    packed = pack(module).numpy().tobytes()
    return {name: tags_of(packed, name) for name in emulated.kernels}


def tags_of(packed: bytes, name: str) -> list[str]:
    """What follows the arguments in a launch of the kernel `name`, from a module's bytes."""
    text = struct.pack("<Q", len(name)) + name.encode()
    at = packed.find(text + text)
    if at < 0:
        raise ValueError(f"the module's CUDA code has no kernel {name}")
    at += 2 * len(text)
    (types,) = struct.unpack_from("<Q", packed, at)
    at += 8 + 4 * types
    (count,) = struct.unpack_from("<Q", packed, at)
    at += 8
    tags = []
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", packed, at)
        tags.append(packed[at + 8 : at + 8 + length].decode())
        at += 8 + length
    return tags
