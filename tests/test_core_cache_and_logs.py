"""Files that outlive a process: the cache of compiled libraries, and tuning logs."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from core_testing import (
    CANARY,
    ROOT,
    Weight,
    check_linear,
    check_product,
    linear,
    matmul,
    values,
)
from patience import DEADLINE
from tvm.target import Target

from tvm_moonpoly import logs, native, operators
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.costmodel.tasks import MAX_TASK, RESIDENCIES, TRIPS, TaskCost
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.cpu_gemm import Record
from tvm_moonpoly.operators import cache
from tvm_moonpoly.operators.parts import PARTS, functions

#: The module; the package has a function of that name.
library_module = importlib.import_module("tvm_moonpoly.operators.operator_library")

AVX2 = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})

as_root = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty MOONPOLY_HOME, and no logs or libraries of the user."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "home"


def _write(content):
    return lambda path: path.write_bytes(content)


# The cache


def test_what_was_stored_is_loaded(home):
    assert cache.load("key") is None
    path = cache.store("key", _write(b"bitcode"))
    assert path.parent == home / "libraries"
    assert path.name == f"key-{hashlib.sha256(b'bitcode').hexdigest()}.bc"
    assert cache.load("key") == path and path.read_bytes() == b"bitcode"
    assert cache.load("ke") is None and cache.load("other") is None
    # nobody else may read or write, and nothing else is left behind
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("damage", [b"", b"bitcodE", b"bitcode and more"])
def test_a_damaged_file_is_not_loaded(home, caplog, damage):
    path = cache.store("key", _write(b"bitcode"))
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING, "tvm_moonpoly"):
        assert cache.load("key") is None
    assert "its content does not match its name" in caplog.text
    # the next build repairs it
    assert cache.store("key", _write(b"bitcode")) == path
    assert cache.load("key") == path


def test_an_intact_file_beside_a_damaged_one_is_loaded(home):
    paths = sorted(cache.store("key", _write(content)) for content in (b"one", b"two"))
    paths[0].write_bytes(b"damaged")
    assert cache.load("key") == paths[1]


def test_what_cannot_be_read_is_skipped(home):
    path = cache.store("key", _write(b"bitcode"))
    path.unlink()
    path.mkdir()
    assert cache.load("key") is None


@pytest.mark.skipif(os.name != "posix", reason="permissions as on Unix")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_folder_that_others_may_write_to_is_not_used(home, caplog, mode):
    path = cache.store("key", _write(b"bitcode"))
    path.parent.chmod(mode)
    assert cache.load("key") is None
    with caplog.at_level(logging.WARNING, "tvm_moonpoly"):
        assert cache.store("key", _write(b"bitcode")) is None
    assert "others may write to it" in caplog.text
    assert list(path.parent.iterdir()) == [path]
    path.parent.chmod(0o700)
    assert cache.load("key") == path


def test_a_file_that_others_may_write_to_is_not_loaded(home, caplog):
    path = cache.store("key", _write(b"bitcode"))
    path.chmod(0o666)
    assert cache.load("key") is None and path.exists()
    assert "others may write to it" in caplog.text
    assert cache.load("key") is None
    assert cache.store("key", _write(b"bitcode")) == path == cache.load("key")


@pytest.mark.skipif(not as_root, reason="only root can give files away")
def test_a_folder_of_somebody_else_is_not_used(home):
    path = cache.store("key", _write(b"bitcode"))
    os.chown(path.parent, 12345, 12345)
    assert cache.load("key") is None and cache.store("key", _write(b"x")) is None


def test_a_home_that_cannot_be_written_is_fine(home, caplog):
    home.write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING, "tvm_moonpoly"):
        assert cache.store("key", _write(b"bitcode")) is None
    assert "the compiled library is not cached" in caplog.text
    assert cache.load("key") is None


@pytest.mark.skipif(as_root, reason="root may write anywhere")
def test_a_read_only_home_is_fine(home, caplog):
    home.mkdir(mode=0o500)
    with caplog.at_level(logging.WARNING, "tvm_moonpoly"):
        assert cache.store("key", _write(b"bitcode")) is None
    assert "the compiled library is not cached" in caplog.text
    assert cache.load("key") is None


def test_a_place_where_nothing_can_be_made_is_fine(monkeypatch, caplog):
    """Also for root, who may write to every disk that takes something."""
    monkeypatch.setenv("MOONPOLY_HOME", "/proc/nothing")
    with caplog.at_level(logging.WARNING, "tvm_moonpoly"):
        for key in ("key", "another", "third"):  # as the kernels of a model for a GPU
            assert cache.store(key, _write(b"bitcode")) is None
    assert caplog.text.count("the compiled library is not cached") == 1
    assert cache.load("key") is None


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_files_are_private_whatever_the_umask(home, mask):
    before = os.umask(mask)
    try:
        path = cache.store("key", _write(b"bitcode"))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_is_only_ever_seen_complete(home):
    """While it is written it has a name that is not looked for."""

    def write(path):
        path.write_bytes(b"half")
        assert cache.load("key") is None
        path.write_bytes(b"bitcode")

    assert cache.load("key") is None
    path = cache.store("key", write)
    assert cache.load("key") == path


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_is_loaded(home):
    pid = os.fork()
    if pid == 0:
        cache.store("key", lambda path: (path.write_bytes(b"half of"), os.kill(os.getpid(), 9)))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == 9
    assert cache.load("key") is None
    path = cache.store("key", _write(b"bitcode"))
    assert cache.load("key") == path


def test_an_interrupted_write_leaves_nothing(home):
    def interrupted(path):
        path.write_bytes(b"half of")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.store("key", interrupted)
    assert list((home / "libraries").iterdir()) == []

    def full(path):
        path.write_bytes(b"half of")
        raise OSError("no space left")

    assert cache.store("key", full) is None
    assert list((home / "libraries").iterdir()) == []


def test_without_a_home_the_users_cache_is_used(home, monkeypatch, tmp_path):
    monkeypatch.delenv("MOONPOLY_HOME")
    if sys.platform == "linux":
        assert cache.folder() == tmp_path / "cache" / "tvm_moonpoly" / "libraries"
    assert cache.folder().name == "libraries"


def test_the_key_covers_all_that_the_library_depends_on():
    machine = Machine.from_target(AVX2)
    table = CostTable.from_entries([dict(entry) for entry in logs.find(machine).entries])
    usual = library_module.cache_key(AVX2, machine, table)
    assert library_module.cache_key(AVX2, machine, table) == usual
    task = next(iter(table.tasks))
    others = [
        (AVX2, replace(machine, cores=9), table),
        (AVX2, replace(machine, l2_bytes=1), table),
        (AVX2, replace(machine, features=machine.features - {"fma"}), table),
        (Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 1}), machine, table),
        (AVX2, machine, CostTable({**table.tasks, task: TaskCost.linear(1, 2)}, table.traffic)),
        (AVX2, machine, CostTable(table.tasks, replace(table.traffic, launch=3))),
    ]
    keys = {library_module.cache_key(*other) for other in others}
    keys |= {library_module.cache_key(AVX2, machine, table, part) for part in ("conv", "plain")}
    assert len(keys) == len(others) + 2 and usual not in keys


def small_table() -> CostTable:
    """The fewest micro-kernels that make a library: it compiles in a second or two."""
    machine = Machine.from_target(AVX2)
    usual = CostTable.from_entries([dict(entry) for entry in logs.find(machine).entries])
    tiles = [Record(1, 1), Record(2, 1), Record(1, 2), Record(1, 2, packed_a=True)]
    return CostTable({record: TaskCost.linear(1000, 1000) for record in tiles}, usual.traffic)


def _put_log(home: Path, machine: Machine, folder: str = "mine") -> Path:
    path = home / "tuning_logs" / folder / logs.FILE_NAME
    logs.write(path, machine, small_table().to_entries())
    return path


BUILD = """
import sys
import numpy as np
sys.path.insert(0, {tests!r})
from core_testing import Weight, check_linear, linear, values
import tvm_moonpoly
from tvm_moonpoly import native, operators
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import Plan
compilations = []
compile_now = native.build
native.build = lambda *arguments: compilations.append(1) or compile_now(*arguments)
library = operators.library(tvm_moonpoly.detect_target(cores=2))
{work}
kernels = sum(not r.in_place_b for r in library.table.tasks)
print("kernels", kernels, "compilations", len(compilations))
"""

#: Uses one part of the library, which is compiled soon.
PLAN = """
table = library.plan_table(21, 9)
for m in (1, 5, 77, 1024):
    expected = spec.plan(spec.Product(m, 21, 9), library.machine, library.table)
    assert Plan.decode(int(table[m])) == expected, m
