"""Every peer of the GEMM benchmark computes the product, in the mode that it claims."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

from bench.gemm import peers, run, tvm_models
from bench.gemm.onnx_model import product_model
from bench.gemm.operands import as_array, error_in, make_operands, reference
from bench.gemm.shapes import Shape

ROOT = Path(__file__).resolve().parents[1]
NEEDS = {"torch": ("torch_mm", "torch_linear", "mkl_packed", "onednn_packed")}
LINEAR = [Shape(1, 1, 1), Shape(1, 17, 9), Shape(2, 33, 5), Shape(13, 31, 65), Shape(7, 8, 129)]
PRODUCTS = [
    Shape(1, 5, 7, 2),
    Shape(13, 9, 3, 3),
    Shape(5, 17, 8, 2, transposed=True),
    Shape(1, 33, 64, 4, transposed=True),
]


def load(name: str) -> peers.Peer:
    """The peer, or a skip when the library that it needs is not installed."""
    for library, names in NEEDS.items():
        if name in names and importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    found, absent = peers.load_peers([name])
    assert not absent
    return found[0]


@pytest.mark.parametrize("name", peers.LOADERS)
@pytest.mark.parametrize("shape", [*LINEAR, *PRODUCTS], ids=str)
def test_peer_computes_the_product(name, shape):
    peer = load(name)
    made = make_operands(shape, seed=3)
    if not peer.takes(made):
        assert shape.dynamic
        return
    call = run.checked_run(peer, made, reference(made))
    first = as_array(call(), made.out).copy()
    np.multiply(made.a, 2, out=made.a)  # the operand is read again at each call
    np.testing.assert_allclose(as_array(call(), made.out), 2 * first, rtol=1e-6)


@pytest.mark.parametrize("name", peers.LOADERS)
def test_peer_keeps_its_word_on_who_allocates(name):
    peer = load(name)
    made = make_operands(Shape(5, 16, 12), seed=4)
    call = peer.prepare(made)
    made.out.fill(np.nan)
    call()
    assert bool(np.isnan(made.out).all()) == peer.allocates


def test_an_absent_library_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found, absent = peers.load_peers(["openblas", "onnxruntime"])
    assert [peer.name for peer in found] == ["openblas"]
    assert "onnxruntime" in absent["onnxruntime"]


def test_onnx_model_holds_the_weight_as_a_constant():
    import onnx

    made = make_operands(Shape(4, 6, 5), seed=5)
    model = onnx.load_from_string(product_model(made))
    assert [value.name for value in model.graph.input] == ["a"]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(model.graph.initializer[0]), made.b)


def test_packed_peers_multiply_without_packing_again():
    """MKL and oneDNN say themselves what they run: the packed routine, and no reorder."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = subprocess.run(
        [sys.executable, "-c", SHOW_PACKED_CALLS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    mkl, onednn = done.stdout.split("==\n")
    multiplied = [line for line in mkl.splitlines() if "GEMM" in line]
    assert len(multiplied) == 2
    assert all("SGEMM_COMPUTE" in line for line in multiplied)
    executed = [line for line in onednn.splitlines() if ",exec," in line]
    assert len(executed) == 2
    assert not any("reorder" in line for line in executed)
    assert not any("wei:f32::blocked:ab::" in line for line in executed)


SHOW_PACKED_CALLS = """
import torch
from bench.gemm import torch_peers
from bench.gemm.operands import make_operands
from bench.gemm.shapes import Shape

made = make_operands(Shape(33, 256, 256), seed=0)
for peer, library in (
    (torch_peers.mkl_packed(), torch.backends.mkl),
    (torch_peers.onednn_packed(), torch.backends.mkldnn),
):
    call = peer.prepare(made)
    call()
    with library.verbose(1):
        call(), call()
    if peer.name == "mkl_packed":
        print("==", flush=True)
"""


def test_relax_functions_of_all_layers_compute_the_product():
    given = [*LINEAR, *PRODUCTS]
    weights = run.weights_of(given)
    module = tvm_models.layers_module(weights, given)
    assert len(module.functions) == len({tvm_models.function_name(shape) for shape in given})
    target = tvm.target.Target({"kind": "llvm"})
    pipeline = tvm.relax.get_default_pipeline(target)
    vm = tvm_models.virtual_machine(module, target, pipeline)
    for shape in given:
        made = make_operands(shape, seed=6, weight=weights.get((shape.n, shape.k)))
        value = tvm_models.vm_runner(vm, made)()
        assert error_in(as_array(value, made.out), reference(made)) is None


def test_one_function_serves_every_number_of_rows():
    given = [Shape(m, 12, 7) for m in (1, 5, 64)]
    weights = run.weights_of(given)
    module = tvm_models.layers_module(weights, given)
    assert [name.name_hint for name in module.get_global_vars()] == ["linear_12_7"]
