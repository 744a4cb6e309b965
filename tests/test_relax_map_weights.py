"""The pass MapWeights: large weights lie in the library, and are not copied when it is loaded."""

from __future__ import annotations

import gc
import glob
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import compile_memory
import numpy as np
import pytest
import tvm
from core_testing import ROOT
from graph_testing import ours, run
from relax_testing import TARGET, module, tensor
from tvm import relax
from tvm.ir import GenericConst
from tvm.script import relax as R

from relax_passes import pipeline
from relax_passes.map_weights import MapWeights
from tvm_moonpoly.operators import mapped_weights

LARGE, SMALL = relax.const(tensor(600, 512)), relax.const(tensor(8, 8))  # 1.2 MB


@R.function(pure=False)
def reads(x: R.Tensor(("n", 8), "float32")):
    _a = R.call_packed("moonpoly_a", x, LARGE, SMALL, ty_args=[R.Any])
    _b = R.call_packed("moonpoly_b", LARGE, x, LARGE, ty_args=[R.Any])
    return (x, LARGE)


@R.function(pure=False)
def of_another(x: R.Tensor(("n", 8), "float32")):
    a = R.call_packed("vm.builtin.reshape", LARGE, R.shape([512, 600]), ty_args=[R.Any])
    b = R.call_packed("someone_s", LARGE, ty_args=[R.Any])
    return (a, b)


def calls(func):
    return [binding.value for binding in func.body.blocks[0].bindings]


def test_what_is_read_is_fetched_before_it():
    before = module(reads)
    after = MapWeights(TARGET)(before)
    relax.analysis.well_formed(after)
    found = calls(after["main"])
    names = [str(call.op.global_symbol) for call in found]
    fetch = mapped_weights.NAME
    assert names == [fetch, "moonpoly_a", fetch, fetch, "moonpoly_b"]
    assert [int(found[at].args[1]) for at in (0, 2, 3)] == [0, 0, 0]
    assert found[0].ty.dtype == "float32" and [int(n) for n in found[0].ty.shape] == [600, 512]
    assert [isinstance(arg, GenericConst) for arg in found[1].args] == [False, False, True]
    tvm.ir.assert_structural_equal(before, module(reads))


def test_what_is_returned_stays_a_constant():
    """Its memory must outlive the library."""
    after = MapWeights(TARGET)(module(reads))
    result = after["main"].body.body
    assert isinstance(result, relax.Var | relax.Tuple)
    found = []
    relax.analysis.post_order_visit(
        after["main"], lambda e: found.append(e) if isinstance(e, GenericConst) else None
    )
    assert any(each.value.same_as(LARGE.value) for each in found)


def test_functions_that_may_keep_it_get_constants():
    before = module(of_another)
    tvm.ir.assert_structural_equal(MapWeights(TARGET)(before), before)


def test_little_is_left():
    @R.function(pure=False)
    def little(x: R.Tensor(("n", 8), "float32")):
        _a = R.call_packed("moonpoly_a", x, SMALL, ty_args=[R.Any])
        return x

    before = module(little)
    tvm.ir.assert_structural_equal(MapWeights(TARGET)(before), before)


def test_weights_stay_where_no_file_can_be_written(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    before = module(reads)
    tvm.ir.assert_structural_equal(MapWeights(TARGET)(before), before)
    assert "no file can be written" in caplog.text


@pytest.mark.parametrize("triple", ["x86_64-apple-darwin", "riscv64-unknown-linux-gnu"])
def test_other_formats_of_objects_are_left(triple):
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    assert not mapped_weights.supported(target)
    before = module(reads)
    tvm.ir.assert_structural_equal(MapWeights(target)(before), before)


@R.function
def looked_up(ids: R.Tensor(("n",), "int32"), x: R.Tensor(("m", 600), "float32")):
    with R.dataflow():
        rows = R.take(LARGE, ids, axis=0, mode="clip")
        y = R.matmul(x, LARGE)
        R.output(rows, y)
    return (rows, y, LARGE)


def test_results_where_it_was_made_and_outlive_the_machine():
    table = LARGE.value.numpy()
    machine, _ = ours(module(looked_up))
    x, ids = tensor(5, 600), np.array([0, 599, 3], np.int32)
    results = machine["main"](tvm.runtime.tensor(ids), tvm.runtime.tensor(x))
    del machine
    gc.collect()
    rows, y, same = (each.numpy() for each in results)
    np.testing.assert_array_equal(rows, table[ids])
    np.testing.assert_array_equal(same, table)
    np.testing.assert_allclose(y, x.astype("float64") @ table, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["int8", "bool", "float16", "float64"])
def test_tables_of_all_types(dtype):
    values = (np.arange(1100 * 1024) % 120).astype("uint8").reshape(1100, 1024)
    numbers = tvm.runtime.tensor(values.view("bool" if dtype == "bool" else "int8") % 2 == 1)
    builder = relax.BlockBuilder()
    ids = relax.Var("ids", relax.TensorType([3], "int32"))
    stored = relax.const(numbers if dtype == "bool" else tvm.runtime.tensor(values.view("int8")))
    with builder.function("main", [ids]):
        with builder.dataflow():
            table = stored if dtype in ("bool", "int8") else relax.op.astype(stored, dtype)
            table = builder.normalize(table) if table is stored else builder.emit(table)
            rows = builder.emit(relax.op.take(table, ids, axis=0, mode="clip"))
            output = builder.emit_output(rows)
        builder.emit_func_output(output)
    machine, _ = ours(builder.get())
    wanted = np.array([0, 1099, 7], np.int32)
    (found,) = run(machine, [wanted])
    expected = stored.value.numpy()[wanted].astype(dtype)
    np.testing.assert_array_equal(found, expected)


def test_the_file_lives_as_long_as_the_executable(tmp_path, monkeypatch):
    folder = tmp_path / 'a "quoted" \\ näme'
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    executable = tvm.compile(module(looked_up), TARGET, relax_pipeline=pipeline(TARGET))
    pattern = glob.escape(str(folder)) + "/moonpoly-weights-*"
    assert len(glob.glob(pattern)) == 1
    child = os.fork()
    if child == 0:
        del executable
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(glob.glob(pattern)) == 1, "deleted by a child"
    executable.export_library(str(tmp_path / "model.so"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    del executable
    gc.collect()
    assert len(glob.glob(pattern)) == 1
    del machine
    gc.collect()
    assert not glob.glob(pattern)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "model.so")), tvm.cpu())
    rows, *_ = run(machine, [np.array([7], np.int32), tensor(1, 600)])
    np.testing.assert_array_equal(rows, LARGE.value.numpy()[[7]])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_loaded_model_holds_its_weights_once(tmp_path):
    """Constants of TVM take four times their size while they are loaded, and twice after that."""
    mod = compile_memory.build("many")
    executable = tvm.compile(mod, TARGET, relax_pipeline=pipeline(TARGET))
    library = tmp_path / "model.so"
    executable.export_library(str(library))
    folders = [str(ROOT), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("map_weights_worker.py"), library, "2048"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert np.isfinite(found["largest"]) and found["largest"] > 0
    assert found["peak"] <= 1.3 * 2**20 * compile_memory.weights_mib("many")