"""

#: Uses two parts.
COMPUTE = """
rng = np.random.default_rng(0)
weight = Weight.of(library, values(rng, 9, 21), values(rng, 21))
x = values(rng, 5, 9)
check_linear(linear(library, x, weight), x, weight)
"""


def _process(home: Path, work: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "MOONPOLY_HOME": str(home), "PYTHONPATH": str(ROOT)}
    script = BUILD.format(tests=str(Path(__file__).parent), work=work)
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _ended(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err[-3000:]
    return out.strip()


def test_two_cold_processes_at_once_and_a_warm_one(tmp_path, target):
    """All compute the right thing, and the third finds a library. In a path with spaces."""
    home = tmp_path / "a path with spaces and ä"
    _put_log(home, Machine.from_target(target))
    both = [_process(home, PLAN) for _ in range(2)]
    assert [_ended(process) for process in both] == ["kernels 4 compilations 1"] * 2
    files = list((home / "libraries").iterdir())
    # one, or one of each process: what they hold need not be the same to the bit
    assert all(path.suffix == ".bc" for path in files) and len(files) in (1, 2)
    assert _ended(_process(home, PLAN)) == "kernels 4 compilations 0"
    # a damaged library is compiled again rather than run
    for path in files:
        path.write_bytes(path.read_bytes()[:-7] + b"damaged")
    assert _ended(_process(home, PLAN)) == "kernels 4 compilations 1"


def test_a_library_without_a_cache(tmp_path, target):
    """A home where nothing can be written: the library is compiled for the process alone."""
    home = tmp_path / "home"
    _put_log(home, Machine.from_target(target))
    (home / "libraries").write_text("in the way")
    assert _ended(_process(home, COMPUTE)) == "kernels 4 compilations 2"
    assert (home / "libraries").read_text() == "in the way"


def test_a_library_loaded_from_the_cache_computes(target):
    """What is loaded from bitcode is right, and may be loaded twice in one process."""
    first = operators.library(target)
    library_module._library.cache_clear()
    again = operators.library(target)
    assert again is not first and again.module is not first.module
    rng = np.random.default_rng(1)
    weight = Weight.of(again, values(rng, 30, 40), values(rng, 40))
    x = values(rng, 20, 30)
    check_linear(linear(again, x, weight), x, weight)


# Logs

HEADER_MACHINE = Machine.from_target(AVX2)


def test_a_log_is_read_as_it_was_written(home):
    entries = small_table().to_entries()
    path = _put_log(home, HEADER_MACHINE)
    log = logs.parse(path.read_text(), "here")
    assert [dict(entry) for entry in log.entries] == entries
    assert log.origin == "here"
    assert log.machine["isa"] == "avx2" and log.machine["mcpu"] == "x86-64-v3"
    assert log.machine["l2_bytes"] == HEADER_MACHINE.l2_bytes
    assert CostTable.from_entries([dict(entry) for entry in log.entries]) == small_table()
    # and the lock of its writers
    assert {p.name for p in path.parent.iterdir()} == {path.name, logs.lock_path(path).name}


def test_a_log_is_replaced_in_one_step(home):
    path = _put_log(home, HEADER_MACHINE)
    before = path.read_text()

    def entries():
        yield {"kind": "kernel"}
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        logs.write(path, HEADER_MACHINE, entries())
    assert path.read_text() == before
    logs.write(path, HEADER_MACHINE, [{"kind": "new"}])
    assert logs.parse(path.read_text(), "").entries == ({"kind": "new"},)


def _lines(home):
    return _put_log(home, HEADER_MACHINE).read_text().splitlines()


@pytest.mark.parametrize(
    "foreign",
    [
        '{"kind": "kernel", "record": {"fam',  # torn
        "not json",
        "[1, 2, 3]",
        "17",
        "null",
        '"text"',
        '{"kind": "kernel"}',  # without a checksum
        '{"kind": "kernel", "sum": "0123456789abcdef"}',
        '{"kind": "kernel", "sum": 7}',
        "\x00\x01",
    ],
)
def test_a_torn_or_foreign_line_is_skipped_with_a_warning(home, caplog, foreign):
    lines = _lines(home)
    whole = logs.parse("\n".join(lines), "log")
    with caplog.at_level(logging.WARNING, "tvm_moonpoly.logs"):
        for at in (1, 3, len(lines)):
            caplog.clear()
            log = logs.parse("\n".join([*lines[:at], foreign, *lines[at:]]), "log")
            assert log.entries == whole.entries
            assert f"log: line {at + 1} is skipped" in caplog.text


def test_a_line_torn_at_any_place_costs_only_itself(home):
    lines = _lines(home)
    whole = logs.parse("\n".join(lines), "log")
    for length in range(1, len(lines[2])):
        torn = [*lines[:2], lines[2][:length], *lines[3:]]
        log = logs.parse("\n".join(torn), "log")
        assert log.entries == (*whole.entries[:1], *whole.entries[2:])


def test_a_changed_number_is_noticed(home, caplog):
    lines = _lines(home)
    assert "6145000" in lines[1]
    lines[1] = lines[1].replace("6145000", "6145001")
    with caplog.at_level(logging.WARNING, "tvm_moonpoly.logs"):
        log = logs.parse("\n".join(lines), "log")
    assert len(log.entries) == len(lines) - 2
    assert "line 2 is skipped: its checksum does not match" in caplog.text


def test_empty_lines_mean_nothing(home, caplog):
    lines = _lines(home)
    log = logs.parse("\n\n".join(lines) + "\n\n  \n", "log")
    assert len(log.entries) == len(lines) - 1
    assert not caplog.records


def _signed(entry):
    return json.dumps({**entry, "sum": logs.checksum(entry)})


@pytest.mark.parametrize(
    "header,reason",
    [
        (
            {"kind": "header", "version": 99, "machine": {}},
            "its format is version 99 of a later tvm_moonpoly, not 1",
        ),
        ({"kind": "header", "machine": {}}, "its format is version None, not 1"),
        ({"kind": "header", "version": 1, "machine": "fast"}, "describes no machine"),
        ({"kind": "header", "version": 1}, "describes no machine"),
        ({"kind": "kernel", "version": 1, "machine": {}}, "it does not begin with a header"),
    ],
)
def test_a_header_that_cannot_be_used(header, reason, caplog):
    with caplog.at_level(logging.WARNING, "tvm_moonpoly.logs"):
        assert logs.parse(_signed(header), "log") is None
    assert reason in caplog.text


def test_a_torn_header_or_an_empty_file(home, caplog):
    lines = _lines(home)
    with caplog.at_level(logging.WARNING, "tvm_moonpoly.logs"):
        for text in ("", "\n", lines[0][:-5], "\n".join([lines[0][:-5], *lines[1:]])):
            assert logs.parse(text, "log") is None
    assert "it does not begin with a header" in caplog.text


def test_order_of_folders(home, tmp_path):
    """MOONPOLY_HOME, then the user's data, then what is packaged."""
    machine = replace(HEADER_MACHINE, mcpu="a CPU that nobody has")
    assert logs.find(machine).origin.startswith("packaged ")
    if sys.platform == "linux":
        user = _put_log(tmp_path / "data" / "tvm_moonpoly", machine)
        assert logs.find(machine).origin == str(user)
    mine = _put_log(home, machine)
    assert logs.find(machine).origin == str(mine)


