"""A worker of a fleet that sends a library which crashes for kernels of 2 rows."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tvm_moonpoly.tuning.measuring import remote

CRASH = """
#include <stdlib.h>
__attribute__((constructor)) static void crash(void) { *(volatile int *)getenv("NOT SET") = 1; }
"""


def crashing() -> bytearray:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "crash.c", Path(folder) / "crash.so"
        source.write_text(CRASH)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
        return bytearray(library.read_bytes())


class Crashing(remote.Remote):
    def _library(self, record):
        return crashing() if record.mr == 2 else super()._library(record)


if __name__ == "__main__":
    remote.Remote = Crashing
    remote.main(json.loads(sys.argv[1]))
