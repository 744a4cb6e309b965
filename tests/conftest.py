"""What all tests share. Runs before any of them imports TVM or this package."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tvm.target import Target

# Two threads even on a single core, so that parallel code runs in parallel.
os.environ.setdefault("TVM_NUM_THREADS", str(max(2, os.cpu_count() or 1)))

# Threads that have nothing to do sleep at once. By default they look for work for a while, on a
# core that the other processes of the tests could use.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The user's caches and logs must neither change a result nor be touched; removed at exit.
_HOME = tempfile.TemporaryDirectory(prefix="moonpoly-tests-")
os.environ["MOONPOLY_HOME"] = _HOME.name


def _shared(variable: str, name: str) -> Path:
    """A folder that the processes of pytest-xdist, and those that tests start, inherit."""
    folder = Path(os.environ.setdefault(variable, str(Path(_HOME.name, name))))
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


# Compiling takes most of the time of the tests: what one process has compiled serves all. Of the
# emulator of CUDA kernels, a file has a line for each compilation.
_SHARED = _shared("MOONPOLY_EMULATOR_FOLDER", "emulator")
_LIBRARIES = _shared("MOONPOLY_TESTS_LIBRARIES", "libraries")
if _LIBRARIES.parent != Path(_HOME.name):
    Path(_HOME.name, "libraries").symlink_to(_LIBRARIES)
_MOST_COMPILATIONS = 40

# The first example of a test may compile; its time says nothing.
settings.register_profile("moonpoly", deadline=None)
settings.load_profile("moonpoly")


@pytest.fixture(scope="session")
def target() -> Target:
    """The target of this machine's CPU, as a user gets it."""
    import tvm_moonpoly

    return tvm_moonpoly.detect_target()


#: Modules that take a minute or more. Processes that share the tests begin with them, so that none
#: of them is left for the end, when the others have nothing to do any more.
_LONGEST = (
    "conv_core_memory",
    "relax_scheduled_or_not",
    "cli",
    "core_microkernels",
    "core_cross",
    "tuning_stage",
    "fuzz",
    "relax_conv_networks",
    "relax_conv_native",
    "notebooks",
    "bench_peers",
    "attention_core",
    "core_cache_and_logs",
    "relax_conv",
    "models",
    "core_chain",
    "core_memory",
    "core_matmul",
    "core_linear",
    "cuda_kernels_emulated",
    "cuda_emulator",
    "relax_pooling",
    "tuning_search",
    "tuning_measure",
    "runtime_safety",
    "packaging",
    "compile_memory",
    "conv_workspace",
)


def pytest_configure(config: pytest.Config) -> None:
    """Has pytest-xdist deal out the modules in the order of the tests, not the fullest first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process of pytest-xdist, puts the longest modules first."""
    if hasattr(config, "workerinput"):
        place = {f"test_{name}": i for i, name in enumerate(_LONGEST)}
        items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Has a part of the operator library that two processes need be compiled by one of them."""
    module = sys.modules.get("tvm_moonpoly.operators.operator_library")
    if module is not None:
        module.Parts._made = _one_at_a_time(module.Parts._made)
    # what is there now stays: it need not be looked through for garbage again and again
    gc.collect()
    gc.freeze()


def _one_at_a_time(made: Callable[..., Any]) -> Callable[..., Any]:
    """``made``, the method that loads or compiles a part, for one process at a time."""

    def waiting(parts: Any, part: str) -> Any:
        with open(_LIBRARIES.parent / f"{parts._key(part)}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return made(parts, part)

    return waiting


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
