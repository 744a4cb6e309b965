"""Lowering of hand-emitted native functions, as a TIR pipeline of its own.

tvm's default pipeline compacts every allocation to the region that it thinks is used; scratch
that a loop of run-time length indexes becomes a heap workspace of run-time size, which a native
callee may not have. This pipeline leaves allocations as they are written, and index types too.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.target import Target
from tvm.tirx.compilation_pipeline import finalize_device_passes, finalize_host_passes

PIPELINE = "moonpoly_native"


def _native_pipeline() -> tuple[Any, Any, Any]:
    passes = [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        tirx.transform.CommonSubexprElim(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
    ]
    return tvm.ir.transform.Sequential(passes), finalize_host_passes, finalize_device_passes


def build(module: tvm.IRModule, target: Target) -> Any:
    """Compile ``module`` for the CPU ``target`` to one LLVM runtime module."""
    tirx.register_tir_pipeline(PIPELINE, _native_pipeline)
    return tirx.build(module, target=target, pipeline=PIPELINE)
