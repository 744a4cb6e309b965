"""Convolutions: memory, threads, errors, and the explanation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conv_testing import Case, call, check
from core_testing import CANARY, ROOT

import tvm_moonpoly
from tvm_moonpoly import operators
from tvm_moonpoly.cli.command import main as command
from tvm_moonpoly.operators.conv_constants import ConvActivation, ConvSpec
from tvm_moonpoly.planner.conv_numbers import ATTRIBUTES

WORKER = Path(__file__).with_name("conv_memory_worker.py")


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture
def rng():
    return np.random.default_rng(17)


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect is called as on Linux")
def test_operands_against_protected_pages(library):
    """In a process of its own: a crash names the case that it came from."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(WORKER.parent)])}
    command_line = [sys.executable, "-X", "faulthandler", str(WORKER)]
    ran = subprocess.run(command_line, capture_output=True, text=True, env=environment, timeout=600)
    lines = ran.stdout.splitlines() or ["nothing ran"]
    assert ran.returncode == 0, f"ended with {ran.returncode} in: {lines[-1]}\n{ran.stderr[-3000:]}"
    assert lines[-1] == "all cases ran"


#: Of each form one that is worth several threads, and cut into blocks in its own way.
LARGE = {
    "joined": (ConvSpec((1, 1), 96, 200), 2, 40, 41),
    "rows": (ConvSpec((1, 1), 128, 256, (2, 2)), 3, 57, 57),
    "long row": (ConvSpec((1, 9), 24, 48, (1, 1), (0, 4, 0, 4)), 1, 1, 9000),
    "windows": (ConvSpec((5, 5), 32, 96, (1, 1), (2, 2, 2, 2)), 1, 70, 70),
    "pixels": (ConvSpec((3, 3), 256, 512, (2, 2), (1, 1, 1, 1)), 2, 14, 14),
    "groups": (ConvSpec((3, 3), 64, 96, (2, 2), (1, 1, 1, 1), groups=4), 2, 64, 60),
    "patches": (ConvSpec((3, 3), 64, 100, (1, 1), (1, 1, 1, 1)), 2, 57, 56),
    "few patches": (ConvSpec((3, 3), 256, 512, (1, 1), (1, 1, 1, 1)), 1, 7, 7),
    "offsets": (ConvSpec((7, 7), 3, 64, (2, 2), (3, 3, 3, 3)), 2, 160, 150),
    "offsets of planes": (ConvSpec((3, 3), 3, 40, (1, 1), planes=True), 1, 101, 90),
    "deep": (ConvSpec((3, 3), 512, 64, (1, 1), (1, 1, 1, 1), direct=True), 1, 14, 14),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_large(rng, library, name, dtype):
    spec, n, h, w = LARGE[name]
    if spec.planes and dtype != "float32":
        pytest.skip("planes are float32")
    spec = replace(spec, activation=ConvActivation.HARDSWISH)
    case = Case.random(rng, spec, n, h, w, residual=not spec.planes, dtype=dtype)
    check(call(library, case), case)


@pytest.mark.parametrize("name", LARGE)
def test_one_thread(rng, name):
    library = operators.library(tvm_moonpoly.detect_target(1))
    spec, n, h, w = LARGE[name]
    case = Case.random(rng, spec, n, h, w)
    check(call(library, case), case)


@pytest.mark.parametrize("shape", [(0, 8, 8), (1, 0, 4), (2, 3, 0)])
def test_empty_inputs(rng, library, shape):
    """No images give no outputs; an image of padding alone is zeros."""
    for direct in (False, True):
        spec = ConvSpec((3, 3), 16, 24, (1, 1), (2, 2, 2, 2), direct=direct)
        case = Case.random(rng, spec, *shape)
        check(call(library, case), case)


def case_of(spec: ConvSpec, n: int = 1, h: int = 6, w: int = 6) -> Case:
    return Case.random(np.random.default_rng(0), spec, n, h, w)


SMALL = ConvSpec((3, 3), 4, 10)


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"x": np.zeros((1, 2, 6, 4))}, "x: must be float32"),
        ({"x": np.zeros((1, 6, 6, 5))}, "x: its channels must be those of the weight: 5 and 4"),
        ({"x": np.zeros((6, 6, 4))}, "x: must have 4 dimensions, not 3"),
        ({"x": np.zeros((1, 2, 6, 4))}, "x: its height with padding .* kernel: 2 and 3"),
        ({"x": np.zeros((1, 6, 1, 4))}, "x: its width with padding .* kernel: 1 and 3"),
        ({"x": np.zeros((1, 6, 6, 8), np.float32)[..., ::2]}, "x: elements of the last dimension"),
        ({"x": np.zeros((1, 6, 6, 8), np.float32)[..., :4]}, "x: must be compact"),
        ({"out": np.zeros((1, 5, 4, 10))}, "out: must have as many rows as the conv.* 5 and 4"),
        ({"out": np.zeros((1, 4, 3, 10))}, "out: must have as many columns .* 3 and 4"),
        ({"out": np.zeros((2, 4, 4, 10))}, "out: must have as many images .* 2 and 1"),
        ({"out": np.zeros((1, 4, 4, 12))}, "out: must have as many channels .* 12 and 10"),
        ({"out": np.zeros((1, 4, 4, 12), np.float32)[..., :10]}, "out: must be compact"),
        ({"weight": np.zeros((3, 36, 8))}, "weight: must have as many panels .* 3 and 2"),
        ({"weight": np.zeros((2, 35, 8))}, "weight: must have as many rows .* 35 and 36"),
        ({"weight": np.zeros((2, 36))}, "weight: must have 3 dimensions, not 2"),
        ({"bias": np.zeros(10)}, "bias: must have as many elements .* 10 and 16"),
        ({"spec": np.ones(3, np.int64)}, f"spec: must have {len(ATTRIBUTES)} elements, not 3"),
        ({"spec": np.zeros(len(ATTRIBUTES), np.int64)}, "spec: its kernel_h must be from 1"),
        ({"spec": np.ones(len(ATTRIBUTES), np.float32)}, "spec: must be int64"),
    ],
)
def test_errors(library, replaced, message):
    if library.machine.lanes != 8:
        pytest.skip("the constants are those of 8 lanes")
    as_float = "must be float32" not in message
    given = {
        name: a.astype(np.float32) if as_float and a.dtype == np.float64 else a
        for name, a in replaced.items()
    }
    with pytest.raises((ValueError, TypeError), match=message):
        call(library, case_of(SMALL), **given)


