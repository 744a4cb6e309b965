"""The default tests may compile for the emulator of CUDA kernels only so often."""

from __future__ import annotations

from types import SimpleNamespace

import conftest
import pytest
from cuda_emulator import build


@pytest.fixture
def tally(tmp_path, monkeypatch):
    """Writes what was compiled, as the processes of a session do."""
    monkeypatch.setattr(conftest, "_SHARED", tmp_path)

    def write(*libraries: str) -> None:
        lines = [f"{name} tests/test_{name}.py::test\n" for name in libraries]
        (tmp_path / build.TALLY).write_text("".join(lines))

    return write


def session(markers="not emulator", **more):
    config = SimpleNamespace(getoption={"markexpr": markers}.get, **more)
    return SimpleNamespace(config=config, exitstatus=pytest.ExitCode.OK)


def ended(given) -> pytest.ExitCode:
    conftest.pytest_sessionfinish(given)
    return given.exitstatus


def test_more_compilations_than_allowed_fail_the_session(tally):
    assert ended(session()) == pytest.ExitCode.OK
    names = [f"kernels-{i}.so" for i in range(41)]
    tally(*names[:40])
    assert ended(session()) == pytest.ExitCode.OK
    tally(*names)
    assert ended(session()) == pytest.ExitCode.TESTS_FAILED
    # of two processes that share what they compile
    tally(*names[:40], *names[:40])
    assert ended(session()) == pytest.ExitCode.OK
    assert conftest.compilations()["kernels-3.so"] == "tests/test_kernels-3.so.py::test"


def test_only_the_whole_of_the_default_tests_is_bounded(tally):
    tally(*(f"kernels-{i}.so" for i in range(100)))
    assert ended(session("emulator")) == pytest.ExitCode.OK
    # a worker of several processes leaves it to the one that sums up
    assert ended(session(workerinput={})) == pytest.ExitCode.OK
    failed = session()
    failed.exitstatus = pytest.ExitCode.INTERRUPTED
    assert ended(failed) == pytest.ExitCode.INTERRUPTED


def test_what_is_compiled_is_counted(tmp_path, monkeypatch):
    monkeypatch.setenv(build.SHARED, str(tmp_path))
    monkeypatch.setattr(conftest, "_SHARED", tmp_path)
    source = tmp_path / "empty.cc"
    source.write_text("int nothing() { return 0; }")
    build._compile([str(source)], tmp_path / "empty.so")
    (test,) = conftest.compilations().values()
    assert test.endswith("test_cuda_compilations.py::test_what_is_compiled_is_counted")
