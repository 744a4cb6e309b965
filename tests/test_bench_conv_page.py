"""The README's table of convolutions and their page of losses: made of the JSON documents alone."""

from __future__ import annotations

import json
import re

import pytest

from bench.conv import page
from bench.conv.layer import Layer
from bench.conv.peers import OURS, PEAK
from bench.conv.summary import FORMAT, document
from bench.gemm.journal import Journal, Record
from bench.pages import RESULTS, ROOT, markers, read_documents, replace_section


def test_the_readme_has_what_the_committed_results_give():
    docs = read_documents(sorted(RESULTS.glob("conv-*-thread*")), FORMAT)
    assert docs
    readme = (ROOT / "README.md").read_text()
    made = page.section(docs, "bench/results/conv-losses.md")
    assert replace_section(readme, made, "conv") == readme
    assert (RESULTS / "conv-losses.md").read_text() == page.losses_page(docs)


@pytest.fixture
def written(tmp_path) -> tuple[str, str]:
    """README and page of a run of three layers."""
    header = {
        "machine": {"cpu": "A CPU", "cores": 2},
        "versions": {
            "torch": "2.13.0",
            "onednn": "MKL-DNN v3.12.0 (Git Hash)",
            "apache-tvm": "9",
        },
    }
    depthwise = Layer(1, 8, 9, 9, 8, (3, 3), groups=8, network="slow")
    window = Layer(1, 8, 9, 9, 8, (3, 3), network="fast")
    given = [(depthwise, 0.5), (window, 1.5), (Layer(1, 8, 9, 9, 16, (3, 3), network="even"), 0.99)]
    with Journal(tmp_path / "j.jsonl", header, kind=Layer) as journal:
        journal.note(1, {"candidates": {}, "peak_flops": 1_000_000})
        for layer, ratio in given:
            seconds = {OURS: [1e-3] * 8, PEAK: [1e-3] * 8}
            journal.add(Record(layer, 1, {**seconds, "onednn_packed": [ratio * 1e-3] * 8}))
        by_hand = {**seconds, "tvm_hand": [4e-3] * 8}
        journal.add(Record(depthwise, 1, by_hand, {}, "beside TVM by hand"))
        found = document(journal, 1)
    made = tmp_path / "1.json"
    made.write_text(json.dumps({**found, "remark": "The machine was quiet."}))
    readme, losses = tmp_path / "README.md", tmp_path / "losses.md"
    begin, end = markers("conv")
    readme.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    options = ["--readme", str(readme), "--losses", str(losses)]
    for _ in range(2):
        assert page.main([str(made), *options]) == 0
    return readme.read_text(), losses.read_text()


def cells_of(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_section(written):
    text, _ = written
    begin, end = markers("conv")
    assert text.startswith(f"before\n{begin}\n") and text.endswith(f"{end}\nafter\n")
    assert "old" not in text
    flat = " ".join(text.split())
    assert "The best of torch 2.13.0 with oneDNN 3.12.0 is picked" in flat
    assert re.search(r"One thread, 3 of the \d+ layers of the list, spread evenly", flat)
    assert "8 rounds a layer. The machine was quiet." in flat
    lines = [cells_of(line) for line in text.splitlines() if line.startswith("| depthwise")]
    # 8 x 7 x 7 outputs of 9 products, at a peak of 1 GFLOP/s
    goals = ["depthwise", "1", "**0.50**", "1.10, none < 0.90", "no: ratio, floor", "1", "1"]
    assert lines[0] == [*goals, "0.50", "1 %"]
    assert lines[1] == ["depthwise", "0.50", "4.00 (1)"]
    assert "TVM by hand 9, with dynamic shapes as ours, was timed beside ours on 1 layer," in flat
    assert "in 8 rounds each, and is faster in 0 of them." in flat
    assert "[All 2 of 3 layers in which a library is faster](losses.md)" in flat
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert [line for line in prose if len(line) > 100] == []


def test_the_page_of_losses(written):
    _, text = written
    assert "2 layers are slower, of which 1 count." in text
    found = [cells_of(line) for line in text.splitlines() if "onednn" in line]
    assert [line[:5] for line in found] == [
        ["yes", "1x8x9x9/k8/3/s1/p0/g8", "slow", "depthwise", "0.50"],
        ["", "1x8x9x9/k16/3/s1/p0", "even", "window", "0.99"],
    ]
    assert found[0][-2:] == ["1 %", "1 %"]
