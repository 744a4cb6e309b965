"""Weights in a section of the library, and the function that hands them out as tensors.

The weights are written to a temporary file. A module of LLVM, which the executable imports, takes
that file in when it is assembled (``.incbin``): into the object that ``export_library`` links, or
into memory where the executable runs in the process that made it. The file is deleted when the
executable is, or when the process ends.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.runtime import Tensor
from tvm.script import tirx as T
from tvm.target import Target

from tvm_moonpoly.llvm_modules import escaped, load_text

NAME = "moonpoly_mapped_weight"
ALIGNMENT = 64
SECTIONS = {  # by architecture; x86's may lie more than 2 GiB from the code
    "x86_64": '.lrodata,"al",@progbits',
    "aarch64": '.rodata,"a",@progbits',
}
_WRITE = 2**24  # bytes at a time


@dataclass(frozen=True)
class MappedWeights:
    """``module`` defines the packed function ``NAME(token, index)``, which returns the tensor at
    ``index``; the file that it takes in is there as long as ``token``."""

    module: Any
    token: Tensor


def size_of(tensor: Tensor) -> int:
    """Bytes of a compact tensor."""
    bits = tensor.dtype.bits * tensor.dtype.lanes
    return math.prod(map(int, tensor.shape)) * -(-bits // 8)


def supported(target: Target) -> bool:
    """Whether objects for ``target`` are in ELF, of an architecture that is known."""
    triple = _described(target)["triple"]
    return triple.split("-")[0] in SECTIONS and "linux" in triple


def store(tensors: Sequence[Tensor], target: Target) -> MappedWeights:
    """Write compact ``tensors`` on the CPU to a file, and make the module that takes it in."""
    handle, name = tempfile.mkstemp(prefix="moonpoly-weights-")
    anchor = np.zeros(1, np.int32)
    weakref.finalize(anchor, _delete, name, os.getpid())
    offsets = []
    with os.fdopen(handle, "wb") as file:
        for tensor in tensors:
            file.write(bytes(-file.tell() % ALIGNMENT))
            offsets.append(file.tell())
            raw = _bytes_of(tensor)
            for first in range(0, len(raw), _WRITE):
                file.write(raw[first : first + _WRITE])
    text = _module_text(tensors, offsets, name, _described(target))
    module = load_text(text)
    return MappedWeights(module, tvm_ffi.from_dlpack(anchor))


def _delete(name: str, owner: int) -> None:
    if os.getpid() == owner:  # a child that was forked has the same objects
        Path(name).unlink(missing_ok=True)


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a tensor of any type: numpy does not know all of them."""
    memory = (ctypes.c_char * size_of(tensor)).from_address(tensor.data_ptr())
    return memoryview(memory).cast("B")


@T.prim_func
def _nothing() -> None:
    T.func_attr({"global_symbol": "moonpoly_nothing"})
    T.evaluate(0)


def _described(target: Target) -> dict[str, str]:
    """What TVM writes into modules for ``target``: triple, layout of data, and its description."""
    built = tirx.build(tvm.IRModule({"moonpoly_nothing": _nothing}), target=target)
    text = str(built.inspect_source("ll"))
    patterns = {
        "layout": r'^target datalayout = "(.*)"$',
        "triple": r'^target triple = "(.*)"$',
        "target": r'!"tvm_target", !"([^"]*)"',
    }
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in patterns.items()}
    return {name: match[1] if match else "" for name, match in found.items()}


def _module_text(
    tensors: Sequence[Tensor], offsets: Sequence[int], path: str, described: dict[str, str]
) -> str:
    # no .globl: LLVM's linker in memory expects no symbols beyond those of the module's own code
    section = SECTIONS[described["triple"].split("-")[0]]
    assembly = [
        f".section {section}",
        f".balign {ALIGNMENT}",
        "moonpoly_weights:",
        f".incbin {json.dumps(path, ensure_ascii=False)}",
        ".text",
    ]
    lines = [f'target datalayout = "{described["layout"]}"']
    lines += [f'target triple = "{described["triple"]}"']
    lines += [f'module asm "{escaped(line)}"' for line in assembly]
    lines += [_TYPES]
    for at, tensor in enumerate(tensors):
        dims = ", ".join(f"i64 {int(dim)}" for dim in tensor.shape)
        lines += [f"@shape{at} = private constant [{len(tensor.shape)} x i64] [{dims}]"]
    managed = ",\n".join(
        _managed(at, tensor, offset)
        for at, (tensor, offset) in enumerate(zip(tensors, offsets, strict=True))
    )
    lines += [f"@tensors = private constant [{len(tensors)} x %Managed] [\n{managed}\n]"]
    lines += [_FUNCTION.replace("COUNT", str(len(tensors)))]
    lines += ["!llvm.module.flags = !{!0}"]
    lines += [f'!0 = !{{i32 2, !"tvm_target", !"{described["target"]}"}}']
    return "\n".join(lines) + "\n"


def _managed(at: int, tensor: Tensor, offset: int) -> str:
    """A DLManagedTensor without strides, of which nothing is freed."""
    dtype = tensor.dtype
    data = f"ptr getelementptr (i8, ptr @moonpoly_weights, i64 {offset})"
    kind = f"i8 {dtype.type_code}, i8 {dtype.bits}, i16 {dtype.lanes}"
    layout = f"ptr @shape{at}, ptr null, i64 0"
    fields = f"{data}, i32 1, i32 0, i32 {len(tensor.shape)}, {kind}, {layout}, ptr null, ptr null"
    return f"%Managed {{ {fields} }}"


# The fields of DLManagedTensor (dlpack.h): data, device, ndim, dtype, shape, strides, byte_offset;
# manager_ctx, deleter.
_TYPES = """\
%Managed = type { ptr, i32, i32, i32, i8, i8, i16, ptr, ptr, i64, ptr, ptr }
@moonpoly_weights = external dso_local constant i8, align 64
declare i32 @TVMFFITensorFromDLPack(ptr, i32, i32, ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
@kind = private constant [11 x i8] c"IndexError\\00"
@message = private constant [34 x i8] c"there is no mapped weight of this\\00"
"""

# TVM's calling convention of packed functions: 16 bytes an argument, of which the last 8 are its
# value; a result of type 70 is a tensor.
_FUNCTION = f"""\
define dllexport i32 @__tvm_ffi_{NAME}(ptr %self, ptr %args, i32 %count, ptr %result) {{
  %place = getelementptr i8, ptr %args, i64 24
  %index = load i64, ptr %place
  %known = icmp ult i64 %index, COUNT
  br i1 %known, label %found, label %failed
found:
  %tensor = getelementptr [COUNT x %Managed], ptr @tensors, i64 0, i64 %index
  %value = getelementptr i8, ptr %result, i64 8
  %code = call i32 @TVMFFITensorFromDLPack(ptr %tensor, i32 0, i32 0, ptr %value)
  %done = icmp eq i32 %code, 0
  br i1 %done, label %made, label %ended
made:
  store i32 70, ptr %result
  %padding = getelementptr i8, ptr %result, i64 4
  store i32 0, ptr %padding
  br label %ended
failed:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @kind, ptr @message)
  br label %ended
ended:
  %status = phi i32 [ 0, %made ], [ %code, %found ], [ -1, %failed ]
  ret i32 %status
}}
"""
