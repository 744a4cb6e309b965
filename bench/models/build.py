"""A network compiled once for all sizes, kept in a folder with how long that took.

``python -m bench.models.build ENGINE NETWORK THREADS FOLDER`` compiles one in a process of its own,
so that the time is that of a user's first and only model.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import relax_passes
import tvm_moonpoly

OURS, ORT = "moonpoly", "onnxruntime"
PLAIN, TORCH = "tvm_plain", "torch_compile"
COMPILED = (OURS, PLAIN, TORCH)
LONGEST = 900.0  # seconds that a network may take to compile


@dataclass(frozen=True)
class Artifact:
    """Where the files of a network in an engine are."""

    folder: Path
    engine: str
    network: str
    threads: int

    @property
    def library(self) -> Path:
        return self.folder / f"{self.engine}-{self.network}-{self.threads}.so"

    @property
    def seconds(self) -> Path:
        return self.library.with_suffix(".json")

    @property
    def failure(self) -> Path:
        """Why there is no library, if it failed."""
        return self.library.with_suffix(".failed")

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs, in their order."""
        found: list[str] = json.loads(self.seconds.read_text())["inputs"]
        return found

    @property
    def model(self) -> Path:
        """The ONNX model, the same for all engines."""
        return self.folder / f"{self.network}.onnx"


def folder_for(out: Path, header: Mapping[str, Any]) -> Path:
    """Where what this state of the compiler makes on this machine is kept."""
    parts = [header[name] for name in ("machine", "versions", "library", "target")]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    here = Path(__file__).parent
    sources = [here.parent / "onnx_graph.py", here / "weights.py", *here.glob("networks*.py")]
    sources += here.glob("torch*.py")
    for package in (relax_passes, tvm_moonpoly):
        sources += Path(str(package.__file__)).parent.rglob("*.py")
    for path in sorted(sources):
        digest.update(path.read_bytes())
    return out / f"models-{digest.hexdigest()[:16]}"


def build_missing(
    engines: Iterable[str],
    networks: Iterable[str],
    threads: int,
    folder: Path,
    environment: Mapping[str, str],
    show: Callable[[str], None] = lambda what: None,
) -> dict[str, dict[str, Any]]:
    """Compile what is not there yet, each in a process of its own; how long each took, by
    ``ENGINE NETWORK``, or why it failed. ``show`` is told what is compiled next.

    Torch's minutes of one process are shared out to all cores; they are told by the processor's
    clock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [Artifact(folder, engine, name, threads) for name in networks for engine in engines]

    def one(artifact: Artifact) -> dict[str, Any]:
        if not artifact.seconds.exists():
            show(f"{artifact.network} for {artifact.engine}")
            failed = failure_of(artifact, environment)
            if failed is not None:
                artifact.failure.write_text(failed)
                return {"failed": failed}
        found: dict[str, Any] = json.loads(artifact.seconds.read_text())
        return found

    alone = {artifact: one(artifact) for artifact in wanted if artifact.engine != TORCH}
    rest = [artifact for artifact in wanted if artifact.engine == TORCH]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = {**alone, **dict(zip(rest, pool.map(one, rest), strict=True))}
    return {f"{artifact.engine} {artifact.network}": found[artifact] for artifact in wanted}


def failure_of(artifact: Artifact, environment: Mapping[str, str]) -> str | None:
    """Compile in a process of its own, for `LONGEST` seconds at most; why that failed, or None."""
    try:
        done = subprocess.run(
            command(artifact),
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        return f"compiling took longer than {LONGEST:.0f} s"
    lines = done.stderr.strip().splitlines() or ["no message"]
    return lines[-1][:200] if done.returncode else None


def graphs_of(built: Mapping[str, Any]) -> str:
    """How often torch compiled a network, in words."""
    return f"{built['graphs']} graphs for {built['sizes']} sizes"


def command(artifact: Artifact) -> list[str]:
    """What compiles it in a process of its own."""
    arguments = [artifact.engine, artifact.network, str(artifact.threads), str(artifact.folder)]
    return [sys.executable, "-m", "bench.models.build", *arguments]


def write_model(artifact: Artifact) -> Path:
    """The file of the ONNX model, written now unless it is there."""
    import onnx

    from bench.models.zoo import NETWORKS

    if not artifact.model.exists():
        written = artifact.model.with_suffix(f".{os.getpid()}")
        onnx.save(NETWORKS[artifact.network].model(), written)
        written.rename(artifact.model)
    return artifact.model


def build(artifact: Artifact) -> None:
    """Compile and keep the library; with seconds of the wall clock and of the processor to import
    and to compile, the operator library being in its cache, and the names of the inputs."""
    import onnx
    import tvm
    from tvm import relax

    import tvm_moonpoly as mp
    from bench.models.zoo import NETWORKS
    from tvm_moonpoly.operators import operator_library

    path = write_model(artifact)
    target = mp.detect_target(cores=artifact.threads)
    cached = operator_library.cached_parts(target)
    dims = dict(NETWORKS[artifact.network].dims)
    wall, processor = time.perf_counter(), time.process_time()
    mod = mp.import_onnx(path, dims)
    imported = time.process_time()
    pipeline = (
        mp.pipeline(target) if artifact.engine == OURS else relax.get_default_pipeline(target)
    )
    executable = tvm.compile(mod, target, relax_pipeline=pipeline)
    relax.VirtualMachine(executable, tvm.cpu())
    seconds = {
        "wall": time.perf_counter() - wall,
        "processor": time.process_time() - processor,
        "import": imported - processor,
    }
    if operator_library.cached_parts(target) != cached:
        # parts of the operator library were compiled first: once more, with them in the cache
        sys.stderr.flush()
        os.execv(sys.executable, command(artifact))
    executable.export_library(str(artifact.library))
    names = [each.name for each in onnx.load(path).graph.input]
    artifact.seconds.write_text(json.dumps(seconds | {"inputs": names}))


def build_torch(artifact: Artifact) -> None:
    """Compile by torch, for the sizes that it is measured on; kept are seconds and Inductor's
    cache."""
    from bench.models.cases import quick_of
    from bench.models.torch_compiled import build

    sizes = [case.size for case in quick_of(artifact.network)]
    artifact.seconds.write_text(json.dumps(build(artifact, sizes)))


if __name__ == "__main__":
    wanted = Artifact(Path(sys.argv[4]), sys.argv[1], sys.argv[2], int(sys.argv[3]))
    (build_torch if wanted.engine == TORCH else build)(wanted)
