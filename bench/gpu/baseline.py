"""What TVM itself makes of a dynamic linear layer on CUDA: dlight's schedule, by its own pipeline.

It is compiled for one weight (k, n); the number of rows is known at the call.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.target import Target

from bench.gpu.runner.memory import DeviceTensor
from tvm_moonpoly.microkernels.cuda import Gpu, resources
from tvm_moonpoly.operators.cuda import device_modules

#: The function ``matmul(x, weight, out)`` of the module.
FUNCTION = "matmul"

#: What a host function calls before it launches.
_SET_DEVICE = "__tvm_set_device"

#: Rows of a launch by which the rows of a block are found.
_ROWS = 4096

_THREADS = re.compile(r"__launch_bounds__\((\d+)\)")
_PARAMETERS = re.compile(rf"{FUNCTION}_kernel\(([^)]*)\)")


@dataclass(frozen=True)
class Kernel:
    """What is known of the baseline's kernel without running it.

    A block computes ``block_m`` rows by ``block_n`` columns. ``shared_bytes`` of a block.
    """

    gpu: str
    n: int
    k: int
    block_m: int
    block_n: int
    threads: int
    registers: int
    shared_bytes: int
    spilled: bool
    tensor_cores: bool
    versions: str


def layer(n: int, k: int) -> tvm.IRModule:
    """``x (m, k) @ weight (k, n)`` in float16 with m symbolic."""
    builder = relax.BlockBuilder()
    rows = tvm.tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType([rows, k], "float16"))
    weight = relax.Var("weight", relax.TensorType([k, n], "float16"))
    with builder.function("main", [x, weight]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, weight))
        builder.emit_func_output(y)
    return builder.get()


def scheduled(n: int, k: int, target: Target) -> Any:
    """The layer's function as TVM's default pipeline for CUDA schedules it.

    The first call imports all of TVM's intrinsics for tensor cores, which takes a minute.
    """
    with target:
        lowered = relax.get_default_pipeline(target)(layer(n, k))
    return lowered[FUNCTION]


def lowered(n: int, k: int, target: Target) -> tvm.runtime.Module:
    """A host module that imports the kernel as CUDA source."""
    function = scheduled(n, k, target)
    with device_modules.as_source():
        return tvm.tirx.build(tvm.IRModule({FUNCTION: function}), target=target)


def export(n: int, k: int, gpu: Gpu, path: Path) -> None:
    """The layer as a shared library with machine code.

    Raises RuntimeError when nvcc is missing.
    """
    host = lowered(n, k, gpu.target())
    devices = [each for each in host.imports if each.kind == device_modules.KIND]
    compiled = device_modules.with_machine_code(devices, gpu.arch)
    if compiled is None:
        raise RuntimeError("machine code cannot be made here: see the warning above")
    host.clear_imports()
    for each in compiled:
        host.import_module(each)
    host.export_library(str(path))


def facts(n: int, k: int, gpu: Gpu, versions: str) -> Kernel:
    """What the compiler and the host function tell of the kernel.

    Raises RuntimeError when nvcc is missing.
    """
    host = lowered(n, k, gpu.target())
    source = str(host.imports[0].inspect_source())
    (taken,) = resources(source, gpu.arch).values()
    threads = int(_found(_THREADS, source))
    parameters = _found(_PARAMETERS, source).count(",") + 1
    # one row takes one line of blocks, many rows as many lines as there are
    few, many = _launches(host, (1, _ROWS), n, k, parameters)
    across = math.prod(few[:-1]) // threads
    lines = math.prod(many[:-1]) // threads // across
    return Kernel(
        gpu.name,
        n,
        k,
        _ROWS // lines,
        n // across,
        threads,
        taken.registers,
        taken.shared_bytes + few[-1],
        bool(taken.spill_stores or taken.spill_loads or taken.stack),
        "mma_sync" in source,
        versions,
    )


def _launches(
    host: tvm.runtime.Module, rows: Sequence[int], n: int, k: int, parameters: int
) -> list[list[int]]:
    """What the host function gives a launch besides the kernel's arguments, by the numbers of rows:
    extents of the grid and of a block, and at the end the bytes of dynamic shared memory."""
    given: list[list[int]] = []

    def launch(*arguments: Any) -> None:
        given.append([int(number) for number in arguments[parameters:]])

    imports = list(host.imports)
    host.clear_imports()
    set_device = tvm_ffi.get_global_func(_SET_DEVICE)
    # what is not among the imports is looked for here, once
    tvm_ffi.register_global_func(f"{FUNCTION}_kernel", launch, override=True)
    tvm_ffi.register_global_func(_SET_DEVICE, lambda *_: None, override=True)
    try:
        for m in rows:
            shapes = ((m, k), (k, n), (m, n))
            # nothing reads the memory, as nothing is launched
            tensors = [DeviceTensor(1 << 20, "float16", s, (s[1], 1)) for s in shapes]
            host[FUNCTION](*map(tvm_ffi.from_dlpack, tensors))
    finally:
        tvm_ffi.remove_global_func(f"{FUNCTION}_kernel")
        tvm_ffi.register_global_func(_SET_DEVICE, set_device, override=True)
        for each in imports:
            host.import_module(each)
    return given


def _found(pattern: re.Pattern[str], source: str) -> str:
    match = pattern.search(source)
    if match is None:
        raise RuntimeError("the baseline's source is not as expected")
    return match[1]


def read(path: Path) -> list[Kernel]:
    """Kernels that were written down."""
    return [Kernel(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def write(path: Path, kernels: list[Kernel]) -> None:
    """Write kernels down."""
    text = json.dumps([asdict(each) for each in kernels], indent=1)
    path.write_text(text + "\n", encoding="utf-8")
