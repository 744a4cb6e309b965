"""How much memory an engine needs for a network: a process of its own that runs all sizes.

``python -m bench.models.memory ENGINE NETWORK THREADS FOLDER CALLS`` prints it as JSON.
"""

from __future__ import annotations

import ctypes
import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.models.build import ORT, Artifact


def resident(field: str = "VmRSS") -> int:
    """Bytes of memory that this process holds, or held at most (``VmHWM``), or that are no pages
    of files (``RssAnon``)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def settle() -> None:
    """Give back what is free, and count the most memory from here on."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def of_engine(artifact: Artifact, environment: Mapping[str, str], calls: int = 0) -> dict[str, int]:
    """Bytes before the network is loaded, at most, and after ``calls`` more calls of sizes drawn at
    random, from a process of its own; ``after_anonymous`` is what all sizes added without pages of
    files, which other processes share. Raises RuntimeError when that fails."""
    command = [sys.executable, "-m", "bench.models.memory", artifact.engine, artifact.network]
    done = subprocess.run(
        [*command, str(artifact.threads), str(artifact.folder), str(calls)],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(artifact: Artifact, calls: int) -> dict[str, int]:
    """The same in this process. Both engines read the inputs where they are."""
    from bench.engines import aligned, run_onnxruntime
    from bench.models.cases import GROUPS
    from bench.models.worker import load_artifact
    from bench.models.zoo import NETWORKS

    sizes = [
        size
        for group in GROUPS.values()
        if group.network == artifact.network
        for size in group.sizes
    ]
    feeds = [
        {name: aligned(array) for name, array in NETWORKS[artifact.network].feed(*size).items()}
        for size in sizes
    ]
    # what was freed while inputs were made would hold a part of the network, uncounted
    settle()
    before, anonymous = resident(), resident("RssAnon")
    if artifact.engine == ORT:
        engine = run_onnxruntime(artifact.model, artifact.threads)
    else:
        engine = load_artifact(artifact)
    for feed in feeds:
        engine.prepare(feed)()
    found = {"before": before, "peak": resident("VmHWM"), "after": resident()}
    found["after_anonymous"] = resident("RssAnon") - anonymous
    draw = random.Random(0)
    for _ in range(calls):
        engine.prepare(draw.choice(feeds))()
    return found | {"after_calls": resident()}


if __name__ == "__main__":
    chosen, name, number, where, count = sys.argv[1:]
    print(json.dumps(measured(Artifact(Path(where), chosen, name, int(number)), int(count))))
