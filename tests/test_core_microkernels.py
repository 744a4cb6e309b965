"""Micro-kernels alone: what they compute, and what the compiler made of them."""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import math
import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from core_assembly import function
from core_testing import CANARY, EPS, check_close, values
from tvm import s_tir
from tvm.target import Target

import tvm_moonpoly
from tvm_moonpoly import native
from tvm_moonpoly.emit import Functions
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm, gemm_schedule
from tvm_moonpoly.microkernels.records import Form, Record, choices

TARGETS = {
    "avx2": Target({"kind": "llvm", "mcpu": "x86-64-v3"}),
    "avx512": Target({"kind": "llvm", "mcpu": "skylake-avx512"}),
    "neon": Target(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "generic", "mattr": ["+neon"]}
    ),
}


@functools.cache
def machine_of(isa):
    machine = Machine.from_target(TARGETS[isa])
    assert machine.isa == isa
    return machine


def compiled(records, machine, target, ahead=False):
    """The kernels as functions with C's calling convention."""
    defined = Functions()
    for record in records:
        kernel = cpu_gemm.build(record, machine, ahead)
        defined.add(record.name, kernel.with_attr("global_symbol", record.name))
    return native.build(defined.module(), target)


@functools.cache
def family(isa):
    return cpu_gemm.family(machine_of(isa))


#: Tiles whose decisions are tried, in all forms: those with room for partial sums, and full ones.
VARIED = [(1, 4), (2, 2), (4, 3), (6, 2)]

#: Tiles of `CostTable.of_convolutions`.
TURNED = [Record(3, 4, decisions={"row_block": 3, "unroll": 4})]


def varied(machine):
    """Members of other decisions: each choice of each decision alone, and some combinations."""
    rng = random.Random(0)
    records = []
    for mr, nv in VARIED:
        forms = [Record(mr, nv), Record(mr, nv, in_place_b=True)]
        if nv in (2, 3):
            forms.append(Record(mr, nv, packed_a=True))
        space = cpu_gemm.space(forms[0], machine)
        alone = [{name: c} for name, options in space.items() for c in options]
        mixed = [{n: rng.choice(options) for n, options in space.items()} for _ in range(4)]
        records += [
            replace(form, decisions=decisions)
            for form, decisions in [
                *((forms[0], d) for d in alone + mixed),
                *((form, d) for form in forms[1:] for d in mixed[:3]),
            ]
        ]
    return [r for r in dict.fromkeys(records) if r.decisions and cpu_gemm.fits(r, machine)]


@functools.cache
def module_of(isa):
    return compiled([*family(isa), *TURNED], machine_of(isa), TARGETS[isa])


@functools.cache
def assembly(isa):
    return str(module_of(isa).inspect_source("asm"))


