"""The command ``moonpoly``: what each command prints, exit codes, errors, and its start-up."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from core_testing import ROOT
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_moonpoly
from tvm_moonpoly import logs, versions
from tvm_moonpoly.cli import bench, command, info, main, output
from tvm_moonpoly.cli import compile as compile_command
from tvm_moonpoly.cli import explain as explain_command
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.costmodel.tasks import Level, Residency
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form
from tvm_moonpoly.operators import cache, described

COMMANDS = ("info", "tune", "explain", "compile", "bench", "logs")

AVX2 = '{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}'


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty MOONPOLY_HOME, and no logs or libraries of the user."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "home"


@pytest.fixture
def run(capsys):
    """Call the command line; the exit code, and what it printed to both streams."""

    def call(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return call


@pytest.fixture
def ok(run):
    """The same for a call that has to succeed: what it printed."""

    def call(*arguments):
        code, out, err = run(*arguments)
        assert code == 0, err
        return out

    return call


def process(*arguments, script=None, **environment):
    """The command line, or a script, in a process of its own."""
    start = ["-m", "tvm_moonpoly"] if script is None else ["-c", script]
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# All commands


def test_help_and_version_come_without_tvm():
    script = """
import sys
from tvm_moonpoly.cli import main
for arguments in (["--help"], ["--version"], *([name, "--help"] for name in sys.argv[1:])):
    assert main(arguments) == 0, arguments
