"""The log store: many writers, full disks, hostile content, and which log is used."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import resource
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from patience import DEADLINE
from tvm.target import Target

import tvm_moonpoly
from tvm_moonpoly import logs, operators
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.logs import choice, document, lines, store
from tvm_moonpoly.machine import Machine

AVX2 = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
MACHINE = replace(Machine.from_target(AVX2), l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20)

#: Forked: they start at once, and use nothing of TVM.
processes = multiprocessing.get_context("fork")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty MOONPOLY_HOME, no logs of the user, and nothing said yet."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    choice.say_once.cache_clear()
    return tmp_path / "home"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "machine" / logs.FILE_NAME


@pytest.fixture
def warnings(caplog):
    """The warnings of the store; those so far are forgotten at each call."""
    caplog.set_level(logging.WARNING, "tvm_moonpoly.logs")

    def since():
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return since


def put(home: Path, described: Machine, folder: str, entries=(), **header) -> Path:
    """A log of ``described`` below ``home``, with fields of its header replaced."""
    path = home / "tuning_logs" / folder / logs.FILE_NAME
    assert logs.replace(path, [{**logs.header(described), **header}, *entries])
    return path


def read(path: Path) -> logs.Reading:
    return logs.read(path.read_bytes(), str(path))


def numbers(path: Path) -> list[int]:
    reading = read(path)
    assert reading.log is not None and not reading.faults, reading
    return [entry["number"] for entry in reading.log.entries]


def entry(number: int) -> dict[str, object]:
    return {"kind": "sample", "number": number}


# Writing


def test_a_header_says_what_wrote_the_log_and_for_what(path):
    assert logs.write(path, MACHINE, [entry(1)])
    first = json.loads(path.read_text().splitlines()[0])
    assert first["version"] == logs.VERSION == 1
    assert first["package"] == tvm_moonpoly.__version__ and first["tvm"] == tvm.__version__
    assert first["needs"] == ["avx2", "fma"]
    described = {"isa": "avx2", "mcpu": "x86-64-v3", "cores": 1}
    sizes = {"l1_bytes": 32 << 10, "l2_bytes": 1 << 20, "l3_bytes": 32 << 20}
    assert first["machine"] == {**described, **sizes}
    log = read(path).log
    assert log.versions == {"package": first["package"], "tvm": first["tvm"]}
    assert log.needs == {"avx2", "fma"} and log.header["machine"] == log.machine


def test_a_log_may_be_read_by_others(path):
    """Unlike a cached library: many users may share a MOONPOLY_HOME."""
    before = os.umask(0o022)
    try:
        logs.write(path, MACHINE, [])
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_appending_begins_a_log_and_goes_on_with_it(path):
    assert logs.append(path, MACHINE, [entry(1)])
    assert logs.append(path, MACHINE, [entry(2), entry(3)])
    assert logs.append(path, MACHINE, [])
    assert numbers(path) == [1, 2, 3]
    path.write_bytes(b"")
    assert logs.append(path, MACHINE, [entry(4)])
    assert numbers(path) == [4]


def _append_many(path, writer, count):
    for i in range(count):
        assert logs.append(path, MACHINE, [entry(writer * 1000 + i)])


@pytest.mark.parametrize("kind", [processes.Process, threading.Thread], ids=["process", "thread"])
def test_many_writers_at_once_lose_nothing(path, kind, monkeypatch):
    """Also not when all of them begin the log."""
    monkeypatch.setattr(store, "_PATIENCE", DEADLINE)
    writers = [kind(target=_append_many, args=(path, i, 40)) for i in range(5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = numbers(path)
    assert sorted(found) == sorted(i * 1000 + j for i in range(5) for j in range(40))
    # and each writer's in its order
    assert [n for n in found if n < 1000] == list(range(40))


def _append_and_tell(path, pipe):
    for i in range(100_000):
        assert logs.append(path, MACHINE, [entry(i)])
        pipe.send(i)


def test_a_writer_that_is_killed_loses_nothing_that_it_had_written(path):
    rng = random.Random(1)
    last = -1
    for round_ in range(8):
        receiver, sender = processes.Pipe(duplex=False)
        writer = processes.Process(target=_append_and_tell, args=(path, sender))
        writer.start()
        sender.close()
        told = [receiver.recv()]
        end = time.monotonic() + rng.uniform(0, 0.05)
        while time.monotonic() < end:
            if receiver.poll(0.001):
                told.append(receiver.recv())
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        while receiver.poll():
            try:
                told.append(receiver.recv())
            except EOFError:
                break
        reading = read(path)
        found = [each["number"] for each in reading.log.entries]
        assert found[last + 1 :][: len(told)] == told, round_
        # at most the line that it was writing is torn, and the lock is free
        assert len(found) - (last + 1) - len(told) <= 1 and len(reading.faults) <= round_ + 1
        assert logs.append(path, MACHINE, [entry(-1)])
        last = len(read(path).log.entries) - 1


def _replace_many(path, enough):
    i = 0
    while i < 40 or not enough.is_set():
        assert logs.write(path, MACHINE, [entry(i)] * 50)
        i += 1


def test_a_reader_never_sees_half_of_a_replaced_log(path):
    logs.write(path, MACHINE, [entry(0)] * 50)
    enough = processes.Event()
    writer = processes.Process(target=_replace_many, args=(path, enough))
    writer.start()
    seen = []
    try:
        while writer.is_alive():
            found = numbers(path)
            assert len(found) == 50 and len(set(found)) == 1
            seen.append(found[0])
            if len(set(seen)) > 5:
                enough.set()
    finally:
        enough.set()
        writer.join()
    assert writer.exitcode == 0 and len(set(seen)) > 5
    assert {p.name for p in path.parent.iterdir()} == {path.name, store.lock_path(path).name}


def test_a_writer_waits_for_another(path, monkeypatch, warnings):
    path.parent.mkdir()
    monkeypatch.setattr(store, "_PATIENCE", 0.05)
    with store._lock(path):
        assert not logs.append(path, MACHINE, [entry(1)])
        assert not logs.write(path, MACHINE, [entry(1)])
        assert not logs.remove(path)
    assert all("could not be acquired" in warning for warning in warnings())
    assert not path.exists()
    assert logs.append(path, MACHINE, [entry(1)])
    assert logs.remove(path) and not path.exists() and logs.remove(path)


@pytest.mark.parametrize("place", ["/proc/nothing/here", "file/folder"])
def test_a_place_that_cannot_be_written_is_a_warning(tmp_path, place, warnings):
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / place / logs.FILE_NAME  # an absolute place stands alone
    assert logs.write(path, MACHINE, [entry(1)]) is False
    assert logs.append(path, MACHINE, [entry(1)]) is False
    said = warnings()
    assert len(said) == 2 and all(f"{path}: not written: " in line for line in said)


def _with_little_space(path, result):
    """As on a disk where only one KiB more fits: the kernel cuts the write short."""
    size = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1024, resource.RLIM_INFINITY))
    result.put(logs.append(path, MACHINE, [entry(i) for i in range(1000)]))
    result.put(logs.write(path, MACHINE, [entry(i) for i in range(3000)]))


def test_a_full_disk_leaves_the_log_as_it_was(path):
    logs.write(path, MACHINE, [entry(7)] * 100)
    before = path.read_bytes()
    result = processes.Queue()
    child = processes.Process(target=_with_little_space, args=(path, result))
    child.start()
    assert [result.get(timeout=600), result.get(timeout=600)] == [False, False]
    child.join()
    assert path.read_bytes() == before
    assert {p.name for p in path.parent.iterdir()} == {path.name, store.lock_path(path).name}
    assert logs.append(path, MACHINE, [entry(8)]) and numbers(path)[-1] == 8


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_what_is_added_after_a_torn_line_is_whole(path, cut):
    logs.write(path, MACHINE, [entry(1), entry(2)])
    path.write_bytes(path.read_bytes()[:-cut])
    assert logs.append(path, MACHINE, [entry(3)])
    reading = read(path)
    found = [each["number"] for each in reading.log.entries]
    # without its end alone the line is whole
    assert found == ([1, 2, 3] if cut == 1 else [1, 3])
    assert len(reading.faults) == (0 if cut == 1 else 1)


def test_a_log_whose_header_is_torn_is_moved_aside(path, warnings):
    logs.write(path, MACHINE, [entry(1)])
    damaged = path.read_bytes()[5:]
    path.write_bytes(damaged)
    assert logs.append(path, MACHINE, [entry(2)])
    assert numbers(path) == [2]
    (aside,) = path.parent.glob("*.unusable")
    assert aside.read_bytes() == damaged
    assert f"{path}: moved to {aside.name}" in warnings()[0]


@pytest.mark.parametrize(
    "first,reason",
    [
        (logs.header(replace(MACHINE, mcpu="znver9")), "is the log of znver9 .avx2., not of x86"),
        (logs.header(replace(MACHINE, isa="avx512")), "is the log of x86-64-v3 .avx512., not of"),
        ({**logs.header(MACHINE), "version": 2}, "not added to: its format is version 2"),
        ({"kind": "kernel"}, "not added to: it does not begin with a header"),
    ],
)
def test_only_a_log_of_the_same_machine_and_version_is_added_to(path, first, reason):
    path.parent.mkdir()
    path.write_bytes(logs.encode(first))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"^path: .*{reason}"):
        logs.append(path, MACHINE, [entry(1)])
    assert path.read_bytes() == before and not list(path.parent.glob("*.unusable"))


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


UNREADABLE = {
    "NaN": ({"x": float("nan")}, "JSON"),
    "infinity": ({"x": [float("inf")]}, "JSON"),
    "a large number": ({"x": 1 << 64}, "beyond 64 bits"),
    "a small number": ({"x": -(1 << 63) - 1}, "beyond 64 bits"),
    "depth": ({"x": nested(40)}, "nested deeper than 32"),
    "great depth": ({"x": nested(100_000)}, "recursion"),
    "an object": ({"x": object()}, "not JSON serializable"),
    "bytes": ({"x": b"x"}, "not JSON serializable"),
    "escape": ({"x": "\x1b[2J"}, "do not print"),
    "escape in a name": ({"\x1b": 1}, "do not print"),
    "half a character": ({"x": "\ud800"}, "do not print"),
    "a line separator": ({"x": "\u2028"}, "do not print"),
    "length": ({"x": "x" * (1 << 20)}, "longer than"),
    "the checksum's name": ({"sum": 1}, "'sum' is the checksum's name"),
}


@pytest.mark.parametrize("fields,reason", UNREADABLE.values(), ids=UNREADABLE)
def test_what_could_not_be_read_again_is_not_written(path, fields, reason):
    for write in (logs.write, logs.append):
        with pytest.raises(ValueError, match=reason):
            write(path, MACHINE, [entry(1), {"kind": "sample", **fields}])
    assert not path.exists()


def test_what_is_written_is_read_again(path):
    odd = {"text": "ä \t\n€", "int": [-(1 << 63), (1 << 63) - 1], "float": 1e-300, "none": None}
    assert logs.append(path, MACHINE, [{**odd, "deep": nested(20), "yes": True}])
    assert dict(read(path).log.entries[0]) == {**odd, "deep": nested(20), "yes": True}


def test_a_log_does_not_grow_beyond_what_is_read(path, monkeypatch, warnings):
    logs.append(path, MACHINE, [entry(1)])
    monkeypatch.setattr(store, "MAX_FILE", path.stat().st_size + 100)
    assert not logs.append(path, MACHINE, [entry(i) for i in range(10)])
    assert "would not be read" in warnings()[0] and numbers(path) == [1]


# Reading what somebody else wrote


def signed(text: str) -> bytes:
    """The object in ``text``, which Python's JSON reads, with a checksum that matches."""
    return f'{text[:-1]}, "sum": "{lines.checksum(json.loads(text))}"}}'.encode()


