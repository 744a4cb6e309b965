"""The journal, and a stage that is killed: nothing that was measured is lost or measured again."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import random
import signal
import time
from dataclasses import replace

import pytest
from tuning_testing import MACHINE, SETTINGS, failing_on, made_up, stage_of

from tvm_moonpoly.logs import checksum, encode
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning import findings
from tvm_moonpoly.tuning.journal import Busy, Journal
from tvm_moonpoly.tuning.measuring.tasks import Task

ORIGIN = {"mcpu": "made-up", "levels": (1, 2)}


def never():
    raise AssertionError("it is in the journal")


def test_once(tmp_path):
    path = tmp_path / "new" / "journal.jsonl"
    with Journal(path, ORIGIN) as journal:
        assert journal.once("trial", {"k": 1}, lambda: {"steps": 2.5}) == {"steps": 2.5}
        assert journal.once("trial", {"k": 1}, never) == {"steps": 2.5}
        assert journal.once("other", {"k": 1}, lambda: [3]) == [3]
        assert journal.get("trial", {"k": 2}) is None
    with Journal(path, ORIGIN) as journal:
        assert journal.once("trial", {"k": 1}, never) == {"steps": 2.5}
        journal.put("trial", {"k": 3}, 4)
        assert list(journal.all("trial")) == [({"k": 1}, {"steps": 2.5}), ({"k": 3}, 4)]
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        assert entry.pop("sum") == checksum(entry)


def test_an_entry_is_on_the_disk_when_it_is_said_to_be(tmp_path, monkeypatch):
    path, synced = tmp_path / "journal", []
    with Journal(path, ORIGIN) as journal:
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path.read_bytes()))
        journal.put("trial", {"k": 1}, 5)
        assert len(synced) == 1 and synced[0] == path.read_bytes()
        assert b'"value": 5' in synced[0]


def test_cut_off_anywhere(tmp_path):
    """Whatever part of the file a crash leaves, the whole lines in it are used, the rest is dropped
    and what comes next is readable."""
    path = tmp_path / "journal"
    with Journal(path, ORIGIN) as journal:
        for k in range(4):
            journal.put("trial", {"k": k}, {"steps": k / 7})
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    assert len(ends) == 5
    near = {end + offset for end in [0, *ends] for offset in (-2, -1, 0, 1, 2)}
    for cut in sorted({*near, *range(0, len(whole), 23)} & set(range(len(whole) + 1))):
        path.write_bytes(whole[:cut])
        with Journal(path, ORIGIN) as journal:
            kept = max(sum(end <= cut for end in ends) - 1, 0)
            assert [key["k"] for key, _ in journal.all("trial")] == list(range(kept))
            journal.put("after", {}, cut)
        with Journal(path, ORIGIN) as journal:
            assert journal.get("after", {}) == cut
            assert len(list(journal.all("trial"))) == kept


def test_a_spoilt_line_costs_itself_only(tmp_path, caplog):
    path = tmp_path / "journal"
    with Journal(path, ORIGIN) as journal:
        for k in range(3):
            journal.put("trial", {"k": k}, k)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"value": 1', b'"value": 9')
    entry = {"kind": "trial", "key": {"k": 7}}  # a valid sum, but no value
    lines.insert(3, json.dumps({**entry, "sum": checksum(entry)}).encode() + b"\n")
    lines += [b"\xff\xfe nonsense\n", b"[1, 2]\n"]
    path.write_bytes(b"".join(lines))
    with caplog.at_level(logging.WARNING), Journal(path, ORIGIN) as journal:
        assert [value for _, value in journal.all("trial")] == [0, 2]
    assert "line 3 is skipped: its checksum does not match" in caplog.text
    assert caplog.text.count("skipped") == 4


def test_of_another_machine(tmp_path, caplog):
    path = tmp_path / "journal"
    with Journal(path, ORIGIN) as journal:
        journal.put("trial", {"k": 1}, 5)
    before = path.read_bytes()
    with caplog.at_level(logging.WARNING), Journal(path, {"mcpu": "another"}) as journal:
        assert not list(journal.all("trial"))
        journal.put("trial", {"k": 1}, 6)
    assert (tmp_path / "journal.old").read_bytes() == before
    assert "of another machine or version" in caplog.text
    with Journal(path, {"mcpu": "another"}) as journal:
        assert journal.get("trial", {"k": 1}) == 6


def test_nothing_that_was_set_aside_is_overwritten(tmp_path):
    """Somebody who tunes on one core now and on two then keeps all measurements."""
    path = tmp_path / "journal"
    for cores in (1, 2, 1, 2):
        with Journal(path, {"cores": cores}) as journal:
            journal.put("trial", {"cores": cores}, len(list(tmp_path.iterdir())))
    names = ["journal", "journal.old", "journal.old.1", "journal.old.2"]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    assert [b'"value": %d' % i in (tmp_path / names[i % 4]).read_bytes() for i in (1, 2, 3)] == [
        True
    ] * 3


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("content", [b"notes", b"notes\nof mine\n", b'{"kind": "kernel"}\n', b"\0"])
def test_a_file_of_something_else_is_left_alone(tmp_path, content, anew):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="^journal: .*notes.txt holds something else"):
        Journal(path, ORIGIN, anew=anew)
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_a_tuning_log_is_no_journal(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(encode({"kind": "header", "version": 1}) + encode({"kind": "kernel"}))
    with pytest.raises(ValueError, match="holds something else"):
        Journal(path, ORIGIN, anew=True)
    assert path.read_bytes().count(b"\n") == 2


def test_a_pipe_or_a_folder_is_no_journal(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match="is no regular file"):
            Journal(path, ORIGIN)


def test_a_file_system_without_locks_is_a_warning(tmp_path, caplog, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING), Journal(tmp_path / "journal", ORIGIN) as journal:
        assert journal.once("trial", {}, lambda: 1) == 1
    assert "cannot be written ([Errno 37]" in caplog.text


def test_a_value_of_nothing_is_a_value(tmp_path):
    with Journal(tmp_path / "journal", ORIGIN) as journal:
        assert journal.once("trial", {}, lambda: None) is None
        assert journal.once("trial", {}, never) is None


def test_begun_anew(tmp_path):
    path = tmp_path / "journal"
    with Journal(path, ORIGIN) as journal:
        journal.put("trial", {"k": 1}, 5)
        with pytest.raises(Busy):
            Journal(path, ORIGIN, anew=True)
    with Journal(path, ORIGIN) as journal:
        assert journal.get("trial", {"k": 1}) == 5, "whoever holds it keeps it"
    with Journal(path, ORIGIN, anew=True) as journal:
        assert journal.get("trial", {"k": 1}) is None
    assert path.read_bytes().count(b"\n") == 1


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "journal"
    with Journal(path, ORIGIN), pytest.raises(Busy, match="^journal: another process"):
        Journal(path, ORIGIN)
    Journal(path, ORIGIN).close()


def test_where_it_cannot_be_written(tmp_path, caplog):
    """A read-only place or a full disk is a warning; the measurements of this run are there."""
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        journal = Journal(tmp_path / "file" / "journal", ORIGIN)
        assert journal.once("trial", {"k": 1}, lambda: 5) == 5
        assert journal.once("trial", {"k": 1}, never) == 5
    assert "cannot be written" in caplog.text


def test_a_full_disk(tmp_path, caplog, monkeypatch):
    path = tmp_path / "journal"

    def full(fd):
        raise OSError(28, "No space left on device")

    with Journal(path, ORIGIN) as journal:
        journal.put("trial", {"k": 1}, 5)
        monkeypatch.setattr(os, "fsync", full)
        with caplog.at_level(logging.WARNING):
            journal.put("trial", {"k": 2}, 6)
            journal.put("trial", {"k": 3}, 7)
        assert caplog.text.count("No space left") == 1
        assert [value for _, value in journal.all("trial")] == [5, 6, 7]


def test_time_that_was_spent(tmp_path):
    now = [100.0]
    path = tmp_path / "journal"
    with Journal(path, ORIGIN, lambda: now[0]) as journal:
        now[0] += 10
        journal.put("trial", {"k": 1}, 5)
        now[0] += 5
        journal.put("trial", {"k": 2}, 5)
        now[0] += 7  # nothing came of it
        assert journal.spent() == 22
    now[0] = 1000.0
    with Journal(path, ORIGIN, lambda: now[0]) as journal:
        now[0] += 3
        assert journal.spent_before == 15 and journal.spent() == 18


# A stage that is killed

FORMS = [Record(2, 2), Record(1, 3, packed_a=True)]


class Told(Journal):
    """Says on a pipe what it has written down."""

    descriptor = -1

    def put(self, kind, key, value):
        super().put(kind, key, value)
        line = json.dumps([kind, dict(key)], sort_keys=True) + "\n"
        os.write(self.descriptor, line.encode())


def killed_after(entries, seconds, path):
    """Run the stage in a child process, and kill it ``seconds`` after it has written ``entries``.

    Returns whether it was still running, and what it said that it has written down.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            Told.descriptor = writing
            with Told(path, ORIGIN) as journal:
                stage_of(journal).run(FORMS)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = [line for _, line in zip(range(entries), pipe, strict=False)]
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        said += pipe
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status), [line.rstrip("\n") for line in said]


