"""What all tests share. Runs before any of them imports TVM or this package."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tvm.target import Target

# Two threads even on a single core, so that parallel code runs in parallel.
os.environ.setdefault("TVM_NUM_THREADS", str(max(2, os.cpu_count() or 1)))

# The user's caches and logs must neither change a result nor be touched; removed at exit.
_HOME = tempfile.TemporaryDirectory(prefix="moonpoly-tests-")
os.environ["MOONPOLY_HOME"] = _HOME.name

# Compiling for the emulator of CUDA kernels takes most of its time. The processes of pytest-xdist,
# and those that tests start, inherit the folder where what one has compiled serves all, and a file
# in it has a line for each compilation.
_SHARED = Path(os.environ.setdefault("MOONPOLY_EMULATOR_FOLDER", str(Path(_HOME.name, "emulator"))))
_SHARED.mkdir(exist_ok=True)
_MOST_COMPILATIONS = 40

# The first example of a test may compile; its time says nothing.
settings.register_profile("moonpoly", deadline=None)
settings.load_profile("moonpoly")


@pytest.fixture(scope="session")
def target() -> Target:
    """The target of this machine's CPU, as a user gets it."""
    import tvm_moonpoly

    return tvm_moonpoly.detect_target()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run of the default tests that compiled too often for the emulator."""
    if _compiled_too_often(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says how often the session compiled for the emulator, and for which tests if too often."""
    if made := compilations():
        most = f"the default tests may take {_MOST_COMPILATIONS}"
        terminalreporter.write_line(
            f"compilations for the emulator of CUDA: {len(made)} ({most})",
            red=_compiled_too_often(config),
        )
    if _compiled_too_often(config):
        for library, test in sorted(made.items(), key=lambda each: each[1]):
            terminalreporter.write_line(f"  {test}: {library}")


def _compiled_too_often(config: pytest.Config) -> bool:
    """Whether this is the process that sums up a run of the default tests, and they took more
    compilations than they may."""
    sums_up = not hasattr(config, "workerinput")
    default = config.getoption("markexpr") == "not emulator"
    return sums_up and default and len(compilations()) > _MOST_COMPILATIONS


def compilations() -> dict[str, str]:
    """The libraries compiled for the emulator of CUDA kernels by all processes of this session so
    far, and for each the test that needed it first. One that several wanted counts once."""
    tally = _SHARED / "tally"
    lines = tally.read_text().splitlines() if tally.exists() else []
    found: dict[str, str] = {}
    for line in lines:
        library, _, test = line.partition(" ")
        found.setdefault(library, test)
    return found
