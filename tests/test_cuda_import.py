"""Results of a GPU become a measured tuning log; bad ones are told, and nothing is written."""

from __future__ import annotations

import json
import random
import types

import pytest
from cuda_tuning_testing import A100, H100, LAUNCH, contents, put, results, saved, truth

from tvm_moonpoly import logs
from tvm_moonpoly.cli.command import main
from tvm_moonpoly.costmodel import cuda_log
from tvm_moonpoly.costmodel.cuda import BlockCost
from tvm_moonpoly.logs import choice, places
from tvm_moonpoly.operators.cuda.assemblies import log_in_use
from tvm_moonpoly.tuning.cuda import fit, gpu_logs, measured
from tvm_moonpoly.tuning.cuda.results import check_gpu, parse
from tvm_moonpoly.tuning.cuda.tasks import tasks


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A MOONPOLY_HOME with a computed log of an A100 for float16, and none that ship."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(gpu_logs, "DTYPES", ("float16",))
    (tmp_path / "shipped").mkdir()
    shipped = types.SimpleNamespace(files=lambda package: tmp_path / "shipped")
    monkeypatch.setattr(places, "resources", shipped)
    choice.say_once.cache_clear()
    put(A100, contents())
    return tmp_path / "home"


def imported(path, *more) -> int:
    return main(["tune", "--gpu", "nvidia-a100", "--import", str(path), *more])


# Lines


@pytest.mark.parametrize("spoiled", range(4))
def test_a_line_bears_a_time_that_is_far_off(spoiled):
    points = [(t, 5e6 + 300_000.0 * t) for t in (4, 16, 48, 128)]
    points[spoiled] = points[spoiled][0], 3 * points[spoiled][1]
    assert fit.line(points) == fit.Line(pytest.approx(5e6), pytest.approx(300_000))
    with pytest.raises(ValueError, match="two numbers of steps"):
        fit.line([(4, 1.0), (4, 2.0)])


def test_costs_are_found_again_and_never_fall():
    usual = BlockCost("k", 64, 64, 32, 1, (1, 2, 3, 4, 5))
    slopes = {1: 300.0, 2: 290.0, 4: 500.0, 5: 700.0}
    times = {r: [(t, 10_000 + s * t) for t in (4, 16, 64)] for r, s in slopes.items()}
    found = fit.fitted(usual, 4_000, times)
    assert found.cost.around == 6_000
    assert found.cost.steps == (295, 295, 398, 500, 700)
    assert max(found.errors) < 0.02
    with pytest.raises(ValueError, match="too few launches with 5 blocks"):
        fit.fitted(usual, 0, {1: times[1], 4: times[4]})
    with pytest.raises(ValueError, match="take no longer"):
        fit.fitted(BlockCost("k", 64, 64, 32, 1, (1,)), 0, {1: [(4, 5.0), (8, 5.0)]})


@pytest.mark.parametrize("seed", range(5))
def test_rising_numbers_are_the_nearest(seed):
    draw = random.Random(seed)
    values = [draw.uniform(0, 10) for _ in range(6)]
    found = fit._rising(values)
    assert found == sorted(found) and sum(found) == pytest.approx(sum(values))
    far = sum((a - b) ** 2 for a, b in zip(found, values, strict=True))
    for _ in range(200):
        other = sorted(value + draw.uniform(-2, 2) for value in values)
        assert far <= sum((a - b) ** 2 for a, b in zip(other, values, strict=True)) + 1e-9


# A whole log


def test_results_make_a_measured_log(home, tmp_path, capfd):
    document = results(A100, contents().kernels)
    for entry in document["tasks"][::7]:
        entry["seconds"] *= 3  # disturbed
    assert imported(saved(tmp_path / "r.json", document)) == 0
    said = capfd.readouterr().out
    assert "float16: measured" in said and "wrote " in said
    log, found = log_in_use(A100.target(), "float16")
    assert log.origin.startswith(str(home))
    assert log.header["measured_on"]["gpu"] == "NVIDIA A100-SXM4-80GB"
    assert found.measured and found.measured_launch and len(found.kernels) == 5
    assert found.launch == round(LAUNCH * 1e12)
    for kernel in found.kernels:
        for task in tasks(kernel.tile, kernel.form, A100, kernel.cost.resident):
            told = found.launch + kernel.cost.wave(task.blocks, task.k)
            assert told * 1e-12 == pytest.approx(truth(task), rel=0.15)


