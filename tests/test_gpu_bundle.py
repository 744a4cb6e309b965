"""A bundle is made, and runs in a process that has nothing but it, Python and numpy; a library in
the place of CUDA's takes the launches."""

from __future__ import annotations

import ctypes
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from cuda_emulator import emulate, missing_compiler, run_host
from gpu_testing import case, make_setting
from rich.console import Console

from bench.gpu import bundle, cases, contents, packages, progress
from bench.gpu.runner import parts
from bench.gpu.runner.bundled import Bundle, file_digest
from bench.gpu.runner.device import NoGpu
from tvm_moonpoly.costmodel import cuda_analytic
from tvm_moonpoly.microkernels.cuda import (
    GPUS,
    CudaTile,
    Epilogue,
    Form,
    cuda_source,
    find_nvcc,
    kernel_name,
)
from tvm_moonpoly.operators.cuda import Assembly, machine_code
from tvm_moonpoly.operators.cuda.matmul import host_module
from tvm_moonpoly.planner.cuda.spec import Product
from tvm_moonpoly.tuning.cuda import proposals
from tvm_moonpoly.tuning.cuda.tasks import tasks

H200 = GPUS["nvidia-h200"]

ALIGNED, ANY = CudaTile(64, 64, 32, 2, 2, 3), CudaTile(32, 64, 32, 1, 2, 2, epilogue="elements")
OTHER = CudaTile(16, 64, 64, 1, 2, 4)

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
needs_cc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def assembly(form: Form, *tiles: CudaTile) -> Assembly:
    return Assembly(form, tiles, cuda_analytic.table(tiles, form, H200))


def small(epilogue: Epilogue | None = None) -> contents.Library:
    """An operator of two micro-kernels."""
    forms = [Form(b_transposed=True, aligned=aligned) for aligned in (True, False)]
    made = [assembly(forms[0], ALIGNED), assembly(forms[1], ANY)]
    return contents.library(made, epilogue or Epilogue())


def test_shapes_of_the_set_are_each_there_once():
    shapes = cases.set_shapes()
    sizes = [each[1:] for each in shapes]
    assert len(set(sizes)) == len(sizes) > 500
    assert ("llama-2-7b down", 1, 4096, 11008) in shapes
    assert {what for what, *_ in shapes} > {"DeepBench", "resnet50 fc"}


def test_cases_are_of_the_libraries():
    plain, fused = small(), small(Epilogue(bias=True, activation="relu"))
    listed = cases.correct_cases([plain, fused])
    assert len({each["key"] for each in listed}) == len(listed)
    assert sum(each["library"] == fused.name for each in listed) < 60
    alone = [each for each in listed if "launches" in each]
    assert len(alone) == 4
    for each in alone:
        # not whole tiles, but whole chunks where the form needs them
        (launch,) = each["launches"]
        needs_chunks = "_any_" not in launch[0]
        assert (each["k"] % 8 == 0) == needs_chunks and each["n"] % 64 != 0
    compared = cases.speed_cases([plain, fused])
    assert {each["library"] for each in compared} == {plain.name}
    assert len(compared) == len(cases.set_shapes())
    with_tvm = cases.speed_cases([plain, fused], [(4096, 4096)])
    beside = [each for each in with_tvm if each.get("baseline") == "tvm_4096x4096"]
    assert len(beside) > 5 and all((x["n"], x["k"]) == (4096, 4096) for x in beside)
    # a part of them is like all
    assert len({each["what"] for each in compared[:40]}) > 10


def test_plans_cover_the_result_and_one_is_chosen():
    made = [assembly(Form(b_transposed=True), ALIGNED, OTHER)]
    made.append(assembly(Form(b_transposed=True, aligned=False), ANY))
    library = contents.library(made, Epilogue())
    blocks = {kernel_name(t, f): (t.block_m, t.block_n) for t, f in library.kernels}
    for m, n, k in ((1, 64, 64), (5000, 4096, 512), (5001, 4097, 63)):
        listed = list(cases.plans(library, {"m": m, "n": n, "k": k, "batch": 1}))
        assert sum(plan["chosen"] for plan in listed) == 1
        chosen = next(plan for plan in listed if plan["chosen"])
        assert chosen["predicted"] == min(plan["predicted"] for plan in listed)
        for plan in listed:
            covered = np.zeros((m, n), bool)
            for name, row, column, down, across in plan["launches"]:
                assert ("_any_" in name) == (k % 8 != 0)
                block_m, block_n = blocks[name]
                covered[row : row + down * block_m, column : column + across * block_n] = True
            assert covered.all()
        assert len(listed) > 1 or k % 8
    assert cases.suited(made, Product(8, 12, 64)) is made[0]
    assert cases.suited(made, Product(8, 13, 64)) is made[1]


