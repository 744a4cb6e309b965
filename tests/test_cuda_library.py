"""CUDA operators as modules with machine code: compiled once, cached, exported whole."""

from __future__ import annotations

import json
import logging
import re
import struct
import subprocess
import sys
from dataclasses import replace

import pytest
import tvm
from cuda_models import ALIGNED, ANY, TARGET, NoCompiler, few_assemblies
from tvm.target import Target

from tvm_moonpoly.costmodel import cuda_analytic
from tvm_moonpoly.logs import choice
from tvm_moonpoly.microkernels.cuda import GPUS, CudaTile, Form, find_nvcc, lower_parts
from tvm_moonpoly.operators import cache
from tvm_moonpoly.operators.cuda import device_modules, library, machine_code
from tvm_moonpoly.operators.cuda.assembly import Assembly
from tvm_moonpoly.operators.cuda.library import Matmul

PLAIN, FUSED = Matmul("float16", "float16"), Matmul("float16", "float16", True, True, "gelu")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache, and nothing said yet."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path))
    choice.say_once.cache_clear()
    return tmp_path / "libraries"


@pytest.fixture(scope="module")
def kernel() -> tvm.runtime.Module:
    """One micro-kernel's module, as TVM makes it without a GPU: of source."""
    operator = library.Operator("product", few_assemblies(TARGET, "float16", "float16", False))
    with device_modules.as_source():
        _, modules = lower_parts(operator.kernels(99 << 10), apart=True)
    return modules[-1]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def test_machine_code_takes_the_place_of_source(kernel):
    source = kernel.inspect_source("cuda")
    saved = device_modules.saved_bytes(kernel)
    code = b"\x7fELF machine code"
    data = device_modules.exported(saved, source, code)
    assert data.startswith(text("cubin")) and data.endswith(struct.pack("<Q", len(code)) + code)
    # between them: the table of functions, as it was
    table = data[len(text("cubin")) : -len(code) - 8]
    assert saved == text("cuda") + table + text(source)
    (made,) = device_modules.made([data], [source])
    assert made.kind == "cuda" and made.inspect_source() == source
    assert device_modules.saved_bytes(made) == data
    with pytest.raises(RuntimeError, match="no CUDA runtime was found"):
        made["any"]()
    with pytest.raises(ValueError, match="not the bytes of a CUDA module"):
        device_modules.exported(saved, source + " ", code)


def test_a_library_holds_each_operator_once_and_is_cached(home, monkeypatch):
    compiler = NoCompiler(monkeypatch)
    first = library.library(TARGET, [FUSED, PLAIN, FUSED])
    assert len(compiler.sources) == 4  # two kernels of each
    for name in (PLAIN.function, FUSED.function):
        assert first.get_function(name)
    compiler.sources.clear()
    second = library.library(TARGET, [PLAIN, FUSED])
    assert not compiler.sources
    assert [m.inspect_source() for m in second.imports] == [
        m.inspect_source() for m in first.imports
    ]
    (path,) = home.glob("*.zip")
    path.write_bytes(path.read_bytes()[:-1])
    # a torn file is not used, nor one of another set
    with pytest.raises(AttributeError):
        library.library(TARGET, [PLAIN]).get_function(FUSED.function)
    assert len(compiler.sources) == 2
    assert cache.load(path.name.split("-")[0], library.SUFFIX) is None


def test_calls_that_are_always_aligned_need_one_micro_kernel_for_the_rest():
    def found(*_):
        form, gpu = Form(), GPUS["nvidia-a100"]
        last = Form(aligned=False)
        wide = CudaTile(32, 64, 32, 1, 2, 2, epilogue="elements")
        return (
            Assembly(form, (ALIGNED,), cuda_analytic.table((ALIGNED,), form, gpu)),
            Assembly(last, (ANY, wide), cuda_analytic.table((ANY, wide), last, gpu)),
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "assemblies", found)
        always = replace(PLAIN, aligned=True)
        assert [len(a.tiles) for a in library.operator(TARGET, PLAIN).assemblies] == [1, 2]
        assert [len(a.tiles) for a in library.operator(TARGET, always).assemblies] == [1, 1]
        # of one function, the call that may be unaligned decides
        (merged,) = library.merged([always, PLAIN])
        assert merged == PLAIN