HOSTILE = {
    "NaN": (signed('{"x": NaN}'), "it holds NaN, which is no JSON"),
    "-Infinity": (signed('{"x": [-Infinity]}'), "it holds -Infinity, which is no JSON"),
    "a float beyond bounds": (signed('{"x": 1e999}'), "a number beyond all bounds"),
    "65 bits": (signed(f'{{"x": {1 << 64}}}'), "beyond 64 bits"),
    "4000 digits": (signed('{"x": ' + "9" * 4000 + "}"), "beyond 64 bits"),
    "a million digits": (b'{"x": ' + b"9" * 1_000_000 + b"}", "beyond 64 bits"),
    "a field twice": (signed('{"x": 1, "x": 2}'), "it names a field twice"),
    "a field twice within": (signed('{"x": [{"y": 1, "y": 1}]}'), "it names a field twice"),
    "depth": (signed('{"x": ' + "[" * 40 + "]" * 40 + "}"), "nested deeper than 32"),
    "great depth": (b"[" * 500_000, "nested deeper than 32"),
    "objects in objects": (b'{"x":' * 100_000 + b"1" + b"}" * 100_000, "nested deeper than 32"),
    "length": (b'{"x": "' + b"x" * (1 << 20) + b'"}', "longer than 1048576 bytes"),
    "an escape": (signed('{"x": "\\u001b[2J"}'), "characters that do not print"),
    "half a character": (signed('{"x": "\\ud800"}'), "characters that do not print"),
    "not UTF-8": (b'{"x": "\xff"}', "it is not UTF-8"),
    "a list": (b"[1, 2]", "it is no JSON object"),
    "a pickle": (b"\x80\x04\x95\x0b\x00\x00", "it is not UTF-8"),
    "code": (b"__import__('os').abort()", "it is not JSON"),
}


