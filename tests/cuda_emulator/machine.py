"""A GPU for TVM's runtime that is none: whole executables, loaded and run as where there is one.

Memory of the device is memory of the host, and kernels run in the emulator. This cannot be undone
in a process, which therefore should be one for this alone.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from cuda_emulator.emulated import Emulated
from cuda_emulator.host import Launch, Launcher, tags_of, within

#: The beginning of all formats of machine code.
ELF = b"\x7fELF"


class Machine:
    """The runtime of this process with a GPU, on which some kernels can be launched.

    Attributes:
        formats: of the CUDA modules that were loaded, in order.
    """

    def __init__(self, *emulated: Emulated) -> None:
        self.formats: list[str] = []
        self._emulated = emulated
        self._memories: dict[int, np.ndarray] = {}
        self._launcher = Launcher(self._find)
        self._slots = [self._launcher.listen(each) for each in emulated]
        cpu = tvm_ffi.get_global_func("device_api.cpu")
        tvm_ffi.register_global_func("device_api.cuda", lambda: cpu())
        tvm_ffi.register_global_func("ffi.Module.load_from_bytes.cuda", self._load)

    def virtual_machine(self, executable: Any) -> relax.VirtualMachine:
        """A virtual machine on the GPU; each of its calls tells the emulator which memory it may
        touch: that of its arguments."""
        vm = relax.VirtualMachine(executable, tvm.cuda(0))
        vm.set_instrument(self._before_call)
        return vm

    def run(
        self, vm: relax.VirtualMachine, name: str, *args: np.ndarray
    ) -> tuple[np.ndarray, list[Launch]]:
        """What a function returns, and its launches.

        Raises:
            Fault: of the first launch that has one.
        """
        self._launcher.launches.clear()
        result = vm[name](*(tvm.runtime.tensor(each, device=tvm.cuda(0)) for each in args))
        return result.numpy(), self.launches()

    def launches(self) -> list[Launch]:
        """The launches since this was last asked for.

        Raises:
            Fault: of the first launch that has one.
        """
        if self._launcher.failure is not None:
            raise self._launcher.failure
        done = list(self._launcher.launches)
        self._launcher.launches.clear()
        return done

    def may_touch(self, tensor: Any) -> None:
        """Let kernels touch a tensor, besides the arguments of a virtual machine's calls."""
        begin, memory = tensor.data_ptr(), _memory(tensor)
        end = begin + memory.nbytes
        # what was freed and given out again is of the new tensor alone
        self._memories = {
            at: old for at, old in self._memories.items() if at >= end or at + old.nbytes <= begin
        }
        self._memories[begin] = memory

    def _load(self, data: Any) -> Any:
        """What TVM's CUDA runtime does with a module, which must hold machine code: a library whose
        launches go to the emulator."""
        data = bytes(data)
        (length,) = struct.unpack_from("<Q", data)
        self.formats.append(data[8 : 8 + length].decode())
        if ELF not in data:
            raise ValueError("a CUDA module without machine code")
        for emulated in self._emulated:
            names = [name for name in emulated.kernels if name.encode() in data]
            if names:
                self._launcher.add(emulated, {name: tags_of(data, name) for name in names})
                return tvm.runtime.load_module(str(emulated.path))
        return tvm.runtime.load_module(str(self._emulated[0].path))  # its kernels must not run

    def _before_call(self, _func: Any, _name: str, before: bool, _result: Any, *args: Any) -> int:
        if before:
            tensors = [each for each in args if isinstance(each, tvm.runtime.Tensor)]
            self._memories = {each.data_ptr(): _memory(each) for each in tensors}
        return 0

    def _find(self, address: int) -> np.ndarray | None:
        return within(self._memories.values())(address)


def _memory(tensor: Any) -> np.ndarray:
    """The elements of a compact tensor as unsigned integers, not a copy of them."""
    item = tvm.DataType(tensor.dtype).bits // 8
    size = int(np.prod(tensor.shape, dtype=np.int64)) * item
    memory = (ctypes.c_char * size).from_address(tensor.data_ptr())
    return np.frombuffer(memory, np.dtype(f"u{item}"))
