"""The workspace of convolutions, as it is asked for at run time, on layers of networks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from core_testing import ROOT

WORKER = Path(__file__).with_name("conv_workspace_worker.py")


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
@pytest.mark.parametrize("threads", [1, 2])
def test_at_most_a_quarter_of_an_im2col_buffer(threads):
    """All threads together; kernels of 4 places or more, buffers of 1 MiB or more."""
    folders = os.pathsep.join([str(ROOT), str(WORKER.parent)])
    environment = {**os.environ, "PYTHONPATH": folders, "TVM_NUM_THREADS": str(threads)}
    command_line = [sys.executable, "-X", "faulthandler", str(WORKER), str(threads)]
    ran = subprocess.run(command_line, capture_output=True, text=True, env=environment, timeout=600)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert len(found) > 500
    too_much = [layer for ratio, _, layer in found if ratio > 0.25]
    assert not too_much
    # each thread asks once; most layers do, but not those that are read where they lie
    assert {times for _, times, _ in found} <= {0, threads, 1}
    assert sum(times > 0 for _, times, _ in found) > len(found) / 2
