"""The offline stage of a GPU, with a compiler and a GPU that are made up; nothing is measured."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from cuda_tuning_testing import A100, DRIVER_NAMES, LAUNCH, TILES, contents, put, saved

from tvm_moonpoly import logs
from tvm_moonpoly.cli import tune_gpu_stage
from tvm_moonpoly.cli.command import main
from tvm_moonpoly.costmodel import cuda_log
from tvm_moonpoly.costmodel.cuda_log import Kernel
from tvm_moonpoly.logs import choice, places
from tvm_moonpoly.microkernels.cuda import CudaTile, Form, Resources
from tvm_moonpoly.operators.cuda import machine_code
from tvm_moonpoly.operators.cuda.assemblies import log_in_use
from tvm_moonpoly.tuning.cuda import bench, dry_run, gpu_logs, gpu_stage, proposals
from tvm_moonpoly.tuning.cuda.bench import Bench
from tvm_moonpoly.tuning.cuda.gpu_stage import Settings
from tvm_moonpoly.tuning.journal import Journal

pytest.importorskip("xgboost")  # of the extra [tune]

NT = Form("float16", "float16", True)

#: A search of one form in blocks of one size, two rounds.
SMALL = Settings(forms=(NT,), siblings=False, trials=8, batch=4)


class Compiler:
    """Tells of each kernel that it takes 100 registers; those with 6 stages spill."""

    def __init__(self):
        self.names = []

    def __call__(self, form, tiles):
        found = []
        for tile in tiles:
            spills = 8 if tile.stages == 6 else 0
            found.append(dry_run.judged(tile, form, A100, Resources(100, 0, spills, spills, 0)))
        self.names += [candidate.name for candidate in found]
        return found


def seconds(kernel: Kernel, task) -> float:
    """A GPU that likes deep steps, 4 stages and rasters of 4."""
    tile = kernel.tile
    penalty = (
        1
        + 0.3 * abs(math.log2(tile.block_k / 64))
        + 0.1 * abs(tile.stages - 4)
        + 0.2 * abs(math.log2(tile.raster / 4))
    )
    step = 1e-12 * tile.block_m * tile.block_n * tile.block_k * task.blocks * penalty
    return LAUNCH + 1e-6 + task.steps * step


class Gpu:
    """Measures by `seconds`; ``dies_after`` so many kernels."""

    name, about = DRIVER_NAMES["nvidia-a100"], {"clock_mhz": 1410}

    def __init__(self, dies_after=1 << 30, wrong=lambda tile: False):
        self.names, self.dies_after, self.wrong = [], dies_after, wrong

    def launch(self):
        return LAUNCH

    def measure(self, kernel, wanted):
        if len(self.names) == self.dies_after:
            raise KeyboardInterrupt
        self.names.append(kernel.name)
        if self.wrong(kernel.tile):
            return False, [None] * len(wanted)
        return True, [seconds(kernel, task) for task in wanted]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A MOONPOLY_HOME with a computed log of an A100, a compiler that is made up, small groups."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "shipped").mkdir()
    shipped = type("Resources", (), {"files": lambda package: tmp_path / "shipped"})
    monkeypatch.setattr(places, "resources", shipped)
    choice.say_once.cache_clear()
    for dtype in logs.GPU_FILE_NAMES:
        put(A100, contents(dtype=dtype), dtype)
    every = gpu_stage.groups
    monkeypatch.setattr(
        gpu_stage,
        "groups",
        lambda form, gpu: [g for g in every(form, gpu) if (g.block_m, g.block_n) == (64, 64)],
    )
    return tmp_path / "home"


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path / "journal.jsonl", {"gpu": "made up"}) as journal:
        yield journal


def run(journal, runner=None, settings=SMALL, **options):
    compiler = Compiler()
    found = Bench(A100, journal, compiler, runner)
    known = {NT: [kernel for kernel in contents().kernels if kernel.form == NT]}
    return gpu_stage.run(found, settings, known, **options), compiler, found


def test_a_search_measures_what_it_is_told_and_finds_better_tiles(home, journal):
    gpu = Gpu()
    outcome, compiler, found = run(journal, gpu, replace(SMALL, trials=24, batch=8))
    kernels = outcome.kernels[NT]
    assert len(kernels) == 24 and not outcome.pending
    assert len(set(gpu.names)) == len(gpu.names) and len(set(compiler.names)) == len(compiler.names)
    tiles = [kernel.tile for kernel in kernels]
    # those of the log are among the first
    assert {TILES[0], TILES[3]} <= set(tiles[:8])
    assert all((t.block_m, t.block_n) == (64, 64) and t.stages != 6 for t in tiles)
    spilled = [name for name in compiler.names if "_s6_" in name or "_p6_" in name]
    assert all(name not in gpu.names for name in spilled)
    best = min(kernels, key=lambda k: gpu_stage.value(k.cost)).tile
    first = min(kernels[:8], key=lambda k: gpu_stage.value(k.cost)).tile
    assert best not in tiles[:8] or first == best
    assert all(kernel.measured for kernel in kernels)
    assert found.launch == round(LAUNCH * 1e12)


def test_wrong_kernels_are_not_kept(home, journal):
    outcome, _, _ = run(journal, Gpu(wrong=lambda tile: tile.block_k == 32))
    assert outcome.kernels[NT] and all(k.tile.block_k != 32 for k in outcome.kernels[NT])


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_stage_that_was_stopped_measures_nothing_twice(home, tmp_path, after):
    path = tmp_path / "stopped.jsonl"
    first, second = Gpu(dies_after=after), Gpu()
    with Journal(path, {"gpu": "made up"}) as journal, pytest.raises(KeyboardInterrupt):
        run(journal, first)
    path.write_bytes(path.read_bytes() + b'{"kind": "task", "key": {"torn')
    with Journal(path, {"gpu": "made up"}) as journal:
        outcome, _, _ = run(journal, second)
    assert not set(first.names) & set(second.names)
    assert len(outcome.kernels[NT]) == 8
    with Journal(path, {"gpu": "made up"}) as journal:
        again, compiler, _ = run(journal, Gpu(dies_after=0))
    assert again.kernels == outcome.kernels and not compiler.names


def test_a_budget_that_is_spent_ends_it(home, journal):
    gpu = Gpu()
    outcome, _, _ = run(journal, gpu, stop=lambda: len(gpu.names) >= 4)
    assert len(gpu.names) == 4 and len(outcome.kernels[NT]) == 4


def test_siblings_take_over_the_best_tiles(home, journal):
    outcome, _, _ = run(journal, Gpu(), replace(SMALL, siblings=True))
    taken = {form.name for form in outcome.kernels}
    assert taken == {"f16_f16_nt", "f16_f32_nt", "bf16_bf16_nt", "bf16_f32_nt"}
    searched = {kernel.tile for kernel in outcome.kernels[NT]}
    for form, kernels in outcome.kernels.items():
        assert {kernel.tile for kernel in kernels} <= searched, form


def test_what_was_measured_becomes_a_log(home, journal):
    outcome, _, found = run(journal, Gpu())
    kernels = outcome.kernels[NT]
    bench.is_of(journal, Gpu.name, Gpu.about)
    results = found.results(kernels)
    assert (results.device, results.about) == (Gpu.name, Gpu.about)
    done = gpu_stage.conclude(outcome, found, [contents()], results)
    assert {k.name for k in done.contents.of(NT)} == {k.name for k in kernels}
    assert all(k.measured for k in done.contents.of(NT))
    assert max(done.errors) < 0.01
    unaligned = done.contents.of(replace(NT, aligned=False))
    assert unaligned and not any(kernel.measured for kernel in unaligned)


# By files


@pytest.fixture
def command(home, tmp_path, monkeypatch):
    """``moonpoly tune --gpu nvidia-a100`` for one form."""
    monkeypatch.setattr(bench, "origin", lambda gpu: {"gpu": gpu.name})
    monkeypatch.setattr(machine_code, "compiler", lambda: "none, for tests")
    monkeypatch.setattr(dry_run, "compiled", lambda form, tiles, gpu: Compiler()(form, tiles))

    def run(*given):
        given = [str(each) for each in given]
        return main(["tune", "--gpu", "nvidia-a100", "--form", NT.name, "--trials", "6", *given])

    return run


def measured(path, wanted) -> None:
    """What another machine makes of the file ``wanted``."""
    kernels, tasks = proposals.read(wanted, A100)
    by_name = {kernel.name: kernel for kernel in kernels}
    timed = [{**t.to_json(), "seconds": seconds(by_name[t.kernel], t)} for t in tasks]
    gpu = {"name": Gpu.name, "arch": "sm_80", "multiprocessors": 108, "driver": "580"}
    saved(path, {"format": 1, "gpu": gpu, "launch_seconds": LAUNCH, "tasks": timed})


def test_search_here_and_measuring_elsewhere_alternate(command, tmp_path, capfd):
    wanted, results = tmp_path / "wanted.json", tmp_path / "results.json"
    assert command("--propose", wanted) == 0
    said = capfd.readouterr().out
    proposed = [kernel.name for kernel in proposals.read(wanted, A100)[0]]
    assert "nothing was measured yet" in said
    assert f"wrote {wanted}: {len(proposed)} micro-kernels" in said and 4 <= len(proposed) <= 6
    measured(results, wanted)
    # a larger search goes on from there
    assert command("--replay", results, "--propose", wanted, "--trials", "10") == 0
    said = capfd.readouterr().out
    again = [kernel.name for kernel in proposals.read(wanted, A100)[0]]
    assert "launches taken in" in said and f"{len(again)} micro-kernels" in said
    assert 1 <= len(again) <= 6 and not set(again) & set(proposed)
    # what is proposed stays so until it is measured
    assert command("--propose", wanted, "--trials", "10") == 0
    assert {kernel.name for kernel in proposals.read(wanted, A100)[0]} >= set(again)
    again = [kernel.name for kernel in proposals.read(wanted, A100)[0]]
    capfd.readouterr()
    log, found = log_in_use(A100.target(), "float16")
    assert {kernel.name for kernel in found.of(NT)} == set(proposed)
    assert log.header["measured_on"]["gpu"] == Gpu.name
    assert found.status == f"{len(proposed)} of {len(proposed) + 1} measured"
    measured(results, wanted)
    assert command("--replay", results, "--trials", "10") == 0
    _, found = log_in_use(A100.target(), "float16")
    assert {kernel.name for kernel in found.of(NT)} == {*proposed, *again}
    # nothing is left to do for as few trials
    assert command("--propose", wanted, "--trials", "4") == 0
    assert "0 micro-kernels to be measured by 0 launches" in capfd.readouterr().out


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda d: d.update(format=2), "it holds no proposals of format 1"),
        (lambda d: d.update(gpu="nvidia-h100"), "it is for 'nvidia-h100', not for nvidia-a100"),
        (lambda d: d["kernels"][0]["tile"].update(block_m=48), "block_m: must be one of"),
        (lambda d: d["tasks"][0].update(kernel="other"), "other is none of the kernels"),
        (lambda d: d["tasks"][0].update(m=5, n=5), "is not 4 steps of 1 blocks"),
        (lambda d: d.update(tasks=None), "lists are needed"),
    ],
)
def test_bad_proposals_are_told(tmp_path, journal, change, said):
    path = tmp_path / "wanted.json"
    found = Bench(A100, journal, Compiler())
    (kernel,) = found.kernels(NT, [CudaTile(64, 64, 32, 2, 2, 3)])
    assert proposals.write(path, A100, [kernel], found.wanted(kernel))
    assert proposals.read(path, A100)[0] == [kernel]
    document = json.loads(path.read_text())
    change(document)
    with pytest.raises(ValueError, match=said):
        proposals.read(saved(path, document), A100)


def test_results_of_another_gpu_are_not_replayed(command, tmp_path, capfd):
    gpu = {"name": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132}
    task = {"kernel": "k", "form": "f", "blocks": 1, "steps": 1, "m": 1, "n": 1, "k": 1}
    document = {"format": 1, "gpu": gpu, "tasks": [{**task, "seconds": 1e-6}]}
    path = saved(tmp_path / "results.json", document)
    assert command("--replay", path) == 1
    assert "of a 'NVIDIA H200', not of nvidia-a100" in capfd.readouterr().err
    assert not tune_gpu_stage.journal_path(A100).exists()


@pytest.mark.parametrize("all_wrong", [False, True])
def test_results_of_wrong_sizes_are_told(command, tmp_path, capfd, all_wrong):
    wanted, results = tmp_path / "wanted.json", tmp_path / "results.json"
    assert command("--propose", wanted) == 0
    measured(results, wanted)
    document = json.loads(results.read_text())
    tasks = document["tasks"]
    strange = {**tasks[0], "kernel": f"moonpoly_{NT.name}_1x1x1", "form": NT.name}
    tasks[0] = {**tasks[0], "n": tasks[0]["n"] + 8}
    tasks[1] = {**tasks[1], "form": "f8_f8_nn"}
    tasks.append(strange)
    if all_wrong:
        tasks[:] = [tasks[0], tasks[1], strange]
    saved(results, document)
    capfd.readouterr()
    assert command("--replay", results) == int(all_wrong)
    said = capfd.readouterr()
    right = f"{tasks[0]['m']} x {tasks[0]['n']} x {tasks[0]['k']} is timed as {tasks[0]['m']} x "
    if all_wrong:
        message = "none of its 3 launches is one that a stage of nvidia-a100 times, as the first: "
        assert message + right in said.err
        return
    assert "3 launches are none that this stage times" in said.out
    assert f"{tasks[0]['kernel']}: {right}" in said.out
    assert "there is no form 'f8_f8_nn'" in said.out
    assert f"moonpoly_{NT.name}_1x1x1 is no micro-kernel of {NT.name} for nvidia-a100" in said.out
    assert f"{len(tasks) - 3} launches taken in" in said.out


def test_two_stages_do_not_share_a_journal(command, tmp_path, capfd):
    path = tmp_path / "journal.jsonl"
    with Journal(path, {"gpu": "nvidia-a100"}):
        assert command("--propose", tmp_path / "wanted.json", "--journal", path) == 1
    assert "another process is tuning" in capfd.readouterr().err


def test_a_stage_on_a_device_writes_the_log(command, monkeypatch, capfd):
    import contextlib

    monkeypatch.setattr(tune_gpu_stage, "_has_gpu", lambda: True)
    monkeypatch.setattr(tune_gpu_stage, "_device", lambda *given: contextlib.nullcontext(Gpu()))
    assert command() == 0
    said = capfd.readouterr().out
    assert "6 of 7 measured" in said and "wrote " in said
    log = logs.read(gpu_logs.path_of(A100, "float16").read_bytes(), "").log
    assert log.header["measured_on"] == {"gpu": Gpu.name, "clock_mhz": 1410}
    assert cuda_log.contents(log.entries, "sm_80").measured_launch


@pytest.mark.parametrize(
    "given, message",
    [
        (["--propose", "x", "--dry-run"], "go without --rpc, --dry-run and --import"),
        (["--rpc", "127.0.0.1:9190"], "--rpc and --key go together"),
        (["--count", "4"], "--count goes with --dry-run"),
        (["--minutes", "0"], "must be a whole number of at least 1"),
    ],
)
def test_wrong_usage_is_told(capfd, given, message):
    assert main(["tune", "--gpu", "nvidia-a100", *given]) == 2
    assert message in capfd.readouterr().err


def test_a_tracker_that_is_not_there_is_told(home, capfd, monkeypatch):
    """The worker, which nothing answers, ends with a sentence."""
    from tvm_moonpoly.tuning.cuda import device

    monkeypatch.setattr(
        device, "COMMAND", (sys.executable, "-c", "import sys; sys.exit('no tracker')")
    )
    with pytest.raises(device.DeviceError, match="no GPU of key 'a' can be used: .*no tracker"):
        device.Device(A100, contents().kernels[0], ("127.0.0.1", 1), "a")


def test_importing_the_command_line_loads_no_search():
    code = "import tvm_moonpoly.cli.tune_gpu, sys; print('tvm' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
