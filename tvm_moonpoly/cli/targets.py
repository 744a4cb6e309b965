"""The option ``--target``: a CPU by LLVM's name, or a TVM target."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.cli.command import UserError, positive, sentence

if TYPE_CHECKING:
    from tvm.target import Target

#: Other names of architectures, which LLVM takes but does not list.
ALIASES = {"amd64", "arm64"}

#: Cores and threads, far more than any machine has; TVM starts as many as it is told.
MOST_THREADS = 4096


def threads(text: str) -> int:
    """An argument that must be a number of threads."""
    count = positive(text)
    if count > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_THREADS}")
    return count


def add_option(parser: argparse.ArgumentParser, gpus: bool = True) -> None:
    """Add the option; ``gpus``: whether the command knows something about GPUs."""
    parser.add_argument(
        "--target",
        metavar="CPU|GPU|JSON" if gpus else "CPU|JSON",
        help="a CPU as LLVM names it, such as znver4 or x86-64-v3, "
        + ("a GPU such as nvidia-a100, " if gpus else "")
        + "or a TVM target as a JSON object (default: this CPU)",
    )


def parsed(text: str | None) -> Target:
    """The target that ``text`` names; this CPU when it is None. Raises UserError."""
    from tvm.target import Target

    from tvm_moonpoly import machine

    if text is None:
        return machine.detect_target()
    config: dict[str, Any] | str
    if text.lstrip().startswith("{"):
        config = _object(text)
    elif is_gpu(text):
        config = _gpu(text)
    else:
        config = {
            "kind": "llvm",
            "mtriple": machine.default_triple(),
            "mcpu": text,
            "num-cores": machine.available_cores(),
        }
    try:
        target = Target(config)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = sentence(error).split(" Target creation")[0]
        raise UserError(f"--target: {reason}") from error
    cores = target.attrs.get("num-cores")
    if cores is not None and not 1 <= int(cores) <= MOST_THREADS:
        raise UserError(f"--target: num-cores must be from 1 to {MOST_THREADS}, not {int(cores)}")
    if str(target.kind.name) == "llvm":
        _check_cpu(target.attrs.get("mtriple"), target.attrs.get("mcpu"))
    return target


def is_gpu(text: str | None) -> bool:
    """Whether ``text`` names an NVIDIA GPU; says so without loading tvm."""
    if text is None:
        return False
    if text.lstrip().startswith("{"):
        return _object(text).get("kind") == "cuda"
    return text.startswith("nvidia")


def _gpu(text: str) -> dict[str, Any] | str:
    """tvm's tag of a GPU, or our own description where it has none."""
    from tvm.target import list_tags

    from tvm_moonpoly.microkernels.cuda import GPUS

    name = text.removeprefix("nvidia/")
    if f"nvidia/{name}" in list_tags():
        return f"nvidia/{name}"
    if name in GPUS:
        config: dict[str, Any] = json.loads(str(GPUS[name].target()))
        return config
    raise UserError(f"--target: no GPU {text!r} is known; there are {', '.join(GPUS)}, and more as "
                    "tvm calls them")  # fmt: skip


def _check_cpu(mtriple: str | None, mcpu: str | None) -> None:
    """Raise UserError for what LLVM does not know: it would take the least that there is for the
    CPU, and crash because of the triple."""
    import tvm
    from tvm.target import Target

    config = {"kind": "llvm"}
    if mtriple is not None:
        architecture = str(mtriple).split("-")[0]
        known = {str(name) for name in tvm.get_global_func("target.llvm_get_targets")()}
        if architecture not in known | ALIASES:
            raise UserError(f"--target: LLVM knows no architecture {architecture!r}")
        config["mtriple"] = str(mtriple)
    if mcpu is None:
        return
    known_cpus = tvm.get_global_func("target.llvm_get_cpu_archlist")(Target(config))
    if str(mcpu) not in {str(name) for name in known_cpus}:
        raise UserError(f"--target: LLVM knows no CPU {str(mcpu)!r} of this architecture")


def _object(text: str) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--target: it is not JSON: {error}") from error
    return config
