"""The journal of the GEMM benchmark: what is written is found again, what is torn is dropped."""

from __future__ import annotations

import json

import pytest

from bench.gemm.journal import BUSY, Journal, Measured, Record
from bench.gemm.shapes import Shape

HEADER = {"machine": "this one", "settings": {"rounds": 4}}
SHAPE = Shape(3, 8, 4)
OTHER = Shape(5, 8, 4, workload="dynamic", constant=False, row_stride=9)


def record(shape: Shape = SHAPE, threads: int = 1, at: float = 1.0, **fields) -> Record:
    return Record(shape, threads, {"moonpoly": [1.0, 2.0], "peer": [3.0, 4.0]}, at=at, **fields)


def test_what_was_written_is_found_again(tmp_path):
    path = tmp_path / "folder" / "journal.jsonl"
    written = [
        record(absent={"gone": "because"}),
        record(OTHER),
        record(threads=2),
        record(threads=2, mode=BUSY),
        record(at=5.0),
    ]
    with Journal(path, HEADER) as journal:
        assert not journal.resumed and journal.reason is None
        journal.note(1, {"peak_flops": 7})
        journal.note(1, {"peak_flops": 8})
        for one in written:
            journal.add(one)
            # On disk at once: nothing is lost when the process is killed after this.
            assert json.loads(path.read_text().splitlines()[-1])["key"] == one.shape.key
    with Journal(path, HEADER) as journal:
        assert journal.resumed
        assert journal.records == written
        assert journal.notes == {1: {"peak_flops": 8}}
        assert journal.runs(SHAPE.key, 1) == [written[0], written[4]]
        assert journal.runs(SHAPE.key, 2, BUSY) == [written[3]]
        assert [one.shape for one in journal.measured(1)] == [SHAPE, OTHER]
        assert len(journal.measured(1)[0].runs) == 2


def test_runs_are_put_together():
    first = Record(SHAPE, 1, {"moonpoly": [1.0], "peer": [2.0]}, {"x": "why"})
    second = Record(SHAPE, 1, {"moonpoly": [4.0, 5.0], "peer": [6.0, 7.0], "x": [1.0, 1.0]})
    both = Measured.of_runs([first, second])
    assert both.seconds == {"moonpoly": [1.0, 4.0, 5.0], "peer": [2.0, 6.0, 7.0]}
    assert both.runs == (first.rounds, second.rounds)
    assert both.absent == {"x": "why"}


def test_a_run_without_a_peer_of_the_first_one_does_not_count():
    first = Record(SHAPE, 1, {"moonpoly": [2.0], "peer": [1.0]})
    second = Record(SHAPE, 1, {"moonpoly": [2.0, 2.0]}, {"peer": "the worker died"})
    found = Measured.of_runs([first, second])
    assert found.seconds == first.rounds  # or else a loss would be forgotten
    assert found.runs == (first.rounds, second.rounds) and not found.absent


@pytest.mark.parametrize("torn", [1, 10, 200])
def test_a_torn_last_line_is_dropped_and_written_over(tmp_path, torn):
    path = tmp_path / "journal.jsonl"
    with Journal(path, HEADER) as journal:
        journal.add(record())
        journal.add(record(OTHER))
    path.write_bytes(path.read_bytes()[:-torn])
    with Journal(path, HEADER) as journal:
        assert journal.resumed
        assert [one.shape for one in journal.records] == [SHAPE]
        journal.add(record(OTHER))
    with Journal(path, HEADER) as journal:
        assert [one.shape for one in journal.records] == [SHAPE, OTHER]


@pytest.mark.parametrize("garbage", ["{", "[1]", '"text"', "\x00\x00"])
def test_garbage_ends_what_is_read(tmp_path, garbage):
    path = tmp_path / "journal.jsonl"
    with Journal(path, HEADER) as journal:
        journal.add(record())
    whole = path.read_text()
    path.write_text(whole + garbage + "\n" + whole.splitlines()[-1] + "\n")
    with Journal(path, HEADER) as journal:
        assert len(journal.records) == 1
    assert path.read_text() == whole


@pytest.mark.parametrize(
    ("header", "restart", "said"),
    [
        ({**HEADER, "machine": "another"}, False, "it is of another machine"),
        ({**HEADER, "code": 1}, False, "it is of another code"),
        (HEADER, True, "asked to start anew"),
    ],
)
def test_a_journal_of_something_else_is_put_aside(tmp_path, header, restart, said):
    path = tmp_path / "journal.jsonl"
    with Journal(path, HEADER) as journal:
        journal.add(record())
    before = path.read_text()
    with Journal(path, header, restart=restart) as journal:
        assert (journal.resumed, journal.reason, journal.records) == (False, said, [])
    assert (tmp_path / "journal.jsonl.old").read_text() == before
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"header": header}]


def test_a_finished_journal_is_not_gone_on_with(tmp_path):
    path = tmp_path / "journal.jsonl"
    with Journal(path, HEADER) as journal:
        journal.add(record())
        journal.finish()
    with Journal(path, HEADER) as journal:
        assert (journal.resumed, journal.reason) == (False, "it was finished")


def test_a_file_without_a_header_is_put_aside(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"other": 1}\n')
    with Journal(path, HEADER) as journal:
        assert journal.reason == "it has no header"
    assert (tmp_path / "journal.jsonl.old").is_file()
