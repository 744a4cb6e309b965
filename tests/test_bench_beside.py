"""Peers that are measured beside ours: the passes, their parts of the document, and documents of
two commands put together."""

from __future__ import annotations

import contextlib
import json

import pytest
from rich.console import Console

from bench import beside, pages
from bench.beside import Beside, chosen, measure_beside, parts_of
from bench.beside_text import cell, columns, sentence
from bench.conv import cli
from bench.conv.peers import LIBRARIES
from bench.gemm.journal import Journal, Record
from bench.gemm.options import journal_at
from bench.gemm.run import Effort
from bench.models.cases import Case

OURS, SLOW = "ours", "slow"
EFFORT = Effort(rounds=12, min_seconds=0.01, case_seconds=5, budget=60)
PEER = Beside(SLOW, "a slow peer", "slow-package", "two of them", lambda cases: list(cases)[:2],
              rounds=6, fewest=4, flops=1e9, starting=10.0, patience=20.0)  # fmt: skip
CASES = [Case("vit", (1,)), Case("vit", (2,)), Case("vit", (3,))]


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path / "j.jsonl", {"versions": {"slow-package": "7"}}, kind=Case) as made:
        yield made


def record(case, ratio):
    theirs = {} if ratio is None else {SLOW: [ratio] * 6}
    absent = {SLOW: "no such operator"} if ratio is None else {}
    return Record(case, 1, {OURS: [1.0] * 6, **theirs}, absent, PEER.mode)


def test_a_pass_takes_its_cases_and_goes_on(journal, monkeypatch):
    asked = []

    def measured(crew, work, effort, threads, journal, console, *, mode, patience, **more):
        asked.append((list(work), effort.rounds, mode, patience))
        for case in work:
            journal.add(record(case, 2.0))
        return True

    monkeypatch.setattr(beside, "crew_of", lambda *given: contextlib.nullcontext(given))
    monkeypatch.setattr(beside, "note_crew", lambda *given: None)
    monkeypatch.setattr(beside, "measure_each", measured)
    journal.add(record(CASES[0], 0.5))
    for _ in range(2):
        assert measure_beside(
            chosen([PEER], [SLOW]), CASES, lambda engine: [], EFFORT, 1, journal, Console(),
            ours=OURS,
        )  # fmt: skip
    assert asked == [([CASES[1]], 6, "beside a slow peer", 20.0)]
    assert chosen([PEER], ["another"]) == []
    stopped = measure_beside([PEER], [CASES[2]], list, EFFORT, 1, journal, Console(), ours=OURS,
                             end=0.0)  # fmt: skip
    assert not stopped and len(asked) == 1


def test_the_part_of_the_document(journal):
    for case, ratio in zip(CASES, (0.5, 8.0, None), strict=True):
        journal.add(record(case, ratio))
    (part,) = parts_of([PEER], journal, 1, OURS)
    assert parts_of([PEER], journal, 2, OURS) == []
    assert [row["ratio"] for row in part["rows"]] == [0.5, 8.0, None]
    assert part["rows"][1]["seconds"] == {OURS: 1.0, SLOW: 8.0}
    doc = {"beside": [part]}
    assert columns([doc]) == {SLOW: "a slow peer"}
    assert cell(doc, SLOW, "vit") == "2.00 (2)" and cell(doc, SLOW, "decode") == "-"
    assert sentence(part, "size") == (
        "A slow peer 7, with dynamic shapes as ours, was timed beside ours on 2 sizes, two of "
        "them, in 6 rounds each, and is faster in 1 of them: vit/1 (0.50, 0.50..0.50). "
        "Not timed on 1: no such operator."
    )


def document(threads, rows, code="same", **more):
    return {"format": 1, "machine": {}, "code": code, "threads": threads, "rows": rows, **more}


def test_documents_of_two_commands_are_put_together(tmp_path):
    def read(*docs):
        paths = [tmp_path / f"{at}.json" for at in range(len(docs))]
        for path, doc in zip(paths, docs, strict=True):
            path.write_text(json.dumps(doc))
        return pages.read_documents(paths, 1)

    part = {"engine": SLOW, "rows": []}
    two, one, rest = document(2, ["b"]), document(1, ["a"]), document(1, [], beside=[part])
    rest["remark"] = "Tests ran meanwhile."
    told = part | {"remark": "Tests ran meanwhile."}
    assert read(two, one, rest) == [{**one, "beside": [told]}, {**two, "beside": []}]
    assert sentence({**told, "title": "a", "version": "1", "where": "here"}, "size").endswith(
        "faster in 0 of them. Tests ran meanwhile."
    )
    with pytest.raises(ValueError, match="another state of the code"):
        read(one, document(1, [], "other", beside=[part]))
    with pytest.raises(ValueError, match="another operator library"):
        read(one, document(1, [], beside=[part], library="tuned anew"))
    with pytest.raises(ValueError, match="0 documents of one thread have rows"):
        read(two, rest)
    with pytest.raises(ValueError, match="2 documents of one thread have rows"):
        read(one, one)


@pytest.mark.parametrize(
    "arguments,name",
    [
        ([], "conv.jsonl"),
        (["--peers", "onnxruntime,tvm_hand", "--quick"], "conv-quick.jsonl"),
        (["--peers", "tvm_plain,tvm_hand"], "conv-beside.jsonl"),
    ],
)
def test_a_run_of_such_peers_alone_has_a_journal_of_its_own(arguments, name):
    assert journal_at(cli.parse(arguments), "conv", LIBRARIES).name == name
