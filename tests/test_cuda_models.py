"""Whole models for a GPU: compiled without one, exported, and run on an emulated one."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import tvm
from cuda_emulator import missing_compiler
from cuda_models import (
    ANY,
    HIDDEN,
    NoCompiler,
    compiled,
    convolutional_network,
    run,
    transformer_block,
)
from cuda_testing import DTYPES
from graph_testing import ours
from onnx import TensorProto, helper, numpy_helper

from tvm_moonpoly.cli import compile

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))


def launchable(sources):
    """Without those kernels for unaligned operands that have an epilogue: in these models all
    weights are aligned."""
    return [s for s in sources if f"any_{ANY.name}_bias" not in s]


@pytest.mark.parametrize(
    "dtype, tolerance",
    [("float16", 2e-2), pytest.param("bfloat16", 1e-1, marks=pytest.mark.emulator)],
)
def test_a_transformer_block_agrees_with_the_one_on_a_cpu(monkeypatch, tmp_path, dtype, tolerance):
    compiler = NoCompiler(monkeypatch)
    mod = transformer_block(dtype)
    executable, report = compiled(mod)
    assert not report.left
    assert [entry.detail for entry in report] == [
        *[f"{dtype}, NN, fused bias"] * 3,
        f"{dtype}, NT, permute_dims of a, b folded",
        f"{dtype}, NN, permute_dims of b, output folded",
        f"{dtype}, NT, fused bias + residual",
        f"{dtype}, NN, fused bias + gelu",
        f"{dtype}, NT, fused bias + residual",
    ]
    rng = np.random.default_rng(1)
    kind = DTYPES[dtype]
    feeds = [rng.standard_normal((*s, HIDDEN)).astype(kind) for s in ((2, 13), (1, 16))]
    results = run(executable, launchable(compiler.sources), feeds, tmp_path)
    on_a_cpu, _ = ours(mod)
    for feed, found in zip(feeds, results, strict=True):
        expected = on_a_cpu["main"](tvm.runtime.tensor(feed)).numpy().astype(np.float64)
        assert found.result.shape == feed.shape
        got = found.result.astype(np.float64)
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
        ours_of = [name for name in found.kernels if name.startswith("moonpoly")]
        # heads are read where they are stored: a launch for each sequence
        assert len(ours_of) == 6 + 2 * feed.shape[0]
        # 13 keys are no multiple of 16 bytes, 16 are
        assert any("_any_" in name for name in ours_of) == (feed.shape[1] % 8 != 0)


def test_a_convolutional_network_agrees_with_the_one_on_a_cpu(monkeypatch, tmp_path):
    """All but its last product is TVM's."""
    compiler = NoCompiler(monkeypatch)
    mod = convolutional_network()
    executable, report = compiled(mod)
    assert [e.detail for e in report if e.operator == "matmul"] == ["float16, NN"]
    x = np.random.default_rng(1).standard_normal((2, 3, 9, 12)).astype(np.float16)
    (found,) = run(executable, launchable(compiler.sources), [x], tmp_path)
    on_a_cpu, _ = ours(mod)
    expected = on_a_cpu["main"](tvm.runtime.tensor(x)).numpy().astype(np.float64)
    np.testing.assert_allclose(found.result, expected, rtol=0, atol=1e-2)


def test_the_command_compiles_a_model_for_a_gpu(monkeypatch, tmp_path, capsys):
    NoCompiler(monkeypatch)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["n", size])
        for name, size in (("x", 64), ("y", 72))
    )
    weight = numpy_helper.from_array(np.ones((64, 72), np.float16), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Relu", ["z"], ["v"]),
        helper.make_node("Softmax", ["v"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "model.onnx",
    )
    output = tmp_path / "model.so"
    options = ["-o", str(output), "--target", "nvidia/nvidia-a100", "--json"]
    assert compile.main([str(tmp_path / "model.onnx"), *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [entry["detail"] for entry in told["operators"]] == ["float16, NN, fused relu"]
    assert b"\x7fELFsm_80" in output.read_bytes()
    assert b"__global__" not in output.read_bytes(), "source would be compiled when it is loaded"