def test_what_a_search_wants_is_a_bundle_of_its_own(tmp_path, monkeypatch):
    """Kernels of several forms, and their tasks, as the search writes them down."""
    from bench.gpu import __main__ as make

    a100 = GPUS["nvidia-a100"]
    found = contents.log(a100, "float16").kernels
    kernels = [found[0], found[-1], next(k for k in found if k.form != found[0].form)]
    listed = [each for k in kernels for each in tasks(k.tile, k.form, a100, k.static.blocks)[:2]]
    path = tmp_path / "wanted.json"
    assert proposals.write(path, a100, kernels, listed)
    given = []

    def stop(*args):
        given.append(args)
        raise RuntimeError("enough")

    monkeypatch.setattr(bundle, "make", stop)
    monkeypatch.setattr("tvm_moonpoly.microkernels.cuda.find_nvcc", lambda: "nvcc")
    arguments = ["--gpu", a100.name, "--wanted", str(path), "--out", str(tmp_path)]
    assert make.main(arguments) == 1
    ((_, _, libraries, asked, told, _, baselines),) = given
    held = {name for library in libraries for name in library.names().values()}
    assert {kernel.name for kernel in kernels} <= held and len(libraries) >= 2
    alone = {case["launches"][0][0] for case in asked["correct"]}
    assert alone == held and asked["speed"] == [] and baselines == ()
    assert told == [task.to_json() for task in listed]
    # it is for that GPU alone
    assert make.main(["--gpu", "nvidia-h200", "--wanted", str(path), "--out", str(tmp_path)]) == 1
    assert len(given) == 1


@pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))
def test_emulated_kernels_pass_the_check_of_results(tmp_path):
    """The part that checks results, on micro-kernels that the emulator runs."""
    library = small(Epilogue(bias=True, activation="relu"))
    launches, kernels = contents.lower(library, H200)
    module = host_module([library.operator, library.by_axes], launches)
    for each in kernels:
        module.import_module(each)
    emulated = emulate(cuda_source(module))
    entry = contents.entry(library)

    def emulating(name):
        return lambda *args: run_host(module, emulated, name, args)

    names = [entry["function"], entry["by_axes"], *(each["name"] for each in entry["kernels"])]
    functions = {name: emulating(name) for name in names}
    setting = make_setting(tmp_path, [entry], functions=functions)
    listed = [case(entry, *sizes) for sizes in ((1, 17, 65, 33), (2, 70, 64, 40))]
    listed += [case(entry, 6, 33, 65, 40, heads=3)]
    listed += [each for each in cases.correct_cases([library]) if "launches" in each]
    for each in listed:
        found = parts.correct(setting, each)
        assert found["right"], found
    wrong = dict(listed[-1], launches=[[*listed[-1]["launches"][0][:3], 1, 3]])
    assert not parts.correct(setting, wrong)["right"]


def few(library: contents.Library) -> tuple[dict, list]:
    """What a small bundle measures."""
    listed = cases.correct_cases([library])
    some = [each for each in listed if "launches" in each or each["m"] in (1, 17)][:6]
    some = [each for each in some if each["n"] * each["k"] < 1 << 16] + [
        each for each in listed if "launches" in each
    ][:2]
    plan = case(contents.entry(library), 1, 128, 128, 64)
    planner = [{**plan, "plans": list(cases.plans(library, plan))}]
    unique = list({each["key"]: each for each in some}.values())
    asked = {"correct": unique, "speed": cases.speed_cases([library])[:2], "planner": planner}
    form = Form(b_transposed=True)
    return asked, [task.to_json() for task in tasks(ALIGNED, form, H200, 1)[:2]]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a small bundle."""
    if find_nvcc() is None:
        pytest.skip("no nvcc")
    library = small()
    folder = tmp_path_factory.mktemp("made") / "gpu-bundle"
    bundle.make(folder, H200, [library], *few(library))
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The environment of a process that has Python and numpy, and nothing else of this one."""
    site = tmp_path_factory.mktemp("site")
    for folder in Path(np.__file__).parents[1].glob("numpy*"):
        if folder.name in ("numpy", "numpy.libs"):
            (site / folder.name).symlink_to(folder)
    return {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(site)}


