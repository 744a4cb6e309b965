"""Errors that tell the numbers and labels of a call, in process and from an exported library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from core_testing import ROOT, labels_of, matmul, tensor

from tvm_moonpoly import native, operators
from tvm_moonpoly.emit import INT, Functions, fail
from tvm_moonpoly.operators import encode_axes, errors, messages
from tvm_moonpoly.operators.plain import KINDS

RULE = "b: its rows must be as many as the columns of a; "


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


def mismatch(library, labels, a=(2, 5), b=(7, 3), dtype=np.float32, name=operators.MATMUL):
    """The message of a product whose contraction does not match."""
    code = encode_axes([0, 1])
    words = tensor(labels) if isinstance(labels, np.ndarray) else labels
    operands = (tensor(np.zeros(shape, dtype)) for shape in (a, b))
    out = np.zeros((2, 3), {np.int8: np.int32}.get(dtype, dtype))
    with pytest.raises(ValueError) as caught:
        library.module[name](*operands, code, code, code, words, tensor(out))
    return str(caught.value)


@pytest.mark.parametrize(
    "labels,said",
    [
        ("matmul (n, k) x (j, m): k = #, j = #", "matmul (n, k) x (j, m): k = 5, j = 7"),
        ("#", "5"),
        ("##", "57"),
        ("# # #", "5 7 #"),
        ("no numbers", "no numbers"),
        ("", "5 and 7"),
        ("größe = #, 大小 = #", "größe = 5, 大小 = 7"),
    ],
)
def test_labels(library, labels, said):
    assert mismatch(library, labels_of(labels)) == RULE + said


def test_without_labels(library):
    assert mismatch(library, None) == RULE + "5 and 7"


@pytest.mark.parametrize(
    "labels",
    [
        np.zeros(3, np.float32),
        np.zeros(3, np.int8),
        np.zeros((3, 3), np.uint8),
        np.zeros((), np.uint8),
        labels_of("k = #")[::-1],
        labels_of("k = #")[::2],
    ],
)
def test_labels_that_are_no_text_are_left_out(library, labels):
    assert mismatch(library, labels) == RULE + "5 and 7"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("shift", range(5))
def test_long_labels_are_cut_off_between_characters(library, size, shift):
    """Characters of ``size`` bytes; an error must be valid UTF-8 to be seen in Python."""
    labels = "x" * shift + {1: "a", 2: "é", 3: "大", 4: "🙂"}[size] * 2000
    message = mismatch(library, labels_of(labels))
    full = (RULE + labels).encode()
    assert full.startswith(message.encode())
    assert messages.LONGEST - 4 <= len(message.encode()) <= messages.LONGEST


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
def test_other_types(library, kind):
    dtype = getattr(np, kind.operand)
    labels = labels_of("k = #, j = #")
    message = mismatch(library, labels, dtype=dtype, name=kind.function)
    assert message == RULE + "k = 5, j = 7"


@pytest.mark.parametrize("k", [1, 9, 10, 99, 100, 12345, 1 << 31, (1 << 62) + 1])
def test_numbers_of_any_size(library, k):
    """Nothing is read: the operand that is too large to exist has no elements."""
    strided = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (0, k), (0, 0))
    a, b = strided.copy() if k < 1 << 20 else strided, np.zeros((7, 0), np.int8)
    code = encode_axes([0, 1])
    with pytest.raises(ValueError) as caught:
        arguments = (tensor(a), tensor(b), code, code, code, None)
        library.module["moonpoly_matmul_i8"](*arguments, tensor(np.zeros((0, 0), np.int32)))
    assert str(caught.value) == RULE + f"{k} and 7"


def test_labels_are_read_only_when_the_contraction_does_not_match(library):
    a, b, out = np.ones((2, 5), np.float32), np.ones((5, 3), np.float32), np.zeros((2, 3))
    matmul(library, a, b, out.astype(np.float32), labels="unused # and #")
    with pytest.raises(ValueError) as caught:
        matmul(library, a, b, np.zeros((3, 3), np.float32), labels="unused # and #")
    assert str(caught.value) == "out: must have as many rows as a: 3 and 2"


def test_an_error_leaves_the_function_usable(library):
    a, b = np.ones((2, 5), np.float32), np.ones((5, 3), np.float32)
    for _ in range(3):
        assert mismatch(library, None) == RULE + "5 and 7"
        out = matmul(library, a, b, np.zeros((2, 3), np.float32))
        assert (out == 5).all()


@pytest.fixture(scope="module")
def say(target):
    """A packed function that raises what it is given."""
    functions = Functions()
    errors.emit(functions)

    @functions.rare("moonpoly_say", number="float64", integer=INT, labels="handle")
    def _(number, integer, labels):
        message = messages.Message()
        message.integer(integer)
        message.text(" # ")
        message.number(number)
        message.text(" ")
        message.labels(labels, otherwise="nothing")
        message.raised("RuntimeError")

    @functions.public("say", number="float64", integer=INT, labels="handle")
    def _(number, integer, labels):
        functions["moonpoly_say"](number, integer, labels)
        fail()

    function = native.build(functions.module(), target, functions.marks)["say"]

    def call(number, integer=0, labels=None):
        with pytest.raises(RuntimeError) as caught:
            function(number, integer, labels)
        return str(caught.value)

    return call


@pytest.mark.parametrize("integer", [0, 1, -1, 10, -10, 123456789, 2**63 - 1, -(2**63)])
def test_integers(say, integer):
    assert say(0.0, integer) == f"{integer} # 0 nothing"


@pytest.mark.parametrize(
    "number,said",
    [
        (0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (0.001, "1e-3"),
        (123456789.0, "1.23456789e8"),
        (9.9999999999, "1e1"),
        (2 / 3, "6.66666667e-1"),
        (3.4028234663852886e38, "3.40282347e38"),
        (1.401298464324817e-45, "1.40129846e-45"),
        (1.7976931348623157e308, "1.79769313e308"),
        (5e-324, "4.94065646e-324"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
    ],
)
def test_floating_point_numbers(say, number, said):
    assert say(number) == f"0 # {said} nothing"


def test_random_floating_point_numbers(say):
    rng = np.random.default_rng(3)
    for number in rng.standard_normal(200) * 10.0 ** rng.integers(-300, 300, 200):
        assert float(say(number).split()[2]) == pytest.approx(number, rel=6e-9)


def test_text_of_labels_without_values(say):
    assert say(1.0, 2, tvm_ffi.from_dlpack(labels_of("a # b"))) == "2 # 1 a # b"


IN_A_FRESH_PROCESS = """
import sys
import numpy as np
import tvm_ffi

