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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how often the session compiled for the emulator."""
    if made := compilations():
        most = f"the default tests should take {_MOST_COMPILATIONS} at most"
        terminalreporter.write_line(f"compilations for the emulator of CUDA: {made} ({most})")


def compilations() -> int:
    """Compilations for the emulator of CUDA kernels so far, of all processes of this session."""
    tally = _SHARED / "tally"
    return len(tally.read_text().splitlines()) if tally.exists() else 0