def test_an_exact_machine_before_a_near_one(home):
    """Wherever they lie, and whatever order their names have."""
    exact = logs.find(HEADER_MACHINE)
    packaged = {str(log.machine["mcpu"]) for log in _packaged() if log.machine["isa"] == "avx2"}
    near = _put_log(home, replace(HEADER_MACHINE, mcpu="near"), "a")
    own = _put_log(home, replace(HEADER_MACHINE, mcpu="own"), "z")
    assert logs.find(replace(HEADER_MACHINE, mcpu="own")).origin == str(own)
    assert logs.find(replace(HEADER_MACHINE, mcpu="near")).origin == str(near)
    assert logs.find(replace(HEADER_MACHINE, mcpu="neither")).origin == str(near)
    # an exact one among the packaged is before a near one of the user
    for mcpu in packaged:
        assert logs.find(replace(HEADER_MACHINE, mcpu=mcpu)).origin.startswith("packaged ")
    assert exact.machine["isa"] == "avx2"


def _packaged():
    return [reading.log for origin, reading in logs.stored() if origin.startswith("packaged ")]


def test_packaged_logs_are_whole(home, caplog):
    """All of each line is used, and makes a table that the library can be built from."""
    found = _packaged()
    assert found
    for log in found:
        table = CostTable.from_entries([dict(entry) for entry in log.entries])
        assert table.to_entries() and len(log.entries) == len(table.to_entries())
    assert not caplog.records


