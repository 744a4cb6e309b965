"""Tuning logs of GPUs: what is written is read again, and what breaks a rule is left out."""

from __future__ import annotations

import copy
import json
import logging
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cuda_tuning_testing import A100, H100, H200, contents, put
from tvm.target import Target

from tvm_moonpoly import logs
from tvm_moonpoly.cli.command import main
from tvm_moonpoly.costmodel import cuda_log
from tvm_moonpoly.logs import choice
from tvm_moonpoly.microkernels.cuda import GPUS, detected, products
from tvm_moonpoly.operators.cuda.assemblies import assemblies, log_in_use, supported
from tvm_moonpoly.tuning.cuda import gpu_logs


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty MOONPOLY_HOME, no logs of the user, and nothing said yet."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    choice.say_once.cache_clear()
    return tmp_path / "home"


def test_what_is_written_is_read_again(home):
    found = contents()
    path = put(A100, found, compiler="nvcc release 13.0")
    assert path.parent.name == "nvidia-a100" and path.name == "gemm_f16.jsonl"
    log = logs.read(path.read_bytes(), str(path)).log
    assert log.of_gpu and (log.machine_name, log.instructions) == ("nvidia-a100", "sm_80")
    assert log.machine["multiprocessors"] == 108 and log.header["compiler"].startswith("nvcc")
    assert cuda_log.contents(log.entries, "sm_80") == found
    assert found.status == "not measured" and contents(measured=True).status == "measured"


def test_logs_of_gpus_do_not_serve_cpus(home):
    path = put(A100, contents())
    cpu = path.with_name(logs.FILE_NAME)
    cpu.write_bytes(path.read_bytes())
    readings = {origin: reading for origin, reading in logs.stored() if str(home) in origin}
    assert [(r.log, r.reason) for r in readings.values()] == [(None, "it is of a GPU")]


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda e: e["tile"].update(block_m=48), "block_m: must be one of"),
        (lambda e: e["tile"].update(stages=True), "tile: stages must be of type int"),
        (lambda e: e["tile"].update(stages=8), "is not that of its tile and form"),
        (lambda e: e["tile"].pop("raster"), "tile: needs the fields"),
        (lambda e: e["tile"].update(raster=1 << 20), "raster: at most 1024"),
        (lambda e: e["form"].update(dtype_in="float8"), "dtype_in: must be one of"),
        (lambda e: e.update(form=None), "form: needs the fields"),
        (lambda e: e.update(steps=[5, 4]), "more blocks cannot be faster"),
        (lambda e: e.update(steps="1"), "steps: a list of numbers is needed"),
        (lambda e: e.update(block_k=64), "they are not those of its tile"),
        (lambda e: e.update(name="rm"), "is not that of its tile and form"),
        (lambda e: e.update(measured=1), "measured: must be true or false"),
        (lambda e: e["static"].update(registers=-1), "must be numbers"),
        (lambda e: e.update(static=[]), "static: it tells nothing"),
    ],
)
def test_a_kernel_that_breaks_a_rule_is_left_out(change, said):
    found = contents()
    entries = copy.deepcopy(found.to_entries())
    change(entries[1])
    left = cuda_log.contents(entries, "sm_80")
    assert left.kernels == found.kernels[1:]
    (fault,) = left.faults
    assert said in fault


def test_what_is_no_log_of_a_gpu_is_refused():
    entries = contents().to_entries()
    with pytest.raises(ValueError, match="it does not tell the GPU's multiprocessors"):
        cuda_log.contents(entries[1:], "sm_80")
    with pytest.raises(ValueError, match="it holds no kernels"):
        cuda_log.contents(entries[:1], "sm_80")
    with pytest.raises(ValueError, match="multiprocessors: an integer"):
        cuda_log.contents([{**entries[0], "multiprocessors": 0}, *entries[1:]], "sm_80")
    doubled = cuda_log.contents([*entries, entries[1]], "sm_80")
    assert len(doubled.kernels) == 5 and "is there twice" in doubled.faults[0]


def test_assemblies_are_for_aligned_operands_and_for_all_others(home):
    put(A100, contents())
    found = assemblies(A100.target(), "float16", "float16", True)
    assert [a.needs.n for a in found] == [8, 1, 1]
    assert [len(a.tiles) for a in found] == [3, 1, 1]
    assert [a.form.aligned for a in found] == [True, True, False]
    assert not any(a.table.measured for a in found)
    assert {a.table.multiprocessors for a in found} == {108}


