"""Our side: the operator library's packed functions, and the compiled model that calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi

import tvm_moonpoly as mp
from bench.gemm.operands import Operands
from bench.gemm.peers import DEFAULT, DIRECT, HAND_SCHEDULES, VM, Peer, Run
from bench.gemm.shapes import EPILOGUES
from bench.gemm.tvm_models import Models
from tvm_moonpoly import native, operators
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.operators.parts import functions


@dataclass(frozen=True)
class Constants:
    """What the compiler would put into the executable for one layer."""

    packed: tvm.runtime.Tensor
    bias: tvm.runtime.Tensor
    table: tvm.runtime.Tensor


def direct(target: tvm.target.Target) -> Peer:
    """The packed functions called into memory of the caller, weights packed beforehand."""
    module = operators.library(target).module
    mode = "packed function of the operator library, output given by the caller"
    return direct_peer(DIRECT, mode, module, target)


def direct_peer(name: str, mode: str, module: Any, target: tvm.target.Target) -> Peer:
    """The candidate that calls the packed functions of ``module``."""
    prepare = prepare_direct(module, target)
    return Peer(name, mode, prepare, products=True, strided=True, epilogues=EPILOGUES)


def default_kernels(target: tvm.target.Target) -> Peer:
    """As `direct`, and with the same plans, on micro-kernels with the default schedule.

    Raises RuntimeError when that is what the tuning log's micro-kernels all have.
    """
    machine, _, table = operators.described(target)
    if not any(record.decisions for record in table.tasks):
        raise RuntimeError("the tuning log's micro-kernels all have the default schedule")
    defined = functions(machine, with_default_schedules(table))
    module = native.build(defined.module(), target, defined.marks)
    mode = f"as {DIRECT}, with the same plans, micro-kernels not tuned"
    return direct_peer(DEFAULT, mode, module, target)


def with_default_schedules(table: CostTable) -> CostTable:
    """The same costs for micro-kernels of the same tiles whose schedules are as they come."""
    tasks, busy = (
        {replace(record, decisions={}): cost for record, cost in costs.items()}
        for costs in (table.tasks, table.busy)
    )
    return CostTable(tasks, table.traffic, busy)


def prepare_direct(library: Any, target: tvm.target.Target) -> Callable[[Operands], Run]:
    """What binds operands to the packed functions of ``library``, one for ``target``.

    The constants of the last weight are kept: cases of the same weight should follow one another.
    """
    product = library["moonpoly_matmul_f32"]
    last: list[tuple[tuple[Any, Any], Constants]] = []

    def constants(operands: Operands) -> Constants:
        weight, bias = operands.b, operands.bias
        assert weight is not None
        if not last or last[0][0][0] is not weight or last[0][0][1] is not bias:
            last[:] = []
            last.append(((weight, bias), make_constants(weight, bias, target)))
        return last[0][1]

    def prepare(operands: Operands) -> Run:
        shape = operands.shape
        if shape.dynamic:
            a, b, out = view(operands.a), view(operands.stored), view(operands.out)
            axes = list(range(operands.a.ndim))
            plain = operators.encode_axes(axes)
            right = operators.encode_axes([*axes[:-2], axes[-1], axes[-2]])
            right = right if shape.transposed else plain
            return lambda: product(a, b, plain, right, plain, None, out)
        return linear_call(library, operands, constants(operands))

    return prepare


def linear_call(library: Any, operands: Operands, made: Constants) -> Run:
    """The call of the packed function of a linear layer, with its epilogue."""
    a, out = view(operands.a), view(operands.out)
    packed, bias, table = made.packed, made.bias, made.table
    kind = operators.Activation
    activation = int(kind.GELU if operands.shape.epilogue == "bias_gelu" else kind.NONE)
    if operands.residual is not None:
        added, residual = library["moonpoly_linear_residual_f32"], view(operands.residual)
        return lambda: added(a, packed, bias, residual, table, None, activation, out)
    linear = library["moonpoly_linear_f32"]
    return lambda: linear(a, packed, bias, table, None, activation, out)


def make_constants(
    weight: np.ndarray, bias: np.ndarray | None, target: tvm.target.Target
) -> Constants:
    """A (k, n) weight packed for ``target``, its bias padded, its plans."""
    k, n = weight.shape
    lanes = operators.lanes(target)
    return Constants(
        tvm.runtime.tensor(operators.pack_weight(weight, lanes)),
        tvm.runtime.tensor(operators.pad_bias(bias, n, lanes)),
        tvm.runtime.tensor(operators.plan_table(n, k, target)),
    )


def compiled(target: tvm.target.Target) -> Peer:
    """Every case compiled with our pipeline, called through the virtual machine."""
    models = Models(target, lambda: mp.pipeline(target))
    mode = "tvm.compile with mp.pipeline, called through the virtual machine"
    return Peer(
        VM,
        mode,
        models.prepare,
        allocates=True,
        products=True,
        strided=True,
        epilogues=EPILOGUES,
        chains=True,
    )


def hand_scheduled(name: str, target: tvm.target.Target) -> Peer:
    """The same functions with one of the schedules for dynamic shapes that were written by hand."""
    from bench.hand_schedule import hand_scheduled_pipeline

    padded = HAND_SCHEDULES[name]
    models = Models(target, lambda: hand_scheduled_pipeline(target, padded=padded))
    kind = "padded tiles" if padded else "guarded tiles"
    mode = f"tvm.compile with a schedule written by hand, {kind}, through the virtual machine"
    return Peer(name, mode, models.prepare, allocates=True, products=True)


def view(array: np.ndarray) -> tvm.runtime.Tensor:
    """A tensor over the memory of ``array``."""
    return tvm_ffi.from_dlpack(array)
