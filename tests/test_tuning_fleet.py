"""``moonpoly tune --rpc``: tasks measured on servers behind a tracker, here all on loopback.

Servers on one machine disturb each other: nothing is asserted about how fast anything is.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_testing import KEY, Servers
from patience import DEADLINE, undisturbed
from rich.console import Console
from tuning_testing import SETTINGS, in_order
from tvm.target import Target

from tvm_moonpoly.machine import Machine, detect_target
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning import findings, stage, steps
from tvm_moonpoly.tuning.journal import Journal
from tvm_moonpoly.tuning.measuring import fleet, lab, remote, tasks
from tvm_moonpoly.tuning.measuring.fleet import Fleet, FleetError
from tvm_moonpoly.tuning.measuring.tasks import Task, samples_of
from tvm_moonpoly.tuning.progress import Display

pytest.importorskip("tornado", reason="TVM's tracker needs it")


@pytest.fixture(scope="module")
def machine():
    return Machine.from_target(detect_target())


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    started = Servers(tmp_path_factory.mktemp("servers"))
    try:
        started.add("one", "two")
        yield started
    finally:
        started.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """No request is given up because the machine is busy."""
    monkeypatch.setattr(fleet, "LIMIT", DEADLINE)
    monkeypatch.setattr(fleet._asked, "__defaults__", (DEADLINE,))


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(fleet, "WAIT", 2.0)
    monkeypatch.setattr(fleet, "PAUSE", 0.1)


def opened(servers):
    return Fleet(servers.address, KEY, detect_target(), same_cpu=True)


def test_a_stage_on_two_servers(servers, machine, monkeypatch, tmp_path, capsys):
    """From the search to the samples; what is found is in the journal."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path))
    monkeypatch.setattr(tasks, "TRIP_COUNTS", (24, 48, 96))
    arguments = ["--rpc", servers.rpc, "--key", KEY, "--tiles", f"1x{machine.lanes}"]
    arguments += ["--quick", "--trials", "4", "--budget", "60m"]
    before = servers.loads("one") + servers.loads("two")
    assert stage.main(arguments) == stage.DONE
    out = capsys.readouterr().out
    path = tmp_path / "tuning" / f"{machine.isa}-{machine.mcpu}.rpc.journal.jsonl"
    assert f"tasks measured; written to {path}" in out
    # the probe, and kernels
    assert servers.loads("one") + servers.loads("two") >= before + 1 + 4
    with Journal(path, stage.origin(machine)) as journal:
        found = findings.read(journal, machine)
    assert {tile.default.record for tile in found.tiles} == {
        Record(1, 1),
        Record(1, 1, in_place_b=True),
    }
    for tile in found.tiles:
        assert tile.searched == 4
        assert tile.best.error is None and tile.best.cost(machine) > 0
    wanted = list(samples_of(found.best(), machine, thorough=False, busy=False))
    assert {s.task for s in found.samples} == set(wanted) and len(wanted) > 5
    assert all(s.picoseconds > 0 for s in found.samples)
    assert 0.1 < found.reference < 1000


def once(answer):
    answered = answer()
    return lab.steadiest(lambda: answered)


def test_jobs_are_measured_at_the_same_time(servers, machine, monkeypatch):
    """Two requests are on their way before either is answered. A job is taken when a server has
    come free, and one that cannot be built fails alone."""
    together = threading.Barrier(2, timeout=DEADLINE)
    asked = fleet._asked

    def meeting(client, request, *limit):
        if request["op"] == "time":
            together.wait()
        return asked(client, request, *limit)

    taken, seen = [], []

    def jobs():
        for k in (6, 12, 192, 384):
            taken.append(k)
            yield [Task(Record(1, 1), k, "l1")]

    before = [servers.loads(name) for name in ("one", "two")]
    with opened(servers) as bench:
        assert bench.width == 2
        with monkeypatch.context() as patched:
            patched.setattr(fleet, "_asked", meeting)
            patched.setattr(fleet, "steadiest", once)
            done = {}
            for number, measured in bench.many(jobs()):
                seen.append(number)
                assert len(taken) <= len(seen) + 1
                done[number] = measured
        assert sorted(seen) == [0, 1, 2, 3]
        # each server has loaded the probe and a kernel
        assert all(servers.loads(n) >= b + 2 for n, b in zip(("one", "two"), before, strict=True))
        assert all(measured.error is None for measured in done.values())

        def timed():
            given = ([Task(Record(1, 1), k, "l1")] for k in (6, 384))
            return [m.timings[0].steps for _, m in sorted(bench.many(given), key=at)]

        # more work, more time, whoever else is at it
        undisturbed(timed, lambda steps: steps[1] > 4 * steps[0])
        assert list(bench.many([])) == []
        bad, good = ([Task(record, 24, "l1")] for record in (Record(16, 16), Record(1, 1)))
        first, second = (measured for _, measured in sorted(bench.many([bad, good]), key=at))
        assert "needs more than" in first.error and second.error is None
        folder = bench._folder.name
    assert not os.path.exists(folder)