def test_another_instruction_set_is_never_near(home):
    _put_log(home, replace(HEADER_MACHINE, isa="avx512"))
    assert logs.find(HEADER_MACHINE).machine["isa"] == "avx2"
    foreign = replace(HEADER_MACHINE, isa="sve", mcpu="a64fx")
    with pytest.raises(LookupError, match="no tuning log for sve .mcpu 'a64fx'."):
        logs.find(foreign)


def test_logs_that_cannot_be_read_are_skipped(home, caplog):
    folder = home / "tuning_logs"
    (folder / "a" / logs.FILE_NAME).mkdir(parents=True)
    (folder / "b").mkdir()
    (folder / "b" / logs.FILE_NAME).write_bytes(b"\xff\xfe\x00binary")
    (folder / "c").mkdir()
    (folder / "c" / logs.FILE_NAME).write_text("nothing of ours\n")
    (folder / "stray").write_text("")
    good = _put_log(home, HEADER_MACHINE, "d")
    with caplog.at_level(logging.WARNING, "tvm_moonpoly.logs"):
        assert logs.find(HEADER_MACHINE).origin == str(good)
    for name in "abc":
        assert str(folder / name / logs.FILE_NAME) in caplog.text


def test_nothing_in_a_log_is_executed(home):
    """Text that would do something if it were evaluated is refused as a record."""
    entry = {"kind": "kernel", "record": {**Record(1, 1).to_json(), "mr": "__import__('os')"}}
    with pytest.raises(ValueError):
        CostTable.from_entries([{**entry, "alone": COSTS}])


