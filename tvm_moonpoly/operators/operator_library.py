"""The operator library: planner, loops and micro-kernels of one machine, compiled once.

It is one LLVM module, because native calls do not cross modules in process. A model's executable
takes it in as an external module; a model itself adds only tables and packed weights.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

import tvm_moonpoly
from tvm_moonpoly import logs, native
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.emit import INT, Expr, Functions, Pointer, loop
from tvm_moonpoly.machine import Machine, default_triple, host_features, vector_units
from tvm_moonpoly.microkernels.cpu_gemm import fits
from tvm_moonpoly.operators import (
    activation,
    cache,
    chaining,
    conv,
    depthwise,
    errors,
    gemm_region,
    gemm_tiles,
    linear,
    matmul,
    packing,
    plain,
    product,
    sharing,
    stream,
    tensors,
    verify,
)
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner import native as native_planner
from tvm_moonpoly.planner import native_conv, spec
from tvm_moonpoly.planner.plan import BMode, largest

#: ``moonpoly_plan_rows(n, k, batch, b_mode, out)``: out[m] is the plan for m rows, m = 1, 2, ...
PLAN_ROWS = "moonpoly_plan_rows"

#: Rows that a table of plans reaches to; beyond, planning takes no time that matters.
TABLE_ROWS = 1024

#: Kernels of a log; a complete family has below a hundred.
MOST_KERNELS = 1024


@dataclass(frozen=True)
class OperatorLibrary:
    """The compiled library of ``machine``: ``module`` holds the packed functions."""

    machine: Machine
    table: CostTable
    module: Any

    def plan_table(self, n: int, k: int) -> np.ndarray:
        """Encoded plans for products of m rows by a packed (k, n) weight, int64, indexed by m."""
        table = np.zeros(TABLE_ROWS + 1, np.int64)
        if not runs_here(self.machine):
            for m in range(1, len(table)):
                product = spec.Product(m, n, k)
                table[m] = spec.plan(product, self.machine, self.table).encode()
            return table
        out = tvm.runtime.tensor(table)
        self.module[PLAN_ROWS](n, k, 1, int(BMode.PREPACKED), out)
        return out.numpy()


def supported(target: Target) -> str | None:
    """None when there are micro-kernels and costs for ``target``, else why not."""
    try:
        described(target)
    except (LookupError, ValueError) as error:
        return str(error).removeprefix("target: ")
    return None


def described(target: Target) -> tuple[Machine, logs.TuningLog, CostTable]:
    """How ``target`` is used: by its best vector unit that there is a complete tuning log for.

    Raises LookupError when there is no such log, ValueError when there are no micro-kernels.
    """
    reasons = []
    units = vector_units(Machine.from_target(target).features)
    for isa in units:
        machine = Machine.from_target(target, isa)
        for log in logs.usable(machine):
            try:
                table = costs(log, machine)
            except ValueError as error:
                logs.say_once(logging.WARNING, f"{log.origin}: skipped: {error}")
                reasons.append(str(error))
                continue
            logs.say_used(log, machine, units[0])
            return machine, log, table
        reasons.append(f"no tuning log for {isa} (mcpu {machine.mcpu!r})")
    raise LookupError("; ".join(reasons))


def costs(log: logs.TuningLog, machine: Machine) -> CostTable:
    """The cost table in ``log``; raises ValueError when it cannot serve ``machine``."""
    kernels = sum(entry.get("kind") == "kernel" for entry in log.entries)
    if kernels > MOST_KERNELS:
        raise ValueError(f"log: it holds {kernels} kernels, more than {MOST_KERNELS}")
    table = CostTable.from_entries([dict(entry) for entry in log.entries])
    table = table.for_cores(machine.cores)
    for record in table.tasks:
        if not fits(record, machine):
            raise ValueError(f"log: {record.name} does not fit the registers of {machine.isa}")
        if record.mr > largest("mr") or record.nv > largest("nv"):
            raise ValueError(
                f"log: {record.name} does not fit a plan, of which tiles have up to "
                f"{largest('mr')} rows and {largest('nv')} vectors"
            )
    return table


def lanes(target: Target) -> int:
    """fp32 lanes of the vectors that panels of packed weights are wide, for ``target``."""
    machine, _, _ = described(target)
    return machine.lanes


def library(target: Target) -> OperatorLibrary:
    """The library for ``target``: from this process, from the cache, or compiled now.

    Raises ValueError when the target is not supported.
    """
    reason = supported(target)
    if reason is not None:
        raise ValueError(f"target: {reason}")
    return _library(_text(target))


def is_cached(target: Target) -> bool:
    """Whether the cache holds the library for ``target``; not where there is none to be had."""
    if supported(target) is not None:
        return False
    plain_target = Target(json.loads(_text(target)))
    machine, _, table = described(plain_target)
    return cache.load(cache_key(plain_target, machine, table)) is not None


def _text(target: Target) -> str:
    """All of ``target`` that the library depends on."""
    # the host is the target itself: the library runs where it is called
    config = {k: v for k, v in json.loads(str(target)).items() if k != "host"}
    return json.dumps(config, sort_keys=True)


@functools.lru_cache(maxsize=8)
def _library(target_text: str) -> OperatorLibrary:
    target = Target(json.loads(target_text))
    machine, _, table = described(target)
    key = cache_key(target, machine, table)
    path = cache.load(key)
    if path is None:
        defined = functions(machine, table)
        module = native.build(defined.module(), target, defined.marks)
        path = cache.store(key, lambda new: module.write_to_file(str(new), "bc"))
        if path is None:
            return OperatorLibrary(machine, table, _through_a_file(module))
    return OperatorLibrary(machine, table, _load(path))


def functions(machine: Machine, table: CostTable) -> Functions:
    """All functions of the library, not yet compiled."""
    defined = Functions()
    records = list(table.tasks)
    errors.emit(defined)
    tensors.emit(defined)
    product.emit(defined)
    activation.emit(defined, machine.lanes)
    activation.emit_bounded(defined, machine.lanes)
    chaining.emit(defined, machine.lanes)
    packing.emit(defined, sorted({r.mr for r in records if r.packed_a}), machine.lanes)
    stream.emit(defined, machine.lanes)
    sharing.emit(defined)
    gemm_tiles.emit(defined, records, machine)
    gemm_region.emit(defined, machine.lanes)
    native_planner.emit(defined, machine, table)
    linear.emit(defined, machine)
    matmul.emit(defined, machine)
    verify.emit(defined)
    plain.emit(defined, machine)
    native_conv.emit(defined, machine, table)
    conv.emit(defined, records, machine)
    depthwise.emit(defined, machine)
    _emit_plan_rows(defined)
    return defined


def cache_key(target: Target, machine: Machine, table: CostTable) -> str:
    """A name for all that the compiled library depends on."""
    parts = {
        "target": str(target),
        "isa": machine.isa,
        "features": sorted(machine.features),
        "caches": [machine.l1_bytes, machine.l2_bytes, machine.l3_bytes],
        "cores": machine.cores,
        "llvm": int(tvm.get_global_func("target.llvm_version_major")()),
        "tvm": tvm.__version__,
        "package": tvm_moonpoly.__version__,
        "sources": sources_digest(),
        "kernels": table.to_entries(),
    }
    return cache.key_of(parts)


def runs_here(machine: Machine) -> bool:
    """Whether code for ``machine`` can be executed by this process."""
    host = host_features()
    # LLVM's names for tuning hints are features too, which no CPU reports
    lacking = [name for name in machine.features if host.get(name) is False]
    return not lacking and _architecture(machine.triple) == _architecture(default_triple())


def _architecture(triple: str) -> tuple[str, bool]:
    """The processor, and whether the system is Linux."""
    return triple.split("-")[0], "linux" in triple


def _emit_plan_rows(defined: Functions) -> None:
    @defined.public(PLAN_ROWS, n=INT, k=INT, batch=INT, b_mode=INT, out="handle")
    def _(n: Expr, k: Expr, batch: Expr, b_mode: Expr, out: Any) -> None:
        plans = Tensor(out, "out", INT)
        rows: Pointer = plans.data
        with loop(plans.shape[0] - 1) as i:
            defined["moonpoly_plan"](i + 1, n, k, batch, b_mode, rows.at(i + 1))


@functools.lru_cache(maxsize=1)
def sources_digest() -> str:
    """A digest of this package's sources: an edited checkout does not meet an older library."""
    root = Path(tvm_moonpoly.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _load(path: Path) -> Any:
    return tvm.get_global_func("ffi.Module.load_from_file.ll")(str(path), "bc")


def _through_a_file(module: Any) -> Any:
    """The module reloaded: only a module loaded from bitcode can be exported as well as run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.bc"
        module.write_to_file(str(path), "bc")
        return _load(path)