def test_torn_and_foreign_lines_cost_themselves_only(home, caplog):
    path = put(A100, contents())
    lines = path.read_bytes().splitlines(keepends=True)
    foreign = logs.encode({"kind": "later"})
    path.write_bytes(b"".join([*lines[:2], lines[2][:40] + b"\n", foreign, *lines[3:]]))
    caplog.set_level(logging.WARNING, "tvm_moonpoly.logs")
    found = assemblies(A100.target(), "float16", "float16", True)
    assert [len(a.tiles) for a in found] == [2, 1, 1]
    assert any("line 3 is skipped" in record.getMessage() for record in caplog.records)


def test_the_own_log_comes_before_one_of_the_same_capability(home):
    put(H100, contents(H100))
    assert log_in_use(H200.target(), "float16")[0].origin == "packaged nvidia-h200/gemm_f16.jsonl"
    own = put(H200, contents(H200, measured=True))
    log, found = log_in_use(H200.target(), "float16")
    assert log.origin == str(own) and found.measured
    assert all(a.table.measured for a in assemblies(H200.target(), "float16", "float16", True))


@pytest.mark.parametrize(
    "config, names",
    [
        ("nvidia/nvidia-a100", ["nvidia-a100"]),
        ("nvidia/nvidia-h100", ["nvidia-h100", "nvidia-h200"]),
        ("nvidia/geforce-rtx-4090", ["nvidia-rtx4090"]),
        ("nvidia/geforce-rtx-3090", ["nvidia-rtx3090"]),
        ({"kind": "cuda", "arch": "sm_90"}, ["nvidia-h100", "nvidia-h200"]),
        ({"kind": "cuda", "arch": "sm_75"}, []),
        ("llvm", []),
    ],
)
def test_a_target_is_of_known_products(config, names):
    assert [gpu.name for gpu in products(Target(config))] == names
    reason = supported(Target(config))
    assert reason is None if names else reason.startswith("micro-kernels for GPUs are made for")


@pytest.mark.parametrize("name", GPUS)
def test_a_gpus_target_names_it(name):
    assert products(GPUS[name].target())[0].name == name


A30 = replace(A100, name="nvidia-a30", multiprocessors=56, clock_mhz=1440, l2_bytes=24 << 20)


def test_another_gpu_tells_its_multiprocessors_and_clock(home):
    target = A30.target()
    assert target.attrs["model"] == "nvidia-a30:56:1440"
    first, *others = products(target)
    assert replace(first, source=A30.source) == A30 and others == [A100]
    usual = assemblies(A100.target(), "float16", "float16", True)
    found = assemblies(target, "float16", "float16", True)
    assert [a.tiles for a in found] == [a.tiles for a in usual]
    for mine, its in zip(found, usual, strict=True):
        assert (mine.table.multiprocessors, its.table.multiprocessors) == (56, 108)
        for cost, usual_cost in zip(mine.table.kernels, its.table.kernels, strict=True):
            assert len(cost.steps) == len(usual_cost.steps)
            ratio = cost.wave(1, 4096) / usual_cost.wave(1, 4096)
            assert ratio == pytest.approx(1410 / 1440, rel=1e-3)


def test_measured_costs_of_another_gpu_stay(home):
    put(A100, contents(measured=True))
    (usual, *_), (found, *_) = (
        assemblies(gpu.target(), "float16", "float16", True) for gpu in (A100, A30)
    )
    assert found.table.kernels == usual.table.kernels and found.table.multiprocessors == 56


@pytest.mark.parametrize("model", ["a:b", "a30:56", "a30:0:1440", "a30:56:1440:1", "a:-1:2"])
def test_a_model_that_tells_no_numbers_is_told(model):
    with pytest.raises(ValueError, match="target: model: must be a name, or name:multiproc"):
        products(Target({"kind": "cuda", "arch": "sm_80", "model": model}))


@pytest.mark.parametrize(
    "told, wanted",
    [
        (("NVIDIA A100-SXM4-80GB", "8.0", 108, 1410), A100),
        (("NVIDIA A30", "8.0", 56, 1440), A30),
        (("NVIDIA GeForce RTX 4090", "8.9", 128, 2520), GPUS["nvidia-rtx4090"]),
        (("Tesla T4", "7.5", 40, 1590), None),
    ],
)
def test_a_gpu_is_what_its_driver_tells(told, wanted):
    name, version, count, clock = told
    device = SimpleNamespace(
        exist=True,
        device_name=name,
        compute_version=version,
        multi_processor_count=count,
        max_clock_rate=clock * 1000,
        l2_cache_size_bytes=24 << 20,
    )
    found = detected(device)
    assert found == wanted or replace(found, source=wanted.source) == wanted
    assert detected(SimpleNamespace(exist=False)) is None


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("dtype", logs.GPU_FILE_NAMES)
def test_logs_that_ship_have_all_forms(home, name, dtype):
    target = GPUS[name].target()
    log, found = log_in_use(target, dtype)
    assert log.origin == f"packaged {name}/{logs.GPU_FILE_NAMES[dtype]}" and not found.faults
    assert all(k.static.registers and k.static.blocks == k.cost.resident for k in found.kernels)
    for dtype_out in (dtype, "float32"):
        for transposed in (False, True):
            chosen = assemblies(target, dtype, dtype_out, transposed)
            assert chosen[0].form.aligned and chosen[-1].needs.n == chosen[-1].needs.k == 1
            assert 3 <= len(chosen[-1].tiles) <= 8 and len(chosen[0].tiles) == 8
            assert chosen[0].table.measured == found.measured
            if transposed:  # any number of columns, copied 16 bytes at a time
                assert len(chosen) == 3 and chosen[1].form.aligned and chosen[1].needs.n == 1
                assert len(chosen[1].tiles) == 4 and chosen[1].needs.k == 8


