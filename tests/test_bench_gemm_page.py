"""The README's table and the page of losses: made of the JSON documents, and only of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.gemm import page
from bench.gemm.document import FORMAT, document
from bench.gemm.journal import BUSY, Journal, Record
from bench.gemm.peers import DIRECT, VM
from bench.gemm.run import PEAK
from bench.gemm.shapes import Shape
from bench.pages import RESULTS, ROOT, markers, read_documents, replace_section

BEGIN, END = markers("gemm")


def test_the_readme_has_what_the_committed_results_give():
    docs = read_documents(sorted(RESULTS.glob("gemm-*-thread*.json")), FORMAT)
    assert docs
    readme = (ROOT / "README.md").read_text()
    made = page.section(docs, "bench/results/gemm-losses.md")
    assert replace_section(readme, made, "gemm") == readme
    assert (RESULTS / "gemm-losses.md").read_text() == page.losses_page(docs)


def make_document(folder: Path, threads: int, code: str = "same") -> Path:
    header = {
        "machine": {"cpu": "A CPU", "cores": 2, "caches": {"L1": "32K"}},
        "versions": {
            "numpy_blas": "scipy-openblas 0.3.31",
            "onnxruntime": "1.32.0",
            "mkl": "Math Kernel Library Version 2024.2-Product Build",
            "onednn": "MKL-DNN v3.12.0 (Git Hash)",
        },
        "code": code,
        "settings": {"seed": 7},
    }
    given = [(Shape(1, 768, 768, layer="slow"), 0.5), (Shape(33, 768, 768, layer="even"), 0.99)]
    given.append((Shape(64, 768, 768, layer="fast"), 1.5))
    with Journal(folder / f"{threads}.jsonl", header) as journal:
        journal.note(threads, {"candidates": {}, "allocating": [VM], "peak_flops": 100_000})
        for shape, ratio in given:
            seconds = {PEAK: [1e-6] * 12, DIRECT: [1e-3] * 12, VM: [1e-3] * 12}
            journal.add(Record(shape, threads, {**seconds, "openblas": [ratio * 1e-3] * 12}))
            if threads > 1:
                journal.add(Record(shape, threads, {**seconds, "openblas": [3e-3] * 12}, {}, BUSY))
        if threads > 1:
            busy = {"slowdown": {"openblas": 9.04}, "static": 1.5, "static_cases": 3}
            journal.note(threads, journal.notes[threads] | {"busy": busy})
        path = folder / f"{threads}.json"
        path.write_text(json.dumps(document(journal, threads)))
    return path


@pytest.fixture
def written(tmp_path) -> tuple[str, str]:
    """README and page of a run of one thread and one of two, given in the wrong order."""
    readme, losses = tmp_path / "README.md", tmp_path / "results" / "losses.md"
    losses.parent.mkdir()
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    documents = [str(make_document(tmp_path, threads)) for threads in (2, 1)]
    options = ["--readme", str(readme), "--losses", str(losses)]
    assert page.main([*documents, *options]) == 0
    first = readme.read_text()
    assert page.main([*documents, *options]) == 0
    assert readme.read_text() == first
    return first, losses.read_text()


def test_the_section_names_machine_versions_targets_and_the_losses(written):
    text, _ = written
    assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    flat = " ".join(text.split())
    assert "2-core A CPU (L1 32K; FMA peak 100.0 GFLOP/s on one thread)" in flat
    for version in ("scipy-openblas 0.3.31", "MKL 2024.2", "oneDNN 3.12.0", "onnxruntime 1.32.0"):
        assert version in flat
    one = flat.index("One thread, 12 rounds a case, random cases by seed 7:")
    assert one < flat.index("2 threads, 12 rounds a case, a part of the list")
    assert "so many times longer: openblas 9.0. The same work split once" in flat
    assert "takes 1.50 times as long as chunks that are handed out (3 cases)" in flat
    line = next(each for each in text.splitlines() if "constant weights, all" in each)
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    # The geometric mean of 0.5, 0.99 and 1.5 is 0.9055.
    assert cells[1:7] == ["3", "**0.91**", "1.25", "no: ratio, floor", "1", "0.50"]
    assert f"| {BUSY} | 3 | **3.00** |" in text
    assert "[All 4 of 9 cases in which a library is faster](results/losses.md)" in flat
    prose = [each for each in text.splitlines() if not each.startswith("|")]
    assert max(map(len, prose)) <= 100


def test_the_page_lists_every_loss_the_worst_first(written):
    _, text = written
    assert "2 of 3 cases, of which 1 count." in text
    one, two = text.split("## ")[1:]
    lines = re.findall(r"^\| (yes)? *\| (\S+) \| (\w+) \| ([\d.]+)", one, re.M)
    assert lines == [
        ("yes", "linear/1x1x768x768/constant", "slow", "0.50"),
        ("", "linear/1x33x768x768/constant", "even", "0.99"),
    ]
    assert two.startswith("2 threads")
    assert "| fast |" not in text


def test_tables_are_well_formed(written):
    for text in written:
        tables = re.findall(r"(?:^\|.*\|\n)+", text, re.M)
        assert tables
        for table in tables:
            assert len({line.count("|") for line in table.splitlines()}) == 1


def test_what_is_no_such_document_or_readme_is_refused(tmp_path, capsys):
    old = tmp_path / "old.json"
    old.write_text('{"rows": []}')
    with pytest.raises(SystemExit):
        page.main([str(old)])
    assert "format None" in capsys.readouterr().err
    readme = tmp_path / "README.md"
    readme.write_text("nothing")
    with pytest.raises(SystemExit):
        page.main([str(make_document(tmp_path, 1)), "--readme", str(readme)])
    assert BEGIN in capsys.readouterr().err
    assert readme.read_text() == "nothing"


def test_documents_of_several_states_are_not_put_together(tmp_path, capsys):
    documents = [make_document(tmp_path, 1), make_document(tmp_path, 2, code="another")]
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")
    with pytest.raises(SystemExit):
        page.main([*map(str, documents), "--readme", str(readme)])
    assert "another state of the code" in capsys.readouterr().err