def written(path):
    with Journal(path, ORIGIN) as journal:
        kinds = ("reference", "trial", "tile", "sample")
        return [
            json.dumps([kind, key], sort_keys=True)
            for kind in kinds
            for key, _ in journal.all(kind)
        ]


def test_killed_a_hundred_times(tmp_path):
    with Journal(tmp_path / "undisturbed", ORIGIN) as journal:
        expected = stage_of(journal).run(FORMS)
        assert findings.read(journal, MACHINE) == expected
    assert len(expected.tiles) == 2 and len(expected.samples) > 50
    everything = sorted(written(tmp_path / "undisturbed"))
    rng = random.Random(0)
    kills, stages = 0, 0
    while kills < 100:
        path, told = tmp_path / f"killed-{stages}", []
        running = True
        while running:
            # sometimes before it has begun, sometimes after it has ended
            entries = rng.choice([0, 1, 2, 5, 10, 20, 40])
            running, said = killed_after(entries, rng.uniform(0, 0.005), path)
            kills += running
            assert not set(said) & set(told), "measured twice"
            told += said
            assert set(told) <= set(written(path)), "a measurement was lost"
        with Journal(path, ORIGIN) as journal:
            assert findings.read(journal, MACHINE) == expected
        assert sorted(written(path)) == everything
        stages += 1
    assert stages >= 3


