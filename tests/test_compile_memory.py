"""What compiling takes: memory, the size of the result, and each weight stored once."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from core_testing import ROOT
from relax_testing import module, run_pass, tensor
from tvm import relax
from tvm.ir import GenericConst
from tvm.script import relax as R

from relax_passes import pipeline

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@functools.cache
def measured(model, whose="ours", exported=True):
    """See compile_memory.py."""
    folders = [str(ROOT), str(Path(__file__).parent)]
    script = str(Path(__file__).with_name("compile_memory.py"))
    ran = subprocess.run(
        [sys.executable, script, model, whose, "exported" if exported else "compiled"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@linux
def test_compiling_holds_the_weights_and_their_packed_form():
    assert measured("many")["compile"] <= 2.5


@linux
def test_compiling_one_large_weight():
    assert measured("one", exported=False)["compile"] <= 2.5


@linux
def test_an_executable_is_hardly_larger_than_its_weights():
    assert measured("many")["size"] <= 0.02


@linux
def test_exporting_takes_no_more_than_any_export_of_tvm():
    assert measured("many")["export"] <= measured("many", "tvm")["export"] + 0.2


@linux
def test_exporting_within_the_bound_for_compiling():
    """Weights are no constants of the executable, which TVM's export holds in five forms."""
    assert measured("many")["export"] <= 2.5


SQUARE, TABLE = tensor(256, 256), tensor(1024, 128)
square, same, table = relax.const(SQUARE), relax.const(SQUARE.copy()), relax.const(TABLE)


@R.function
def twice(x: R.Tensor(("n", 256), "float32")):
    with R.dataflow():
        y = R.matmul(x, square)
        z = R.matmul(R.nn.relu(y), square)
        R.output(z)
    return z


@R.function
def twice_transposed(x: R.Tensor(("n", 256), "float32")):
    with R.dataflow():
        y = R.matmul(x, R.permute_dims(square))
        z = R.matmul(R.nn.relu(y), R.permute_dims(square, axes=[1, 0]))
        R.output(z)
    return z


@R.function
def copied(x: R.Tensor(("n", 256), "float32")):
    with R.dataflow():
        y = R.matmul(x, square)
        z = R.matmul(R.nn.relu(y), same)
        R.output(z)
    return z


@R.function
def both_ways(x: R.Tensor(("n", 256), "float32")):
    with R.dataflow():
        y = R.matmul(x, square)
        z = R.matmul(R.nn.relu(y), R.permute_dims(square))
        R.output(z)
    return z


@R.function
def tied(ids: R.Tensor(("n",), "int32")):
    with R.dataflow():
        x = R.take(table, ids, axis=0, mode="clip")
        y = R.matmul(x, R.permute_dims(table))
        R.output(y)
    return y


def stored(func):
    """The elements of all constants of a compiled function that are as large as weights."""
    after, _ = run_pass(module(func))
    found: list[GenericConst] = []

    def visit(expr):
        if isinstance(expr, GenericConst) and not any(expr.same_as(each) for each in found):
            found.append(expr)

    relax.analysis.post_order_visit(after["main"], visit)
    return [each.value.numpy().size for each in found if each.value.numpy().size >= SQUARE.size]


@pytest.mark.parametrize("func", [twice, twice_transposed, copied], ids=["same", "T", "equal"])
def test_a_weight_that_is_used_twice_is_stored_once(func):
    assert stored(func) == [SQUARE.size]


def test_a_weight_that_is_read_both_ways_is_stored_both_ways():
    assert stored(both_ways) == [SQUARE.size] * 2


def test_tied_embeddings_are_stored_by_rows_and_in_panels():
    """The embedding reads rows, the product panels: there is no one layout for both."""
    assert stored(tied) == [TABLE.size] * 2


def test_stored_once_in_the_file_as_well(target, tmp_path):
    sizes = {}
    for name, func, second in [("copied", copied, SQUARE), ("both ways", both_ways, SQUARE.T)]:
        executable = tvm.compile(module(func), target, relax_pipeline=pipeline(target))
        path = tmp_path / f"{name}.so"
        executable.export_library(str(path))
        sizes[name] = path.stat().st_size
        vm = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
        x = tensor(3, 256)
        expected = np.maximum(x @ SQUARE.astype("float64"), 0) @ second
        result = vm["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-2)
    assert abs(sizes["both ways"] - sizes["copied"] - SQUARE.nbytes) < 0.1 * SQUARE.nbytes
