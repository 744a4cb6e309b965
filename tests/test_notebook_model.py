"""What the notebook of a whole network is made of, on a small one."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("IPython")

import tvm_moonpoly as mp
from bench.engines import ORT, OURS
from bench.measure import Ratio
from bench.models import networks_resnet
from bench.models.functions import MACHINE, Part
from bench.models.zoo import Network
from bench.notebooks import model_time
from bench.notebooks.model_time import AROUND, HEAVY, PLAIN, SHAPES, Variant

SMALL = networks_resnet.ResnetConfig(stages=(8,), classes=5)
NETWORK = Network(
    functools.partial(networks_resnet.build, SMALL), functools.partial(networks_resnet.feed, SMALL)
)


@pytest.mark.parametrize(
    "name,kind",
    [
        ("moonpoly_linear_f32", HEAVY),
        ("fused_conv2d_add_relu", HEAVY),
        ("FusedConv", HEAVY),
        ("softmax", AROUND),
        ("HardSwish", AROUND),
        (MACHINE, SHAPES),
        ("Reshape", SHAPES),
    ],
)
def test_what_a_function_is_for(name, kind):
    assert model_time.kind_of(name) == kind


def test_the_switches_are_the_pipelines():
    names = model_time.switches()
    assert {"convolutions", "vector_math", "schedule_memory_bound"} <= set(names)
    assert not {"static", "verify", "report"} & set(names)


def test_functions_and_ablation():
    target = mp.detect_target(cores=1)
    found = model_time.functions(NETWORK, (1, 20, 21), target)
    assert set(found) == {OURS, PLAIN, ORT}
    for parts in found.values():
        assert model_time.by_kind(parts)[HEAVY] > 0
    variants = model_time.ablation(NETWORK, (1, 20, 21), target, ["vector_math"], rounds=1)
    assert [each.name for each in variants] == ["all passes", "without vector_math", ORT]
    assert variants[0].ratio.median == 1 and all(each.seconds > 0 for each in variants)


def test_a_wrong_result_is_an_error(monkeypatch):
    monkeypatch.setattr(model_time, "TOLERANCE", -1.0)
    with pytest.raises(AssertionError, match="all passes: an error of"):
        model_time.ablation(NETWORK, (1, 8, 8), mp.detect_target(cores=1), [])


def test_figures_and_tables():
    found = {
        OURS: [Part("moonpoly_linear_f32", 1e-3, 4), Part("softmax", 1e-3, 2)],
        PLAIN: [Part("fused_" + "matmul_" * 9, 18e-3, 4), Part(MACHINE, 2e-3, 1)],
        ORT: [Part("MatMul", 2e-3, 4), Part("Softmax", 1e-3, 2)],
    }
    title = model_time.kinds_figure(found, "a network").axes[0].get_title(loc="left")
    assert "plain TVM 10.0 times, onnxruntime 1.5 times as long" in title
    axes = model_time.functions_figure(found).axes
    assert [each.get_title(loc="left") for each in axes] == [PLAIN, ORT, OURS]
    labels = [each.get_text() for each in axes[0].get_yticklabels()]
    assert labels[1].startswith("matmul_matmul_") and labels[1].endswith("... (4)")
    text = model_time.functions_table(found[OURS]).data
    assert "| `moonpoly_linear_f32` | 4 | 1.000 | 50.0% |" in text
    ratio = Ratio(1.25, 1.2, 1.3, (1.25,))
    variants = [Variant("all passes", 2.0, 1e-3, ratio), Variant(ORT, 0.5, 2e-3, ratio)]
    assert len(model_time.ablation_figure(variants, "a network").axes[0].patches) == 2
    text = model_time.ablation_table(variants).data
    assert "| all passes | 1.00 | 1.25 | 1.20 to 1.30 | 2.0 |" in text