def test_forged_costs_make_slow_plans_and_nothing_worse(target):
    """Costs so high that every sum of the native planner overflows: results are right."""
    machine = Machine.from_target(target)
    highest, longest = (1 << 40) - 1, MAX_TASK - 1  # that a log may hold
    usual = small_table()
    traffic = replace(usual.traffic, **dict.fromkeys(vars(usual.traffic), highest))
    steep = TaskCost(dict.fromkeys(RESIDENCIES, (*[1] * (len(TRIPS) - 1), longest)))
    table = CostTable({r: steep for r in usual.tasks}, traffic)
    CostTable.from_entries(table.to_entries())
    module = {}
    for part in PARTS:
        if part.name in ("plans", "gemm"):
            defined = functions(machine, table, part.name)
            built = native.build(defined.module(), target, defined.marks)
            module |= {name: built[name] for name in part.entries}
    forged = operators.OperatorLibrary(machine, table, module)
    rng = np.random.default_rng(2)
    for m, n, k in [(3, 40, 30), (70, 515, 4096), (5, 3, 70_000), (400, 2048, 300)]:
        a, b = values(rng, m, k), values(rng, k, n)
        weight = Weight.of(forged, b, values(rng, n))
        check_linear(linear(forged, a, weight), a, weight)
        out = np.full((m, n), CANARY, np.float32)
        check_product(matmul(forged, a, b, out), a, b)
        check_product(matmul(forged, a, b.T.copy(), out, b_axes=(1, 0)), a, b)