def test_without_a_compiler_source_is_kept_and_told(home, monkeypatch, caplog):
    monkeypatch.setattr(library, "assemblies", few_assemblies)
    monkeypatch.setattr(machine_code, "compiler", lambda: None)
    with caplog.at_level(logging.WARNING, "tvm_moonpoly"):
        module = library.library(TARGET, [PLAIN])
    assert "no compiler for CUDA was found" in caplog.text
    assert not list(home.glob("*.zip"))
    saved = device_modules.saved_bytes(module.imports[0])
    assert saved.startswith(text("cuda")) and b"__global__" in saved


def test_what_the_compiler_refuses_stays_source_and_is_told(home, kernel, monkeypatch, caplog):
    def refuse(*_):
        raise RuntimeError("nvcc: sm_80: no")

    monkeypatch.setattr(machine_code, "compiled", refuse)
    with caplog.at_level(logging.WARNING, "tvm_moonpoly"):
        assert device_modules.with_machine_code([kernel], "sm_80") is None
    assert "compiled when they are loaded: nvcc: sm_80: no" in caplog.text


def test_nvrtc_needs_its_package_and_the_headers(monkeypatch, tmp_path):
    monkeypatch.setattr(machine_code, "find_nvcc", lambda: None)
    monkeypatch.setattr(machine_code.versions, "installed", lambda _: "13.0.1")
    monkeypatch.setattr(machine_code, "_cuda_root", lambda: None)
    assert machine_code.compiler() is None
    monkeypatch.setattr(machine_code, "_cuda_root", lambda: tmp_path)
    assert machine_code.compiler() == "NVRTC of cuda-bindings 13.0.1"


def test_without_a_cpp_compiler_source_is_kept_and_told(home, monkeypatch, caplog):
    NoCompiler(monkeypatch)
    monkeypatch.setenv("PATH", "")
    device_modules._placeholder.cache_clear()
    with caplog.at_level(logging.WARNING, "tvm_moonpoly"):
        module = library.library(TARGET, [PLAIN])
    device_modules._placeholder.cache_clear()
    assert "g++ cannot build" in caplog.text
    assert device_modules.saved_bytes(module.imports[0]).startswith(text("cuda"))


@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
def test_nvcc_compiles_a_source_once(home, kernel, monkeypatch):
    (first,) = device_modules.with_machine_code([kernel], "sm_80")
    saved = device_modules.saved_bytes(first)
    assert b"\x7fELF" in saved and b"__global__" not in saved

    def never(*_):
        raise AssertionError("compiled again")

    monkeypatch.setattr(machine_code, "cubin", never)
    (second,) = device_modules.with_machine_code([kernel], "sm_80")
    assert device_modules.saved_bytes(second) == saved
    with pytest.raises(AssertionError, match="compiled again"):
        device_modules.with_machine_code([kernel], "sm_86")


def test_a_target_or_type_without_micro_kernels_is_told(monkeypatch):
    assert "sm_75" in library.unsupported(
        Target({"kind": "cuda", "arch": "sm_75"}), "float16", "float16", False
    )
    assert library.unsupported(TARGET, "float32", "float32", False)
    monkeypatch.setattr(library, "assemblies", few_assemblies)
    assert library.unsupported(TARGET, "bfloat16", "bfloat16", True) is None


def test_names_of_operators():
    assert PLAIN.function == "moonpoly_cuda_f16_f16_nn"
    assert FUSED.function == "moonpoly_cuda_f16_f16_nt_bias_gelu"
    assert re.fullmatch(r"\w+", ANY.name)


LOADED = """
import json, sys
import tvm
from tvm import relax, tirx
from tvm_moonpoly.operators.cuda import library, machine_code
import tvm_moonpoly as mp
machine_code.compiler = lambda: None
x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 64), "float16"))
builder = relax.BlockBuilder()
with builder.function("main", [x]):
    builder.emit_func_output(builder.emit(relax.op.nn.softmax(x)))
target = tvm.target.Target("nvidia/nvidia-a100")
tvm.compile(builder.get(), target, relax_pipeline=mp.pipeline(target))
print(json.dumps(sorted(sys.modules)))
"""


def test_nothing_loads_all_of_tvms_intrinsics():
    """It takes a minute."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    loaded = json.loads(done.stdout)
    assert "relax_passes.cuda" in loaded and "tvm.s_tir.dlight.gpu.matmul" in loaded
    assert not [name for name in loaded if name.startswith("tvm.s_tir.tensor_intrin")]
