"""Depthwise convolution reads and writes nothing outside its operands and its workspace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from core_testing import ROOT

from tvm_moonpoly import operators

WORKER = Path(__file__).with_name("depthwise_memory_worker.py")


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect is called as on Linux")
def test_operands_against_protected_pages(target):
    """In a process of its own: a crash names the case that it came from."""
    operators.library(target).module.part("depthwise")  # compiled once, into the cache
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(WORKER.parent)])}
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(WORKER)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    lines = ran.stdout.splitlines() or ["nothing ran"]
    assert ran.returncode == 0, f"ended with {ran.returncode} in: {lines[-1]}\n{ran.stderr[-3000:]}"
    assert lines[-1] == "all cases ran"
