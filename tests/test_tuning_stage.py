"""``moonpoly tune``: the command as a user runs it, interrupts it, and runs it again."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tuning_testing import made_up

from tvm_moonpoly.machine import Machine, detect_target
from tvm_moonpoly.microkernels.cpu_gemm import Record
from tvm_moonpoly.tuning import stage, steps
from tvm_moonpoly.tuning.journal import Journal
from tvm_moonpoly.tuning.tasks import samples_of

COMMAND = [sys.executable, "-m", "tvm_moonpoly.tuning.stage", "--quick", "--trials", "4"]


@pytest.fixture(scope="module")
def machine():
    return Machine.from_target(detect_target())


def started(home, tile, *arguments):
    """The command on one tile, in a process group of its own, with what tells its workers."""
    return subprocess.Popen(
        [*COMMAND, "--tiles", tile, *arguments],
        env={**os.environ, "MOONPOLY_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts():
    """Tests that run in the background of a shell inherit that it ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def workers_of(home):
    """Processes with this home that are workers: all of them die with their parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"tvm_moonpoly.tuning.worker" in command and str(home).encode() in environment:
            found.append(int(folder.name))
    return found


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(condition, seconds=120.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_real_stage_that_is_killed_goes_on(tmp_path, machine):
    """Killed a few times while it measures real kernels, then interrupted, then let run on."""
    tile = f"1x{machine.lanes}"
    path = stage.journal_path(machine).relative_to(os.environ["MOONPOLY_HOME"])
    path = tmp_path / path
    rng = random.Random(0)
    kept: list[str] = []

    def still_there():
        lines = path.read_text().splitlines()
        assert lines[: len(kept)] == kept
        kept[:] = lines[: lines_of(path)]

    for _ in range(3):
        process = started(tmp_path, tile)
        wanted = lines_of(path) + rng.randint(2, 6)
        wait_for(lambda: lines_of(path) >= wanted or process.poll() is not None)  # noqa: B023
        assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate()
        still_there()
    process = started(tmp_path, tile)
    wanted = lines_of(path) + 3
    wait_for(lambda: lines_of(path) >= wanted or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == stage.INTERRUPTED, out + err
    assert "goes on after" in out and "Traceback" not in err
    assert f"stopped: what was measured is kept in {path}, the same command goes on" in out
    wait_for(lambda: not workers_of(tmp_path), 30)
    still_there()

    process = started(tmp_path, tile)
    out, err = process.communicate(timeout=170)
    assert process.returncode == stage.DONE, out + err
    still_there()
    kinds = [json.loads(line)["kind"] for line in kept]
    form = Record(1, 1)
    assert kinds.count("header") == kinds.count("reference") == kinds.count("tile") == 1
    keys = [json.dumps([e["kind"], e["key"]]) for e in map(json.loads, kept[1:])]
    assert len(set(keys)) == len(keys), "measured twice"
    with Journal(path, stage.origin(machine)) as journal:
        found = steps.read(journal)
    (tile_found,) = found.tiles
    assert tile_found.default.record == form and 4 <= tile_found.searched <= 6
    wanted = list(samples_of([tile_found.best.record], machine, thorough=False))
    assert [s.task for s in found.samples] == wanted
    assert all(s.picoseconds > 0 for s in found.samples)
    assert re.search(rf"{tile} .* \d+\.\d .* \d\.\d{{3}} ", out)
    assert f"{len(wanted)} tasks measured; written to {path}" in out


# The command, on made-up measurements


class MadeUpLab:
    """In the place of `lab.Lab`."""

    def __init__(self, machine):
        self.machine = machine

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __call__(self, task):
        return made_up(task, self.machine)

    def reference(self):
        return 2.0


@pytest.fixture
def tune(monkeypatch, tmp_path):
    monkeypatch.setattr(stage, "Lab", MadeUpLab)
    path = tmp_path / "folder with spaces" / "journal"

    def run(*arguments):
        return stage.main([*arguments, "--journal", str(path)])

    return run


def test_the_report(tune, capsys, machine, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    tile = f"2x{2 * machine.lanes}"
    assert tune("--tiles", tile, "--trials", "24", "--quick") == stage.DONE
    out = capsys.readouterr().out
    assert re.search(rf"{tile} +│ \d+\.\d +│ \d+\.\d +│ 1\.[3-9]\d\d │ .*sums=2", out)
    assert re.search(rf"{tile} packed A +│", out)
    assert "tasks measured; written to" in out
    # again: nothing is measured, the same is found
    monkeypatch.setattr(MadeUpLab, "__call__", None)
    assert tune("--tiles", tile, "--trials", "24", "--quick") == stage.DONE
    again = capsys.readouterr().out
    assert "goes on after" in again
    assert [li for li in again.splitlines() if tile in li] == [
        li for li in out.splitlines() if "│" in li and tile in li
    ]


def test_searches_use_the_cost_model_that_is_asked_for(tune, capsys, machine, monkeypatch):
    made = []
    model = stage.CostModel
    monkeypatch.setattr(stage, "CostModel", lambda kind: made.append(kind) or model(kind))
    arguments = ("--tiles", f"4x{machine.lanes}", "--trials", "4", "--quick")
    assert tune(*arguments, "--restart") == stage.DONE
    assert tune(*arguments, "--restart", "--cost-model", "random") == stage.DONE
    assert made == ["xgb", "random"]
    assert "goes on after" not in capsys.readouterr().out


def test_without_time_there_is_a_report_all_the_same(tune, capsys, machine):
    assert tune("--budget", "1s", "--tiles", f"4x{machine.lanes},3x{machine.lanes}") == stage.DONE
    out = capsys.readouterr().out
    assert "were not searched, the budget is spent" in out or "tasks measured" in out


@pytest.mark.parametrize(
    "arguments,complaint",
    [
        (["--tiles", "99x8"], "error: tiles: 99x8 is not in the family of "),
        (["--tiles", "4x7"], "error: tiles: 4x7 is not in the family of "),
    ],
)
def test_what_cannot_be_done_is_one_sentence(tune, capsys, arguments, complaint):
    assert tune(*arguments) == stage.FAILED
    err = capsys.readouterr().err
    assert err.startswith(complaint) and err.count("\n") == 1


def test_a_journal_in_use_is_one_sentence(tune, capsys, tmp_path, machine):
    path = tmp_path / "folder with spaces" / "journal"
    with Journal(path, {}):
        assert tune("--tiles", f"4x{machine.lanes}") == stage.FAILED
    assert capsys.readouterr().err == f"error: journal: another process is tuning with {path}\n"


def test_missing_packages_are_one_sentence(tune, capsys, monkeypatch, machine):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert tune("--tiles", f"4x{machine.lanes}") == stage.FAILED
    err = capsys.readouterr().err
    assert "xgboost" in err and "pip install 'tvm_moonpoly[tune]' brings it" in err


@pytest.mark.parametrize(
    "arguments",
    [["--budget", "10x"], ["--budget", "0"], ["--tiles", "four"], ["--trials", "0"], ["--fast"]],
    ids=" ".join,
)
def test_bad_options_are_refused(tune, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        tune(*arguments)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text,value", [("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0), ("45", 45.0)]
)
def test_times(text, value):
    assert stage.seconds(text) == value


def test_quick_is_less_than_three_minutes():
    assert steps.QUICK.budget < 180 and steps.Settings().budget <= 45 * 60


def test_where_the_journal_lies(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path))
    name = f"{machine.isa}-{machine.mcpu}.journal.jsonl"
    assert stage.journal_path(machine) == tmp_path / "tuning" / name
    monkeypatch.delenv("MOONPOLY_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert stage.journal_path(machine).name == name
    assert tmp_path not in stage.journal_path(machine).parents or sys.platform == "linux"


def test_what_the_measurements_depend_on(machine):
    described = stage.origin(machine)
    assert described == json.loads(json.dumps(described))
    assert {"mcpu", "isa", "cores", "tvm", "package", "sources", "features"} <= set(described)