# What they compute


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The machine of this CPU, and its kernels by name, callable through ctypes."""
    target = tvm_moonpoly.detect_target()
    machine = Machine.from_target(target)
    records = [*cpu_gemm.family(machine), *varied(machine), *TURNED]
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    compiled(records, machine, target).export_library(str(path))
    library = ctypes.CDLL(str(path))
    parameters = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 6 + [ctypes.c_float]
    kernels = {}
    for record in records:
        kernels[record] = getattr(library, record.name)
        kernels[record].argtypes, kernels[record].restype = parameters, None
    return machine, kernels


def run(kernel, record, lanes, a, b, x, z, lo, ldc_gap):
    """One call: b is (nv, k, lanes), given in panels or as the rows of a matrix."""
    nv, k, _ = b.shape
    n = nv * lanes
    if record.in_place_b:
        memory = np.full((k, n + 5), CANARY)
        memory[:, :n] = b.transpose(1, 0, 2).reshape(k, n)
        b_vector, b_row = lanes, n + 5
    else:
        memory, b_vector, b_row = b.copy(), k * lanes, lanes
    if record.packed_a:
        a_memory, lda = np.ascontiguousarray(a.T), 0
    else:
        a_memory = np.full((record.mr, k + 3), CANARY)
        a_memory[:, :k] = a
        lda = k + 3
    c = np.full((record.mr, n + ldc_gap), CANARY)
    pointers = [array.ctypes.data for array in (a_memory, memory, x, z, c)]
    ldx = x.strides[0] // 4 if len(x) > 1 else 0
    kernel(*pointers, lda, b_vector, b_row, ldx, n + ldc_gap, k, lo)
    assert (c[:, n:] == CANARY).all()
    return c[:, :n]


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 200])
def test_every_member_against_its_reference(host, k):
    machine, kernels = host
    rng = np.random.default_rng(k)
    for record, kernel in kernels.items():
        n = record.nv * machine.lanes
        a, z = values(rng, record.mr, k), values(rng, n)
        b = values(rng, record.nv, k, machine.lanes)
        for rows, lo, gap in [(record.mr, 0.0, 7), (1, -np.inf, 0)]:
            x = values(rng, rows, n)
            result = run(kernel, record, machine.lanes, a, b, x, z, lo, gap)
            expected = cpu_gemm.reference(a, b, x, z, lo)
            sizes = [np.abs(array).astype(np.float64) for array in (a, b, x, z)]
            bound = (k + 3) * EPS * cpu_gemm.reference(*sizes, -np.inf)
            check_close(result, expected, bound)


def test_nan_and_infinity(host):
    machine, kernels = host
    rng = np.random.default_rng(1)
    for record, kernel in kernels.items():
        n = record.nv * machine.lanes
        a, b = values(rng, record.mr, 5), values(rng, record.nv, 5, machine.lanes)
        x, z = np.zeros((record.mr, n), np.float32), np.zeros(n, np.float32)
        x[-1, :] = np.nan
        x[0, 0], x[0, -1] = (np.inf, -np.inf) if record.mr > 1 else (np.nan, np.nan)
        for lo in (-np.inf, 0.0):
            result = run(kernel, record, machine.lanes, a, b, x, z, lo, 0)
            expected = cpu_gemm.reference(a, b, x, z, lo)
            np.testing.assert_array_equal(np.isnan(result), np.isnan(expected), record.name)
            assert np.isnan(result[-1]).all()
            if record.mr > 1:
                assert result[0, 0] == np.inf and result[0, -1] == lo


def test_reference():
    """The reference itself, on a case that can be seen through."""
    a = np.array([[1, 2], [3, 4]], np.float32)
    b = np.array([[[1, 10], [100, 1000]]], np.float32)  # one vector of 2 lanes, k = 2
    x = np.array([[0, 1], [-5000, 0]], np.float32)
    z = np.array([0, 0.5], np.float32)
    expected = [[201, 2011.5], [-4597, 4030.5]]
    np.testing.assert_array_equal(cpu_gemm.reference(a, b, x, z, -np.inf), expected)
    expected[1][0] = 0
    np.testing.assert_array_equal(cpu_gemm.reference(a, b, x, z, 0), expected)
    x[0, 0] = np.nan
    assert np.isnan(cpu_gemm.reference(a, b, x, z, 0)[0, 0])


def test_reference_of_no_steps():
    a, b = np.zeros((2, 0), np.float32), np.zeros((1, 0, 2), np.float32)
    x, z = np.ones((2, 2), np.float32), np.array([1, -3], np.float32)
    np.testing.assert_array_equal(cpu_gemm.reference(a, b, x, z, 0), [[2, 0], [2, 0]])


# Records, constraint, decisions


@pytest.mark.parametrize("isa", TARGETS)
def test_family(isa):
    machine = machine_of(isa)
    records = cpu_gemm.family(machine)
    assert len(set(records)) == len(records) == len({r.name for r in records})
    assert all(cpu_gemm.fits(r, machine) for r in records)
    for nv in {r.nv for r in records}:
        for form in Form:
            heights = sorted(r.mr for r in records if (r.nv, r.form) == (nv, form))
            assert heights == list(range(1, len(heights) + 1)), "balanced tiles need all heights"
    # enough accumulators to hide the latency of the FMA: 2 a cycle over 4 cycles
    assert max(r.mr * r.nv for r in records) >= 12
    assert {r.form for r in records} == set(Form)


@pytest.mark.parametrize(
    "isa,mr,nv,fits",
    [
        ("avx2", 4, 3, True),  # 12 accumulators, 3 vectors of B, 1 element of A: all 16
        ("avx2", 6, 2, True),
        ("avx2", 5, 3, False),
        ("avx2", 7, 2, False),
        ("avx2", 1, 15, True),  # one row: B comes from memory
        ("avx2", 1, 16, False),
        ("avx2", 16, 1, False),
        ("avx512", 14, 2, False),  # 28 accumulators of 64 bytes are not below 1 KiB
        ("avx512", 5, 3, True),
        ("avx512", 15, 2, False),
        ("neon", 7, 4, False),
        ("neon", 5, 5, True),
        ("neon", 9, 3, False),  # 27 accumulators, 3 vectors of B, 3 registers of A
    ],
)
def test_constraint(isa, mr, nv, fits):
    machine = machine_of(isa)
    for packed in (False, True):
        record = Record(mr, nv, packed)
        assert cpu_gemm.fits(record, machine) is fits
        if not fits:
            rule = f"record: tile {mr}x{nv} needs more than {machine.vector_registers} vector"
            with pytest.raises(ValueError, match=rule):
                cpu_gemm.build(record, machine)


@pytest.mark.parametrize("mr,nv,fits", [(3, 4, True), (2, 6, True), (3, 5, False), (4, 4, False)])
def test_constraint_column_by_column(mr, nv, fits):
    """An element of each row and one vector of B, in place of a row of B and an element."""
    machine = machine_of("avx2")
    record = Record(mr, nv, decisions={"row_block": mr})
    assert cpu_gemm.fits(record, machine) is fits
    assert not cpu_gemm.fits(Record(mr, nv), machine)


@pytest.mark.parametrize("mr,nv", [(0, 1), (1, 0), (-1, 2)])
def test_no_empty_tiles(mr, nv):
    with pytest.raises(ValueError, match="record: tile .* must be at least 1x1"):
        Record(mr, nv)


@pytest.mark.parametrize(
    "decisions",
    [
        {"order": 1},
        {"unroll": 3},
        {"unroll": "2"},
        {"unroll": 2.0},
        {"unroll": True},
        {"unroll": [2]},
        {"unroll": None},
        {"sums": 1 << 40},
        {"sums": -1},
        {"row_block": 3},
        {"row_block": 8},
        {"prefetch_b": 1},
        {"prefetch_c": True},
        {"unroll": 2, "__class__": 1},
        {1: 1},
    ],
    ids=str,
)
def test_decisions_are_validated(decisions):
    with pytest.raises(ValueError, match="^decisions: .* is none of"):
        Record(4, 3, decisions=decisions)
    with pytest.raises(ValueError, match="^decisions: .* is none of"):
        Record.from_json({**Record(4, 3).to_json(), "decisions": decisions})


@pytest.mark.parametrize("isa", TARGETS)
def test_records_as_json(isa):
    records = [*family(isa), *varied(machine_of(isa))]
    assert len(set(records)) == len(records) == len({r.name for r in records})
    for record in records:
        back = Record.from_json(json.loads(json.dumps(record.to_json())))
        assert back == record and hash(back) == hash(record)


def test_equal_kernels_have_equal_records():
    """A first choice that is named is the same as one that is not."""
    first = {name: options[0] for name, options in choices(4).items()}
    assert Record(4, 3, decisions=first) == Record(4, 3)
    assert Record(4, 3, decisions=first).name == Record(4, 3).name
    assert Record(4, 3, decisions={**first, "unroll": 2}) == Record(4, 3, decisions={"unroll": 2})
    swapped = Record(4, 3, decisions={"sums": 2, "unroll": 2})
    assert swapped == Record(4, 3, decisions={"unroll": 2, "sums": 2})
    assert hash(swapped) == hash(Record(4, 3, decisions={"unroll": 2, "sums": 2}))


@pytest.mark.parametrize(
    "change",
    [
        {"family": "cuda"},
        {"mr": None},
        {"mr": 0},
        {"mr": True},
        {"mr": 4.0},
        {"mr": 1 << 40},
        {"nv": "two"},
        {"nv": "2"},
        {"nv": -1},
        {"packed_a": 1},
        {"in_place_b": "no"},
        {"decisions": 3},
        {"decisions": [["unroll", 2]]},
    ],
    ids=str,
)
def test_foreign_records_are_refused(change):
    data = {**Record(2, 2).to_json(), **change}
    with pytest.raises(ValueError, match="^record: "):
        Record.from_json(data)
    for missing in change:
        with pytest.raises(ValueError, match="^record: "):
            Record.from_json({k: v for k, v in data.items() if k != missing})


@pytest.mark.parametrize("data", [None, 3, "record", [], [["mr", 1]]], ids=str)
def test_what_is_no_object_is_no_record(data):
    with pytest.raises(ValueError, match="^record: must be an object"):
        Record.from_json(data)


def scheduled(record, machine, decisions, space=None):
    sch = s_tir.Schedule(cpu_gemm.semantics(record, machine.lanes))
    gemm_schedule.schedule(sch, space or cpu_gemm.space(record, machine), decisions)
    return sch


def test_decisions_are_decisions_of_the_trace():
    """All that a decision changes follows from the trace: replayed with the indices of other
    choices, the instructions of one trace make the program of another."""
    machine = machine_of("avx2")
    record = Record(2, 2)
    # the ends of each decision are enough
    space = {n: (o[0], o[-1]) for n, o in cpu_gemm.space(record, machine).items()}
    trace = scheduled(record, machine, {}, space).trace
    samples = [inst for inst in trace.insts if inst.kind.name == gemm_schedule.SAMPLE]
    assert len(samples) == len(space)
    programs = set()
    for combination in itertools.product(*space.values()):
        decisions = dict(zip(space, combination, strict=True))
        other = trace
        for inst, (name, choice) in zip(samples, decisions.items(), strict=True):
            other = other.with_decision(inst, space[name].index(choice), False)
        assert gemm_schedule.decisions_of(other, space) == decisions
        replayed = s_tir.Schedule(cpu_gemm.semantics(record, machine.lanes))
        other.apply_to_schedule(replayed, remove_postproc=False)
        program = replayed.mod.script()
        assert program == scheduled(record, machine, decisions, space).mod.script()
        programs.add(program)
    assert len(programs) == math.prod(map(len, space.values()))


def test_a_trace_replays_at_any_trip_count():
    """A search runs on static shapes; its trace is one of the symbolic kernel."""
    machine = machine_of("avx2")
    for record in (Record(4, 3), Record(3, 2, packed_a=True)):
        space = cpu_gemm.space(record, machine)
        static = s_tir.Schedule(gemm_schedule.at_trip_count(record, machine.lanes, 64), seed=3)
        assert "k_extent" not in static.mod.script()
        gemm_schedule.schedule(static, space)
        found = gemm_schedule.decisions_of(static.trace, space)
        replayed = s_tir.Schedule(cpu_gemm.semantics(record, machine.lanes))
        static.trace.apply_to_schedule(replayed, remove_postproc=False)
        assert replayed.mod.script() == scheduled(record, machine, found).mod.script()


def test_a_foreign_trace_is_refused():
    machine = machine_of("avx2")
    sch = s_tir.Schedule(cpu_gemm.semantics(Record(2, 2), machine.lanes))
    sch.sample_categorical([1, 2], [0.5, 0.5])
    with pytest.raises(ValueError, match="^trace: 1 decisions, not 5"):
        gemm_schedule.decisions_of(sch.trace, choices(2))


def test_partial_sums_need_registers():
    machine = machine_of("avx2")
    assert cpu_gemm.space(Record(4, 3), machine)["sums"] == (1,)
    assert cpu_gemm.space(Record(2, 2), machine)["sums"] == (1, 2)
    assert cpu_gemm.space(Record(1, 2), machine)["sums"] == (1, 2, 4)
    record = Record(4, 3, decisions={"sums": 2})
    assert not cpu_gemm.fits(record, machine)
    with pytest.raises(ValueError, match="more than 16 vector registers .* with 2 partial sums"):
        cpu_gemm.build(record, machine)


# What the compiler made of them

#: Tiles that do the bulk of the work: on each, every register counts.
MAIN = [(4, 3), (6, 2), (2, 4), (3, 3), (8, 1), (5, 2), (3, 2)]
MAIN_WIDE = [*MAIN, (7, 2), (5, 3), (2, 6), (3, 4)]
MAIN_NEON = [*MAIN_WIDE, (12, 2), (8, 3), (4, 6), (5, 5), (6, 4)]


@pytest.mark.parametrize(
    "isa,mr,nv,packed,in_place",
    [
        (isa, mr, nv, packed, in_place)
        for isa, tiles in (("avx2", MAIN), ("avx512", MAIN_WIDE), ("neon", MAIN_NEON))
        for mr, nv in tiles
        for packed, in_place in ((False, False), (True, False), (False, True))
        if not packed or nv in (2, 3)
    ],
)
def test_accumulators_stay_in_registers(isa, mr, nv, packed, in_place):
    """In the innermost loop: ``mr * nv`` fused multiply-adds a step (LLVM may take several steps
    at once), each accumulator in one register throughout, nothing stored, nothing on the stack."""
    record = Record(mr, nv, packed, in_place)
    assert record in family(isa)
    whole, loops = function(assembly(isa), record.name, isa)
    assert len(loops) == 1
    (loop,) = loops
    fmas = loop.count("fma")
    assert fmas and fmas % (mr * nv) == 0
    if mr * nv >= 12 and isa != "neon":
        assert fmas in (mr * nv, 2 * mr * nv)
    assert loop.count("store") == 0
    assert loop.count("stack") == 0
    if mr > 1 and nv > 1:
        assert len(loop.accumulators()) == mr * nv
    if isa != "neon":  # there the lower bound, which is used after the loop, may wait on the stack
        assert whole.count("spill") == 0


@pytest.mark.parametrize(
    "isa,record",
    [
        pytest.param(
            isa,
            record,
            id=f"{isa}-{record.name}",
        )
        for isa in TARGETS
        for record in [*family(isa), *TURNED]
    ],
)
def test_no_member_spills(isa, record):
    """Of every member: fused multiply-adds in whole steps, nothing stored in the loop. Single rows
    may read a stride from the stack, as they wait for memory anyway."""
    whole, loops = function(assembly(isa), record.name, isa)
    assert loops
    for loop in loops:
        assert loop.count("fma") % (record.mr * record.nv) == 0
        assert loop.count("store") == 0
        assert record.mr == 1 or loop.count("stack") == 0
    if isa != "neon":
        assert whole.count("spill") == 0


@pytest.mark.parametrize("isa", TARGETS)
@pytest.mark.parametrize("mr,nv,in_place", [(2, 2, False), (2, 2, True), (4, 3, False)])
def test_another_decision_gives_other_assembly(isa, mr, nv, in_place):
    machine = machine_of(isa)
    plain = Record(mr, nv, in_place_b=in_place)
    space = cpu_gemm.space(plain, machine)
    records = [
        replace(plain, decisions={name: choice})
        for name, options in space.items()
        for choice in options[1:]
    ]
    text = str(compiled([plain, *records], machine, TARGETS[isa]).inspect_source("asm"))
    # labels are numbered through the module
    codes = {
        r: re.sub(r"BB\d+_", "BB_", str(function(text, r.name, isa)[0].lines))
        for r in (plain, *records)
    }
    for record, code in codes.items():
        assert record == plain or code != codes[plain], record.name
    # and they are told apart by more than how they differ from the plain one
    assert len(set(codes.values())) >= len(codes) - 1


PREFETCHES = {
    "avx2": r"^prefetcht[01]\b",
    "avx512": r"^prefetcht[01]\b",
    "neon": r"^prfm\s+pldl[12]keep",
}


@pytest.mark.parametrize("isa", TARGETS)
def test_unrolled_steps_and_prefetches(isa):
    """An iteration holds the steps that it is told to, and prefetches each line of B once."""
    machine = machine_of(isa)
    fit = 64 // (4 * machine.lanes)
    made = [
        Record(4, 3, decisions={"unroll": 4, "prefetch_b": 16}),
        Record(4, 3, decisions={"unroll": 8}),
        Record(4, 3, True, decisions={"unroll": 4, "prefetch_b": 64}),
        Record(4, 3, in_place_b=True, decisions={"unroll": 4, "prefetch_b": 16}),
    ]
    text = str(compiled(made, machine, TARGETS[isa]).inspect_source("asm"))
    for record in made:
        _, loops = function(text, record.name, isa)
        unrolled = record.decision("unroll")
        assert sorted({loop.count("fma") // 12 for loop in loops})[-1] == unrolled
        main = max(loops, key=lambda loop: loop.count("fma"))
        prefetched = sum(bool(re.match(PREFETCHES[isa], line)) for line in main.lines)
        lines = 4 * -(-3 // fit) if record.in_place_b else 3 * 4 // fit
        assert prefetched == (lines if record.decision("prefetch_b") else 0)


def test_partial_sums_are_accumulators_of_their_own():
    """Twice the sums are twice the registers that are added to, each written once a step."""
    machine = machine_of("avx2")
    made = [Record(2, 2, decisions={"sums": sums, "unroll": 2}) for sums in (1, 2)]
    text = str(compiled(made, machine, TARGETS["avx2"]).inspect_source("asm"))
    for record in made:
        _, loops = function(text, record.name, "avx2")
        widest = max(loops, key=lambda loop: loop.count("fma"))
        assert len(widest.accumulators()) == 4 * record.decision("sums")


@pytest.mark.parametrize("record", [Record(4, 3), Record(3, 2, decisions={"unroll": 4, "sums": 2})])
def test_a_panel_to_come_is_prefetched_and_changes_nothing(tmp_path, record):
    target = tvm_moonpoly.detect_target()
    machine = Machine.from_target(target)
    functions = []
    for ahead in (False, True):
        path = tmp_path / f"{ahead}.so"
        compiled([record], machine, target, ahead).export_library(str(path))
        functions.append(getattr(ctypes.CDLL(str(path)), record.name))
    rng = np.random.default_rng(3)
    k, n = 37, record.nv * machine.lanes
    a, b = values(rng, record.mr, k), values(rng, record.nv, k, machine.lanes)
    x, z, panel = values(rng, record.mr, n), values(rng, n), values(rng, k, machine.lanes)
    results = []
    # what is prefetched may be anywhere: also where there is no memory
    for kernel, more in [(functions[0], []), (functions[1], [panel]), (functions[1], [None])]:
        c = np.full((record.mr, n), CANARY)
        later = [array if array is None else array.ctypes.data for array in more]
        kernel.argtypes = [ctypes.c_void_p] * (5 + len(more)) + [ctypes.c_int64] * 6
        kernel.argtypes += [ctypes.c_float]
        kernel.restype = None
        pointers = [array.ctypes.data for array in (a, b, x, z, c)]
        kernel(*pointers, *later, k, k * machine.lanes, machine.lanes, n, n, k, -np.inf)
        results.append(c)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    expected = cpu_gemm.reference(a, b, x, z, -np.inf)
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", TARGETS)
@pytest.mark.parametrize("unroll", [1, 4])
def test_each_line_of_a_panel_to_come_is_prefetched(isa, unroll):
    """Once for the rows of an iteration that share it, into the second cache."""
    machine = machine_of(isa)
    record = Record(4, 3, decisions={"unroll": unroll})
    text = cpu_gemm.build(record, machine, ahead=True).script()
    rows = max(64 // (machine.lanes * 4), 1)
    # the second cache is locality 2 of LLVM's 3
    asked = re.findall(r"prefetch.*address_of\(P\[.*\), 0, 2, 1\)", text)
    assert len(asked) == max(unroll // rows, 1), text
    assert "prefetch" not in cpu_gemm.build(record, machine).script()


def test_lines_of_c_are_prefetched_before_the_reduction():
    machine = machine_of("avx2")
    record = Record(4, 3, decisions={"prefetch_c": 1})
    text = str(compiled([record], machine, TARGETS["avx2"]).inspect_source("asm"))
    whole, (loop,) = function(text, record.name, "avx2")
    written = [line for line in whole.lines if line.startswith("prefetch")]
    # 4 rows of 24 floats: a line and a half each
    assert len(written) == 8 and not any(line in loop.lines for line in written)


@pytest.mark.parametrize("tile", [(12, 2), (8, 3), (6, 4), (4, 6), (4, 4)])
def test_accumulators_beyond_the_stack_are_refused(tile):
    """1 KiB or more would come from the heap, which a private function may not take from."""
    machine = machine_of("avx512")
    record = Record(*tile)
    assert record not in cpu_gemm.family(machine)
    with pytest.raises(ValueError, match="^record: tile"):
        cpu_gemm.build(record, machine)


def test_the_assembly_reader_sees_loops_and_spills():
    """Or else the tests above would prove nothing."""
    text = """
