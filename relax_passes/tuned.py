"""Whether the user has tuned a static matmul or convolution with MetaSchedule."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call, Op
from tvm.s_tir.meta_schedule.database import Database  # which TVM itself has imported by now
from tvm.target import Target

from .bindings import Bindings, variables_of
from .shapes import dims, is_static

MOST_FUSED = 4  # an operator and those after it that are looked up in the tuning database


def has_fused_record(var: relax.Var, bindings: Bindings, target: Target) -> bool:
    """Whether TVM has a tuning record for the matmul or convolution `var`, alone or fused with
    operators after it."""
    values = [(var, bindings.value[var])]
    while len(values) < MOST_FUSED:
        user = bindings.only_user(values[-1][0])
        call = bindings.value.get(user) if user is not None else None
        if not (isinstance(call, Call) and isinstance(call.op, Op)):
            break
        values.append((user, call))
    return has_record(values, target)


def has_record(values: Sequence[tuple[relax.Var, Call]], target: Target) -> bool:
    """Whether the tuning database in context has a record for a matmul or a convolution.

    `values` are bindings: it, then those operators after it, each using the one before,
    that TVM may fuse with it. A record counts that is of the function which TVM makes of the
    matmul alone, or of the matmul and as many of the others as it fuses.

    As for TVM, which would apply it, a record counts whatever the target that it was tuned for.
    False without a database in context (`with ms.database.JSONDatabase(work_dir=...):`), and where
    a shape is not static, since TVM tunes no other functions.
    """
    database = Database.current()
    if database is None or not all(_is_static(call) for _, call in values):
        return False
    # The longest first: that is what TVM makes if nobody else uses the values between.
    workloads = (_workload(values[:length], target) for length in range(len(values), 0, -1))
    return any(database.query_tuning_record(each, target, "main") for each in workloads)


def _is_static(call: Call) -> bool:
    operands = [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]
    return all(is_static(dims(expr)) for expr in (*operands, call))


def _workload(values: Sequence[tuple[relax.Var, Call]], target: Target) -> tvm.IRModule:
    """The function that TVM makes of the first of `values` and of those it fuses with it, as the
    database knows it."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    with target:
        mod = tvm.transform.Sequential(passes)(_module(values))
    call = mod["main"].body.blocks[0].bindings[0].value  # the others use its result
    return tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(mod[call.args[0]])


def _module(values: Sequence[tuple[relax.Var, Call]]) -> tvm.IRModule:
    """A module of one function that computes the last of `values`."""
    builder = relax.BlockBuilder()
    renamed: dict[relax.Var, relax.Var] = {}
    bound = {var for var, _ in values}
    for _, call in values:
        for var in variables_of(call):
            if var not in bound and var not in renamed:
                renamed[var] = relax.Var(f"x{len(renamed)}", var.ty)
    parameters = list(renamed.values())
    with builder.function("main", parameters):
        with builder.dataflow():
            for var, call in values:
                new = tvm_ffi.structural_map(
                    call, (relax.Var, lambda each: renamed.get(each, each))
                )
                emit = builder.emit_output if var is values[-1][0] else builder.emit
                renamed[var] = output = emit(new)
        builder.emit_func_output(output)
    return builder.get()
