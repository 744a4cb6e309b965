"""What all tests share. Runs before any of them imports TVM or this package."""

from __future__ import annotations

import os
import tempfile
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

# The first example of a test may compile; its time says nothing.
settings.register_profile("moonpoly", deadline=None)
settings.load_profile("moonpoly")


@pytest.fixture(scope="session")
def target() -> Target:
    """The target of this machine's CPU, as a user gets it."""
    import tvm_moonpoly

    return tvm_moonpoly.detect_target()
