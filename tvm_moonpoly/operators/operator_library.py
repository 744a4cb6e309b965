"""The operator library: planner, loops and micro-kernels of one machine, compiled once.

It consists of `parts`. Each is one LLVM module, because native calls do not cross modules in
process, and is kept with its machine code as assembly. A model's executable takes in those that it
calls as external modules; a model itself adds only tables and packed weights.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

import tvm_moonpoly
from tvm_moonpoly import logs, native
from tvm_moonpoly.assembled import assembled
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.llvm_modules import load_bitcode
from tvm_moonpoly.machine import Machine, default_triple, host_features, vector_units
from tvm_moonpoly.microkernels.cpu_gemm import fits
from tvm_moonpoly.operators import cache
from tvm_moonpoly.operators.parts import GEMM, PARTS, PLAN_ROWS, functions
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import BMode, largest

#: Rows that a table of plans reaches to; beyond, planning takes no time that matters.
TABLE_ROWS = 1024

#: Kernels of a log; a complete family has below a hundred.
MOST_KERNELS = 1024


class Parts:
    """The library for ``target`` as its parts: each is loaded, or compiled, when it is first asked
    for."""

    def __init__(self, target: Target, machine: Machine, table: CostTable) -> None:
        self._target, self._machine, self._table = target, machine, table
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """The packed function ``name``, of a part that is loaded already if there is one. Raises
        KeyError where there is none."""
        having = [part.name for part in PARTS if name in part.entries]
        if not having:
            raise KeyError(name)
        chosen = next((part for part in having if part in self._loaded), having[0])
        return self.part(chosen)[name]

    def has(self, module: Any) -> bool:
        """Whether ``module`` is one of the parts."""
        return any(module.same_as(each) for each in self._loaded.values())

    def part(self, part: str) -> Any:
        """The runtime module of a part: from this process, from the cache, or compiled now."""
        if part not in self._loaded:
            self._loaded[part] = self._made(part)
        return self._loaded[part]

    def cached(self) -> list[str]:
        """The parts that the cache holds."""
        return [part.name for part in PARTS if cache.load(self._key(part.name)) is not None]

    def export_library(self, parts: Iterable[str], path: Path) -> None:
        """Link parts to one shared library, which is written to ``path``. Raises RuntimeError when
        there is no C++ compiler, or it fails."""
        first, *others = (self.part(part) for part in parts)
        with tempfile.TemporaryDirectory() as folder:
            objects = [Path(folder) / f"part{i}.o" for i in range(len(others))]
            for other, written in zip(others, objects, strict=True):
                other.write_to_file(str(written), "o")
            first.export_library(str(path), addons=[str(each) for each in objects])

    def _made(self, part: str) -> Any:
        key = self._key(part)
        path = cache.load(key)
        if path is not None:
            return load_bitcode(path)
        defined = functions(self._machine, self._table, part)
        module = assembled(native.build(defined.module(), self._target, defined.marks))
        cache.store(key, lambda new: module.write_to_file(str(new), "bc"))
        return module

    def _key(self, part: str) -> str:
        return cache_key(self._target, self._machine, self._table, part)


@dataclass(frozen=True)
class OperatorLibrary:
    """The library of ``machine``: ``module`` has the packed functions by name."""

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


@functools.lru_cache(maxsize=32)
def costs(log: logs.TuningLog, machine: Machine) -> CostTable:
    """The cost table in ``log``, worked out once: every pass asks for it, some for each operator.

    Raises ValueError when it cannot serve ``machine``.
    """
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
    """The library for ``target``, one in a process; nothing of it is compiled yet.

    Raises ValueError when the target is not supported.
    """
    reason = supported(target)
    if reason is not None:
        raise ValueError(f"target: {reason}")
    return _library(_text(target))


def cached_parts(target: Target) -> list[str]:
    """The parts of the library for ``target`` that the cache holds; none where it is not
    supported."""
    return [] if supported(target) is not None else library(target).module.cached()


def _text(target: Target) -> str:
    """All of ``target`` that the library depends on."""
    # the host is the target itself: the library runs where it is called
    config = {k: v for k, v in json.loads(str(target)).items() if k != "host"}
    return json.dumps(config, sort_keys=True)


@functools.lru_cache(maxsize=8)
def _library(target_text: str) -> OperatorLibrary:
    target = Target(json.loads(target_text))
    machine, _, table = described(target)
    return OperatorLibrary(machine, table, Parts(target, machine, table))


def cache_key(target: Target, machine: Machine, table: CostTable, part: str = GEMM) -> str:
    """A name for all that a compiled part depends on."""
    parts = {
        "part": part,
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


@functools.lru_cache(maxsize=1)
def sources_digest() -> str:
    """A digest of this package's sources: an edited checkout does not meet an older library."""
    root = Path(tvm_moonpoly.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
