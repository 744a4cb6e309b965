"""torch's peer of whole networks: ONNX graphs as torch modules, under torch.compile."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest

from bench.engines import as_arrays, run_onnxruntime
from bench.models import networks_decoder, networks_resnet, networks_vit
from bench.models.worker import error_against
from bench.onnx_graph import WeightedGraph, floats

torch = pytest.importorskip("torch", reason="torch is not installed")
from bench.models.torch_attention import find_attention  # noqa: E402
from bench.models.torch_compiled import engine_of  # noqa: E402
from bench.models.torch_convert import constants_of, convert, inputs_of  # noqa: E402
from bench.models.torch_operators import OPERATORS  # noqa: E402

WIDTH = 12
SMALL = [
    (networks_vit, [(1,), (2,), (5,)]),
    (networks_decoder, [(1, 5, 0), (2, 3, 0), (1, 1, 1), (1, 1, 7), (3, 1, 4)]),
    (networks_resnet, [(1, 33, 40), (2, 64, 47)]),
]


def in_torch(module: object, model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list:
    """The results, without a compiler."""
    with torch.inference_mode():
        found = module(*(torch.from_numpy(feed[name]) for name in inputs_of(model.graph)))
    return [each.numpy() for each in found]


@pytest.mark.parametrize("network,sizes", SMALL, ids=lambda each: getattr(each, "__name__", ""))
def test_networks_agree_with_onnxruntime(network, sizes):
    model = network.build(network.SMALL)
    module, reference = convert(model), run_onnxruntime(model, 1)
    for size in sizes:
        feed = network.feed(network.SMALL, *size)
        assert error_against(reference, feed, in_torch(module, model, feed)) < 1e-5


@pytest.mark.parametrize("network,masked", [(networks_vit, False), (networks_decoder, True)])
def test_attention_is_one_operator(network, masked):
    model = network.build(network.SMALL)
    found = find_attention(model.graph, constants_of(model.graph))
    assert len(found) == network.SMALL.layers
    assert all(bool(one.mask) == masked for one in found.values())
    targets = [getattr(node.target, "__name__", "") for node in convert(model).graph.nodes]
    assert targets.count("attention") == network.SMALL.layers and "softmax" not in targets


def attention_model(scores_are_a_result: bool = False) -> onnx.ModelProto:
    """Attention of x (batch, rows, width) on itself after a linear layer, reshaped by its sizes."""
    rng = np.random.default_rng(0)
    graph = WeightedGraph(
        {
            "in.weight": rng.standard_normal((WIDTH, WIDTH), np.float32) / 4,
            "in.bias": rng.standard_normal(WIDTH, np.float32),
        }
    )
    y = graph.gelu(graph.linear("x", "in"))
    y = graph.transpose(graph.reshape(y, 3, WIDTH // 3), 0, 2, 1, 3)
    scores = graph.node("MatMul", [y, graph.transpose(y, 0, 1, 3, 2)])
    weights = graph.node("Softmax", [graph.node("Mul", [scores, graph.scalar(0.5)])], axis=-1)
    mixed = graph.transpose(graph.node("MatMul", [weights, y]), 0, 2, 1, 3)
    flat = graph.node("Reshape", [mixed, graph.integers(0, 0, WIDTH)])
    graph.node("Identity", [flat], "result")
    results = [floats("result", "batch", "rows", WIDTH)]
    if scores_are_a_result:
        results.append(floats(scores, "batch", 3, "rows", "rows"))
    return graph.model("attention", [floats("x", "batch", "rows", WIDTH)], results)


def test_scores_that_others_use_are_kept():
    model = attention_model(scores_are_a_result=True)
    assert not find_attention(model.graph, constants_of(model.graph))
    feed = {"x": np.random.default_rng(1).standard_normal((2, 5, WIDTH), np.float32)}
    found = in_torch(convert(model), model, feed)
    assert error_against(run_onnxruntime(model, 1), feed, found) < 1e-5


@pytest.fixture
def graphs(monkeypatch):
    """Counts the graphs that torch makes; none of them is compiled, which takes half a minute."""
    from torch._dynamo.utils import counters

    def compile_without_code(module, *, options, **how):
        assert options == {"freezing": True} and how == {"fullgraph": True, "dynamic": True}
        return compile_by_torch(module, backend="eager", **how)

    compile_by_torch = torch.compile
    monkeypatch.setattr(torch, "compile", compile_without_code)
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    assert not counters["graph_break"]


def test_one_graph_serves_all_sizes(graphs):
    model = attention_model()
    reference = run_onnxruntime(model, 1)
    engine = engine_of(model, torch.get_num_threads(), time.perf_counter())
    for batch, rows in ((2, 5), (3, 16), (7, 2), (4, 33)):
        feed = {"x": np.random.default_rng(batch).standard_normal((batch, rows, WIDTH), np.float32)}
        found = as_arrays(engine.prepare(feed)())
        assert error_against(reference, feed, found) < 1e-5
    assert graphs() == 1


@pytest.mark.parametrize(
    "network,sizes,most",
    [
        (networks_vit, [(2,), (5,), (1,), (3,)], 2),
        (networks_resnet, [(2, 64, 47), (3, 33, 40), (1, 33, 40), (1, 64, 64)], 2),
        # of one sequence or several, one new token or several, an empty cache, one token or several
        (
            networks_decoder,
            [(1, 5, 0), (1, 9, 0), (2, 3, 0), (1, 1, 1), (1, 1, 7), (4, 1, 6), (3, 1, 4)],
            5,
        ),
    ],
    ids=["vit", "resnet", "decoder"],
)
def test_sizes_of_one_and_none_have_graphs_of_their_own(graphs, network, sizes, most):
    model = network.build(network.SMALL)
    reference = run_onnxruntime(model, 1)
    engine = engine_of(model, torch.get_num_threads(), time.perf_counter())
    for size in sizes:
        feed = network.feed(network.SMALL, *size)
        assert error_against(reference, feed, as_arrays(engine.prepare(feed)())) < 1e-5
    assert graphs() <= most


def test_an_operator_that_there_is_not_is_named():
    graph = WeightedGraph({})
    graph.node("Cosh", ["x"], "result")
    model = graph.model("cosh", [floats("x", "n")], [floats("result", "n")])
    with pytest.raises(NotImplementedError, match="no operator Cosh"):
        convert(model)


def apply(kind, *inputs, **attributes):
    return OPERATORS[kind](*inputs, **attributes)


def test_sizes_are_numbers():
    x = torch.zeros(2, 3, 5)
    assert apply("Shape", x) == [2, 3, 5]
    assert apply("Gather", [2, 3, 5], 1) == 3 and apply("Gather", [2, 3, 5], [2, 0]) == [5, 2]
    assert apply("Unsqueeze", 3, [0]) == [3] and apply("Squeeze", [3], [0]) == 3
    assert apply("Concat", [2], [3, 4], axis=0) == [2, 3, 4]
    assert apply("Slice", [2, 3, 5], [0], [2], [0]) == [2, 3]
    assert apply("Mul", [1, 1, 1], [-1]) == [-1] * 3 and apply("Add", 2, 3) == 5
    assert apply("Div", [7], [2]) == [3]
    equal = apply("Equal", [4, -1], [-1, -1])
    assert equal == [False, True] and apply("Where", equal, [1, 1], [4, -1]) == [4, 1]
    assert apply("ConstantOfShape", [2], value=1) == [1, 1]
    assert apply("Reshape", x, [0, -1]).shape == (2, 15)
    assert apply("Expand", torch.zeros(1, 1, 5), [2, 1, 1]).shape == (2, 1, 5)


def test_what_no_network_has_is_refused():
    x = torch.zeros(2, 3, 8, 8)
    with pytest.raises(NotImplementedError, match="another axis"):
        apply("Softmax", x, axis=1)
    with pytest.raises(NotImplementedError, match="differ at both ends"):
        apply("MaxPool", x, kernel_shape=[2, 2], pads=[0, 0, 1, 1])
    with pytest.raises(NotImplementedError, match="no linear layer"):
        apply("Gemm", x[0, 0], x[0, 0], alpha=2.0)
