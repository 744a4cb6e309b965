"""What the notebook of dynamic convolutions is made of, on a small layer."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("IPython")

import tvm_moonpoly as mp
from bench.conv.layer import Layer
from bench.conv.operands import make_operands
from bench.notebooks import conv_layer
from bench.notebooks.candidates import DLIGHT, HAND, OURS, PLAIN, Candidate
from bench.notebooks.curves import PEAK, Point

LAYER = Layer(1, 8, 6, 6, 16, (3, 3), padding=(1, 1, 1, 1))


def test_every_candidate_takes_every_size():
    target = mp.detect_target(cores=1)
    found = conv_layer.measured(
        LAYER, target, (5, 9), (5,), (lambda: sum(range(100)), 100), rounds=1
    )
    assert [point.rows for point in found.points] == [5, 9]
    assert set(found.points[0].seconds) == {OURS, HAND, PEAK}
    assert set(found.slow[0].seconds) == {OURS, PLAIN, DLIGHT, PEAK}


def test_a_wrong_result_is_an_error():
    constants = make_operands(LAYER)
    wrong = Candidate("wrong", 0.0, lambda x: lambda: x)
    with pytest.raises(AssertionError, match="wrong: images of 4 rows: shape"):
        conv_layer.timed([wrong], LAYER, constants, (4,), rounds=1, peak=(lambda: None, 1))


def test_figure_and_table():
    fast = {OURS: (1e-6,), HAND: (4e-6,), PEAK: (1e-6,)}
    slow = {OURS: (1e-6,), PLAIN: (9e-6,), DLIGHT: (8e-6,), PEAK: (1e-6,)}
    points = [Point(size, 50_000, fast, 90_000) for size in (8, 16)]
    few = [Point(8, 50_000, slow, 90_000)]
    candidates = [Candidate(name, 0.5, lambda x: lambda: x) for name in (OURS, PLAIN, DLIGHT, HAND)]
    figure = conv_layer.speed_figure(points, few, "a layer")
    title = figure.axes[0].get_title(loc="left")
    assert "the hand schedule takes 4.0 times as long" in title
    assert "plain TVM 9 times, dlight 8 times" in title
    text = conv_layer.table(conv_layer.Found(candidates, points, few)).data
    assert "| hand schedule | 4.00 | 4.00 | 4.00 | 2 of 8..16 | 0.50 s |" in text