heavy = {"tvm", "numpy", "onnx", "scipy"} & set(sys.modules)
print("heavy", *heavy)
"""
    result = process(*COMMANDS, script=script)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("heavy\n")


def test_help_names_all_commands_with_examples(ok):
    text = ok("--help")
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\w", text, re.MULTILINE)
    assert "examples:\n  moonpoly info\n" in text and "MOONPOLY_LOG" in text
    assert ok("--version") == f"moonpoly {tvm_moonpoly.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_has_examples_of_it(ok, name):
    text = ok(name, "--help")
    assert f"usage: moonpoly {name} " in text
    assert f"examples:\n  moonpoly {name}" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "arguments,complaint",
    [
        ([], "COMMAND must be one of info, tune, explain, compile, bench, logs"),
        (["nope"], "invalid choice: 'nope'"),
        (["--nope"], "unrecognized arguments: --nope"),
        (["info", "--nope"], "unrecognized arguments: --nope"),
        (["info", "--js"], "unrecognized arguments: --js"),
        (["explain", "matmul", "1", "2"], "required: K"),
        (["explain", "conv3d", "1", "2", "3"], "matmul, conv2d or a model (a file that "),
        (["explain", "att.py"], "conv2d or a model (a file that ends in .onnx), not 'att.py'"),
        (["explain", "matmul", "1", "2", "0"], "K: must be a whole number of at least 1, not '0'"),
        (["explain", "matmul", "1", "2", "x"], "K: must be a whole number of at least 1, not 'x'"),
        (["explain", "matmul", "1", "2", "3", "--dtype", "int4"], "invalid choice: 'int4'"),
        (["explain", "matmul", str(1 << 31), "2", "3"], "argument M: must be at most 2147483647"),
        (["explain", "matmul", "1", "2", "3", "--threads", "9999"], "--threads: must be at most"),
        (["compile", "model.onnx"], "required: -o"),
        (["compile", "model.onnx", "-o", "model"], "-o: must end in .so, not 'model'"),
        (["compile", "x", "-o", "no/folder/x.so"], "-o: there is no folder no/folder"),
        (["compile", "x", "-o", "x.so", "--dim", "n"], "--dim: must be NAME=SIZE, not 'n'"),
        (["compile", "x", "-o", "x.so", "--dim", "n=0"], "--dim: must be a whole number of at"),
        (["logs"], "required: ACTION"),
        (["logs", "import"], "required: file"),
        (
            ["bench", "nope"],
            "must be one of conv, fuzz, gemm, gpu, instructions, minilm, models, notebooks, ocr, "
            "planner, not 'nope'",
        ),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(run, arguments, complaint):
    code, out, err = run(*arguments)
    assert code == 2 and out == ""
    assert complaint in err and err.startswith("usage: ")


@pytest.mark.parametrize(
    "error,said",
    [
        (ValueError("m: must be odd\nand more"), "error: m: must be odd"),
        (LookupError("no such log"), "error: no such log"),
        (KeyError("x"), "error: KeyError: 'x'"),
        (RuntimeError("\n  TVM is unhappy\nstack"), "error: RuntimeError: TVM is unhappy"),
        (FileNotFoundError(2, "No such file", "x.onnx"), "error: x.onnx: No such file"),
        (OSError("odd"), "error: odd"),
        (AssertionError(), "error: AssertionError: AssertionError"),
        (command.UserError("sorry"), "error: sorry"),
        (command.UserError("a\nb\x1b[2J: no"), "error: a\\nb\\x1b[2J: no"),
        (FileNotFoundError(2, "No such file", "a\nb"), "error: a\\nb: No such file"),
        (
            RuntimeError("Compilation error:\nld: no"),
            "error: RuntimeError: Compilation error: ld: no",
        ),
    ],
    ids=repr,
)
def test_errors_are_one_sentence_and_1(run, monkeypatch, error, said):
    def failing(arguments):
        raise error

    monkeypatch.delenv("MOONPOLY_LOG", raising=False)
    monkeypatch.setattr(info, "main", failing)
    assert run("info") == (1, "", f"{said}\n")


def test_a_traceback_comes_with_debug(capsys, monkeypatch):
    def failing(arguments):
        raise ValueError("m: must be odd")

    monkeypatch.setattr(info, "main", failing)
    monkeypatch.setenv("MOONPOLY_LOG", "debug")
    assert main(["info"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and err.endswith("error: m: must be odd\n")


def test_an_interrupt_is_130(run, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "main", interrupted)
    assert run("info") == (130, "", "interrupted\n")


def test_a_reader_that_stops_early_is_no_error():
    """`moonpoly logs show | head -1`"""
    child = subprocess.Popen(
        [sys.executable, "-m", "tvm_moonpoly", "logs", "show"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    child.stdout.close()
    err = child.stderr.read()
    assert child.wait(timeout=120) == 1
    assert "Traceback" not in err and "error" not in err.lower()


WITHOUT = ["--help"], ["logs", "show"], ["logs", "export", "-"]


@pytest.mark.parametrize("arguments", WITHOUT, ids=" ".join)
@pytest.mark.parametrize("to,code", [(">/dev/full", 1), (">&-", 0), ("| head -0", 1)])
def test_output_that_goes_nowhere(arguments, to, code):
    """One sentence about a full disk; nothing about what the caller has closed."""
    line = f"set -o pipefail; {shlex.join([sys.executable, '-m', 'tvm_moonpoly', *arguments])} {to}"
    result = subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    full = "error: [Errno 28] No space left on device\n" if "full" in to else ""
    # on a CPU that no log was made on, one line says which log is used
    said = re.sub(r"^no tuning log of .*\n", "", result.stderr)
    assert (result.returncode, result.stdout, said) == (code, "", full)


def test_input_that_is_closed():
    line = shlex.join([sys.executable, "-m", "tvm_moonpoly", "logs", "import", "-"]) + " <&-"
    result = subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    assert result.stderr == "error: standard input: it does not begin with a header\n"


def test_output_that_cannot_show_a_character():
    """An ASCII pipe: everything is printed, and lines are as long as they have to be."""
    result = process("explain", "matmul", 31, 333, 2100, PYTHONIOENCODING="ascii")
    assert result.returncode == 0 and result.stdout.isascii()
    assert "| region 1: " in result.stdout and "predicted us" in result.stdout


# info


def test_info(ok, home):
    text = ok("info")
    machine, log, _ = described(tvm_moonpoly.detect_target())
    for expected in (
        tvm.__version__,
        f"apache-tvm-ffi         {versions.installed('apache-tvm-ffi')}",
        machine.mcpu,
        f"{machine.isa}: {machine.lanes * 32} bits, {machine.lanes} float32, "
        f"{machine.vector_registers} registers",
        log.origin,
        str(home / "tuning_logs"),
        f"{home / 'libraries'} (0 files, 0 bytes; this machine's is not there)",
    ):
        assert expected in text


def test_info_as_json(ok, home, monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    cache.store("key", lambda path: path.write_bytes(b"bitcode"))
    found = json.loads(ok("info", "--json"))
    machine, log, table = described(tvm_moonpoly.detect_target())
    assert found["versions"]["tvm_moonpoly"] == tvm_moonpoly.__version__
    assert found["target"]["mcpu"] == found["machine"]["mcpu"] == machine.mcpu
    assert found["machine"]["l2_bytes"] == machine.l2_bytes
    assert found["machine"]["features"] == sorted(machine.features)
    assert found["log"]["origin"] == log.origin and found["log"]["kernels"] == len(table.tasks)
    assert found["log"]["exact"] == (log.machine["mcpu"] == machine.mcpu)
    assert found["threads"]["from"] == "TVM_NUM_THREADS=2" and found["warnings"] == []
    assert found["cache"] == {
        "folder": str(home / "libraries"),
        "files": 1,
        "bytes": 7,
        "parts": [],
    }


def test_info_tells_a_nearest_log_and_a_library_that_is_there(ok, home, monkeypatch):
    machine = Machine.from_target(tvm_moonpoly.detect_target())
    table = described(tvm_moonpoly.detect_target())[2]
    path = logs.of_machine(replace(machine, mcpu=f"{machine.mcpu}x"))
    logs.write(path, replace(machine, mcpu=f"{machine.mcpu}x"), table.to_entries())
    packaged = [reading for origin, reading in logs.stored() if not origin.startswith("packaged ")]
    monkeypatch.setattr(logs.places, "stored", lambda: iter([(str(path), packaged[0])]))
    monkeypatch.setattr(cache, "load", lambda key: path)
    text = ok("info")
    assert f"{path} (the nearest, of {machine.mcpu}x; " in text
    assert "of this machine's library: plans, gemm" in text


@pytest.mark.parametrize(
    "version,crashes",
    [
        ("0.1.14.post1", False),
        ("0.1.15", True),
        ("0.1.15.post2", True),
        ("0.1.16rc1", True),
        ("0.2.0", True),
        ("1", True),
        ("0.1.9", False),
        (None, False),
    ],
)
def test_info_warns_of_a_tvm_ffi_that_crashes(ok, monkeypatch, version, crashes):
    monkeypatch.setattr(
        versions, "installed", lambda name: version if name == "apache-tvm-ffi" else "1.0"
    )
    warnings = json.loads(ok("info", "--json"))["warnings"]
    said = [warning for warning in warnings if "apache-tvm-ffi" in warning]
    assert bool(said) == crashes
    if crashes:
        assert f"apache-tvm-ffi {version} crashes" in said[0] and "pip install" in said[0]
        assert f"warning: {said[0]}" in ok("info")


def test_info_warns_where_tvm_counts_the_cores_itself(ok, monkeypatch):
    for name in info.THREADS:
        monkeypatch.delenv(name, raising=False)
    assert "warning: TVM_NUM_THREADS is not set: TVM uses half of the cores" in ok("info")


def test_info_knows_both_builds_of_xgboost(ok, monkeypatch):
    there = {"xgboost-cpu": "3.2.0", "apache-tvm-ffi": "0.1.14"}
    monkeypatch.setattr(versions, "installed", there.get)
    assert json.loads(ok("info", "--json"))["versions"]["xgboost"] == "3.2.0"
    assert re.search(r"^xgboost +3\.2\.0$", ok("info"), re.MULTILINE)


def test_info_does_not_start_threads_without_end():
    """TVM starts as many as the variable says as soon as it is asked for their number."""
    result = process("info", "--json", TVM_NUM_THREADS="99999999999")
    found = json.loads(result.stdout)
    assert found["threads"]["tvm"] == 99999999999
    assert found["warnings"][-1].startswith("TVM starts 99999999999 threads at the first")


def test_info_of_a_cpu_without_micro_kernels(ok, monkeypatch):
    plain = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
    monkeypatch.setattr("tvm_moonpoly.machine.detect_target", lambda: plain)
    assert "micro-kernels" in ok("info")
    found = json.loads(ok("info", "--json"))
    assert found["machine"] is None and found["log"] is None
    assert found["reason"].startswith("CPU 'x86-64' has none of the vector units")


# explain


def test_explain_draws_regions_and_says_why(ok):
    text = ok("explain", "matmul", 31, 333, 2100, "--target", AVX2)
    assert text.startswith("C[31, 333] = A[31, 2100] @ B[2100, 333], fp32, on x86-64-v3 (avx2")
    found = tvm_moonpoly.explanation.explained(31, 333, 2100, json.loads(AVX2))
    drawn = text[text.index("   +") : text.index("region 1: columns")]
    for i, region in enumerate(found.regions):
        assert f"| region {i + 1}" in drawn
        for number, rows in region.tiles:
            assert f"{number} x {rows}x{region.kernel.split('x')[1]}" in drawn
    assert "partial" in drawn  # 333 is no multiple of 8
    assert "spent on: micro-kernels" in text
    assert f"chosen: the cheapest of {len(found.ranked)} plans; the next one, " in text
    assert text.count("\n") > 20 and "predicted us" in text


def test_explain_as_json(ok):
    found = json.loads(ok("explain", "matmul", 31, 333, 2100, "--target", AVX2, "--json"))
    assert (found["m"], found["n"], found["k"], found["dtype"]) == (31, 333, 2100, "float32")
    assert found["planned"] and found["machine"]["threads"] == 2 and found["constant_weights"]
    ranked = [entry["predicted_ps"] for entry in found["ranked"]]
    assert ranked == sorted(ranked) and ranked[0] == found["predicted_ps"]
    assert sum(found["spent_on"].values()) == found["predicted_ps"]
    columns = [region["columns"] for region in found["regions"]]
    assert columns[0][0] == 0 and columns[-1][1] == 332
    assert all(left[1] + 1 == right[0] for left, right in zip(columns, columns[1:], strict=False))
    assert found["plan"]["b_mode"] == "prepacked" and found["plan"]["workers"] == 2


def test_explain_batches_threads_and_dynamic_operands(ok):
    shape = ("explain", "matmul", 64, 64, 32, "--target", AVX2)
    found = json.loads(ok(*shape, "--batch", 12, "--threads", 1, "--json"))
    assert found["batch"] == 12 and not found["constant_weights"]
    assert found["machine"]["threads"] == 1 and found["plan"]["workers"] == 1
    assert json.loads(ok(*shape, "--dynamic", "--json"))["plan"]["b_mode"] != "prepacked"
    assert ", 12 products" in ok(*shape, "--batch", 12)


@pytest.mark.parametrize("dtype", explain_command.CONVERTED)
def test_explain_types_that_are_converted(ok, dtype):
    text = ok("explain", "matmul", 8, 8, 8, "--dtype", dtype, "--target", AVX2)
    assert text.startswith(f"{dtype} operands are converted first; the product is one of float32")


@pytest.mark.parametrize("dtype", explain_command.PLAIN)
def test_explain_types_without_plans(ok, run, dtype):
    arguments = ("explain", "matmul", 8, 9, 10, "--dtype", dtype)
    assert ok(*arguments) == f"{dtype} products are computed by plain loops, without a plan\n"
    found = json.loads(ok(*arguments, "--json"))
    assert not found["planned"] and (found["m"], found["n"], found["k"]) == (8, 9, 10)
    assert run(*arguments, "--measure")[:2] == (1, "")


@pytest.mark.parametrize(
    "target,reason",
    [
        ("nope", "--target: LLVM knows no CPU 'nope' of this architecture"),
        ('{"kind": "llvm", "mcpu": "nope"}', "--target: LLVM knows no CPU 'nope' of this"),
        ('{"kind": "llvm", "mtriple": "nope"}', "--target: LLVM knows no architecture 'nope'"),
        ('{"kind": "nope"}', '--target: Target kind "nope" is not defined.'),
        ('{"kind": "llvm", "x": 1}', "--target: Unknown config option 'x'."),
        ('{"kind": ', "--target: it is not JSON: "),
        ('{"kind": "llvm", "num-cores": 0}', "--target: num-cores must be from 1 to 4096, not 0"),
        ('{"kind": "llvm", "num-cores": -3}', "--target: num-cores must be from 1 to 4096, not"),
        (
            '{"kind": "cuda", "arch": "sm_75"}',
            "--target: micro-kernels for GPUs are made",
        ),
        ('{"kind": "metal"}', "target: no micro-kernels for target kind 'metal'"),
        ('{"kind": "llvm"}', "target: CPU 'generic' has none of the vector units"),
    ],
)
def test_explain_refuses_targets_in_one_sentence(run, target, reason):
    code, out, err = run("explain", "matmul", 1, 2, 3, "--target", target)
    assert code == 1 and out == ""
    assert err.startswith(f"error: {reason}") and err.count("\n") == 1


def test_explain_conv2d_refuses_gpus_as_compile_does(run):
    code, out, err = run("explain", "conv2d", 1, 56, 56, 64, 64, "--target", "nvidia/nvidia-a100")
    assert code == 1 and out == "" and err == "error: target: no convolutions for cuda\n"
    for what in ("conv2d", "model.onnx"):
        assert "GPU" not in run("explain", what, "--help")[1]
    assert "GPU" in run("explain", "matmul", "--help")[1]


@pytest.mark.parametrize("more", [(), ("--batch", 3)], ids=["weights", "batch"])
def test_explain_measures_the_plan_and_its_runners_up(ok, more):
    """The ranks that the planner gave, with times, and the best plan found."""
    found = json.loads(ok("explain", "matmul", 9, 43, 40, *more, "--measure", "--json"))
    times = found["measured_ps"]
    assert 5 <= len(times) <= len(found["ranked"]) and min(times) > 0
    assert 0 <= found["best_found"] < len(times)
    # of the same order as predicted, on whatever machine: a call costs some 0.5 us
    assert times[0] < 1000 * found["predicted_ps"] + 1e9
    if found["best_found"] == 0:
        assert found["loss"] == 0
    text = ok("explain", "matmul", 9, 43, 40, *more, "--measure")
    assert "measured / predicted" in text and "measured on one core: " in text
    assert "best plan found: " in text
    assert text.count("predicted us") == 1  # one table, not two


def test_explain_measures_also_the_call_on_all_threads(ok):
    found = json.loads(
        ok("explain", "matmul", 64, 1024, 256, "--threads", 2, "--measure", "--json")
    )
    assert found["plan"]["workers"] == 2 and found["wall_ps"] > 0
    assert found["threads"] == min(2, tvm.get_global_func("runtime.NumThreads")())


@pytest.mark.parametrize(
    "sizes,more",
    [
        ((1, 9, 8, 16, 24), ("--kernel", 3, 3, "--padding", 1, 1, 1, 1)),
        ((2, 5, 6, 8, 12), ("--groups", 4, "--strides", 2, 2, "--dtype", "float16")),
        ((1, 7, 7, 10, 10), ("--groups", 10, "--kernel", 3, 3)),
    ],
    ids=["winograd", "groups", "depthwise"],
)
def test_explain_measures_convolutions(ok, sizes, more):
    arguments = ("explain", "conv2d", *sizes, *more, "--threads", 1, "--measure")
    found = json.loads(ok(*arguments, "--json"))
    assert found["measured_ps"] > 0 and found["wall_ps"] is None and found["threads"] == 1
    by_winograd = found["plan"]["form"] == "patches"
    assert by_winograd == (found["measured_direct_ps"] is not None) == (sizes == (1, 9, 8, 16, 24))
    text = ok(*arguments)
    assert "measured on one core: " in text and by_winograd == ("\ndirectly: " in text)


def test_explain_does_not_measure_what_cannot_run_here(run):
    machine = Machine.from_target(tvm_moonpoly.detect_target())
    if "avx512f" in machine.features:
        pytest.skip("this CPU has it")
    code, _, err = run("explain", "matmul", 9, 8, 8, "--measure", "--target", "skylake-avx512")
    assert code == 1 and "error: --measure: code for skylake-avx512 does not run here\n" in err
    code, _, err = run("explain", "matmul", 10**5, 10**5, 8, "--measure")
    assert code == 1 and "error: --measure: the operands take 37.2" in err
    code, _, err = run("explain", "conv2d", 999, 999, 999, 9, 9, "--measure")
    assert code == 1 and "error: --measure: the operands take 66.8" in err


def test_many_plans_take_no_more_memory_than_one(monkeypatch):
    """And large products are not timed for hours: the first plans alone are."""
    from tvm_moonpoly import explanation
    from tvm_moonpoly.cli import measure

    target = tvm_moonpoly.detect_target()
    made = []
    monkeypatch.setattr(measure, "filled", lambda *shape: made.append(shape))
    found = explanation.explained(512, 512, 512, target, constant_weights=False)
    call = measure._calls({measure.MATMUL_PLANNED: None}, found)
    for plan in measure._worth_timing(found):
        call(plan.plan)
    assert made == [(1, 512, 512)] * 3
    huge = explanation.explained(8000, 8000, 8000, target, constant_weights=False)
    seconds = huge.best.picoseconds * 1e-12
    kept = measure._worth_timing(huge)
    assert len(kept) >= measure.ALWAYS and kept == list(huge.ranked[: len(kept)])
    assert len(kept) == measure.ALWAYS or len(kept) * seconds * 4 <= measure.BUDGET


def test_the_best_plan_is_picked_on_half_of_the_rounds(monkeypatch):
    """A plan that is fast by chance in the rounds that pick it does not look better than it is."""
    from tvm_moonpoly import explanation
    from tvm_moonpoly.cli import measure

    target = tvm_moonpoly.detect_target()
    found = explanation.explained(9, 43, 40, target)
    even, odd = np.full(len(found.ranked), 10.0), np.full(len(found.ranked), 10.0)
    even[1], odd[1] = 5.0, 12.5
    monkeypatch.setattr(
        measure.timing, "interleaved", lambda calls: np.array([even, odd])[:, : len(calls)]
    )
    monkeypatch.setattr(measure.timing, "after_a_pause", lambda call: 1.0)
    result = measure.measured(found, target)
    assert result.best == 1 and result.loss == pytest.approx(10 / 12.5 - 1)
    assert "the chosen one takes -20.0%" in result.verdict()[1]


# compile


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """relu(x @ w + b) @ v, two dynamic dimensions named and one not; its file and weights."""
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((16, 24), "float32"), rng.standard_normal(24, "float32")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "v"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in [
            ("x", ["batch", None, 16]),
            ("v", ["batch", 24, "columns"]),
            ("y", ["batch", None, "columns"]),
        ]
    ]
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    graph = helper.make_graph(nodes, "small", values[:2], values[2:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(made, path)
    return path, w, b


def outcome(library, model, batch, rows, columns):
    """The compiled model's result on random inputs, and numpy's."""
    _, w, b = model
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, rows, 16), "float32")
    v = rng.standard_normal((batch, 24, columns), "float32")
    loaded = tvm.runtime.load_module(str(library))
    vm = relax.VirtualMachine(loaded, tvm.cpu())
    result = vm["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(v)).numpy()
    return result, np.maximum(x @ w + b, 0) @ v


def test_compile_reports_and_writes_a_library_that_runs(ok, model, tmp_path):
    library = tmp_path / "a folder" / "small.so"
    library.parent.mkdir()
    text = ok("compile", model[0], "-o", library)
    assert re.search(r"rewritten .* main .* \(batch, x_1, 16\) x \(16, 24\) .* bias \+ relu", text)
    assert "input x: float32 (batch, x_1, 16)" in text
    assert f"2 rewritten, 0 left as they were; wrote {library} (" in text
    assert list(library.parent.iterdir()) == [library]
    for sizes in ((2, 5, 7), (1, 1, 33)):
        np.testing.assert_allclose(*outcome(library, model, *sizes), rtol=1e-4, atol=1e-4)


def test_compile_with_fixed_dimensions(ok, model, tmp_path):
    library = tmp_path / "small.so"
    fixed = ("--dim", "batch=2", "--dim", "x_1=5", "--dim", "columns=7")
    found = json.loads(ok("compile", model[0], "-o", library, *fixed, "--json"))
    assert [value["shape"] for value in found["inputs"]] == [[2, 5, 16], [2, 24, 7]]
    assert (found["rewritten"], found["left"]) == (0, 2)
    assert {entry["detail"] for entry in found["operators"]} == {"static shapes"}
    assert found["bytes"] == library.stat().st_size and found["output"] == str(library)
    found = json.loads(ok("compile", model[0], "-o", library, *fixed, "--static", "--json"))
    assert (found["rewritten"], found["left"]) == (2, 0)
    np.testing.assert_allclose(*outcome(library, model, 2, 5, 7), rtol=1e-4, atol=1e-4)


def test_compile_for_another_target(ok, model, tmp_path):
    """Nothing is rewritten there, and the report says why; the model compiles all the same."""
    library = tmp_path / "small.so"
    target = '{"kind": "llvm", "mcpu": "x86-64"}'
    text = ok("compile", model[0], "-o", library, "--target", target)
    assert "CPU 'x86-64' has none of the vector units" in text and "0 rewritten, 2 left" in text


@pytest.mark.parametrize(
    "arguments,expected,reason",
    [
        (
            ["--dim", "bacth=2"],
            2,
            "--dim: no input has a dimension 'bacth'; dynamic are: batch, x_1, ",
        ),
        (["--target", "nope"], 1, "--target: LLVM knows no CPU 'nope'"),
    ],
    ids=["dimension", "target"],
)
def test_compile_refuses(run, model, tmp_path, arguments, expected, reason):
    code, out, err = run("compile", model[0], "-o", tmp_path / "x.so", *arguments)
    assert code == expected and out == "" and err.startswith(f"error: {reason}")
    assert "or as INPUT:AXIS, such as x:0" in err or expected == 1
    assert err.count("\n") == 1 and not list(tmp_path.iterdir())
    assert run("compile", model[0], "-o", "x.so", "--dim", "batch=1", "--dim", "batch=2")[0] == 2


@pytest.mark.parametrize(
    "content,reason",
    [
        (None, "model.onnx: No such file or directory"),
        (b"not a model\n", "model.onnx cannot be imported: this is no ONNX model"),
        (b"", "model.onnx cannot be imported: this is no ONNX model"),
    ],
    ids=["missing", "foreign", "empty"],
)
def test_compile_of_what_is_no_model(run, tmp_path, content, reason):
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    code, _, err = run("compile", path, "-o", tmp_path / "x.so")
    assert code == 1 and reason in err and err.count("\n") == 1


def test_compile_refuses_what_cannot_be_written_at_once(run, model, tmp_path, monkeypatch):
    monkeypatch.setattr("tvm_moonpoly.cli.compile.loaded", lambda path, dims: 1 / 0)
    (tmp_path / "folder.so").mkdir()
    code, _, err = run("compile", model[0], "-o", tmp_path / "folder.so")
    assert (code, err) == (1, f"error: -o: {tmp_path / 'folder.so'} cannot be written\n")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, _, err = run("compile", model[0], "-o", tmp_path / "x.so")
    assert (code, err) == (1, f"error: -o: {tmp_path / 'x.so'} cannot be written\n")


def test_compile_takes_a_size_of_less_than_nothing_for_a_dynamic_one(model, tmp_path):
    changed = onnx.load(model[0])
    changed.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -1
    onnx.save(changed, tmp_path / "changed.onnx")
    found = compile_command.loaded(tmp_path / "changed.onnx", {})
    assert compile_command.inputs(found)[0]["shape"] == ["batch", "x_1", 16]


def test_compile_names_and_bounds_dimensions(ok, model, tmp_path):
    chosen = ("--dim", "batch=n", "--dim", "x:1=2:8")
    library = tmp_path / "small.so"
    found = json.loads(ok("compile", model[0], "-o", library, *chosen, "--json"))
    assert found["inputs"][0]["shape"] == ["n", "x_1", 16]
    np.testing.assert_allclose(*outcome(library, model, 2, 5, 7), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="the dimension x_1 must be between 2 and 8"):
        outcome(library, model, 2, 9, 7)


def test_compile_names_the_node_that_cannot_be_imported(run, model, tmp_path):
    changed = onnx.load(model[0])
    changed.graph.node[2].op_type = "Det"
    onnx.save(changed, tmp_path / "changed.onnx")
    code, out, err = run("compile", tmp_path / "changed.onnx", "-o", tmp_path / "x.so")
    assert code == 1 and out == "" and err.count("\n") == 1
    assert "cannot be imported: Det 'hidden': TVM's importer has no such operator" in err


def test_compile_without_a_compiler_leaves_nothing(run, model, tmp_path, monkeypatch):
    library = tmp_path / "x.so"
    library.write_bytes(b"of before")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", str(tmp_path))
    target = '{"kind": "llvm", "mcpu": "x86-64"}'
    code, _, err = run("compile", model[0], "-o", library, "--target", target)
    assert code == 1 and err.startswith("error: ") and "no-such-compiler" in err
    assert list(tmp_path.iterdir()) == [library] and library.read_bytes() == b"of before"


# bench and tune


def test_bench_runs_a_benchmark_of_the_repository(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "minilm", "--help"]) == 0
    assert "python -m bench.minilm" in capfd.readouterr().out
    # its options, and its exit code
    assert main(["bench", "minilm", "--rounds", "0"]) == 2
    assert "must be at least 1, got 0" in capfd.readouterr().err


def test_bench_says_when_there_is_no_repository(run, monkeypatch, tmp_path):
    (tmp_path / "site-packages" / "tvm_moonpoly").mkdir(parents=True)
    installed = tmp_path / "site-packages" / "tvm_moonpoly" / "__init__.py"
    monkeypatch.setattr(tvm_moonpoly, "__file__", str(installed))
    assert bench.names(installed.parents[1]) == []
    code, out, err = run("bench", "gemm", "--quick")
    assert code == 1 and out == ""
    assert err.startswith("error: the benchmarks are part of the repository") and "make" in err


def test_tune_hands_its_arguments_to_the_stage(run, monkeypatch):
    from tvm_moonpoly.tuning import stage

    seen = []
    monkeypatch.setattr(stage, "main", lambda arguments: seen.append(arguments) or 7)
    assert run("tune", "--budget", "10m", "--quick")[0] == 7
    assert run("tune")[0] == 7
    assert run("tune", "--budget", "soon")[0] == 2
    assert seen == [["--budget", "10m", "--quick"], []]


# logs


@pytest.fixture
def exported(ok, home, tmp_path):
    path = tmp_path / "exported.jsonl"
    ok("logs", "export", path)
    return path


def own(home: Path) -> list[Path]:
    return sorted((home / "tuning_logs").glob(f"*/{logs.FILE_NAME}"))


def test_logs_list(ok, home):
    machine, used, table = described(tvm_moonpoly.detect_target())
    rows = json.loads(ok("logs", "list", "--json"))
    (row,) = [row for row in rows if row["verdict"] == "used"]
    assert row["origin"] == used.origin and row["kernels"] == len(table.tasks) and row["usable"]
    entries = table.to_entries()
    logs.write(logs.of_machine(machine), machine, entries)
    logs.write(logs.own_path(machine.isa, "znver1"), replace(machine, mcpu="znver1"), entries)
    logs.write(logs.own_path("avx512", "x"), replace(machine, mcpu="x", isa="avx512"), entries)
    logs.write(logs.own_path("broken", "x"), replace(machine, mcpu="y"), entries[1:])
    later = {**logs.header(machine), "version": 2}
    logs.replace(logs.own_path("later", "x"), [later, *entries])
    lines = ok("logs", "list").splitlines()
    rows = {
        Path(row["origin"]).parent.name: row for row in json.loads(ok("logs", "list", "--json"))
    }
    assert rows[f"{machine.isa}-znver1"]["verdict"].startswith("not used: another is nearer")
    assert rows["broken-x"]["verdict"].startswith("skipped: tiles of 1 vectors lack heights")
    assert rows["later-x"]["verdict"].startswith("skipped: its format is version 2")
    if "avx512f" not in machine.features:
        assert rows["avx512-x"]["verdict"] == "skipped: this CPU lacks avx512f"
    # nothing is cut where there is no terminal
    assert any(rows["broken-x"]["origin"] in line for line in lines)


def test_logs_show(ok, run, home, exported):
    _, used, _ = described(tvm_moonpoly.detect_target())
    table = CostTable.from_entries([dict(entry) for entry in used.entries])
    text = ok("logs", "show")
    assert f"mcpu        {used.machine['mcpu']}" in text
    for record, cost in table.tasks.items():
        form = {Form.PLAIN: "plain", Form.PACKED_A: "packed A", Form.IN_PLACE_B: "B in place"}
        near, far = (cost.at(Residency(Level.L1, b), 384) for b in (Level.L1, Level.MEMORY))
        row = rf"{record.mr} \W *{record.nv} \W {form[record.form]} .* {near} \W +{far} "
        assert re.search(row, text), record
    assert f"launch {table.traffic.launch}" in text
    found = json.loads(ok("logs", "show", "--json"))
    assert found["mcpu"] == used.machine["mcpu"] and found["entries"] == list(used.entries)
    # by a file's name, and by the name of its place
    assert json.loads(ok("logs", "show", exported, "--json"))["entries"] == found["entries"]
    if used.origin.startswith("packaged "):
        name = used.origin.removeprefix("packaged ")
        assert json.loads(ok("logs", "show", name, "--json")) == found
    code, _, err = run("logs", "show", "nowhere")
    assert (code, err) == (1, "error: nowhere: No such file or directory\n")


def test_logs_show_what_is_whole_of_a_damaged_file(run, exported, caplog):
    exported.write_bytes(exported.read_bytes() + b"torn")
    code, out, _ = run("logs", "show", exported, "--json")
    assert code == 0 and json.loads(out)["entries"]
    assert f"{exported}: line {len(exported.read_bytes().splitlines())} is skipped" in caplog.text
    exported.write_text("nothing of ours\n")
    code, _, err = run("logs", "show", exported)
    assert code == 1 and err.startswith(f"error: {exported}: line 1: it is not JSON")


def test_a_log_moves_from_one_machine_to_another(ok, run, home, exported, monkeypatch, tmp_path):
    """Exported here, imported there, and used there."""
    _, used, _ = described(tvm_moonpoly.detect_target())
    there = tmp_path / "there"
    monkeypatch.setenv("MOONPOLY_HOME", str(there))
    assert "wrote the log of " in ok("logs", "import", exported)
    (path,) = own(there)
    assert path.parent.name == f"{used.machine['isa']}-{used.machine['mcpu']}"
    _, now, _ = described(tvm_moonpoly.detect_target())
    assert now.origin == str(path)
    assert now.entries == used.entries and now.machine == used.machine
    # the same bytes, as often as it moves
    again = tmp_path / "again.jsonl"
    ok("logs", "export", again)
    assert again.read_bytes() == exported.read_bytes()
    assert sorted(each.name for each in tmp_path.glob("*.jsonl*")) == [again.name, exported.name]


def test_logs_import_replaces_only_when_told(ok, run, home, exported):
    ok("logs", "import", exported)
    (path,) = own(home)
    path.write_bytes(path.read_bytes() + b"torn\n")
    before = path.read_bytes()
    code, _, err = run("logs", "import", exported)
    assert code == 1 and str(path) in err and err.endswith("--replace replaces it\n")
    assert path.read_bytes() == before
    found = json.loads(ok("logs", "import", exported, "--replace", "--json"))
    assert found["path"] == str(path) and path.read_bytes() == exported.read_bytes()
    code, _, err = run("logs", "export", exported)
    assert (code, err) == (1, f"error: {exported}: it exists; --replace replaces it\n")
    ok("logs", "export", exported, "--replace")


def _without(kind):
    def change(lines):
        return [line for line in lines if f'"kind": "{kind}"' not in line]

    return change


def _signed(change):
    """Change an entry and its checksum along with it."""

    def change_one(lines):
        entry = json.loads(lines[1])
        del entry["sum"]
        change(entry)
        return [lines[0], logs.encode(entry).decode(), *lines[2:]]

    return change_one


def _first(entry, value):
    entry["alone"][0][0] = value


def _width(kernel):
    return kernel["record"]["nv"]


def _too_large(lines):
    """Another width, complete with all of its heights, but for more registers than there are."""
    entries = [json.loads(line) for line in lines[1:]]
    kernels = [each for each in entries if "record" in each]

    def form(kernel):
        return kernel["record"]["packed_a"], kernel["record"]["in_place_b"]

    widest = {form(each): each["record"]["nv"] for each in sorted(kernels, key=_width)}
    added = [
        {**each, "record": {**each["record"], "nv": widest[form(each)] + 1}}
        for each in kernels
        if _width(each) == 1
    ]
    for each in added:
        del each["sum"]
    return [lines[0], *(logs.encode(each).decode() for each in added), *lines[1:]]


REFUSED = {
    "a changed number": (lambda lines: [lines[0], lines[1].replace('"mr": 1', '"mr": 2')],
                         "line 2: its checksum does not match"),
    "a torn line": (lambda lines: [*lines[:-1], lines[-1][:-9]], ": it is not JSON"),
    "no header": (lambda lines: lines[1:], "it does not begin with a header"),
    "nothing": (lambda lines: [], "it does not begin with a header"),
    "no traffic": (_without("traffic"), "it holds no kernels or no traffic costs"),
    "no kernels": (_without("kernel"), "it holds no kernels or no traffic costs"),
    "a missing height": (lambda lines: [lines[0], *lines[2:]], "tiles of 1 vectors lack heights"),
    "a cost below 0": (_signed(lambda e: _first(e, -1)), "must list the picoseconds"),
    "a cost of 2 ** 63": (_signed(lambda e: _first(e, (1 << 63) - 1)), "must list the picoseconds"),
    "a text as cost": (_signed(lambda e: _first(e, "1")), "must list the picoseconds"),
    "a foreign family": (_signed(lambda e: e["record"].update(family="x")), "family 'x' is not"),
    "a foreign decision": (_signed(lambda e: e["record"].update(decisions={"x": 1})),
                           "decisions: 'x' is none of"),
    "tiles too large": (_too_large, "does not fit the registers of"),
}  # fmt: skip


@pytest.mark.parametrize("change,reason", REFUSED.values(), ids=REFUSED)
def test_logs_import_checks_all_before_anything_is_written(run, home, exported, change, reason):
    lines = exported.read_text().splitlines()
    exported.write_text("\n".join(change(lines)) + "\n")
    code, out, err = run("logs", "import", exported)
    assert code == 1 and out == "" and not home.exists()
    assert err.startswith(f"error: {exported}: ") and reason in err and err.count("\n") == 1


def test_logs_import_of_what_does_not_end(run, tmp_path):
    code, _, err = run("logs", "import", "/dev/zero")
    assert (code, err) == (1, "error: /dev/zero: it is larger than 64 MiB\n")


def test_logs_import_from_a_pipe(ok, home, exported, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(exported.read_bytes()))
    writer.start()
    ok("logs", "import", pipe)
    writer.join()
    assert own(home)[0].read_bytes() == exported.read_bytes()


def test_logs_export_does_not_replace_devices(run, home, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code, _, err = run("logs", "export", pipe, "--replace")
    assert code == 1 and err.endswith("it is no regular file; - is standard output\n")
    assert pipe.is_fifo()


def test_a_log_that_another_process_imports_meanwhile_stays(ok, run, home, exported, monkeypatch):
    ok("logs", "import", exported)
    (path,) = own(home)
    monkeypatch.setattr(Path, "exists", lambda self, found=Path.exists: found(self) and bool(seen))
    seen, before = [], path.stat()
    monkeypatch.setattr(logs.store, "_lock", lambda path: seen.append(1) or nullcontext())
    code, out, _ = run("logs", "import", exported)
    assert code == 1 and out == "" and path.stat() == before


def test_a_log_cannot_say_where_it_is(ok, home, exported):
    first, *rest = exported.read_text().splitlines()
    header = json.loads(first)
    del header["sum"]
    header["machine"] |= {"origin": "packaged", "needs": "nothing"}
    exported.write_bytes(logs.encode(header) + "\n".join(rest).encode() + b"\n")
    found = json.loads(ok("logs", "show", exported, "--json"))
    assert found["origin"] == str(exported) and found["needs"] != "nothing"


def test_logs_import_takes_logs_of_other_instruction_sets(ok, run, home, exported):
    """A home that several machines share; but only sets that there are micro-kernels for."""
    first, *rest = exported.read_text().splitlines()
    header = json.loads(first)
    del header["sum"]
    for isa, mcpu in (("avx512", "sapphirerapids"), ("sve", "a64fx")):
        header["machine"] |= {"isa": isa, "mcpu": mcpu}
        header["needs"] = []
        exported.write_bytes(logs.encode(header) + "\n".join(rest).encode() + b"\n")
        code, _, err = run("logs", "import", exported)
        assert code == (1 if isa == "sve" else 0), err
    assert "there are no micro-kernels for 'sve'" in err
    assert [path.parent.name for path in own(home)] == ["avx512-sapphirerapids"]


def test_logs_through_pipes(home):
    exported = process("logs", "export", "-")
    assert exported.returncode == 0 and exported.stdout.startswith('{"')
    result = subprocess.run(
        [sys.executable, "-m", "tvm_moonpoly", "logs", "import", "-"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=exported.stdout,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "wrote the log of " in result.stdout and len(own(home)) == 1


def test_logs_that_cannot_be_written_are_a_failure(run, home, exported, caplog):
    home.write_text("in the way")
    code, out, _ = run("logs", "import", exported)
    assert code == 1 and out == "" and "not written: " in caplog.text
    code, out, _ = run("logs", "export", "/proc/nothing/x.jsonl")
    assert code == 1 and out == ""


class Terminal:
    """Somebody who types one answer."""

    def __init__(self, answer):
        self.answer = answer

    def isatty(self):
        return True

    def readline(self):
        return self.answer


@pytest.mark.parametrize("answer,removes", [("y\n", True), ("YES\n", True), ("\n", False),
                                            ("n\n", False), ("", False)])  # fmt: skip
def test_logs_clear_asks(run, home, exported, monkeypatch, answer, removes):
    run("logs", "import", exported)
    (path,) = own(home)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    code, out, err = run("logs", "clear")
    assert str(path) in err and "remove 1 log? [y/N]" in err
    assert path.exists() != removes and code == (0 if removes else 1)
    assert ("removed 1 log from" in out) == removes


def test_logs_clear_without_anybody_to_ask(ok, run, home, exported, monkeypatch):
    run("logs", "import", exported)
    (path,) = own(home)
    stranger = path.parent / "notes.txt"
    stranger.write_text("mine")
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    code, _, err = run("logs", "clear")
    assert code == 1 and path.exists()
    assert err.endswith("error: clear: --yes is needed where nobody can be asked\n")
    found = json.loads(ok("logs", "clear", "--yes", "--json"))
    assert found == {"folder": str(home / "tuning_logs"), "removed": [str(path)]}
    assert not path.exists() and stranger.exists()
    # nothing left: nothing to ask
    assert ok("logs", "clear") == f"removed 0 logs from {home / 'tuning_logs'}\n"


def test_nothing_in_a_log_is_markup(ok, home, exported):
    first, *rest = exported.read_text().splitlines()
    header = json.loads(first)
    del header["sum"]
    header["machine"]["mcpu"] = "[red]zen[/red]:boom:"
    exported.write_bytes(logs.encode(header) + "\n".join(rest).encode() + b"\n")
    assert "[red]zen[/red]:boom:" in ok("logs", "import", exported)
    assert "[red]zen[/red]:boom:" in ok("logs", "list")


# MOONPOLY_LOG

REWRITE = """
import logging, sys
import tvm_moonpoly
from tvm import relax, tirx
from relax_passes import PolymerizeDynamicOps
if "configured" in sys.argv:
    logging.basicConfig(format="mine: %(message)s")
