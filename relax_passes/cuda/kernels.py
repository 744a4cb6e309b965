"""Compile the kernels that TVM makes of all other operators to machine code."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.target import Target

from tvm_moonpoly.operators.cuda import device_modules

from ..functions import with_externals

HOST_ONLY = "tirx.is_host_func"


@tvm.transform.module_pass(opt_level=0, name="CompileKernels")
class CompileKernels:
    """Move the functions of the GPU into an external module that holds their machine code.

    To be run last. TVM alone would keep CUDA source where it finds no driver, to be compiled
    whenever the executable is loaded, and would compile with NVRTC only where it finds one. Where
    there is no compiler for CUDA, `mod` stays as it was.
    """

    def __init__(self, target: Target) -> None:
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        kernels = {
            gv: func
            for gv, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and _is_for_gpu(func)
        }
        if not kernels:
            return mod
        with device_modules.as_source():
            host = tvm.tirx.build(tvm.IRModule(kernels), target=self.target)
        devices = [each for each in host.imports if each.kind == device_modules.KIND]
        compiled = device_modules.with_machine_code(devices, str(self.target.attrs["arch"]))
        if compiled is None:
            return mod
        host.clear_imports()
        for each in compiled:
            host.import_module(each)
        result = mod.clone()
        for gv, func in kernels.items():
            result.update_func(gv, relax.ExternFunc(func.attrs["global_symbol"]))
        return with_externals(result, host)


def _is_for_gpu(func: tirx.PrimFunc) -> bool:
    attrs = func.attrs
    target = attrs.get("target")
    return HOST_ONLY not in attrs and (target is None or str(target.kind.name) == "cuda")