@pytest.mark.parametrize("line,reason", HOSTILE.values(), ids=HOSTILE)
def test_hostile_lines_are_refused_with_a_reason(path, line, reason, warnings):
    """Quickly, also where Python would take long, and at no cost to other lines."""
    logs.write(path, MACHINE, [entry(1), entry(2)])
    first, second, third = path.read_bytes().splitlines()
    start = time.thread_time()
    log = logs.parse(b"\n".join([first, second, line, third]), "log")
    assert time.thread_time() - start < 20  # also where everything takes ten times as long
    assert [each["number"] for each in log.entries] == [1, 2]
    (said,) = warnings()
    assert said.startswith("log: line 3 is skipped: ") and reason in said
    assert len(said) < 200


HEADERS = {
    "no number": ({"version": "1"}, "its format is version '1', not 1"),
    "a truth": ({"version": True}, "its format is version True, not 1"),
    "earlier": ({"version": 0}, "its format is version 0, not 1"),
    "later": ({"version": 2}, "its format is version 2 of a later tvm_moonpoly, not 1"),
    "a later package": ({"package": "99.1.dev3"}, "written by tvm_moonpoly 99.1.dev3, later than"),
    "package": ({"package": 7}, "its header's package must be a short text"),
    "a long package": ({"package": "1" * 100}, "its header's package must be a short text"),
    "machine": ({"machine": []}, "its header describes no machine"),
    "no cpu": ({"machine": {"isa": "avx2"}}, "its header's mcpu must be a short text"),
    "needs": ({"needs": "avx2"}, "its header's needs must be a list of features"),
    "a need": ({"needs": [["avx2"]]}, "its header's needs must be a short text"),
    **{
        f"{name} {value!r}": (
            {"machine": {**logs.header(MACHINE)["machine"], name: value}},
            f"its header's {name} must be",
        )
        for name, value in [
            ("isa", None),
            ("mcpu", "zen\n4"),
            ("mcpu", ""),
            ("mcpu", "x" * 100),
            ("mcpu", ["znver4"]),
            ("cores", 0),
            ("cores", True),
            ("l1_bytes", -1),
            ("l2_bytes", 0.5),
            ("l3_bytes", "32 MiB"),
        ]
    },
}


