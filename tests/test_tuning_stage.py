"""``moonpoly tune``: the command as a user runs it, interrupts it, and runs it again."""

from __future__ import annotations

import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from patience import DEADLINE, wait_until
from tuning_testing import made_up, stage_of

from tvm_moonpoly import logs, operators
from tvm_moonpoly.machine import Machine, detect_target
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.cpu_gemm import Record
from tvm_moonpoly.planner.counts import priced
from tvm_moonpoly.planner.plan import BMode
from tvm_moonpoly.tuning import conclusion, findings, options, settings, stage
from tvm_moonpoly.tuning.journal import Journal
from tvm_moonpoly.tuning.learning import learn
from tvm_moonpoly.tuning.measuring.plan_bench import function_of
from tvm_moonpoly.tuning.measuring.plans import placeholder
from tvm_moonpoly.tuning.measuring.tasks import Timing, samples_of
from tvm_moonpoly.tuning.measuring.trials import one_by_one
from tvm_moonpoly.tuning.origin import origin

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
        if b"tvm_moonpoly.tuning.measuring.worker" in command and str(home).encode() in environment:
            found.append(int(folder.name))
    return found


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(condition):
    assert wait_until(condition)


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
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == stage.INTERRUPTED, out + err
    assert "goes on after" in out and "Traceback" not in err
    assert f"stopped: what was measured is kept in {path}, the same command goes on" in out
    wait_for(lambda: not workers_of(tmp_path))
    still_there()

    process = started(tmp_path, tile)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == stage.DONE, out + err
    still_there()
    kinds = [json.loads(line)["kind"] for line in kept]
    form = Record(1, 1)
    assert kinds.count("header") == kinds.count("reference") == 1
    assert kinds.count("tile") == 2, "on packed B, and on B in place"
    keys = [json.dumps([e["kind"], e["key"]]) for e in map(json.loads, kept[1:])]
    assert len(set(keys)) == len(keys), "measured twice"
    with Journal(path, origin(machine)) as journal:
        found = findings.read(journal, machine)
    assert [t.default.record for t in found.tiles] == [form, replace(form, in_place_b=True)]
    assert all(4 <= t.searched <= 6 for t in found.tiles)
    wanted = list(samples_of(found.best(), machine, thorough=False))
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

    width = 1

    def many(self, jobs):
        return one_by_one(lambda task: made_up(task, self.machine))(jobs)

    def reference(self):
        return 2.0

    first = None


class MadeUpPlanLab:
    """In the place of `plan_lab.PlanLab`."""

    def __init__(self, worker, records, name):
        self._table = placeholder(records)

    def __call__(self, task):
        machine = Machine.from_target(detect_target())
        picoseconds = priced(task.product, task.plan, machine, self._table)
        return Timing(20.0 + picoseconds / 2000, 0.01, 9, True)

    def overhead(self):
        return {function_of(stored): 20.0 for stored in (BMode.PREPACKED, BMode.DIRECT)}

    def launch(self):
        return 3000.0


@pytest.fixture
def tune(monkeypatch, tmp_path):
    monkeypatch.setattr(stage, "Lab", MadeUpLab)
    monkeypatch.setattr(stage, "PlanLab", MadeUpPlanLab)
    # quicker than the real settings
    few = functools.partial(learn.learn, rounds=60, corrections=(0, 20))
    monkeypatch.setattr(learn, "learn", few)
    monkeypatch.setattr(stage, "QUICK", replace(settings.QUICK, shapes=8, plans=150))
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
    monkeypatch.setattr(MadeUpLab, "many", lambda self, jobs: one_by_one(None)(jobs))
    assert tune("--tiles", tile, "--trials", "24", "--quick") == stage.DONE
    again = capsys.readouterr().out
    assert "goes on after" in again
    assert [li for li in again.splitlines() if tile in li] == [
        li for li in out.splitlines() if "│" in li and tile in li
    ]


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


#: A whole stage without search, few samples.
WHOLE = ("--quick", "--budget", "8s", "--trials", "1")


def files_of(machine):
    files = conclusion.Files(logs.of_machine(machine))
    return files.log, files.model, files.report