def test_nothing_is_measured_again(tmp_path):
    measured, lengths = [], []

    def counting(task):
        measured.append(task)
        return made_up(task)

    for _ in range(3):
        with Journal(tmp_path / "journal", ORIGIN) as journal:
            stage_of(journal, counting).run(FORMS)
        lengths.append(len(measured))
    assert lengths[0] > 100 and lengths == lengths[:1] * 3


# What a stage finds


def test_the_best_record_replaces_the_default(tmp_path):
    settings = replace(SETTINGS, trials=128)
    with Journal(tmp_path / "journal", ORIGIN) as journal:
        stage = stage_of(journal, settings=settings)
        found = stage.run([Record(2, 2)])
        (tile,) = found.tiles
    best = {"unroll": 4, "sums": 2, "prefetch_b": 64, "prefetch_c": 1}
    assert tile.best.record == Record(2, 2, decisions=best)
    assert tile.default.record == Record(2, 2) and tile.searched == 128
    ratio = stage.gigaflops(tile.best) / stage.gigaflops(tile.default)
    assert ratio > 1.3
    assert {s.task.record for s in found.samples} == {tile.best.record}
    # a made-up task runs at the speed of the probe but for its penalty
    (sample,) = (s for s in found.samples if s.task == Task(tile.best.record, 12, "l1"))
    probes = 2 * 4 * 8 * 12 / (2 * 12 * 8)
    assert sample.picoseconds == round(probes * 2.0 * 1000)


def test_a_gain_within_the_noise_is_none(tmp_path):
    def nearly(task):
        timing = made_up(replace(task, record=replace(task.record, decisions={})))
        better = 0.995 if task.record.decisions else 1.0
        return replace(timing, steps=timing.steps * better)

    with Journal(tmp_path / "journal", ORIGIN) as journal:
        (tile,) = stage_of(journal, nearly).run([Record(2, 2)]).tiles
    assert tile.best.record == Record(2, 2)


def test_what_fails_is_left_out(tmp_path):
    """A record that crashes in any situation is not chosen, though it be the fastest."""
    settings = replace(SETTINGS, trials=128)
    measure = failing_on(
        lambda task: task.record.decision("sums") == 2 and task.placement == "b_l3"
    )
    with Journal(tmp_path / "journal", ORIGIN) as journal:
        stage = stage_of(journal, measure, settings=settings)
        (tile,) = stage.run([Record(2, 2)]).tiles
        assert tile.best.record.decision("sums") == 1 and tile.best.error is None
        assert tile.best.record.decision("unroll") == 4
        failed = [v for _, v in journal.all("trial") if v["error"] == "crashed with SIGSEGV"]
    assert len(failed) == 64


