"""What is known of a machine, the targets without micro-kernels, and `explain`."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tvm.target import Target

import tvm_moonpoly as mp
from tvm_moonpoly import logs, machine, operators
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.machine import DEFAULT_CACHES, Machine
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import BMode

CPUINFO = Path("/proc/cpuinfo")
AVX2 = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})


def _flags() -> set[str]:
    found = re.search(r"^flags\s*:\s*(.*)$", CPUINFO.read_text(), re.MULTILINE)
    if platform.machine() != "x86_64" or not found:
        pytest.skip("the system lists no x86 features")
    return set(found.group(1).split())


@pytest.mark.parametrize(
    "llvm,linux",
    [
        ("avx", "avx"),
        ("avx2", "avx2"),
        ("fma", "fma"),
        ("f16c", "f16c"),
        ("avx512f", "avx512f"),
        ("avx512bw", "avx512bw"),
        ("avx512vl", "avx512vl"),
        ("avx512vnni", "avx512_vnni"),
        ("avx512bf16", "avx512_bf16"),
        ("gfni", "gfni"),
        ("vaes", "vaes"),
        ("amx-tile", "amx_tile"),
    ],
)
def test_detected_features_are_those_of_the_cpu(llvm, linux):
    """Most of all: none that it lacks."""
    features = machine.cpu_features(mp.detect_target())
    assert llvm not in features or linux in _flags()
    if linux in ("avx2", "fma", "avx512f"):  # on these depends which micro-kernels are used
        assert (llvm in features) == (linux in _flags())


def test_detected_target_is_complete():
    target = mp.detect_target()
    assert str(target.kind.name) == "llvm"
    assert int(target.attrs["num-cores"]) == machine.available_cores() >= 1
    assert str(target.attrs["mtriple"]) == machine.default_triple()
    described = Machine.from_target(target)
    assert described.cores == machine.available_cores()
    assert described.features == machine.cpu_features(target)
    assert 1 << 12 <= described.l1_bytes <= described.l2_bytes <= 1 << 30


def test_features_that_a_hypervisor_took_away_are_switched_off(monkeypatch):
    """LLVM knows the CPU by name; what the running one lacks must not be used."""
    host = {"avx2": True, "fma": True, "avx512f": False, "avx512vl": False, "sse2": True}

    def llvm(name):
        assert name == "GetHostCPUFeatures"
        return lambda: host

    real = machine.tvm.get_global_func

    def named(name):
        return (lambda: "znver4") if name == "target.llvm_get_system_cpu" else real(name)

    monkeypatch.setattr(machine, "_llvm", llvm)
    monkeypatch.setattr(machine.tvm, "get_global_func", named)
    monkeypatch.setattr(machine, "default_triple", lambda: "x86_64-linux-gnu")
    target = mp.detect_target()
    assert list(target.attrs["mattr"]) == ["-avx512f", "-avx512vl"]
    described = Machine.from_target(target)
    assert (described.isa, described.lanes) == ("avx2", 8)
    assert "avx512f" not in described.features
    host.update(avx512f=True, avx512vl=True)
    assert Machine.from_target(mp.detect_target()).isa == "avx512"


@pytest.mark.parametrize(
    "config,isa,lanes,registers",
    [
        ({"mcpu": "x86-64-v3"}, "avx2", 8, 16),
        ({"mcpu": "haswell"}, "avx2", 8, 16),
        ({"mcpu": "znver3"}, "avx2", 8, 16),
        ({"mcpu": "skylake-avx512"}, "avx512", 16, 32),
        ({"mcpu": "znver4"}, "avx512", 16, 32),
        ({"mcpu": "znver4", "mattr": ["-avx512f"]}, "avx2", 8, 16),
        ({"mcpu": "x86-64", "mattr": ["+avx2", "+fma"]}, "avx2", 8, 16),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}, "neon", 4, 32),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}, "neon", 4, 32),
    ],
    ids=str,
)
def test_vector_units(config, isa, lanes, registers):
    target = Target({"kind": "llvm", "num-cores": 6, **config})
    described = Machine.from_target(target)
    assert (described.isa, described.lanes, described.vector_registers) == (isa, lanes, registers)
    assert described.cores == 6
    assert machine.unsupported_reason(target) is None


UNSUPPORTED = [
    ({"kind": "llvm"}, "CPU 'generic' has none of the vector units with micro-kernels"),
    ({"kind": "llvm", "mcpu": "x86-64"}, "CPU 'x86-64' has none of the vector units"),
    ({"kind": "llvm", "mcpu": "ivybridge"}, "CPU 'ivybridge' has none of the vector units"),
    ({"kind": "llvm", "mcpu": "x86-64-v3", "mattr": ["-fma"]}, "has none of the vector units"),
    ({"kind": "cuda", "arch": "sm_80"}, "no micro-kernels for target kind 'cuda'"),
    ({"kind": "c"}, "no micro-kernels for target kind 'c'"),
]


@pytest.mark.parametrize("config,reason", UNSUPPORTED, ids=str)
def test_unsupported_targets_and_why(config, reason):
    if config == {"kind": "llvm"} and platform.machine() != "x86_64":
        pytest.skip("the generic CPU of this architecture may have vectors")
    target = Target(config)
    assert reason in machine.unsupported_reason(target)
    assert reason in operators.supported(target)
    for refuse in (Machine.from_target, operators.library):
        with pytest.raises(ValueError, match="^target: ") as error:
            refuse(target)
        assert reason in str(error.value)


def test_a_target_without_costs_is_unsupported():
    """There are micro-kernels of NEON, but as long as no log says what they cost ..."""
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "generic"})
    assert machine.unsupported_reason(target) is None
    try:
        logs.find(Machine.from_target(target))
    except LookupError:
        assert "no tuning log for neon" in operators.supported(target)
        with pytest.raises(ValueError, match="^target: no tuning log for neon"):
            operators.library(target)
    else:
        assert operators.supported(target) is None


def test_the_best_vector_unit_with_costs_is_used():
    """A CPU with AVX-512 is used through AVX2 as long as only that has a log."""
    target = Target({"kind": "llvm", "mcpu": "skylake-avx512"})
    assert Machine.from_target(target).isa == "avx512"
    assert Machine.from_target(target, "avx2").lanes == 8
    used, log, _ = operators.described(target)
    assert used.isa == log.machine["isa"]
    assert operators.lanes(target) == used.lanes
    assert operators.supported(target) is None


def _cache(root, index, **files):
    folder = root / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def test_cache_sizes(tmp_path):
    _cache(tmp_path, 0, level="1", type="Data", size="48K")
    _cache(tmp_path, 1, level="1", type="Instruction", size="64K")
    _cache(tmp_path, 2, level="2", type="Unified", size="2M")
    _cache(tmp_path, 3, level="3", type="Unified", size="1G")
    _cache(tmp_path, 4, level="4", type="Unified", size="2G")
    assert machine.cache_sizes(tmp_path) == {1: 48 << 10, 2: 2 << 20, 3: 1 << 30}


def test_cache_sizes_that_the_system_does_not_tell(tmp_path):
    assert machine.cache_sizes(tmp_path / "nothing") == DEFAULT_CACHES
    _cache(tmp_path, 0, level="1", type="Data", size="unknown")
    _cache(tmp_path, 1, level="2", type="Unified")  # no size
    _cache(tmp_path, 2, level="third", type="Unified", size="8M")
    _cache(tmp_path, 3, type="Unified", size="8M")  # no level
    _cache(tmp_path, 4, level="3", type="Unified", size="")
    assert machine.cache_sizes(tmp_path) == DEFAULT_CACHES
    _cache(tmp_path, 5, level="3", type="Unified", size="12288K")
    assert machine.cache_sizes(tmp_path) == {**DEFAULT_CACHES, 3: 12 << 20}


def _best(m, n, k, batch=1, mode=BMode.PREPACKED, cores=1):
    described = replace(Machine.from_target(AVX2), cores=cores)
    table = CostTable.from_entries([dict(entry) for entry in logs.find(described).entries])
    product = spec.Product(m, n, k, batch, mode)
    return described, spec.plan(product, described, table), spec.best(product, described, table)


@pytest.mark.parametrize("m,n,k", [(1, 384, 384), (100, 1536, 384), (7, 40, 3000), (13, 8, 1)])
def test_explain_names_regions_kernels_and_cost(m, n, k):
    text = mp.explain(m, n, k, AVX2)
    described, plan, best = _best(m, n, k)
    assert text.startswith(f"C[{m}, {n}] = A[{m}, {k}] @ B[{k}, {n}], fp32, on x86-64-v3 (avx2, 8")
    panels = n // described.lanes
    main = panels - plan.tail_nv
    if main:
        assert f"region 1: columns 0..{main * 8 - 1}, {main // plan.nv} groups of" in text
    if plan.tail_nv:
        assert f"region 2: columns {main * 8}..{panels * 8 - 1}, one group" in text
    else:
        assert "region 2" not in text
    assert "B is packed at compile time" in text
    assert ("A is packed in row tiles" in text) == plan.pack_a
    assert f"predicted on one core: {best.picoseconds / 1e6:.2f} us" in text
    # the first of the candidates is the plan itself
    first = next(line for line in text.splitlines() if re.match("│ 1 ", line))
    assert f"{plan.mr}x{plan.nv}v" in first and "prepacked" in first


def test_explain_accounts_for_all_rows_and_columns():
    for m, n, k in [(1, 8, 8), (29, 65, 17), (100, 128, 64), (1000, 7, 5), (31, 333, 2100)]:
        text = mp.explain(m, n, k, AVX2)
        covered = 0
        for region in re.findall(r"(?m)^region \d: (.*)", text):
            first, last = map(int, re.search(r"columns (\d+)\.\.(\d+)", region).groups())
            assert first == covered
            covered = last + 1
            tiles = re.search(r"row tiles (.*)", region).group(1)
            rows = [tuple(map(int, part.split(" x "))) for part in tiles.split(" + ")]
            assert sum(number * height for number, height in rows) == m
        partial = re.search(r"the last (\d+) columns: a partial panel", text)
        covered += int(partial.group(1)) if partial else 0
        assert covered == n


def test_explain_dynamic_operands_and_threads():
    text = mp.explain(100, 64, 32, AVX2, batch=12, threads=4, constant_weights=False)
    _, plan, _ = _best(100, 64, 32, 12, BMode.DIRECT, 4)
    assert ", 12 products" in text and "4 threads)" in text
    assert plan.workers > 1 and f"threads: {plan.workers}, rows in {plan.splits_m} parts" in text
    assert "threads: the calling one" in mp.explain(1, 8, 8, AVX2, threads=4)
    place = {BMode.DIRECT: "B is read in place", BMode.PACKED: "B is packed block by block"}
    assert place[plan.b_mode] in text


def test_explain_blocks():
    text = mp.explain(2, 64, 5000, AVX2)
    _, plan, _ = _best(2, 64, 5000)
    assert (f"k by {plan.kc}" in text) == bool(plan.kc)
    assert "blocks: none, everything in one pass" in mp.explain(8, 8, 8, AVX2)


def test_explain_takes_this_machine_by_default():
    assert mp.explain(5, 16, 7) == mp.explain(5, 16, 7, mp.detect_target())


@pytest.mark.parametrize("name", ["m", "n", "k", "batch", "threads"])
@pytest.mark.parametrize("value", [0, -3, 1.5])
def test_explain_refuses_sizes_below_one(name, value):
    sizes = {"m": 4, "n": 8, "k": 4, name: value}
    with pytest.raises(
        ValueError, match=f"^{name}: must be a whole number of at least 1, not {value}$"
    ):
        mp.explain(**sizes, target=AVX2)


def test_explain_a_streamed_product_and_targets_it_cannot():
    texts = (mp.explain(1, n, 2048, AVX2, constant_weights=False) for n in (1, 3, 8, 512, 4096))
    streamed = [text for text in texts if "streamed in place" in text]
    assert streamed and not any("row tiles" in text for text in streamed)
    assert mp.explain(5, 16, 7, {"kind": "llvm", "mcpu": "x86-64-v3"}).startswith("C[5, 16]")
    with pytest.raises(ValueError, match="^target: CPU 'generic' has none"):
        mp.explain(5, 16, 7, {"kind": "llvm", "mcpu": "generic"})


def test_the_pool_of_threads_changes_no_target():
    """TVM binds the thread that starts its pool to one CPU where the number is not set."""
    script = """