def test_kernels_are_dropped_or_stay_computed_and_it_is_said(home, tmp_path, capfd):
    known = contents()
    wrong, unmeasured, short = (kernel.name for kernel in known.kernels[:3])
    document = results(A100, (known.kernels[0], *known.kernels[2:4]))
    case = {"kernel": f"{wrong}_bias_residual_relu", "right": False, "m": 5}
    document["correct"] = {"cases": 7, "wrong": [case]}
    document["tasks"] = [
        t for t in document["tasks"] if t["kernel"] != short or (t["blocks"], t["steps"]) == (1, 4)
    ]
    assert imported(saved(tmp_path / "r.json", document), "--json") == 0
    (told,) = json.loads(capfd.readouterr().out)
    aligned, unaligned = told["forms"]
    assert (aligned["measured"], aligned["dropped"]) == (1, 3)
    assert aligned["remarks"] == {
        wrong: "its results were wrong",
        unmeasured: "it was not measured, and others were",
        short: "too few launches with 1 blocks a multiprocessor",
    }
    assert (unaligned["measured"], unaligned["not_measured"]) == (0, 1)
    assert told["status"] == "1 of 2 measured"
    _, found = log_in_use(A100.target(), "float16")
    assert [kernel.measured for kernel in found.kernels] == [True, False]


def test_what_was_measured_before_stays_until_it_is_measured_again(home, tmp_path):
    known = contents()
    document = results(A100, known.kernels)
    assert imported(saved(tmp_path / "first.json", document)) == 0
    again = results(A100, known.kernels[:1], factor=3.0)
    assert imported(saved(tmp_path / "second.json", again)) == 0
    _, found = log_in_use(A100.target(), "float16")
    assert found.measured and len(found.kernels) == 5
    steps = {kernel.name: kernel.cost.steps[0] for kernel in found.kernels}
    slow, fast = (steps[kernel.name] for kernel in known.kernels[:2])
    assert slow == pytest.approx(fast * 3.0 / 1.7, rel=0.1)


def test_the_most_useful_come_first(home):
    known = contents()
    document = results(A100, known.kernels, noise=0)
    for entry in document["tasks"]:
        if entry["kernel"] == known.kernels[0].name:
            entry["seconds"] *= 20
    done = measured.conclude(known, parse(document), A100)
    names = [kernel.name for kernel in done.contents.kernels]
    assert names[2] == known.kernels[0].name and names[3:] == [k.name for k in known.kernels[3:]]
    assert max(done.spread) < 0.05


# What is wrong


def _change(**fields):
    return lambda document: document.update(fields)


@pytest.mark.parametrize(
    "change, said",
    [
        (_change(format=2), "format: must be 1, not 2"),
        (_change(format=True), "format: must be 1, not True"),
        (_change(gpu=None), "gpu: it describes no GPU"),
        (_change(tasks=[]), "tasks: it holds none"),
        (_change(launch_seconds=-1), "launch_seconds: must be seconds in 0..60, not -1"),
        (lambda d: d["gpu"].update(name="NVIDIA H200"), "of a 'NVIDIA H200', not of nvidia-a100"),
        (lambda d: d["gpu"].update(arch="sm_90"), "a GPU with sm_90, nvidia-a100 has sm_80"),
        (lambda d: d["gpu"].update(multiprocessors=98), "a GPU with 98, nvidia-a100 has 108"),
        (lambda d: d["tasks"][3].update(m="64"), "tasks[3].m: must be a positive number, not '64'"),
        (lambda d: d["tasks"][3].update(seconds=0), "tasks[3].seconds: must be seconds"),
        (
            lambda d: d["tasks"][3].update(seconds=10**400),
            "tasks[3].seconds: must be seconds in 0..60, not 1000",
        ),
        (lambda d: d["tasks"][3].pop("kernel"), "tasks[3].kernel: must be a short text"),
        (lambda d: d["tasks"][3].update(form="f16_f32_nt"), "f16_f16_nt, not of 'f16_f32_nt'"),
        (lambda d: d["tasks"].append(7), "it is no JSON object"),
        (lambda d: d["tasks"][0].update(k=64), "is not 4 steps of 1 blocks on each of 108"),
        (lambda d: [t.pop("seconds") for t in d["tasks"]], ""),
        (lambda d: [t.update(kernel="moonpoly_other") for t in d["tasks"]], "none of its tasks is"),
        (lambda d: d.update(tasks=d["tasks"][:1]), "they are too few to measure a micro-kernel"),
        (
            lambda d: d.update(correct={t["kernel"]: False for t in d["tasks"]}),
            "all micro-kernels of f16_f16_nt were wrong",
        ),
    ],
)
def test_bad_results_are_told_and_nothing_is_written(home, tmp_path, capfd, change, said):
    document = results(A100, contents().kernels)
    change(document)
    before = gpu_logs.path_of(A100, "float16").read_bytes()
    if said:
        assert imported(saved(tmp_path / "r.json", document)) == 1
        error = capfd.readouterr().err
        assert said in error and str(tmp_path / "r.json") in error and error.count("\n") == 1
        assert gpu_logs.path_of(A100, "float16").read_bytes() == before
    else:  # the samples tell
        assert imported(saved(tmp_path / "r.json", document)) == 0