@pytest.fixture(scope="module")
def fake_cuda(tmp_path_factory):
    """A folder with libraries in the place of CUDA's."""
    folder = tmp_path_factory.mktemp("cuda")
    source = str(Path(__file__).with_name("fake_cuda.c"))
    versions = folder / "versions.txt"
    versions.write_text("libcudart.so.13 { global: *; };\n")
    for name, more in (
        ("libcuda.so.1", ["-DDRIVER"]),
        ("libcudart.so.13", [f"-Wl,--version-script={versions}"]),
    ):
        command = ["gcc", "-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", source]
        subprocess.run([*command, "-o", str(folder / name), *more], check=True)
    return folder


def python(arguments, folder, env):
    """A Python without this one's packages, in ``folder``."""
    command = [sys.executable, "-S", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )


@needs_nvcc
def test_a_bundle_is_small_and_whole(made):
    names = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert {"run.py", "manifest.json", "cases.json", "tasks.json", "lib/f16_f16_nt.so"} <= names
    assert {"lib/libtvm_runtime.so", "lib/libtvm_runtime_cuda.so"} <= names
    assert "python/typing_extensions.py" in names
    assert not any("include" in name or "compiler" in name for name in names)
    size = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
    assert size < 20 << 20
    tar = made.with_suffix(".tar")
    with tarfile.open(tar) as file:
        listed = {member.name for member in file.getmembers() if member.isfile()}
    assert listed == {f"{made.name}/{name}" for name in names}
    manifest = json.loads((made / "manifest.json").read_text())
    assert manifest["gpu"]["arch"] == "sm_90" and manifest["versions"]["nvcc"].startswith("nvcc")
    bundle.check(made)


