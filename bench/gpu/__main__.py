"""Make a bundle for a GPU: ``python -m bench.gpu --gpu nvidia-h200 --python 3.12``."""

from __future__ import annotations

import argparse
import platform
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_moonpoly.microkernels.cuda import Gpu

#: Weights (n, k) of layers that TVM's own kernel is measured on, for the notebook.
BASELINES = ((4096, 4096),)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    from tvm_moonpoly.microkernels.cuda import GPUS, find_nvcc

    options = _parse(arguments, sorted(GPUS))
    if find_nvcc() is None:
        print("nvcc was not found on PATH, nor below CUDA_HOME or CUDA_PATH: install a CUDA "
              "toolkit", file=sys.stderr)  # fmt: skip
        return 1
    from bench.gpu import bundle

    gpu = GPUS[options.gpu]
    folder = options.out / f"gpu-bundle-{gpu.name}"
    begin = time.monotonic()
    try:
        try:
            libraries, cases, tasks, baselines = _asked(gpu, options)
        except LookupError:
            _write_log(gpu.name)
            libraries, cases, tasks, baselines = _asked(gpu, options)
        count = sum(len(library.kernels) for library in libraries)
        print(f"{gpu.name} ({gpu.arch}): making {count} kernels in {len(libraries)} libraries, "
              "which takes minutes", flush=True)  # fmt: skip
        options.out.mkdir(parents=True, exist_ok=True)
        tar = bundle.make(folder, gpu, libraries, cases, tasks, options.python, baselines)
    except (OSError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    size = tar.stat().st_size / (1 << 20)
    print(f"{tar}: {size:.1f} MiB, made in {time.monotonic() - begin:.0f} s. On the machine with "
          f"the GPU: tar xf {tar.name} && python{options.python} {folder.name}/run.py")  # fmt: skip
    return 0


def _asked(gpu: Gpu, options: argparse.Namespace) -> tuple[Any, Any, Any, Any]:
    """Libraries, cases, tasks, and weights that TVM's own kernel is measured on."""
    from bench.gpu import bundle, contents

    if options.wanted is not None:
        from tvm_moonpoly.tuning.cuda import proposals

        kernels, tasks = proposals.read(options.wanted, gpu)
        libraries = contents.wanted(gpu, kernels)
        listed = [task.to_json() for task in tasks]
        return libraries, bundle.wanted_lists(libraries), listed, ()
    libraries = contents.libraries(gpu, not options.operators_only)
    listed = bundle.task_list(gpu, contents.measured_kernels(gpu, libraries))
    return libraries, bundle.case_lists(libraries, BASELINES), listed, BASELINES


def _write_log(gpu: str) -> None:
    """A log with computed costs where the package has none for this GPU."""
    from tvm_moonpoly.cli import tune_gpu

    print(f"there is no tuning log for {gpu}: it is computed first", flush=True)
    if tune_gpu.main(["--gpu", gpu, "--dry-run", "--write"]):
        raise RuntimeError(f"{gpu}: no tuning log could be written")


def _parse(arguments: Sequence[str] | None, gpus: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--gpu", choices=gpus, default="nvidia-h200")
    parser.add_argument("--python", default=".".join(platform.python_version_tuple()[:2]),
                        metavar="3.12", help="Python on the machine with the GPU")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="FOLDER")
    parser.add_argument("--operators-only", action="store_true",
                        help="leave out kernels that no operator is assembled from")  # fmt: skip
    parser.add_argument("--wanted", type=Path, metavar="FILE",
                        help="the kernels and tasks that `moonpoly tune --propose` wrote, and "
                        "nothing else")  # fmt: skip
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"3\.\d+", options.python):
        parser.error(f"--python: a version like 3.12 is needed, not {options.python!r}")
    return options


if __name__ == "__main__":
    sys.exit(main())