@pytest.mark.parametrize("fields,reason", HEADERS.values(), ids=HEADERS)
def test_a_header_of_wrong_types_or_a_later_version(fields, reason, warnings):
    first = logs.encode({**logs.header(MACHINE), **fields})
    assert logs.parse(first + logs.encode(entry(1)), "log") is None
    (said,) = warnings()
    assert said.startswith("log: skipped, ") and reason in said and "\n" not in said


def test_an_earlier_package_and_unknown_fields_are_fine():
    first = {**logs.header(MACHINE), "package": "0.0.9", "tvm": "0.1", "new": {"x": 1}}
    log = logs.parse(logs.encode(first) + logs.encode({"kind": "unknown"}), "log")
    assert log.versions["package"] == "0.0.9" and len(log.entries) == 1


def test_many_damaged_lines_are_told_in_a_few(path, warnings):
    logs.write(path, MACHINE, [entry(1)])
    assert logs.parse(path.read_bytes() + b"torn\n" * 1000, "log").entries
    said = warnings()
    assert len(said) == 4 and said[-1] == "log: 997 more lines are skipped"


def test_a_large_file_of_something_else_is_given_up_soon(path, warnings, monkeypatch):
    """Not after minutes: it would be looked at for each compilation."""
    logs.write(path, MACHINE, [entry(1)])
    whole, few, many = path.read_bytes(), b"x\n" * 10_000, b"x\n" * 1_000_000
    assert logs.parse(whole + few, "log").entries
    looked_at = []
    monkeypatch.setattr(
        document, "decode", lambda line: looked_at.append(line) or lines.decode(line)
    )
    assert logs.parse(whole + many, "log") is None
    assert len(looked_at) == whole.count(b"\n") + document.MAX_FAULTS + 1
    assert warnings()[-1] == "log: skipped, more than 10000 of its lines are damaged"


