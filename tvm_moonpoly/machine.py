"""What a target can do: cores, vector lanes and registers, caches, read from a tvm Target."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from tvm_moonpoly.arguments import size_or_none

#: fp32 lanes and architectural vector registers of each instruction set that has micro-kernels,
#: best first: (features that a target must have, lanes, registers).
VECTOR_UNITS = {
    "avx512": (frozenset({"avx512f"}), 16, 32),
    "avx2": (frozenset({"avx2", "fma"}), 8, 16),
    "neon": (frozenset({"neon"}), 4, 32),
}

_UNIT_NAMES = ", ".join(VECTOR_UNITS)

#: Assumed where the system does not tell: a small server core.
DEFAULT_CACHES = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}


@dataclass(frozen=True)
class Machine:
    """A CPU as the planner and the micro-kernels see it. Cache sizes are in bytes, for one core."""

    triple: str
    mcpu: str
    features: frozenset[str]
    isa: str
    lanes: int
    vector_registers: int
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int

    @classmethod
    def from_target(cls, target: Target, isa: str | None = None) -> Machine:
        """Describe the CPU of ``target``, used through ``isa`` or else its best vector unit.

        Raises ValueError when the target is not an LLVM one or has none of the vector units that
        micro-kernels exist for.
        """
        reason = unsupported_reason(target)
        if reason is not None:
            raise ValueError(f"target: {reason}")
        features = cpu_features(target)
        isa = isa or vector_units(features)[0]
        _, lanes, registers = VECTOR_UNITS[isa]
        caches = cache_sizes()
        return cls(
            triple=_attribute(target, "mtriple", default_triple()),
            mcpu=_attribute(target, "mcpu", "generic"),
            features=features,
            isa=isa,
            lanes=lanes,
            vector_registers=registers,
            cores=int(_attribute(target, "num-cores", 1)),
            l1_bytes=caches[1],
            l2_bytes=caches[2],
            l3_bytes=caches[3],
        )


def detect_target(cores: int | None = None) -> Target:
    """The tvm Target of the CPU that this process runs on, used by ``cores`` threads.

    LLVM names the CPU by family and model; a hypervisor may have switched off features that the
    name implies (AVX-512 most of all). Those are taken away in ``mattr``, so that compiled code
    never holds an instruction that this CPU lacks. ``cores``, the target's ``num-cores``, is by
    default the number of CPUs that this process may use.

    Raises ValueError when ``cores`` is no positive number.
    """
    cores = size_or_none("cores", cores)
    mcpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    host = host_features()
    implied = cpu_features(Target({"kind": "llvm", "mcpu": mcpu}))
    missing = sorted(name for name in implied if not host.get(name, True))
    config: dict[str, Any] = {
        "kind": "llvm",
        "mtriple": default_triple(),
        "mcpu": mcpu,
        "num-cores": cores or available_cores(),
    }
    if missing:
        config["mattr"] = [f"-{name}" for name in missing]
    return Target(config)


def unsupported_reason(target: Target) -> str | None:
    """Why there are no micro-kernels for ``target``, in a few words; None when there are."""
    if str(target.kind.name) != "llvm":
        return f"no micro-kernels for target kind {target.kind.name!r}"
    if not vector_units(cpu_features(target)):
        mcpu = _attribute(target, "mcpu", "generic")
        return f"CPU {mcpu!r} has none of the vector units with micro-kernels ({_UNIT_NAMES})"
    return None


def no_convolutions(target: Target) -> str | None:
    """Why there are no convolutions for the kind of ``target``; None where there are, on CPUs."""
    kind = str(target.kind.name)
    return None if kind == "llvm" else f"no convolutions for {kind}"


def vector_units(features: frozenset[str]) -> list[str]:
    """The instruction sets of ``VECTOR_UNITS`` that ``features`` hold, best first."""
    return [isa for isa, (needed, _, _) in VECTOR_UNITS.items() if needed <= features]


def cpu_features(target: Target) -> frozenset[str]:
    """LLVM's features of the target's CPU, with ``mattr`` applied."""
    names = tvm.get_global_func("target.llvm_get_cpu_features")(target)
    return frozenset(str(name) for name in names)


def host_features() -> dict[str, bool]:
    """Whether this CPU has each feature that LLVM can ask it for."""
    return {str(name): bool(has) for name, has in _llvm("GetHostCPUFeatures")().items()}


def default_triple() -> str:
    """LLVM's triple of this system."""
    return str(tvm.get_global_func("target.llvm_get_system_triple")())


def _allowed() -> int:
    """CPUs that any thread of this process may run on."""
    if not hasattr(os, "sched_getaffinity"):  # not on every system
        return max(1, os.cpu_count() or 1)
    found = set(os.sched_getaffinity(0))
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            found |= os.sched_getaffinity(int(thread.name))
    return max(1, len(found))


#: Before anything was compiled or run.
_AT_FIRST = _allowed()


def available_cores() -> int:
    """CPUs that this process may run on.

    Those of any of its threads: when TVM starts its pool, it may bind the calling thread to one.
    Where there is no other, those that it might run on when this module was imported.
    """
    found = _allowed()
    return found if found > 1 else _AT_FIRST


def cache_sizes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[int, int]:
    """Bytes of the data cache of each level (1, 2, 3) of the first CPU, from sysfs."""
    sizes = dict(DEFAULT_CACHES)
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    for index in sorted(root.glob("index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            level = int((index / "level").read_text())
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if level in sizes and text[:-1].isdigit() and text[-1] in units:
            sizes[level] = int(text[:-1]) * units[text[-1]]
    return sizes


def _attribute(target: Target, name: str, default: Any) -> Any:
    value = target.attrs.get(name)
    return default if value is None else value


def _llvm(name: str) -> Any:
    return tvm.get_global_func(f"tvm.codegen.llvm.{name}")