sys.path.insert(0, sys.argv[2])
from run_python import load_runtime

runtime = load_runtime()
library = tvm_ffi.load_module(sys.argv[1])
code = 2 << 32 | 0x10


def tried(function, a, b, out, labels=None):
    given = None if labels is None else tvm_ffi.from_dlpack(np.array(list(labels), np.uint8))
    a, b, out = (tvm_ffi.from_dlpack(x) for x in (a, b, out))
    try:
        library[function](a, b, code, code, code, given, out)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")


f32 = np.float32
a, b, out = np.ones((2, 5), f32), np.ones((5, 3), f32), np.zeros((2, 3), f32)
tried("moonpoly_matmul_f32", a, np.ones((7, 3), f32), out)
tried("moonpoly_matmul_f32", a, np.ones((7, 3), f32), out, b"k = #, j = #")
tried("moonpoly_matmul_f32", a, b, np.zeros((4, 3), f32))
tried("moonpoly_matmul_f32", a, b, np.zeros((2, 3)))
tried("moonpoly_matmul_i8", np.ones((2, 5), "int8"), np.ones((7, 3), "int8"), out.astype("int32"))
tried("moonpoly_matmul_f32", a, b, out)
assert (out == 5).all()
assert not {"tvm", "tvm_moonpoly"} & set(sys.modules)
"""


@pytest.mark.skipif(
    not (os.environ.get("CXX") or any(map(shutil.which, ("g++", "clang++", "c++")))),
    reason="no C++ compiler",
)
def test_an_exported_library_in_a_fresh_process(library, tmp_path: Path):
    """With tvm's runtime alone."""
    path = tmp_path / "library.so"
    library.module.export_library(["gemm", "plain"], path)
    ran = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS, str(path), str(ROOT / "examples")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        f"ValueError: {RULE}5 and 7",
        f"ValueError: {RULE}k = 5, j = 7",
        "ValueError: out: must have as many rows as a: 4 and 2",
        "TypeError: out: must be float32",
        f"ValueError: {RULE}5 and 7",
    ]


def test_a_rule_says_as_many_values_as_it_is_given():
    with pytest.raises(ValueError, match="^rule: 'must be #' does not say 0 values"):
        errors.require(None, "a", "must be #")


def test_a_function_that_may_fail_is_defined_before_it_is_called():
    functions = Functions()
    functions["late"]
    with pytest.raises(ValueError, match="^name: late is called before it is defined"):
        functions.fallible("late")