def test_reading_is_bounded():
    with open("/dev/zero", "rb") as file:
        assert len(document.bounded(file)) == document.MAX_FILE + 1


def test_a_log_that_is_there_stays_without_overwrite(path, warnings):
    logs.write(path, MACHINE, [entry(1)])
    before = path.read_bytes()
    assert not logs.replace(path, [logs.header(MACHINE), entry(2)], overwrite=False)
    assert "File exists" in warnings()[0] and path.read_bytes() == before
    assert not list(path.parent.glob(f".{path.name}.????????*[0-9a-f]"))


def test_lines_that_came_through_another_system(path):
    logs.write(path, MACHINE, [entry(1), entry(2)])
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert numbers(path) == [1, 2]


def test_files_that_would_not_end_or_are_too_large(home, monkeypatch, warnings):
    places = logs.folders()[0]
    for name in "abc":
        (places / name).mkdir(parents=True)
    os.mkfifo(places / "a" / logs.FILE_NAME)
    (places / "b" / logs.FILE_NAME).symlink_to("/dev/zero")
    (places / "c" / logs.FILE_NAME).write_bytes(b"x" * 3_000_000)
    monkeypatch.setattr(logs.places, "MAX_FILE", 2 << 20)
    found = {Path(origin).parent.name: reading for origin, reading in logs.stored()}
    assert found["a"].reason == found["b"].reason == "it is no regular file"
    assert found["c"].reason == "it is larger than 2 MiB"
    monkeypatch.setattr(document, "MAX_FILE", 2 << 20)
    assert logs.read(b"x" * 3_000_000, "").reason == "it is larger than 2 MiB"


def test_what_is_wrong_with_a_file_is_told_once(home, warnings):
    path = put(home, MACHINE, "mine")
    path.write_bytes(path.read_bytes() + b"torn\n")
    for _ in range(3):
        assert logs.find(MACHINE).origin == str(path)
    (said,) = warnings()
    assert said.startswith(f"{path}: line 2 is skipped: it is not JSON: ")
    # and again when it is another
    path.write_bytes(path.read_bytes() + b"torn again\n")
    logs.find(MACHINE)
    assert len(warnings()) == 2


# Which one is used


def test_the_nearest_is_of_the_same_line_of_cpus_then_of_similar_caches(home):
    wanted = replace(MACHINE, mcpu="znver3")
    far = put(home, replace(MACHINE, mcpu="skylake"), "a")
    large = put(home, replace(MACHINE, mcpu="znver2", l3_bytes=256 << 20), "b")
    near = put(home, replace(MACHINE, mcpu="znver2", l3_bytes=16 << 20), "c")
    order = [log.origin for log in logs.usable(wanted) if not log.origin.startswith("packaged")]
    assert order == [str(near), str(large), str(far)]
    # the exact one is before all of them, wherever it lies
    own = put(home, replace(wanted, l3_bytes=1 << 20), "d")
    assert logs.find(wanted).origin == str(own)


