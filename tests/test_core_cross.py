"""Libraries for other machines than this one: compiled, and planned for, but not run."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest
from tvm.target import Target

from tvm_moonpoly import logs, native
from tvm_moonpoly.assembled import assembled
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.costmodel.tasks import TaskCost
from tvm_moonpoly.machine import Machine, host_features
from tvm_moonpoly.microkernels.cpu_gemm import Record
from tvm_moonpoly.operators import OperatorLibrary
from tvm_moonpoly.operators.parts import PARTS
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import Plan

library_module = importlib.import_module("tvm_moonpoly.operators.operator_library")

TARGETS = {
    "avx512": {"mcpu": "skylake-avx512"},
    "neon": {"mtriple": "aarch64-linux-gnu", "mcpu": "generic", "mattr": ["+neon"]},
}


def few_kernels() -> CostTable:
    """Of every form one or two tiles, so that a library compiles fast."""
    avx2 = Machine.from_target(Target({"kind": "llvm", "mcpu": "x86-64-v3"}))
    usual = CostTable.from_entries([dict(entry) for entry in logs.find(avx2).entries])
    tiles = [Record(1, 1), Record(2, 1), Record(1, 2), Record(1, 2, packed_a=True)]
    return CostTable({record: TaskCost.linear(1000, 1000) for record in tiles}, usual.traffic)


@pytest.mark.parametrize(
    "isa,mnemonic",
    [
        ("avx512", "vfmadd"),
        ("neon", "fmla"),
    ],
)
def test_a_whole_library_for_another_machine(isa, mnemonic, tmp_path):
    target = Target({"kind": "llvm", "num-cores": 4, **TARGETS[isa]})
    machine = Machine.from_target(target)
    assert machine.isa == isa
    entries = {part.name: set(part.entries) for part in PARTS}
    for part in PARTS:
        if any(entries[part.name] < others for others in entries.values()):
            continue  # compiled as a part of another one
        defined = library_module.functions(machine, few_kernels(), part.name)
        module = assembled(native.build(defined.module(), target, defined.marks))
        path = tmp_path / f"{part.name}.o"
        module.write_to_file(str(path), "o")
        # e_machine of ELF: x86-64 or AArch64
        kind = {"avx512": 62, "neon": 183}[isa]
        assert int.from_bytes(path.read_bytes()[18:20], "little") == kind
        vectors = part.name in ("attention", "conv", "depthwise")
        assert not vectors or mnemonic in str(module.inspect_source("ll"))


def test_plans_for_a_machine_that_is_not_this_one():
    """They are the specification's, since its native planner cannot run here."""
    target = Target({"kind": "llvm", "num-cores": 2, **TARGETS["neon"]})
    machine = Machine.from_target(target)
    if library_module.runs_here(machine):
        pytest.skip("this machine runs NEON")
    library = OperatorLibrary(machine, few_kernels(), module=None)
    table = library.plan_table(100, 30)
    assert table.dtype == np.int64 and len(table) == library_module.TABLE_ROWS + 1
    for m in (1, 2, 77, 1024):
        expected = spec.plan(spec.Product(m, 100, 30), machine, few_kernels())
        assert Plan.decode(int(table[m])) == expected


def test_what_runs_here(target):
    here = Machine.from_target(target)
    assert library_module.runs_here(here)
    assert not library_module.runs_here(replace(here, triple="riscv64-linux-gnu"))
    hints = here.features | {"slow-3ops-lea"}  # of other CPUs' code: no CPU reports it
    assert library_module.runs_here(replace(here, features=hints))
    lacking = next(name for name, has in host_features().items() if not has)
    assert not library_module.runs_here(replace(here, features=here.features | {lacking}))
    assert library_module.runs_here(replace(here, features=here.features - {"fma"}))