import tvm
from tvm_moonpoly import machine
before = machine.available_cores()
tvm.get_global_func("runtime.NumThreads")()
assert machine.available_cores() == before
assert machine.detect_target().attrs["num-cores"] == before
"""
    environment = {k: v for k, v in os.environ.items() if k not in ("TVM_NUM_THREADS",)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_cores_of_the_detected_target():
    assert Machine.from_target(mp.detect_target(cores=3)).cores == 3
    with pytest.raises(ValueError, match="^cores: must be a whole number of at least 1, not 0"):
        mp.detect_target(cores=0)


def test_explain_refuses_batches_of_constant_weights():
    with pytest.raises(ValueError, match="^batch: constant weights are for one product"):
        mp.explain(4, 8, 4, AVX2, batch=2)


@pytest.mark.parametrize(
    "config,reason", [each for each in UNSUPPORTED[1:] if each[0]["kind"] != "cuda"], ids=str
)
def test_explain_refuses_unsupported_targets(config, reason):
    with pytest.raises(ValueError, match="^target: ") as error:
        mp.explain(4, 8, 4, Target(config))
    assert reason in str(error.value)


def test_unknown_names_of_the_package():
    with pytest.raises(AttributeError, match="no attribute 'tune_everything'"):
        mp.tune_everything  # noqa: B018
    assert {"Report", "detect_target", "explain", "pipeline"} <= set(mp.__all__)
    assert all(callable(getattr(mp, name)) for name in ("detect_target", "explain", "pipeline"))