def test_what_cannot_be_served_is_told(home, monkeypatch):
    with pytest.raises(ValueError, match="made for sm_80, .* not llvm"):
        assemblies(Target("llvm"), "float16", "float16", True)
    with pytest.raises(ValueError, match="dtype_in: must be one of"):
        assemblies(A100.target(), "float32", "float32", True)
    monkeypatch.setattr(logs.places, "stored_gpu", lambda dtype: iter(()))
    with pytest.raises(LookupError, match="no tuning log for sm_80"):
        assemblies(A100.target(), "float16", "float16", True)
    assert supported(A100.target()) == "no tuning log for sm_80"


# The command line


def test_logs_and_info_show_logs_of_gpus(home, capfd):
    path = put(A100, contents(measured=True), measured_on={"gpu": "NVIDIA A100-SXM4-80GB"})
    assert main(["logs", "list", "--json"]) == 0
    rows = {row["origin"]: row for row in json.loads(capfd.readouterr().out)}
    assert rows[str(path)]["verdict"] == "used for nvidia-a100; measured"
    packaged = rows["packaged nvidia-a100/gemm_f16.jsonl"]
    assert packaged["verdict"] == "not used: another comes first; not measured"
    assert main(["logs", "show", str(path)]) == 0
    said = capfd.readouterr().out
    assert "NVIDIA A100-SXM4-80GB" in said and "16x64x64_w1x2_s4_pairs_r8" in said
    assert main(["logs", "show", "nvidia-a100/gemm_f16.jsonl"]) == 0
    said = capfd.readouterr().out
    assert re.search(r"^costs +not measured$", said, re.MULTILINE)
    assert main(["info"]) == 0
    told = r"^log of nvidia-a100 +float16 measured, bfloat16 not measured$"
    assert re.search(told, capfd.readouterr().out, re.MULTILINE)


def test_a_log_of_a_gpu_moves_from_one_user_to_another(home, tmp_path, capfd):
    path = put(A100, contents(measured=True))
    exported = tmp_path / "exported.jsonl"
    assert main(["logs", "export", str(exported), "--log", str(path)]) == 0
    assert main(["logs", "clear", "--yes"]) == 0 and not path.exists()
    assert main(["logs", "import", str(exported)]) == 0
    said = capfd.readouterr().out
    assert f"wrote the log of nvidia-a100 (sm_80, 5 kernels, measured) to {path}" in said
    assert main(["logs", "import", str(exported)]) == 1
    assert "there is a log of nvidia-a100 already" in capfd.readouterr().err


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda e: e[2]["tile"].update(block_m=48), "a kernel is skipped: block_m: must be one of"),
        (lambda e: e[0]["machine"].update(arch="sm_70"), "there are no micro-kernels for 'sm_70'"),
        (lambda e: e[0]["machine"].update(clock_mhz=0), "header's clock_mhz must be a positive"),
        (lambda e: e.pop(1), "it does not tell the GPU's multiprocessors"),
        (lambda e: e.extend(contents(dtype="bfloat16").to_entries()[1:]), "for one dtype"),
    ],
)
def test_a_log_of_a_gpu_that_is_not_in_order_is_told(home, tmp_path, capfd, change, said):
    entries = copy.deepcopy(gpu_logs.lines_of(A100, contents(), {}))
    change(entries)
    path = tmp_path / "log.jsonl"
    assert logs.replace(path, entries)
    for action in ("validate", "import"):
        assert main(["logs", action, str(path)]) == 1
        assert said in capfd.readouterr().err
    assert not logs.own_gpu_path("nvidia-a100", "float16").exists()


def test_logs_that_ship_are_in_order(home, capfd):
    assert main(["logs", "validate", "nvidia-h200/gemm_bf16.jsonl"]) == 0
    assert "in order, the log of nvidia-h200 (sm_90, " in capfd.readouterr().out
    assert main(["logs", "validate", "avx2-znver4"]) == 0