f:
.Lfunc_begin0:
\tmovq\t8(%rsp), %rax
.LBB0_1:                                # a loop
\tvmovups\t(%rsi), %ymm1
\tvfmadd231ps\t(%rdi), %ymm1, %ymm2
\tvfmadd231ps\t(%rdi), %ymm1, %ymm3
\tvmovups\t%ymm3, -32(%rsp)
\tdecq\t%rax
\tjne\t.LBB0_1
\tvmovups\t%ymm2, (%rdx)
\tretq
.LBB0_2:
\txorl\t%eax, %eax
\tjmp\t.LBB0_1
.Lfunc_end0:
"""
    whole, (loop,) = function(text, "f", "avx2")
    assert loop.count("fma") == 2 and loop.accumulators() == {"ymm2", "ymm3"}
    assert loop.count("store") == 1 and loop.count("stack") == 1 and loop.count("spill") == 1
    assert whole.count("store") == 2 and whole.count("stack") == 2
    assert len(loop.lines) == 6


# NEON, run in an emulator


@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="qemu-aarch64 is not installed")
@pytest.mark.skipif(
    not shutil.which("aarch64-linux-gnu-gcc"), reason="there is no C compiler for AArch64"
)
def test_neon_kernels_compute(tmp_path):
    # of the first choices every third; compiling them all is the most of this test
    records = [*family("neon")[::3], *varied(machine_of("neon"))[::2]]
    module = compiled(records, machine_of("neon"), TARGETS["neon"])
    module.write_to_file(str(tmp_path / "kernels.o"), "o")
    (tmp_path / "kernels.h").write_text(
        "".join(
            f"KERNEL({r.name}, {r.mr}, {r.nv}, {int(r.packed_a)}, {int(r.in_place_b)})\n"
            for r in records
        )
    )
    driver = Path(__file__).with_name("core_neon_driver.c")
    command = ["aarch64-linux-gnu-gcc", "-std=c11", "-O1", "-Wall", "-Werror", "-static"]
    command += [f"-I{tmp_path}", str(driver), str(tmp_path / "kernels.o"), "-lm"]
    program = tmp_path / "driver"
    subprocess.run([*command, "-o", str(program)], check=True)
    ran = subprocess.run(["qemu-aarch64", str(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout == f"{len(records)} kernels, 0 wrong\n"
