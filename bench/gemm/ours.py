"""Our side: the operator library's packed functions, and the compiled model that calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi

import tvm_moonpoly as mp
from bench.gemm.operands import Operands
from bench.gemm.peers import DEFAULT, DIRECT, HAND_SCHEDULES, VM, Peer, Run
from bench.gemm.shapes import Shape
from bench.gemm.tvm_models import layers_module, virtual_machine, vm_runner
from tvm_moonpoly import native, operators
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.operators.operator_library import functions

Weights = Mapping[tuple[int, int], np.ndarray]


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
    return Peer(DIRECT, mode, prepare_direct(module, target), products=True)


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
    return Peer(DEFAULT, mode, prepare_direct(module, target), products=True)


def with_default_schedules(table: CostTable) -> CostTable:
    """The same costs for micro-kernels of the same tiles whose schedules are as they come."""
    tasks, busy = (
        {replace(record, decisions={}): cost for record, cost in costs.items()}
        for costs in (table.tasks, table.busy)
    )
    return CostTable(tasks, table.traffic, busy)


def prepare_direct(library: Any, target: tvm.target.Target) -> Callable[[Operands], Run]:
    """What binds operands to the packed functions of ``library``, one for ``target``."""
    linear = library["moonpoly_linear_f32"]
    product = library["moonpoly_matmul_f32"]
    lanes = operators.lanes(target)
    packed_once: dict[tuple[int, int], tuple[np.ndarray, Constants]] = {}

    def constants(weight: np.ndarray) -> Constants:
        k, n = weight.shape
        if (n, k) not in packed_once or packed_once[n, k][0] is not weight:
            made = Constants(
                tvm.runtime.tensor(operators.pack_weight(weight, lanes)),
                tvm.runtime.tensor(operators.pad_bias(None, n, lanes)),
                tvm.runtime.tensor(operators.plan_table(n, k, target)),
            )
            packed_once[n, k] = (weight, made)
        return packed_once[n, k][1]

    def prepare(operands: Operands) -> Run:
        shape, a, out = operands.shape, view(operands.a), view(operands.out)
        if shape.dynamic:
            stored = operands.b if operands.b is not None else operands.bt
            assert stored is not None
            b, plain = view(stored), operators.encode_axes([0, 1, 2])
            right = operators.encode_axes([0, 2, 1]) if shape.transposed else plain
            return lambda: product(a, b, plain, right, plain, None, out)
        assert operands.b is not None
        made, activation = constants(operands.b), int(operators.Activation.NONE)
        packed, bias, table = made.packed, made.bias, made.table
        return lambda: linear(a, packed, bias, table, None, activation, out)

    return prepare


def compiled(target: tvm.target.Target, weights: Weights, shapes: Iterable[Shape]) -> Peer:
    """Every layer compiled with our pipeline, called through the virtual machine."""
    vm = virtual_machine(layers_module(weights, shapes), target, mp.pipeline(target))
    mode = "tvm.compile with mp.pipeline, called through the virtual machine"
    return Peer(VM, mode, prepare_vm(vm), allocates=True, products=True)


def hand_scheduled(
    name: str, target: tvm.target.Target, weights: Weights, shapes: Iterable[Shape]
) -> Peer:
    """The same functions with one of the schedules for dynamic shapes that were written by hand."""
    from bench.hand_schedule import hand_scheduled_pipeline

    pipeline = hand_scheduled_pipeline(target, padded=HAND_SCHEDULES[name])
    vm = virtual_machine(layers_module(weights, shapes), target, pipeline)
    kind = "padded tiles" if HAND_SCHEDULES[name] else "guarded tiles"
    mode = f"tvm.compile with a schedule written by hand, {kind}, through the virtual machine"
    return Peer(name, mode, prepare_vm(vm), allocates=True, products=True)


def prepare_vm(vm: tvm.relax.VirtualMachine) -> Callable[[Operands], Run]:
    """What binds operands to the function of their layer in ``vm``."""
    return lambda operands: vm_runner(vm, operands)


def view(array: np.ndarray) -> tvm.runtime.Tensor:
    """A tensor over the memory of ``array``."""
    return tvm_ffi.from_dlpack(array)
