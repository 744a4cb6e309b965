"""Every peer of the GEMM benchmark computes the product, in the mode that it claims."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

import tvm_moonpoly as mp
from bench.gemm import ours, peers, run, tvm_models
from bench.gemm.onnx_model import case_model
from bench.gemm.operands import make_operands
from bench.gemm.reference import as_array, error_in, reference
from bench.gemm.shapes import Shape

ROOT = Path(__file__).resolve().parents[1]
NEEDS = {"torch": ("torch_mm", "torch_linear", "mkl_packed", "onednn_packed", "onednn_separate")}
LINEAR = [Shape(1, 1, 1), Shape(1, 17, 9), Shape(2, 33, 5), Shape(13, 31, 65), Shape(7, 8, 129)]


def changing(m: int, n: int, k: int, transposed: bool = False, stride: int | None = None) -> Shape:
    """A product whose right operand is new at each call."""
    workload = "row" if m == 1 else "dynamic"
    return Shape(m, n, k, 1, "", transposed, workload, False, stride)


PRODUCTS = [
    Shape(1, 5, 7, 2),
    Shape(13, 9, 3, 3),
    Shape(5, 17, 8, 2, transposed=True),
    Shape(1, 33, 64, 4, transposed=True),
    changing(4, 40, 24),
    changing(5, 24, 40, transposed=True),
    changing(9, 40, 24, stride=64),
    changing(3, 24, 40, transposed=True, stride=41),
    changing(1, 40, 24, stride=4096),
    changing(1, 24, 40, transposed=True),
]
FUSED = [
    Shape(m, 64, 48, workload="fused", epilogue=epilogue)
    for m in (1, 9)
    for epilogue in ("bias_gelu", "bias_residual")
]
CHAINS = [Shape(3, 64, 64, workload="chain")]
EVERY = [*LINEAR, *PRODUCTS, *FUSED, *CHAINS]


def load(name: str) -> peers.Peer:
    """The peer, or a skip when the library that it needs is not installed."""
    for library, names in NEEDS.items():
        if name in names and importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    found, absent = peers.load_peers([name])
    assert not absent
    return found[0]


@pytest.mark.parametrize("name", peers.LOADERS)
@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: shape.key)
def test_peer_computes_the_case(name, shape):
    peer = load(name)
    made = make_operands(shape, seed=3)
    if not peer.takes(made):
        assert peer.refuses(shape)
        return
    expected = reference(made)
    call = run.checked_run(peer, made, expected)
    call()
    assert error_in(as_array(call(), made.out), expected) is None  # and does not depend on itself
    np.multiply(made.a, 2, out=made.a)  # the operand is read again at each call
    assert error_in(as_array(call(), made.out), reference(made)) is None


def test_every_case_has_a_peer_and_every_peer_a_case():
    libraries = {name: load(name) for name in peers.LOADERS}
    takers = {
        shape.key: {n for n, p in libraries.items() if not p.refuses(shape)} for shape in EVERY
    }
    assert all(takers.values())
    assert set().union(*takers.values()) == set(libraries)
    assert takers[CHAINS[0].key] == {"onnxruntime"}
    for shape in FUSED:
        assert {"onednn_packed", "onednn_separate", "onnxruntime", "onnxruntime_separate"} <= (
            takers[shape.key]
        )


@pytest.mark.parametrize("name", peers.LOADERS)
def test_peer_keeps_its_word_on_who_allocates(name):
    peer = load(name)
    shape = Shape(5, 16, 12)
    if peer.refuses(shape):
        shape = Shape(5, 16, 12, workload="fused", epilogue="bias_residual")
    made = make_operands(shape, seed=4)
    call = peer.prepare(made)
    made.out.fill(np.nan)
    call()
    assert bool(np.isnan(made.out).all()) == peer.allocates


def test_onnxruntime_fuses_the_epilogue_unless_told_not_to(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    import onnx

    def operators(level: object) -> list[str]:
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        options.optimized_model_filepath = str(tmp_path / "model.onnx")
        made = make_operands(FUSED[0], seed=3)
        ort.InferenceSession(case_model(made), options, providers=["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]

    fused = operators(ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    assert len(fused) == 2 and fused[-1] in ("Gelu", "BiasGelu")
    assert "Erf" in operators(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)


def test_an_absent_library_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "bench.gemm.onnx_peers", raising=False)
    found, absent = peers.load_peers(["openblas", "onnxruntime"])
    assert [peer.name for peer in found] == ["openblas"]
    assert "onnxruntime" in absent["onnxruntime"]


def test_onnx_model_holds_the_weight_as_a_constant():
    import onnx

    made = make_operands(Shape(4, 6, 5), seed=5)
    model = onnx.load_from_string(case_model(made))
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
    (torch_peers.mkl_packed(1), torch.backends.mkl),
    (torch_peers.onednn_packed(1), torch.backends.mkldnn),
):
    call = peer.prepare(made)
    call()
    with library.verbose(1):
        call(), call()
    if peer.name == "mkl_packed":
        print("==", flush=True)
"""


def test_relax_functions_compute_every_case():
    target = tvm.target.Target({"kind": "llvm"})
    models = tvm_models.Models(target, lambda: tvm.relax.get_default_pipeline(target))
    for shape in [*LINEAR, *PRODUCTS, *FUSED, *CHAINS]:
        if shape.row_stride is not None:
            continue  # TVM's own operators take compact tensors only
        made = make_operands(shape, seed=6)
        expected = reference(made)
        assert error_in(as_array(models.prepare(made)(), made.out), expected) is None


def test_ours_computes_every_case():
    target = mp.detect_target(cores=1)
    candidates = [ours.direct(target), ours.compiled(target)]
    for shape in EVERY:
        runs, absent = run.prepare_all(candidates, make_operands(shape, seed=7))
        assert absent == {}
        assert set(runs) == ({peers.VM} if shape in CHAINS else {peers.VM, peers.DIRECT})


def test_one_function_serves_every_number_of_rows_and_is_made_anew_for_another_weight():
    compiled = []

    class Counting(tvm_models.Models):
        def compiled(self, module, name):
            compiled.append(name)
            return lambda *tensors: None

    models = Counting(tvm.target.Target({"kind": "llvm"}), lambda: None)
    first = make_operands(Shape(1, 12, 7), seed=1)
    for m in (5, 64):
        models.prepare(first)
        models.prepare(make_operands(Shape(m, 12, 7), seed=m, weight=first.b))
    assert compiled == ["linear_12_7"]
    models.prepare(make_operands(Shape(1, 12, 7), seed=2))
    assert compiled == ["linear_12_7"] * 2
    for seed in (1, 2):
        models.prepare(make_operands(Shape(4, 9, 8, 2), seed=seed))
    assert compiled[2:] == ["context_9"]