def test_a_whole_stage_ends_with_a_log(tune, capsys, machine, home, monkeypatch):
    assert tune(*WHOLE) == stage.DONE
    out = capsys.readouterr().out
    log, model, report = files_of(machine)
    assert home in log.parents
    assert f"tuning log in use: {log}" in out and re.search(r"held-out errors: tasks \d+\.\d%", out)
    # complete, and it serves this machine
    _, found, table = operators.described(detect_target())
    assert found.origin == str(log) and {r.nv for r in table.tasks} >= {1, 2}
    assert json.loads(model.read_text())["learner"]
    text = report.read_text()
    for part in (machine.mcpu, "of a budget of 8s", "xgboost", "not measured", "| one constant |"):
        assert part in text, part
    assert re.search(r"\| XGBoost \| \d+ \| \d+\.\d% \| \d+\.\d% \|", text)

    # anew from the journal, without measuring
    before = log.read_bytes()
    other = home / "elsewhere" / "mine.jsonl"
    monkeypatch.setattr(MadeUpLab, "many", None)
    monkeypatch.setattr(stage, "PlanLab", None)
    assert tune("--quick", "--no-measure", "--output", str(other)) == stage.DONE
    assert f"tuning log in use: {log}" in capsys.readouterr().out
    assert other.read_bytes() == before == log.read_bytes()
    names = {path.name for path in other.parent.iterdir() if not path.name.startswith(".")}
    assert names == {"mine.jsonl", "mine.model.json", "mine.report.md"}


def test_interrupted_while_it_learns(tune, capsys, machine, home, monkeypatch):
    """The log that was there stays as it is."""
    log, *_ = files_of(machine)
    log.parent.mkdir(parents=True)
    log.write_text("what was there")

    def interrupted(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    monkeypatch.setattr(learn, "learn", interrupted)
    assert tune(*WHOLE) == stage.INTERRUPTED
    assert "stopped: what was measured is kept in" in capsys.readouterr().out
    assert log.read_text() == "what was there"
    assert [path.name for path in log.parent.iterdir()] == [log.name]


def test_some_tiles_make_no_log(tune, capsys, machine, home):
    assert tune("--tiles", f"4x{machine.lanes}", "--trials", "1", "--quick") == stage.DONE
    assert "no tuning log is written: that takes the whole family" in capsys.readouterr().out
    assert not home.exists()


def test_without_plans_the_nearest_log_lends_what_they_cost(tmp_path, machine, monkeypatch):
    """As when machines behind a tracker are measured."""
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path / "nothing here"))
    nearest = next(logs.usable(machine))
    form = Record(4, 1)
    with Journal(tmp_path / "journal", {}) as journal:
        found = stage_of(journal).run([form])
    files = conclusion.Files(tmp_path / logs.FILE_NAME)
    few = replace(settings.QUICK, shapes=8)
    learned = conclusion.conclude(found, machine, few, lambda: 60.0, files)
    assert learned.table.traffic == operators.operator_library.costs(nearest, machine).traffic
    assert logs.parse(files.log.read_bytes(), "it") is not None
    text = files.report.read_text()
    lent = f"the costs of traffic are those of another log, {nearest.origin}"
    assert f"No plans were measured: {lent}" in text
    monkeypatch.setattr(logs, "usable", lambda machine: iter(()))
    with pytest.raises(ValueError, match="^plans: none were measured, and no log"):
        conclusion.conclude(found, machine, few, lambda: 60.0, files)


def test_with_too_few_plans_the_nearest_log_lends_what_they_cost(tune, machine, home, monkeypatch):
    """As when the budget ends soon after the first one."""
    monkeypatch.setattr(stage, "QUICK", replace(stage.QUICK, plans=7))
    nearest = next(logs.usable(machine))
    assert tune(*WHOLE) == stage.DONE
    log, _, report = files_of(machine)
    _, found, table = operators.described(detect_target())
    assert found.origin == str(log)
    assert table.traffic == operators.operator_library.costs(nearest, machine).traffic
    lent = f"the costs of traffic are those of another log, {nearest.origin}"
    assert f"Only 7 plans were measured: {lent}" in report.read_text()