def at(entry):
    return entry[0]


def test_nothing_stays_on_a_server(servers, machine):
    """A library that was sent is removed once it is loaded."""
    target = detect_target()
    client = remote.Remote(servers.address, KEY, target)
    assert client.connect({"wait": DEADLINE}) == {}
    task = Task(Record(2, 1), 24, "l1")
    request = {**fleet.timing_request(task, task.loop(machine)), "repeats": 2}
    assert set(client.time(request)) == {"task", "probe"}
    place = client._session._session.get_function("tvm.rpc.server.workpath")
    assert os.path.isdir(place("")) and os.listdir(place("")) == []
    described = client.describe({})
    assert described["mcpu"] == machine.mcpu
    assert [described[f"l{i}_bytes"] for i in (1, 2, 3)] == [
        machine.l1_bytes,
        machine.l2_bytes,
        machine.l3_bytes,
    ]
    # an old session is left, and there is another
    session = client._session
    session.opened -= 2 * remote.SESSION_SECONDS
    assert client.connect({"wait": DEADLINE}) == {} and client._session is not session
    client._session = None
    assert client.probe({}) == {"lost": "there is no session"}


def test_a_kernel_that_crashes_costs_one_candidate(servers, machine, monkeypatch):
    """It takes its session with it, twice; the servers and all other kernels go on."""
    worker = Path(__file__).with_name("fleet_worker.py")
    monkeypatch.setattr(fleet, "COMMAND", (sys.executable, str(worker)))
    jobs = [[Task(Record(mr, 1), 24, "l1")] for mr in (1, 2, 3)]
    with opened(servers) as bench:
        done = dict(bench.many(jobs))
        again = dict(bench.many(jobs[::2] * 2))
    assert done[1].error.startswith("lost 2 times: ") and not done[1].timings
    assert done[0].error is None is done[2].error
    assert len(again) == 4 and all(measured.error is None for measured in again.values())
    assert servers.registered() == 2


# What cannot be


def refused(capsys, *arguments):
    assert stage.main([*arguments, "--tiles", "1x8"]) == stage.FAILED
    err = capsys.readouterr().err
    assert err.startswith("error: rpc: ") and err.count("\n") == 1
    return err


def test_without_a_tracker(capsys, monkeypatch):
    """It is tried once: TVM's own client would try for a minute."""
    tried = []
    connect = socket.create_connection
    monkeypatch.setattr(
        socket,
        "create_connection",
        lambda *place, **options: tried.append(place) or connect(*place, **options),
    )
    with socket.socket() as held:  # nobody else takes the port, and nobody listens
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        err = refused(capsys, "--rpc", address, "--key", "x")
    assert f"there is no tracker at {address}" in err
    assert len(tried) == 1


def test_what_is_no_tracker(capsys):
    """It takes the connection, and says something else, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def answer():
            connection, _ = listening.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        err = refused(capsys, "--rpc", address, "--key", "x")
        thread.join()
    assert "there is no tracker at" in err


def test_without_a_server_of_the_key(servers, capsys):
    err = refused(capsys, "--rpc", servers.rpc, "--key", "another")
    assert err == (
        f"error: rpc: the tracker at {servers.rpc} has no server of key 'another': it has {KEY}\n"
    )


def test_of_another_cpu(servers, capsys, machine, monkeypatch):
    """Servers of another CPU than this one need to be told of."""
    other = {"kind": "llvm", "mcpu": "haswell", "num-cores": 2}
    monkeypatch.setattr(stage.targets, "parsed", lambda text: Target(other))
    err = refused(capsys, "--rpc", servers.rpc, "--key", KEY)
    assert f"are of CPU {machine.mcpu}, this machine is haswell: give --target" in err


def test_servers_that_cannot_run_the_target(servers, capsys, impatient):
    """Its instructions, or the format of its files: told by the probe, before anything is tuned."""
    config = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "num-cores": 2}
    # a system that is not there: nothing links it
    given = json.dumps({**config, "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"})
    err = refused(capsys, "--rpc", servers.rpc, "--key", KEY, "--target", given)
    assert f"no server of key {KEY!r} can be used: " in err
    assert servers.registered() == 2


def test_the_journal_of_a_target(machine, monkeypatch, tmp_path):
    """It has the name and the origin of the target, with the caches of the servers."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path))
    other = replace(machine, mcpu="skylake", l3_bytes=machine.l3_bytes * 2)
    assert stage.journal_path(other, rpc=True).name == f"{machine.isa}-skylake.rpc.journal.jsonl"
    assert stage.journal_path(other).name == f"{machine.isa}-skylake.journal.jsonl"
    assert stage.origin(other)["l3_bytes"] == 2 * machine.l3_bytes