def test_a_form_that_cannot_run_at_all(tmp_path):
    measure = failing_on(lambda task: task.record.mr == 2)
    with Journal(tmp_path / "journal", ORIGIN) as journal:
        found = stage_of(journal, measure).run(FORMS)
        assert findings.read(journal, MACHINE) == found
    bad, good = found.tiles
    assert bad.best.error == "crashed with SIGSEGV" and good.best.error is None
    assert {s.task.record.mr for s in found.samples} == {1}


def test_a_task_that_fails_is_not_tried_again(tmp_path):
    measure = failing_on(lambda task: task.busy and task.k == 1)
    for fail in (measure, lambda task: never()):
        with Journal(tmp_path / "journal", ORIGIN) as journal:
            found = stage_of(journal, fail).run(FORMS)
    assert any(s.task.busy for s in found.samples)
    assert not any(s.task.busy and s.task.k == 1 for s in found.samples)


def test_the_budget(tmp_path):
    """Searching gets its share, every tile a part of it; what is left is for tasks. Nothing is
    measured when the budget is spent, and the next session goes on with a larger one."""
    now = [0.0]

    def slow(task):
        now[0] += 1.0
        return made_up(task)

    def run(budget):
        settings = replace(SETTINGS, budget=budget, trials=100)
        with Journal(tmp_path / "journal", ORIGIN, lambda: now[0]) as journal:
            stage = stage_of(journal, slow, settings=settings)
            return stage.run(FORMS), journal.spent()

    found, spent = run(200.0)
    assert 200 <= spent < 205
    assert len(found.tiles) == 2
    # half of the budget for the search, 5 tasks a trial, and the finalists again
    assert all(3 <= tile.searched < 20 for tile in found.tiles)
    assert 30 < len(found.samples) < 100
    same, spent = run(200.0)
    assert same == found and spent < 205
    more, spent = run(220.0)
    assert len(more.samples) > len(found.samples) + 15 and spent < 225
    assert more.tiles == found.tiles


def test_a_budget_that_is_too_small_for_all_tiles(tmp_path):
    now = [0.0]

    def slow(task):
        now[0] += 30.0
        return made_up(task)

    settings = replace(SETTINGS, budget=100.0)
    with Journal(tmp_path / "journal", ORIGIN, lambda: now[0]) as journal:
        found = stage_of(journal, slow, settings=settings).run(FORMS)
    assert [tile.default.record for tile in found.tiles] == FORMS[:1]


def test_a_journal_without_measurements(tmp_path):
    with (
        Journal(tmp_path / "journal", ORIGIN) as journal,
        pytest.raises(ValueError, match="^journal: .* holds no measurements yet"),
    ):
        findings.read(journal, MACHINE)


def test_a_longer_search_outdoes_a_shorter_one(tmp_path):
    with Journal(tmp_path / "journal", ORIGIN) as journal:
        stage_of(journal).run([Record(2, 2)])
        long = replace(SETTINGS, trials=128)
        found = stage_of(journal, settings=long).run([Record(2, 2)])
        again = stage_of(journal).run([Record(2, 2)])
        read = findings.read(journal, MACHINE)
    assert again.tiles != found.tiles == read.tiles
    assert len(read.tiles) == 1 and read.tiles[0].searched == 128


def test_progress_in_plain_lines(tmp_path):
    """At most one in ten seconds, with done and total, the best speed and the time left."""
    now = [0.0]

    def slow(task):
        now[0] += 3.0
        return made_up(task)

    settings = replace(SETTINGS, budget=400.0)
    with Journal(tmp_path / "journal", ORIGIN, lambda: now[0]) as journal:
        stage = stage_of(journal, slow, settings=settings, clock=lambda: now[0])
        stage.run(FORMS)
    lines = stage.shown.getvalue().splitlines()
    assert 10 < len(lines) <= 40
    assert lines[0] == "1/10 searching 2x16: best 62.0 GFLOP/s, 2m 15s left"
    assert any(" measuring tasks: best " in line and line.endswith("s left") for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_durations():
    from tvm_moonpoly.tuning.progress import duration

    assert [duration(s) for s in (-3, 0, 59.6, 61, 3599, 3900)] == [
        "0s",
        "0s",
        "1m 00s",
        "1m 01s",
        "59m 59s",
        "1h 05m",
    ]
