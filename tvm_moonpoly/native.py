"""Compiling hand-emitted native functions: a TIR pipeline of its own, and inlining under control.

tvm's default pipeline compacts every allocation to the region that it thinks is used; scratch
that a loop of run-time length indexes becomes a heap workspace of run-time size, which a native
callee may not have. This pipeline leaves allocations as they are written, and index types too.

LLVM inlines every private function that is called from one place. The innermost loops then compete
for registers with all that surrounds them, and what a call does not need is prepared all the same:
that costs up to a fifth of a micro-kernel's speed, and most of the instructions of a small call.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.target import Target
from tvm.tirx.build import split_host_device_mods, tir_to_runtime
from tvm.tirx.compilation_pipeline import finalize_device_passes, finalize_host_passes

from tvm_moonpoly.llvm_modules import load_text

PIPELINE = "moonpoly_native"

_NONE: Mapping[str, Sequence[str]] = {}


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


def build(
    module: tvm.IRModule,
    target: Target,
    marks: Mapping[str, Sequence[str]] = _NONE,
    lowered: tvm.IRModule | None = None,
) -> Any:
    """Compile ``module`` for the CPU ``target`` to one LLVM runtime module.

    ``lowered``: host functions that another pipeline has made ready for the code generator; they
    become part of the same module, so that packed calls by name reach them.

    ``marks``: private functions by the LLVM attribute that they are given: those that are
    ``noinline``, those to which nothing leads that is often done (``cold``), those that are to be
    kept short (``optsize``).
    """
    tirx.register_tir_pipeline(PIPELINE, _native_pipeline)
    # a context of its own: what the user switched off in theirs is about their model
    with tvm.transform.PassContext():
        return _build(module, target, marks, lowered)


def _build(
    module: tvm.IRModule,
    target: Target,
    marks: Mapping[str, Sequence[str]],
    lowered: tvm.IRModule | None,
) -> Any:
    if not any(marks.values()):
        return _compiled(module, target, lowered)
    with tempfile.TemporaryDirectory() as folder:
        attributes = Path(folder) / "attributes.csv"
        # the names that tvm's code generator gives to private functions
        lines = [f"_internal_{name},{mark}\n" for mark, names in marks.items() for name in names]
        attributes.write_text("".join(lines))
        config = {k: v for k, v in json.loads(str(target)).items() if k not in ("tag", "keys")}
        config["cl-opt"] = [
            *config.get("cl-opt", []),
            f"-forceattrs-csv-path:string={attributes}",
        ]
        built = _compiled(module, Target(config), lowered)
        return _with_target(built, target)


def _compiled(module: tvm.IRModule, target: Target, lowered: tvm.IRModule | None) -> Any:
    if lowered is None:
        return tirx.build(module, target=target, pipeline=PIPELINE)
    passes, finalize_host, _ = _native_pipeline()
    bound = tirx.transform.BindTarget(target.with_host(target))(module)
    host, _ = split_host_device_mods(passes(bound))
    host = finalize_host()(host)
    host.update(lowered)
    return tir_to_runtime(host, {}, target)


def _with_target(built: Any, target: Target) -> Any:
    """The module as if built for ``target``: without the option that names a temporary file."""
    text = str(built.inspect_source("ll"))
    described = json.dumps(json.loads(str(target)), separators=(",", ":"))
    escaped = described.replace("\\", "\\5C").replace('"', "\\22")
    text, found = re.subn(r'(!"tvm_target", !")[^"]*(")', lambda m: m[1] + escaped + m[2], text)
    if found != 1:
        raise RuntimeError(f"{found} descriptions of the target in a module, not 1")
    # tvm marks private functions for export too, which LLVM does not read back; as internal ones
    # they have names in profiles
    text = text.replace("define private dllexport ", "define internal ")
    return load_text(text)