@pytest.mark.parametrize(
    "arguments,complaint",
    [
        (["--rpc", "127.0.0.1:9190"], "--rpc and --key go together"),
        (["--key", "x"], "--rpc and --key go together"),
        (["--rpc", "127.0.0.1:9190", "--key", ""], "--rpc and --key go together"),
        (["--target", "znver4"], "--target goes with --rpc"),
        (["--rpc", "127.0.0.1", "--key", "x"], "is no address like 127.0.0.1:9190"),
        (["--rpc", "a:99999", "--key", "x"], "is no address like 127.0.0.1:9190"),
        (["--rpc", ":1", "--key", "x"], "is no address like 127.0.0.1:9190"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_options_that_do_not_go_together(capsys, arguments, complaint):
    with pytest.raises(SystemExit) as ended:
        stage.main(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_an_unknown_target(capsys):
    arguments = ["--rpc", "127.0.0.1:1", "--key", "x", "--target", "z80"]
    assert stage.main(arguments) == stage.FAILED
    err = capsys.readouterr().err
    assert err == "error: --target: LLVM knows no CPU 'z80' of this architecture\n"


@pytest.mark.parametrize(
    "text,count",
    [("0", 1), ("0-3\n", 4), ("0-3,8,10-11", 7), ("", None), (None, None), ("x", None)],
)
def test_lists_of_cpus(text, count):
    assert remote.cpus(text) == count


def test_what_ends_a_thread_ends_the_stage(machine, monkeypatch):
    """Nobody waits for a result that cannot come any more."""

    def connect(client):
        raise OSError("no more processes")

    monkeypatch.setattr(fleet, "_servers", lambda *_: 2)
    monkeypatch.setattr(fleet, "_connect", connect)
    monkeypatch.setattr(Fleet, "_described", lambda *_: machine)
    with (
        pytest.raises(OSError, match="no more processes"),
        Fleet(("127.0.0.1", 1), KEY, detect_target()) as bench,
    ):
        list(bench.many([[Task(Record(1, 1), 24, "l1")]]))


# At the end, as it ends the servers


def test_servers_that_die_cost_their_requests(servers, tmp_path, machine, impatient, monkeypatch):
    """It is asked for again of the other one, and the stage ends when that is gone, too. What was
    measured is kept; with a server that came back, the stage goes on."""
    monkeypatch.setattr(fleet, "TRIES", 2)
    monkeypatch.setattr(tasks, "TRIP_COUNTS", (24, 48, 96))
    path = tmp_path / "journal"
    settings = replace(SETTINGS, busy=False, trials=3)
    forms = [Record(1, 1)]

    def run(after_entry):
        with opened(servers) as bench, Journal(path, {}) as journal:
            put = journal.put

            def hooked(kind, key, value):
                put(kind, key, value)
                after_entry()

            journal.put = hooked
            display = Display(Console(file=io.StringIO()), lambda: 1e6)
            stage = steps.Stage(
                bench.machine, journal, settings, bench.many, bench.reference, in_order(3), display
            )
            return stage.run(forms)

    entries = itertools.count(1)

    def killing():
        number = next(entries)
        if number == 3:
            servers.kill("one")
        if number == 10:
            servers.kill("two")

    with pytest.raises(FleetError, match="^rpc: no server of key .* can be used any more: "):
        run(killing)
    kept = path.read_bytes()
    # one had died long before that
    assert kept.count(b"\n") > 9
    servers.add("three")
    monkeypatch.setattr(fleet, "WAIT", DEADLINE)
    found = run(lambda: None)
    assert path.read_bytes().startswith(kept)
    assert b'"lost' not in path.read_bytes(), "no candidate is to blame"
    (tile,) = found.tiles
    assert tile.searched == 3 and tile.best.error is None
    assert len(found.samples) == len(
        list(samples_of([tile.best.record], machine, thorough=False, busy=False))
    )