@needs_nvcc
def test_a_damaged_bundle_is_told(made, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    with (copy / "lib" / "f16_f16_nt.so").open("ab") as file:
        file.write(b"x")
    with pytest.raises(NoGpu, match=r"lib/f16_f16_nt.so is missing or damaged"):
        Bundle.read(copy)
    with pytest.raises(NoGpu, match="no bundle"):
        Bundle.read(tmp_path)


@needs_nvcc
def test_without_a_driver_it_says_so(made, alone, tmp_path):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has a driver")
    done = python([made / "run.py"], tmp_path, alone)
    assert done.returncode == 2
    assert "nothing was measured: no NVIDIA driver: libcuda.so.1 was not found" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def runnable(made, fake_cuda, tmp_path_factory):
    """The bundle with a library in the place of CUDA's runtime."""
    folder = tmp_path_factory.mktemp("runnable") / "bundle"
    shutil.copytree(made, folder)
    shutil.copy(fake_cuda / "libcudart.so.13", folder / "lib")
    manifest = json.loads((folder / "manifest.json").read_text())
    path = folder / "lib" / "libcudart.so.13"
    manifest["files"]["lib/libcudart.so.13"] = file_digest(path)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


LOADED = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from bench.gpu.runner.bundled import Bundle, file_digest
bundle = Bundle.read(Path({folder!r}))
device = bundle.open_device()
functions = bundle.load()
import tvm_ffi
assert tvm_ffi.__file__.startswith({folder!r}), tvm_ffi.__file__
assert not {{"tvm", "tvm_moonpoly"}} & set(sys.modules)
assert not any("compile" in name for name in tvm_ffi.registry.list_global_func_names())
for library in bundle.manifest["libraries"]:
    for name in (library["function"], *(kernel["name"] for kernel in library["kernels"])):
        print(name, functions.find(library["name"], name) is not None)
"""


@needs_nvcc
@needs_cc
def test_a_process_with_the_bundle_alone_finds_all_functions(runnable, alone, fake_cuda, tmp_path):
    env = {**alone, "LD_LIBRARY_PATH": str(fake_cuda)}
    done = python(["-c", LOADED.format(folder=str(runnable))], tmp_path, env)
    assert done.returncode == 0, done.stderr
    found = dict(line.split() for line in done.stdout.splitlines())
    assert set(found.values()) == {"True"} and "product_f16_f16_nt" in found and len(found) == 3


@needs_nvcc
@needs_cc
def test_a_gpu_that_computes_nothing_is_found_wrong(runnable, alone, fake_cuda, tmp_path):
    """All of ``run.py``: TVM's runtime loads machine code and launches it, times are taken, and
    results that nobody computed are named."""
    launches = tmp_path / "launches.txt"
    env = {**alone, "LD_LIBRARY_PATH": str(fake_cuda), "FAKE_CUDA_LAUNCHES": str(launches)}
    done = python([runnable / "run.py", "--minutes", "5"], tmp_path, env)
    assert done.returncode == 1, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["gpu"]["name"] == "A GPU that computes nothing"
    assert results["gpu"]["arch"] == "sm_90" and results["failures"] == []
    correct = results["correct"]
    # of a product with nothing to sum up zeros are right, which nobody wrote either
    assert correct["checked"] == correct["cases"] == len(correct["wrong"])
    assert "WRONG" in done.stdout and "is nan and not" in correct["wrong"][0]["reason"]
    assert len(results["tasks"]) == 2 and results["launch_seconds"] > 0
    assert len(results["planner"]) == 1 and results["speed"] == []
    assert "torch cannot be imported" in results["no_peer"]
    # a grid of one block a tile, as wide as the host computes it
    name = kernel_name(ALIGNED, Form(b_transposed=True))
    assert f"{name}_kernel 6,1,2 32,2,2 24576" in launches.read_text().splitlines()
    again = python([runnable / "run.py", "--part", "tasks"], tmp_path, env)
    assert again.returncode == 1 and "tasks: all 3 done" in again.stdout


@needs_nvcc
@needs_cc
@pytest.mark.parametrize(
    "more, said",
    [
        ({"FAKE_CUDA_DEVICES": "0"}, "no GPU: cudaGetDeviceCount says no CUDA-capable device"),
        ({"FAKE_CUDA_ARCH": "80"}, "the bundle is for sm_90, this GPU"),
    ],
)
def test_what_is_missing_is_one_sentence(runnable, alone, fake_cuda, tmp_path, more, said):
    env = {**alone, "LD_LIBRARY_PATH": str(fake_cuda), **more}
    done = python([runnable / "run.py"], tmp_path, env)
    assert done.returncode == 2 and said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_arguments_are_checked(capsys):
    from bench.gpu import __main__ as make
    from bench.gpu import run

    for arguments, said in ((["--minutes", "0"], "more than 0"), (["--part", "x"], "invalid")):
        with pytest.raises(SystemExit):
            run.main(arguments)
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        make.main(["--python", "new"])
    assert "a version like 3.12 is needed" in capsys.readouterr().err


def test_a_version_that_is_not_there_is_told(monkeypatch, tmp_path):
    def no_wheel(command, **_):
        assert "3.99" in command and "--only-binary" in command
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution")

    monkeypatch.setattr(packages.subprocess, "run", no_wheel)
    with pytest.raises(RuntimeError, match=r"--python 3.99: pip finds no wheel .*No matching"):
        packages.collect(tmp_path, "3.99")
    assert os.listdir(tmp_path) == ["typing_extensions.py"]


class _Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 4
        return self.now


def test_how_far_it_is_is_shown():
    """Lines every ten seconds where there is no terminal, and the last; else a bar."""
    out = io.StringIO()
    with progress.shown(Console(file=out, width=80), "kernels", 7, _Clock()) as advance:
        for _ in range(7):
            advance()
    assert out.getvalue().splitlines() == [f"kernels: {done} of 7" for done in (3, 6, 7)]
    out = io.StringIO()
    with progress.shown(Console(file=out, width=80, force_terminal=True), "kernels", 7) as advance:
        advance()
    assert "kernels" in out.getvalue() and "1/7" in out.getvalue()


def test_machine_code_is_kept_as_it_comes(tmp_path, monkeypatch):
    """What was compiled before an error, or Ctrl-C, is not compiled again."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path))
    monkeypatch.setattr(machine_code, "compiler", lambda: "nvcc 0")
    monkeypatch.setattr(machine_code, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(machine_code.os, "cpu_count", lambda: 1)
    made = []

    def cubin(source, arch):
        if source == "wrong":
            raise RuntimeError("wrong")
        made.append(source)
        return source.encode()

    monkeypatch.setattr(machine_code, "cubin", cubin)
    told = []
    with pytest.raises(RuntimeError, match="wrong"):
        machine_code.compiled(["a", "b", "wrong", "c", "d"], "sm_80", lambda: told.append(1))
    assert {"a", "b"} <= set(made)
    told.clear()
    found = machine_code.compiled(["d", "c", "b", "a"], "sm_80", lambda: told.append(1))
    assert found == [b"d", b"c", b"b", b"a"] and len(told) == 4
    assert sorted(made) == ["a", "b", "c", "d"]
