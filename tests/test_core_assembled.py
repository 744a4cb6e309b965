"""LLVM modules with their code as assembly: the same functions, without code generation."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm

from tvm_moonpoly import native
from tvm_moonpoly.assembled import assembled
from tvm_moonpoly.emit import INT, Functions, fail, loop, unless
from tvm_moonpoly.llvm_modules import load_text
from tvm_moonpoly.operators import activation, errors, messages, sharing, tensors
from tvm_moonpoly.operators.tensors import Tensor

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 1})


@pytest.fixture(scope="module")
def built():
    """``double(x, least)``: x *= 2; it raises where x has fewer than ``least`` rows."""
    functions = Functions("doubles")
    errors.emit(functions)
    tensors.emit(functions)

    @functions.rare("raise_few", rows=INT)
    def _(rows: Any) -> None:
        message = messages.Message()
        message.text('rows: "\\few" # ')
        message.integer(rows)
        message.raised("ValueError")

    @functions.separate("double_row", row="float32*", n=INT)
    def _(row: Any, n: Any) -> None:
        with loop(n) as i:
            row[i] = row[i] * tvm.tirx.const(2.0, "float32")

    @functions.public("double", x="handle", least=INT)
    def _(x: Any, least: Any) -> None:
        t = Tensor(x, "x")

        def few() -> None:
            functions["raise_few"](t.shape[0])
            fail()

        unless(t.shape[0] >= least, few)
        with loop(t.shape[0]) as i:
            functions["double_row"](t.data.at(i * t.shape[1]), t.shape[1])

    return native.build(functions.module(), TARGET, functions.marks)


def test_it_computes_and_fails_as_before(built):
    for module in (built, assembled(built)):
        x = np.arange(35, dtype=np.float32).reshape(5, 7)
        given = tvm.runtime.tensor(x)
        module["double"](given, 5)
        np.testing.assert_array_equal(given.numpy(), 2 * x)
        with pytest.raises(ValueError, match=r'^rows: "\\few" # 5$'):
            module["double"](given, 6)
        with pytest.raises(TypeError, match="Expected 2 arguments when calling"):
            module["double"](given)


def test_no_code_is_left_to_generate(built):
    module = assembled(built)
    text = str(module.inspect_source("ll"))
    defined = re.findall(r"^define .*@(\w+)\(", text, re.MULTILINE)
    assert set(defined) == {"__tvm_ffi_double", "__tvm_ffi_moonpoly_fail_doubles"}
    assert text.count("tail call") == len(defined) and "!dbg" not in text
    assert "_internal_double_row" in str(module.inspect_source("s"))


def test_it_can_be_written_and_linked(built, tmp_path):
    module = assembled(built)
    path = tmp_path / "module.bc"
    module.write_to_file(str(path), "bc")
    read = tvm.get_global_func("ffi.Module.load_from_file.ll")(str(path), "bc")
    library = tmp_path / "module.so"
    read.export_library(str(library))
    x = tvm.runtime.tensor(np.ones((2, 3), np.float32))
    for each in (read, tvm.runtime.load_module(str(library))):
        each["double"](x, 1)
    np.testing.assert_array_equal(x.numpy(), np.full((2, 3), 4, np.float32))


def test_work_among_threads():
    """What runs in the threads of TVM's pool, and its runtime, are found from assembly too."""
    functions = Functions("shared")
    errors.emit(functions)
    tensors.emit(functions)
    sharing.emit(functions)
    activation.emit(functions, 8)

    @functions.public("count", x="handle", threads=INT)
    def _(x: Any, threads: Any) -> None:
        t = Tensor(x, "x")
        with tvm.tirx.script.builder.parallel(0, threads) as i:
            t.data[i] = tvm.tirx.const(1.0, "float32")

    module = assembled(native.build(functions.module(), TARGET, functions.marks))
    x = tvm.runtime.tensor(np.zeros((1, 4), np.float32))
    module["count"](x, 4)
    assert x.numpy().tolist() == [[1.0] * 4]


def test_what_others_could_see_is_refused(built):
    text = str(built.inspect_source("ll"))
    module = load_text(text + "@seen = global i32 1\n")
    with pytest.raises(RuntimeError, match="@seen = .*global i32 1 cannot become assembly"):
        assembled(module)