@pytest.mark.parametrize(
    "kind,key,value",
    [
        ("tile", {"trials": 4}, {}),
        ("tile", {"form": Record(1, 1).to_json(), "trials": 4}, {"record": None}),
        ("sample", {"record": Record(1, 1).to_json()}, {}),
        ("reference", {}, {"seconds": 2}),
    ],
)
def test_a_malformed_journal_is_one_sentence(tune, capsys, tmp_path, machine, kind, key, value):
    path = tmp_path / "folder with spaces" / "journal"
    with Journal(path, origin(machine)) as journal:
        journal.put("reference", {}, {"nanoseconds": 2.0})
        journal.put(kind, key, value)
    assert tune("--no-measure") == stage.FAILED
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and "Error: " not in err


def test_without_a_journal_nothing_is_learned(tune, capsys, tmp_path, machine):
    assert tune("--no-measure") == stage.FAILED
    assert "journal" in capsys.readouterr().err
    path = tmp_path / "folder with spaces" / "journal"
    with Journal(path, origin(machine)) as journal:
        journal.put("reference", {}, {"nanoseconds": 2.0})
    assert tune("--no-measure") == stage.FAILED
    err = capsys.readouterr().err
    assert err == "error: samples: 0 tasks are too few to learn from, 40 are needed\n"


@pytest.mark.parametrize("text", ["", "nonsense\n", "[1]\n"])
def test_what_is_no_journal_is_one_sentence(tune, capsys, tmp_path, text):
    path = tmp_path / "folder with spaces" / "journal"
    path.parent.mkdir()
    path.write_text(text)
    assert tune("--no-measure") == stage.FAILED
    err = capsys.readouterr().err
    assert err.startswith(f"error: journal: {path} ") and err.count("\n") == 1
    assert path.read_text() == text


def test_a_journal_of_another_machine_makes_its_log(tune, capsys, tmp_path, machine, home):
    """Learned from here, without measuring: for those that move a journal."""
    other = replace(machine, mcpu="skylake", cores=3, l2_bytes=machine.l2_bytes * 2)
    path = tmp_path / "folder with spaces" / "journal"
    with Journal(path, origin(other)) as journal:
        journal.put("reference", {}, {"nanoseconds": 2.0})
        for task in list(samples_of(cpu_gemm.family(other)[::5], other, thorough=False))[:300]:
            journal.put("sample", task.to_json(), made_up(task, other).to_json())
    assert tune("--quick", "--no-measure") == stage.DONE
    log, *_ = files_of(other)
    assert "skylake" in str(log)
    found = logs.parse(log.read_bytes(), str(log))
    assert found.machine["mcpu"] == "skylake" and found.machine["cores"] == 3


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


@pytest.mark.parametrize("package", ["xgboost", "scipy"])
def test_missing_packages_are_one_sentence(tune, capsys, monkeypatch, machine, package):
    """Before anything is measured."""
    monkeypatch.setitem(sys.modules, package, None)
    assert tune("--tiles", f"4x{machine.lanes}") == stage.FAILED
    err = capsys.readouterr().err
    assert package in err and "pip install 'tvm_moonpoly[tune]' brings it" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--budget", "10x"],
        ["--budget", "0"],
        ["--tiles", "four"],
        ["--trials", "0"],
        ["--seed", "-1"],
        ["--seed", "2147483647"],
        ["--fast"],
    ],
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
    assert options.seconds(text) == value


def test_quick_is_less_than_three_minutes():
    assert settings.QUICK.budget < 180 and settings.Settings().budget <= 45 * 60


def test_where_the_journal_lies(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("MOONPOLY_HOME", str(tmp_path))
    name = f"{machine.isa}-{machine.mcpu}.journal.jsonl"
    assert stage.journal_path(machine) == tmp_path / "tuning" / name
    monkeypatch.delenv("MOONPOLY_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert stage.journal_path(machine).name == name
    assert tmp_path not in stage.journal_path(machine).parents or sys.platform == "linux"


def test_what_the_measurements_depend_on(machine):
    described = origin(machine)
    assert described == json.loads(json.dumps(described))
    assert {"mcpu", "isa", "cores", "tvm", "tasks", "features"} <= set(described)
