"""From scheduled micro-kernels to a runtime module: the family's own lowering pipeline.

tvm's pipeline for scheduled functions is followed with these differences: the launch grid is
rewritten (`raster`), and registers of a warp are lowered until none are left, since one run of
tvm's pass rewrites one buffer only.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import s_tir, tirx
from tvm.target import Target
from tvm.tirx.build import codegen_build, split_host_device_mods, tir_to_runtime

from tvm_moonpoly.microkernels.cuda.collapse import collapse
from tvm_moonpoly.microkernels.cuda.multistage import multistage
from tvm_moonpoly.microkernels.cuda.raster import rasterize

#: Runs of LowerWarpMemory; each lowers one of the three warp buffers, or does nothing.
_WARP_BUFFERS = 4


def device_target(arch: str) -> Target:
    """The tvm Target of a GPU of compute capability ``arch`` ("sm_80"), with an LLVM host."""
    return Target({"kind": "cuda", "arch": arch, "host": {"kind": "llvm"}})


def lower(funcs: Mapping[str, tirx.PrimFunc], arch: str = "sm_80") -> tvm.runtime.Module:
    """Compile micro-kernels: an LLVM host module that imports a CUDA module with their kernels.

    ``funcs``: by the name that the host function gets; its kernel's name is that and ``_kernel``.
    Functions without kernels of their own may be among them, which call others by
    ``T.call_cpacked(name, ...)``: host functions of tensors on the GPU.
    Needs neither GPU nor CUDA toolkit, but where tvm finds a CUDA driver, the kernels are compiled
    at once.
    """
    # the target is also read where tvm compiles the kernels
    with device_target(arch) as target:
        host, device = _lowered(funcs, target)
        return tir_to_runtime(host, device, target.host)


def host_module(funcs: Mapping[str, tirx.PrimFunc], arch: str = "sm_80") -> tvm.runtime.Module:
    """The host module of `lower` alone, which computes the same launches but imports no kernels."""
    with device_target(arch) as target:
        host, _ = _lowered(funcs, target)
        return tir_to_runtime(host, {}, target.host)


def lower_parts(
    funcs: Mapping[str, tirx.PrimFunc], arch: str = "sm_80", apart: bool = False
) -> tuple[tvm.IRModule, list[tvm.runtime.Module]]:
    """`lower` in parts, to be put together otherwise: the host functions, ready for a code
    generator, and the CUDA module, or one for each kernel (``apart``) in the order of ``funcs``."""
    with device_target(arch) as target:
        host, device = _lowered(funcs, target)
        parts = list(device.items())
        if apart:
            order = {f"{name}_kernel": i for i, name in enumerate(funcs)}
            single = [(key, item) for key, part in parts for item in part.functions_items()]
            single.sort(key=lambda each: order[each[1][0].name_hint])
            parts = [(key, tvm.IRModule({gv: func})) for key, (gv, func) in single]
        return host, [codegen_build(part, key) for key, part in parts]


def _lowered(
    funcs: Mapping[str, tirx.PrimFunc], target: Target
) -> tuple[tvm.IRModule, dict[Target, tvm.IRModule]]:
    """Host and device parts, ready for the code generators."""
    module = tvm.IRModule(
        {name: func.with_attr("global_symbol", name) for name, func in funcs.items()}
    )
    config = {
        "tirx.use_async_copy": True,
        # loops are left to nvcc, with a pragma: unrolled text grows to megabytes
        "tirx.UnrollLoop": {"explicit_unroll": False},
    }
    with tvm.transform.PassContext(config=config):
        module = tirx.transform.BindTarget(target)(module)
        module = tvm.transform.Sequential(_passes())(module)
        host, parts = split_host_device_mods(module)
        host = tvm.transform.Sequential(_host_passes())(host)
        passes = tvm.transform.Sequential(_device_passes())
        return host, {key: passes(part) for key, part in parts.items()}


def cuda_source(module: tvm.runtime.Module) -> str:
    """The CUDA source of all kernels of a module made by `lower`.

    Raises ValueError when the module holds none.
    """
    sources = [
        imported.inspect_source("cuda") or imported.inspect_source()
        for imported in module.imports
        if imported.kind.startswith("cuda")
    ]
    if not sources:
        raise ValueError("module: it imports no CUDA module")
    return "\n".join(sources)


def _passes() -> list[tvm.transform.Pass]:
    s, x = s_tir.transform, tirx.transform
    return [
        s.CanonicalizeLoop(),
        s.LowerCrossThreadReduction(),
        s.LowerInitBlock(),
        s.PlanAndUpdateBufferAllocationLocation(),
        s.ConvertBlocksToOpaque(),
        s.LiftThreadBinding(),
        s.CompactBufferAllocation(),
        s.UnifyThreadBinding(),
        s.LowerMatchBuffer(),
        s.StmtSimplify(),
        s.InjectPermutedLayout(),
        s.AnnotateIrregularLoop(),
        s.InjectSoftwarePipeline(),
        s.TransformMmaBufferLayout(),
        s.LowerOpaqueBlock(),
        collapse(),
        x.FlattenBuffer(),
        x.NarrowDataType(32),
        s.LoopPartition(),
        x.VectorizeLoop(True),
        x.StorageRewrite(),
        s.LowerAsyncDMA(),
        s.HoistIfThenElse(),
        x.UnrollLoop(),
        s.RenormalizeSplitPattern(),
        x.StmtSimplify(),
        x.RemoveNoOp(),
        s.RewriteUnsafeSelect(),
        x.VerifyMemory(),
        x.AnnotateEntryFunc(),
        s.ThreadSync("shared"),
        s.ThreadSync("shared.dyn"),
        s.ThreadSync("warp"),
        s.InjectPTXAsyncCopy(),
        multistage(),
        s.MergeSharedMemoryAllocations(),
        rasterize(),
        x.SplitHostDevice(),
        x.MakePackedAPI(),
    ]


def _host_passes() -> list[tvm.transform.Pass]:
    x = tirx.transform
    # LLVM's code generator crashes on pointers to bfloat16
    return [x.BF16StorageLegalize(), x.LowerTVMBuiltin(), x.LowerIntrin()]


def _device_passes() -> list[tvm.transform.Pass]:
    x = tirx.transform
    return [*[x.LowerWarpMemory()] * _WARP_BUFFERS, x.StmtSimplify(), x.LowerIntrin()]