x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 8), "float32"))
y = relax.Var("y", relax.TensorType((8, 8), "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x, y]):
    with builder.dataflow():
        left = builder.emit(relax.op.matmul(y, y))
        out = builder.emit_output(relax.op.matmul(x, left))
    builder.emit_func_output(out)
PolymerizeDynamicOps(tvm_moonpoly.detect_target())(builder.get())
"""

LINES = [
    "main: matmul (8, 8) x (8, 8): left (static shapes)",
    "main: matmul (n, 8) x (8, 8): rewritten (product)",
]


@pytest.mark.parametrize("level", ["info", "DEBUG"])
def test_moonpoly_log_prints_a_line_for_each_operator(level):
    """In library use too, in a program that configures no logging."""
    said = process(script=REWRITE, MOONPOLY_LOG=level).stderr.splitlines()
    assert [line for line in said if "matmul" in line] == [f"moonpoly: {line}" for line in LINES]
    assert any("tuning log of " in line for line in said)


def test_moonpoly_log_goes_to_our_loggers_own_handlers_alone():
    script = "import logging, tvm_moonpoly; log = logging.getLogger('tvm_moonpoly');"
    script += "log.addHandler(logging.StreamHandler()); log.info('once')"
    assert process(script=script, MOONPOLY_LOG="info").stderr == "once\n"


def test_moonpoly_log_goes_where_a_program_sends_its_logs():
    said = process("configured", script=REWRITE, MOONPOLY_LOG="info").stderr.splitlines()
    assert [line for line in said if "matmul" in line] == [f"mine: {line}" for line in LINES]


@pytest.mark.parametrize("level", ["", "loud"])
def test_without_moonpoly_log_nothing_is_printed(level):
    said = process(script=REWRITE, MOONPOLY_LOG=level).stderr.splitlines()
    assert not [line for line in said if "matmul" in line]
    assert ("MOONPOLY_LOG must be info or debug, not 'loud'" in said) == (level == "loud")


def test_the_logger_is_left_alone_without_the_variable():
    assert logging.getLogger("tvm_moonpoly").level == logging.NOTSET


def test_sizes():
    assert [output.size(n) for n in (0, 1000, 1024, 48 << 10, 1 << 20, 3 << 29)] == [
        "0 bytes", "1000 bytes", "1 KiB", "48 KiB", "1 MiB", "1.5 GiB",
    ]  # fmt: skip