@pytest.mark.parametrize("form", [{}, {"packed_a": True}, {"in_place_b": True}], ids=str)
def test_tiles_that_a_plan_has_no_numbers_for_are_refused(form):
    """They would fit the registers: 8 vectors of one row, and on NEON 16 rows of one vector."""
    neon = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]})
    for target, tiles in ((AVX2, [(1, nv) for nv in range(1, 9)]),
                          (neon, [(mr, 1) for mr in range(1, 17)])):  # fmt: skip
        machine = Machine.from_target(target)
        table = small_table()
        records = {Record(mr, nv) for mr, nv in tiles if nv < 8 and mr < 16}
        records |= {Record(mr, nv, **form) for mr, nv in tiles}
        tasks = {**table.tasks, **{r: TaskCost.linear(1, 1) for r in records}}
        entries = CostTable(tasks, table.traffic).to_entries()
        log = logs.parse(b"".join(map(logs.encode, [logs.header(machine), *entries])), "it")
        name = Record(*tiles[-1], **form).name
        with pytest.raises(ValueError, match=f"^log: {name} does not fit a plan, of which tiles"):
            library_module.costs(log, machine)


def _incomplete_log(home):
    """An intact log of the target's own machine that lacks one of the heights."""
    path = home / "tuning_logs" / "mine" / logs.FILE_NAME
    entries = small_table().to_entries()
    del entries[0]
    logs.write(path, HEADER_MACHINE, entries)


def test_an_incomplete_log_is_passed_over(home, caplog):
    """The next one is used; the build does not fail because of it."""
    _incomplete_log(home)
    used, log, _ = operators.described(AVX2)
    assert log.origin.startswith("packaged ") and used.isa == "avx2"
    assert "skipped: log: tiles of 1 vectors lack heights" in caplog.text
    assert operators.supported(AVX2) is None


COSTS = small_table().to_entries()[0]["alone"]

ODD_TABLES = {
    "nothing but a header": [],
    "no record": [{"kind": "kernel", "alone": COSTS}],
    "a list for a record": [{"kind": "kernel", "record": [1], "alone": COSTS}],
    "no tile of one vector": [
        e for e in small_table().to_entries() if e.get("record", {}).get("nv") != 1
    ],
    "nothing on packed A": [
        e for e in small_table().to_entries() if not e.get("record", {}).get("packed_a")
    ],
    "a tile too large": [
        {"kind": "kernel", "record": Record(9, 9).to_json(), "alone": COSTS},
        *small_table().to_entries(),
    ],
}


@pytest.mark.parametrize("entries", ODD_TABLES.values(), ids=ODD_TABLES)
def test_odd_logs_are_passed_over(home, caplog, entries):
    logs.write(home / "tuning_logs" / "mine" / logs.FILE_NAME, HEADER_MACHINE, entries)
    _, log, _ = operators.described(AVX2)
    assert log.origin.startswith("packaged ")
    assert "skipped: " in caplog.text


def test_only_odd_logs_make_a_target_unsupported(home, monkeypatch):
    _incomplete_log(home)
    mine = [(origin, reading) for origin, reading in logs.stored() if str(home) in origin]
    monkeypatch.setattr(logs.places, "stored", lambda: iter(mine))
    assert "tiles of 1 vectors lack heights" in operators.supported(AVX2)
    with pytest.raises(ValueError, match="^target: .*tiles of 1 vectors lack heights"):
        operators.library(AVX2)


def test_a_full_disk_is_a_warning(home, caplog, monkeypatch):
    """LLVM would end the process, so nothing is written where little is free."""
    usage = shutil.disk_usage(home.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert cache.store("key", lambda path: pytest.fail("written to a full disk")) is None
    assert "is not cached" in caplog.text and "No space left" in caplog.text


def test_a_target_with_a_host_is_the_same_library(target):
    assert operators.library(target.with_host(target)) is operators.library(target)
