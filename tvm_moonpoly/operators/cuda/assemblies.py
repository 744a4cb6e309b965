"""The micro-kernels and costs that an operator for a GPU is assembled from, out of its tuning log.

Costs in a log may be computed, not measured: `CudaTable.measured` says which.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tvm.target import Target

from tvm_moonpoly import logs
from tvm_moonpoly.costmodel import cuda_analytic, cuda_log
from tvm_moonpoly.costmodel.cuda_log import Contents, Kernel
from tvm_moonpoly.microkernels.cuda import ARCHITECTURES, GPUS, Form, Gpu, products
from tvm_moonpoly.microkernels.cuda.form import INPUTS
from tvm_moonpoly.operators.cuda.assembly import Assembly

#: Micro-kernels of an assembly: the most useful. A plan is weighed in microseconds, and each of
#: them is compiled once for each epilogue of a model.
MOST = 8

#: Those that store single elements, for an odd number of columns where rows of both operands are
#: aligned: of a vocabulary, mostly.
MOST_SINGLE = 4


def supported(target: Target) -> str | None:
    """None when there are micro-kernels and costs for ``target``, else why not."""
    try:
        for dtype in INPUTS:
            log_in_use(target, dtype)
    except (LookupError, ValueError) as error:
        return str(error).removeprefix("target: ")
    return None


def assemblies(
    target: Target, dtype_in: str, dtype_out: str, b_transposed: bool
) -> tuple[Assembly, ...]:
    """The assemblies of a product on ``target``, for `build`: those of aligned operands first, of
    which the second takes any number of columns; the last one suits all calls.

    Raises ValueError for dtypes or a target that there are no micro-kernels for, LookupError when
    no tuning log has them all.
    """
    _, found = log_of_product(target, dtype_in, dtype_out, b_transposed)
    return assembled(found, dtype_in, dtype_out, b_transposed)


def assembled(
    found: Contents, dtype_in: str, dtype_out: str, b_transposed: bool
) -> tuple[Assembly, ...]:
    """`assemblies` out of what the log of `log_of_product` holds."""
    aligned, unaligned = (Form(dtype_in, dtype_out, b_transposed, each) for each in (True, False))
    kernels = found.of(aligned)
    usual = tuple(kernel for kernel in kernels if not kernel.tile.single)[:MOST]
    single = tuple(kernel for kernel in kernels if kernel.tile.single)[:MOST_SINGLE]
    chosen = [_assembly(aligned, group, found) for group in (usual, single) if group]
    return (*chosen, _assembly(unaligned, found.of(unaligned)[:MOST], found))


def log_of_product(
    target: Target, dtype_in: str, dtype_out: str, b_transposed: bool
) -> tuple[logs.TuningLog, Contents]:
    """The tuning log that `assemblies` takes, and what it holds; raises as that does."""
    needed = Form(dtype_in, dtype_out, b_transposed, aligned=False)
    reason = ""
    for log, found in _logs(target, dtype_in):
        if found.of(needed):
            return log, found
        reason = f": {log.origin} has no micro-kernels of {needed.name}"
    raise LookupError(f"no tuning log for {_described(target)}{reason}")


def log_in_use(target: Target, dtype: str) -> tuple[logs.TuningLog, Contents]:
    """The tuning log that serves ``target`` for operands of ``dtype``, and what it holds.

    Raises ValueError for a target that there are no micro-kernels for, LookupError when there is no
    log.
    """
    for log, found in _logs(target, dtype):
        return log, found
    raise LookupError(f"no tuning log for {_described(target)}")


def _logs(target: Target, dtype: str) -> list[tuple[logs.TuningLog, Contents]]:
    """The logs that serve ``target``, best first."""
    gpus = products(target)
    if not gpus:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(
            f"target: micro-kernels for GPUs are made for {known}, not {_described(target)}"
        )
    arch = gpus[0].arch
    usable = []
    stored = logs.usable_gpu(arch, [gpu.name for gpu in gpus], dtype)
    for log, found in with_contents(stored, arch):
        for fault in found.faults:
            logs.say_once(logging.WARNING, f"{log.origin}: {fault}")
        usable.append((log, on(gpus[0], found)))
    if usable:
        log, found = usable[0]
        logs.say_once(
            logging.INFO,
            f"tuning log of {log.machine_name} ({arch}, {dtype}, {found.status}): {log.origin}",
        )
    return usable


def on(gpu: Gpu, found: Contents) -> Contents:
    """What the log of another GPU of the same compute capability says of ``gpu``: with its number
    of multiprocessors, and computed costs computed anew unless it is one that is known."""
    kernels = found.kernels
    if gpu not in GPUS.values():
        kernels = tuple(each if each.measured else _computed(each, gpu) for each in kernels)
    return replace(found, multiprocessors=gpu.multiprocessors, kernels=kernels)


def _computed(kernel: Kernel, gpu: Gpu) -> Kernel:
    cost = cuda_analytic.block_cost(kernel.tile, kernel.form, gpu, kernel.static.registers)
    return replace(kernel, cost=cost)


def with_contents(
    found: Iterable[logs.TuningLog], arch: str
) -> Iterator[tuple[logs.TuningLog, Contents]]:
    """Logs for GPUs of ``arch`` and what they hold, without those that cannot be used, of which is
    told why."""
    for log in found:
        try:
            yield log, cuda_log.contents(log.entries, arch)
        except ValueError as error:
            logs.say_once(logging.WARNING, f"{log.origin}: skipped: {error}")


def _described(target: Target) -> str:
    return str(target.attrs.get("arch", target.kind.name))


def _assembly(form: Form, kernels: tuple[Kernel, ...], found: Contents) -> Assembly:
    return Assembly(form, tuple(kernel.tile for kernel in kernels), found.table(kernels))