def test_the_file_tells_the_gpu(home, tmp_path, capfd):
    document = results(A100, contents().kernels)
    path = saved(tmp_path / "r.json", document)
    assert main(["tune", "--import", str(path)]) == 0
    assert log_in_use(A100.target(), "float16")[1].measured
    document["gpu"]["name"] = "NVIDIA A30"
    capfd.readouterr()
    assert main(["tune", f"--import={saved(path, document)}"]) == 1
    error = capfd.readouterr().err
    assert "a 'NVIDIA A30' (sm_80, 108 multiprocessors), which is none of nvidia-a100" in error


@pytest.mark.parametrize("data", [b"", b"{", b"[NaN]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_told(home, tmp_path, capfd, data):
    path = tmp_path / "r.json"
    path.write_bytes(data)
    assert imported(path) == 1
    assert "it is not JSON" in capfd.readouterr().err
    assert imported(tmp_path / "missing.json") == 1
    assert "No such file" in capfd.readouterr().err


def test_samples_and_failures():
    document = results(A100, contents().kernels[:1])
    first, second = document["tasks"][:2]
    first |= {"seconds": None, "samples": [3e-6, 1e-6, 2e-6]}
    second |= {"error": "misaligned address"}
    found = parse(document)
    assert 2e-6 in found.seconds.values() and len(found.failed) == 1
    check_gpu(found, A100)
    with pytest.raises(ValueError, match="not of nvidia-h100"):
        check_gpu(found, H100)


def test_a_log_of_another_place_is_extended_there(home, tmp_path, capfd):
    path = saved(tmp_path / "r.json", results(A100, contents().kernels))
    assert imported(path, "--output", str(tmp_path / "logs")) == 0
    written = tmp_path / "logs" / "nvidia-a100" / "gemm_f16.jsonl"
    assert str(written) in capfd.readouterr().out
    log = logs.read(written.read_bytes(), "").log
    assert cuda_log.contents(log.entries, "sm_80").measured


def test_a_computed_log_does_not_replace_a_measured_one(home, capfd):
    path = put(A100, contents(measured=True))
    assert gpu_logs.is_measured(path, A100)
    if not _has_nvcc():
        pytest.skip("no nvcc")
    assert main(["tune", "--gpu", "nvidia-a100", "--dry-run", "--write"]) == 1
    assert "was measured, and is not replaced" in capfd.readouterr().err


def _has_nvcc() -> bool:
    from tvm_moonpoly.microkernels.cuda import find_nvcc

    return find_nvcc() is not None


@pytest.mark.parametrize(
    "given, message",
    [
        (["--import", "x.json", "--dry-run"], "not with --dry-run or --form"),
        (["--output", "x", "--dry-run"], "--output goes with --write"),
        (["--write"], "--write goes with --dry-run"),
        (["--dry-run", "--write", "--json"], "not with --form or --json"),
    ],
)
def test_wrong_usage_is_told(capfd, given, message):
    assert main(["tune", "--gpu", "nvidia-a100", *given]) == 2
    assert message in capfd.readouterr().err