def test_errors_of_the_attributes(library):
    case = case_of(SMALL)
    for name, value, message in (
        ("groups", 3, "spec: its groups, 3, must divide the channels"),
        ("winograd", 1, None),
        ("stride_h", 0, "spec: its stride_h must be from 1 to 65536, not 0"),
        ("activation", 11, "spec: its activation must be from 0 to 10, not 11"),
        ("top", -1, "spec: its top must be from 0"),
    ):
        spec = case.spec.encode()
        spec[ATTRIBUTES.index(name)] = value
        with pytest.raises(ValueError, match=message):
            call(library, case, spec=spec)
    for channels, outputs in ((4, 10), (5, 16)):
        case = case_of(ConvSpec((3, 3), channels, outputs, planes=True))
        with pytest.raises(ValueError, match="spec: planes of channels must be few"):
            call(library, case)
    spec = ConvSpec((3, 1), 4, 10).encode()
    spec[ATTRIBUTES.index("winograd")] = 1
    with pytest.raises(ValueError, match="spec: winograd needs a kernel of 3 x 3"):
        call(library, case_of(SMALL), spec=spec)


def test_a_residual_of_another_shape(rng, library):
    case = Case.random(rng, SMALL, 1, 6, 6, residual=True)
    with pytest.raises(ValueError, match="residual: must have as many rows .* 1 and 4"):
        call(library, case, residual=np.zeros((1, 1, 4, 10), np.float32))


def test_nothing_is_written_after_an_error(library):
    out = np.full((1, 5, 4, 10), CANARY)
    with pytest.raises(ValueError, match="out: "):
        call(library, case_of(SMALL), out)
    assert (out == CANARY).all()


def test_explanation():
    spec = ConvSpec((5, 5), 64, 192, (1, 1), (2, 2, 2, 2))
    text = tvm_moonpoly.explain_conv2d(1, 27, 99, spec, threads=1)
    for words in ("out[1, 27, 99, 192] by 5x5 kernels over 64 channels", "windows: ", "GFLOP/s"):
        assert words in text
    with pytest.raises(ValueError, match="n: must be a whole number"):
        tvm_moonpoly.explain_conv2d(0, 27, 27, spec)
    with pytest.raises(ValueError, match="x: its height with padding"):
        tvm_moonpoly.explain_conv2d(1, 4, 9, ConvSpec((5, 5), 64, 192))


def test_command(capsys):
    line = "explain conv2d 1 56 56 64 64 --kernel 3 3 --padding 1 1 1 1"
    assert command([*line.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["output"] == [1, 56, 56, 64] and found["plan"]["form"] == "patches"
    assert command([*line.split(), "--direct"]) == 0
    assert "patches: " not in capsys.readouterr().out
    assert command(["explain", "conv2d", "1", "2", "2", "4", "4", "--kernel", "3", "3"]) == 2
    assert "x: its height with padding, 2" in capsys.readouterr().err
