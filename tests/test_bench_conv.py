"""The bench of convolutions: its layers, references, figures and options, without the libraries."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from bench.conv import cases, cli, summary
from bench.conv.beside import BESIDE
from bench.conv.layer import CLASSES, DEPTHWISE, FIRST, POINTWISE, WINDOW, Layer
from bench.conv.operands import error_in, make_operands
from bench.conv.peers import LIBRARIES, OURS, PEER_NAMES, PLACES, Peer, processes
from bench.conv.report import print_document
from bench.conv.worker import Candidates
from bench.gemm.journal import Journal, Record
from bench.gemm.run import Effort
from bench.goals import in_doubt

LAYER = Layer(2, 6, 7, 9, 8, (3, 2), (2, 1), (1, 0, 2, 1), (1, 2), 2, "a network")


def test_sizes_of_a_layer():
    assert LAYER.output == (4, 8)
    assert LAYER.flops == 2 * 2 * 4 * 8 * 8 * 3 * 3 * 2
    assert LAYER.key == "2x6x7x9/k8/3x2/s2x1/p1x0x2x1/d1x2/g2"
    assert Layer.from_json(json.loads(json.dumps(LAYER.to_json()))) == LAYER
    with pytest.raises(ValueError, match="not a layer"):
        Layer.from_json({**LAYER.to_json(), "other": 1})


@pytest.mark.parametrize(
    "attributes,message",
    [({"groups": 3}, "groups must divide"), ({"h": 1, "padding": (0, 0, 0, 0)}, "kernel")],
)
def test_layers_that_cannot_be(attributes, message):
    with pytest.raises(ValueError, match=message):
        replace(LAYER, **attributes)


@pytest.mark.parametrize(
    "layer,group",
    [
        (Layer(1, 8, 9, 9, 8, (3, 3), groups=8), DEPTHWISE),
        (Layer(1, 3, 9, 9, 8, (7, 7)), FIRST),
        (Layer(1, 1, 9, 9, 8, (1, 1)), FIRST),
        (Layer(1, 8, 9, 9, 16, (1, 1)), POINTWISE),
        (LAYER, WINDOW),
    ],
)
def test_classes(layer, group):
    assert layer.group == group


def test_the_list_of_layers():
    found = cases.all_cases()
    assert len({layer.key for layer in found}) == len(found)
    assert all(layer.flops < cases.MOST_FLOPS for layer in found)
    assert {layer.group for layer in found} == set(CLASSES)
    assert {layer.n for layer in found} >= {1, 2, 8}
    networks = {layer.network for layer in found}
    assert networks >= {"resnet18", "resnet50", "vgg16", "mobilenet_v2", "alexnet", "DeepBench"}
    quick = cases.quick_cases()
    assert set(quick) <= set(found) and {layer.group for layer in quick} == set(CLASSES)


def test_a_layer_at_another_resolution():
    layer = Layer(1, 8, 56, 56, 8, (3, 3), padding=(1, 1, 1, 1))
    assert (layer.scaled(320).h, layer.scaled(64).w) == (80, 16)


def whole(operands):
    """The layer computed tap by tap."""
    layer = operands.layer
    top, left, bottom, right = layer.padding
    pads = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(operands.nchw.astype(np.float64), pads)
    found = np.zeros((layer.n, layer.k, *layer.output))
    of_group, inputs = layer.k // layer.groups, layer.c // layer.groups
    for k in range(layer.k):
        for c in range(inputs):
            for i, j in np.ndindex(layer.kernel):
                rows = i * layer.dilation[0] + np.arange(layer.output[0]) * layer.strides[0]
                columns = j * layer.dilation[1] + np.arange(layer.output[1]) * layer.strides[1]
                plane = padded[:, k // of_group * inputs + c]
                found[:, k] += plane[:, rows[:, None], columns] * operands.weight[k, c, i, j]
        found[:, k] += operands.bias[k]
    return found.transpose(0, 2, 3, 1).astype(np.float32)


@pytest.mark.parametrize(
    "layer", [LAYER, Layer(1, 4, 5, 6, 4, (3, 3), padding=(1, 1, 1, 1), groups=4)]
)
def test_what_a_result_is_compared_with(layer):
    operands = make_operands(layer)
    right = whole(operands)
    assert error_in(right, operands) is None
    assert error_in(right[:, :, 1:], operands).startswith("shape")
    right[0, 0, 0, 1] += 1
    assert error_in(right, operands).startswith("wrong by")
    np.testing.assert_array_equal(operands.nhwc.transpose(0, 3, 1, 2), operands.nchw)
    again = make_operands(layer)
    np.testing.assert_array_equal(again.weight, operands.weight)


def test_candidates_of_a_worker(monkeypatch):
    """One that is right, one that is wrong, one that refuses, one that cannot be had."""

    def made(name, change=0.0, refuses=None):
        def prepare(operands):
            return (lambda: whole(operands) + change), (lambda result: result)

        return Peer(name, "a mode", prepare, lambda layer: refuses)

    class Of:
        process = "one of them"

        def __init__(self, make):
            self.make = make

    def absent(threads):
        raise ImportError("no such library")

    places = {
        "right": Of(lambda threads: made("right")),
        "wrong": Of(lambda threads: made("wrong", 1.0)),
        "choosy": Of(lambda threads: made("choosy", refuses="takes no groups")),
        "gone": Of(absent),
    }
    monkeypatch.setattr("bench.conv.worker.PLACES", places)
    candidates = Candidates([*places], 1)
    assert candidates.describe().absent == {"gone": "ImportError: no such library"}
    assert [*candidates.describe().modes] == ["right", "wrong", "choosy"]
    runs, reasons = candidates.prepare(LAYER, 0)
    assert [*runs] == ["right"]
    assert reasons["choosy"] == "takes no groups" and reasons["wrong"].startswith("wrong by")
    candidates.release()


def test_a_process_for_each_library():
    found = processes(["torch_nhwc", "onednn_packed", "onnxruntime"])
    assert found == {
        "tvm_moonpoly": [OURS],
        "torch": ["torch_nhwc", "onednn_packed"],
        "onnxruntime": ["onnxruntime"],
    }
    assert set(PEER_NAMES) == set(PLACES) - {OURS}


def record(layer, ours, peers):
    rounds = {OURS: ours, "fma_peak": [1.0] * len(ours), **peers}
    return Record(layer, 1, rounds, {"torch_nchw": "not timed"})


@pytest.fixture
def journal(tmp_path):
    depthwise = Layer(1, 8, 9, 9, 8, (3, 3), groups=8, network="b")
    with Journal(tmp_path / "j.jsonl", {"versions": {}, "machine": {}}, kind=Layer) as made:
        made.note(1, {"peak_flops": 1000, "candidates": {OURS: "a mode"}})
        made.add(record(LAYER, [1.0] * 8, {"torch_nhwc": [2.0] * 8}))
        made.add(record(depthwise, [1.0] * 8, {"torch_nhwc": [0.8] * 8, "onnxruntime": [3.0] * 8}))
        by_hand = {OURS: [1.0] * 6, "fma_peak": [1.0] * 6, "tvm_hand": [0.1] * 6}
        made.add(Record(LAYER, 1, by_hand, {}, "beside TVM by hand"))
        yield made


def test_figures(journal):
    doc = summary.document(journal, 1)
    worst, best = doc["rows"]
    assert (worst["class"], worst["vs_best"], worst["best"]) == (DEPTHWISE, 0.8, "torch_nhwc")
    assert worst["loss"] and worst["floor"] == 0.90
    assert worst["kernel"] == (3, 3) and worst["output"] == [7, 7]
    # a schedule written by hand is compared with, but is not the best library
    assert (best["best"], best["vs_best"], best["vs"]) == ("torch_nhwc", 2.0, {"torch_nhwc": 2.0})
    (by_hand,) = doc["beside"]
    assert by_hand["engine"] == "tvm_hand" and by_hand["rows"][0]["ratio"] == pytest.approx(0.1)
    assert best["of_peak"] == pytest.approx(LAYER.flops / 1000)
    window, depthwise = doc["classes"]
    assert window["met"] and window["target"] == 1.12
    assert not depthwise["met"] and depthwise["losses_that_count"] == 1
    assert doc["losses"] == [worst["key"]] == in_doubt(doc["rows"])
    console = Console(width=200, record=True)
    print_document(console, doc, each=True)
    text = console.export_text()
    assert text.index("1 of 2 layers are slower") < text.index("layers of")
    assert "absent at 2 layers: torch_nchw: not timed" in text
    assert "on 1 layer, of at most 2 GFLOP each" in text and "faster in 1 of them" in text
    with pytest.raises(ValueError, match="no case of 2 threads"):
        summary.document(journal, 2)


def test_a_run_goes_on(journal, tmp_path):
    journal.close()
    header = {"versions": {}, "machine": {}}
    with Journal(tmp_path / "j.jsonl", header, kind=Layer) as again:
        assert again.resumed and again.records[0].shape == LAYER
        assert len(again.runs(LAYER.key, 1)) == 1


def test_options():
    options = cli.parse(["--quick", "--classes", "depthwise", "--peers", "onnxruntime"])
    assert options.threads == [1] and options.peers == ("onnxruntime",)
    assert {layer.group for layer in options.cases} == {DEPTHWISE}
    assert cli.parse([]).threads == [1, 2]
    assert {x.network for x in cli.parse(["--networks", "vgg16,alexnet"]).cases} == {
        "vgg16",
        "alexnet",
    }


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--peers", "nobody"], "--peers: unknown nobody"),
        (["--classes", "square"], "--classes: there are no layers of square"),
        (["--networks", "lenet"], "--networks: there are no layers of lenet"),
        (["--rounds", "1"], "--rounds must be at least 2"),
        (["--budget", "0"], "--budget must be positive"),
        (["--stop", "0"], "--stop must be positive"),
        (["--threads", "1,1"], "--threads takes different numbers"),
    ],
)
def test_options_that_are_wrong(arguments, message, capsys):
    with pytest.raises(SystemExit):
        cli.parse(arguments)
    assert message in capsys.readouterr().err


def test_the_budget_cuts_rounds():
    effort = Effort(rounds=16, min_seconds=0.01, case_seconds=8, budget=60)
    from bench.conv.session import expected_seconds

    small, large = cases.quick_cases()[-1], max(cases.all_cases(), key=lambda x: x.flops)
    assert expected_seconds(small, effort) < expected_seconds(large, effort)


def test_every_beginning_of_a_run_is_a_fair_sample():
    order = cases.in_turn(cases.all_cases())
    assert {layer.key for layer in order} == {layer.key for layer in cases.all_cases()}
    beginning = order[:64]
    for name in CLASSES:
        found = [layer.flops for layer in beginning if layer.group == name]
        every = sorted(layer.flops for layer in order if layer.group == name)
        assert len(found) == 16
        middle = sorted(found)[8]
        assert every[len(every) // 4] < middle < every[-len(every) // 4]


def test_a_run_that_has_to_stop(tmp_path, monkeypatch):
    """No layer is begun that would last longer; what is left is left to the next run."""
    from bench.gemm.threads import passes

    times = [1.0] * 8
    monkeypatch.setattr(passes, "measure_case", lambda *a, **k: ({OURS: times}, {}))
    effort = Effort(rounds=8, min_seconds=0.01, case_seconds=8, budget=60)
    console = Console(quiet=True)
    with Journal(tmp_path / "j.jsonl", {}, kind=Layer) as journal:

        def measured(stop: float) -> bool:
            return passes.measure_twice(
                None,
                lambda: passes.to_do([LAYER], (), journal, 1),
                lambda layer, part: 1.0,
                effort,
                1,
                journal,
                console,
                ours=OURS,
                start=passes.time.monotonic(),
                stop=stop,
            )

        assert not measured(0.5) and not journal.records
        assert measured(60) and [one.shape for one in journal.records] == [LAYER]


def test_schedules_are_measured_on_a_sample():
    plain, by_hand = BESIDE
    every = cases.in_turn(cases.all_cases())
    found = {peer.engine: peer.pick(every) for peer in BESIDE}
    for peer in BESIDE:
        assert len(found[peer.engine]) == 24 and peer.pick(found[peer.engine][:3])
        classes = [layer.group for layer in found[peer.engine]]
        assert {classes.count(name) for name in CLASSES} == {6}
    assert max(layer.flops for layer in found["tvm_plain"]) <= 0.1e9
    assert max(layer.flops for layer in found["tvm_hand"]) > 1e9
    assert all(layer.groups in (1, layer.c) for layer in found["tvm_hand"])
    assert {peer.engine for peer in BESIDE} == set(PEER_NAMES) - set(LIBRARIES)
    assert plain.mode != by_hand.mode


def test_float16_beside_float32():
    """Results are compared before they are timed; libraries that are not installed are left out."""
    from bench.conv import half

    for layer in (Layer(1, 8, 9, 9, 8, (3, 3), groups=8), Layer(1, 16, 7, 6, 12, (3, 3))):
        seconds = half.timed(layer, rounds=2, say=lambda _: None)
        assert {("moonpoly", "float16"), ("moonpoly", "float32")} <= set(seconds)
        assert all(len(each) == 2 and min(each) > 0 for each in seconds.values())