def test_a_log_that_needs_what_the_cpu_lacks_is_never_used(home):
    """Not even its own, and not as the nearest."""
    newer = put(home, MACHINE, "a", needs=["avx2", "avx512vnni"])
    put(home, replace(MACHINE, isa="avx512"), "b")
    put(home, MACHINE, "c", needs=[], machine={**logs.header(MACHINE)["machine"], "isa": "sve"})
    assert all(log.origin.startswith("packaged") for log in logs.usable(MACHINE))
    reading = next(reading for origin, reading in logs.stored() if origin == str(newer))
    reason = logs.refusal(reading.log, MACHINE)
    assert reason == "its kernels need avx512vnni, which x86-64-v3 lacks"
    # an instruction set has its needs whatever the header says
    bare = put(home, MACHINE, "d", needs=[])
    assert read(bare).log.needs == {"avx2", "fma"}
    assert logs.refusal(read(bare).log, replace(MACHINE, features=frozenset({"avx2"}))) == (
        "its kernels need fma, which x86-64-v3 lacks"
    )


def test_skipped_logs_of_other_cpus_are_told_at_level_debug(home, caplog):
    path = put(home, replace(MACHINE, isa="avx512"), "a")
    with caplog.at_level(logging.DEBUG, "tvm_moonpoly.logs"):
        logs.find(MACHINE)
    assert f"{path}: skipped, it is for avx512, not avx2" in caplog.messages


def test_one_line_says_which_log_is_used_and_how_to_tune(home, caplog):
    target = Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 1})
    with caplog.at_level(logging.INFO, "tvm_moonpoly.logs"):
        for _ in range(3):
            _, log, _ = operators.described(target)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "no tuning log of haswell (avx2): the nearest is used, that of "
        f"{log.machine['mcpu']} (avx2), {log.origin}; 'moonpoly tune' on such a machine makes its "
        "own"
    )


def test_its_own_log_is_told_at_level_info(home, caplog):
    table = operators.described(AVX2)[2]
    choice.say_once.cache_clear()
    caplog.clear()
    path = put(home, MACHINE, "mine", table.to_entries())
    with caplog.at_level(logging.INFO, "tvm_moonpoly.logs"):
        assert operators.described(AVX2)[1].origin == str(path)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage() == f"tuning log of x86-64-v3 (avx2): {path}"


def test_a_log_is_interpreted_once_until_its_file_changes(home, monkeypatch):
    made = []
    interpret = CostTable.from_entries

    def counting(entries):
        made.append(interpret(entries))
        return made[-1]

    entries = operators.described(AVX2)[2].to_entries()
    put(home, MACHINE, "mine", entries)
    monkeypatch.setattr(CostTable, "from_entries", counting)
    first = operators.described(AVX2)[2]
    assert operators.described(AVX2)[2] is first and len(made) == 1
    more = dict(entries[-1], launch=entries[-1]["launch"] + 1)
    put(home, MACHINE, "mine", [*entries[:-1], more])
    assert operators.described(AVX2)[2].traffic.launch == first.traffic.launch + 1
    assert len(made) == 2


def test_a_log_of_too_many_kernels_is_refused(home):
    table = operators.described(AVX2)[2]
    put(home, MACHINE, "mine", table.to_entries() * 40)
    assert operators.described(AVX2)[1].origin.startswith("packaged")


def test_where_a_log_is_written_is_where_it_is_found(home, tmp_path, monkeypatch):
    table = operators.described(AVX2)[2]
    odd = replace(MACHINE, mcpu="../x y/ü")
    path = logs.of_machine(odd)
    assert path == home / "tuning_logs" / "avx2-.._x_y_ü" / logs.FILE_NAME
    logs.write(path, odd, table.to_entries())
    assert logs.find(odd).origin == str(path)
    monkeypatch.delenv("MOONPOLY_HOME")
    assert logs.folders() == [logs.folders()[-1]] and "tvm_moonpoly" in str(logs.folders()[0])
