"""A whole log: a header line that says what wrote it and for which machine, then entries.

The machine is a CPU, or a GPU, which the header tells by the name of its product.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import tvm

import tvm_moonpoly
from tvm_moonpoly.logs.lines import Entry, decode
from tvm_moonpoly.machine import VECTOR_UNITS, Machine
from tvm_moonpoly.versions import release

if TYPE_CHECKING:
    from tvm_moonpoly.microkernels.cuda import Gpu

#: The format; a reader refuses a later one.
VERSION = 1

#: Bytes of a log that are read at most.
MAX_FILE = 64 << 20

#: Damaged lines of a log; beyond, it is something else, which would take minutes to look at.
MAX_FAULTS = 10_000

_TOLD = 3  # damaged lines that are told one by one

_SIZES = ("cores", "l1_bytes", "l2_bytes", "l3_bytes")

_GPU_SIZES = ("multiprocessors", "clock_mhz", "l2_bytes", "bandwidth_gbs")

_log = logging.getLogger("tvm_moonpoly.logs")


@dataclass(frozen=True, eq=False)
class TuningLog:
    """The entries of one log, the machine that they were measured on, and where it came from.

    ``machine`` of a CPU has its ``isa`` and ``mcpu``, that of a GPU has ``gpu``, the product's
    name, and ``arch``. ``needs`` are the CPU features without which the kernels do not run, as LLVM
    names them; ``versions`` of the package and of TVM that wrote the log, where it tells them.
    ``header`` is the entry that says all this. A log is equal to itself alone: what is read of a
    file is the same object until the file changes.
    """

    machine: Mapping[str, Any]
    entries: tuple[Entry, ...]
    origin: str
    needs: frozenset[str] = frozenset()
    versions: Mapping[str, str] = field(default_factory=dict)
    header: Entry = field(default_factory=dict)

    @property
    def of_gpu(self) -> bool:
        """Whether it is of a GPU."""
        return "gpu" in self.machine

    @property
    def machine_name(self) -> str:
        """The machine in a word: LLVM's name of the CPU, or the GPU's product."""
        return str(self.machine["gpu" if self.of_gpu else "mcpu"])

    @property
    def instructions(self) -> str:
        """What its kernels are made of: a CPU's vector unit, or a GPU's compute capability."""
        return str(self.machine["arch" if self.of_gpu else "isa"])


@dataclass(frozen=True)
class Reading:
    """What became of a file: the log, or the ``reason`` why it cannot be used; ``faults`` are the
    lines that were skipped."""

    log: TuningLog | None
    reason: str = ""
    faults: tuple[str, ...] = ()


def header(machine: Machine) -> dict[str, Any]:
    """The first entry of a log that is written now, on or for ``machine``."""
    described = {"isa": machine.isa, "mcpu": machine.mcpu}
    described |= {name: getattr(machine, name) for name in _SIZES}
    return _header(described, sorted(VECTOR_UNITS[machine.isa][0]))


def gpu_header(gpu: Gpu) -> dict[str, Any]:
    """The first entry of a log that is written now, on or for ``gpu``."""
    described = {"gpu": gpu.name, "arch": gpu.arch}
    return _header(described | {name: getattr(gpu, name) for name in _GPU_SIZES}, [])


def _header(machine: dict[str, Any], needs: list[str]) -> dict[str, Any]:
    return {
        "kind": "header",
        "version": VERSION,
        "machine": machine,
        "needs": needs,
        "package": tvm_moonpoly.__version__,
        "tvm": tvm.__version__,
    }


def parse(text: str | bytes, origin: str) -> TuningLog | None:
    """The log in ``text``; None when its header cannot be used. Says what it skips."""
    return tell(read(text, origin), origin).log


def tell(reading: Reading, origin: str) -> Reading:
    """Warn of what was skipped of ``reading``, which is returned."""
    for fault in reading.faults[:_TOLD]:
        _log.warning("%s: %s", origin, fault)
    if len(reading.faults) > _TOLD:
        _log.warning("%s: %d more lines are skipped", origin, len(reading.faults) - _TOLD)
    if reading.log is None:
        _log.warning("%s: skipped, %s", origin, reading.reason)
    return reading


def bounded(file: BinaryIO) -> bytes:
    """What is in ``file``, up to a little more than `read` takes: it may never end."""
    parts, left = [], MAX_FILE + 1
    while left and (part := file.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def read(text: str | bytes, origin: str) -> Reading:
    """As `parse`, without saying anything."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_FILE:
        return Reading(None, f"it is larger than {MAX_FILE >> 20} MiB")
    entries: list[Entry] = []
    faults = []
    for number, line in enumerate(io.BytesIO(data), 1):
        line = line.removesuffix(b"\n")
        if not line.strip():
            continue
        try:
            entries.append(decode(line))
        except ValueError as error:
            faults.append(f"line {number} is skipped: {error}")
            if len(faults) > MAX_FAULTS:
                reason = f"more than {MAX_FAULTS} of its lines are damaged"
                return Reading(None, reason, tuple(faults))
    try:
        log = _interpreted(entries, origin)
    except ValueError as error:
        return Reading(None, str(error), tuple(faults))
    return Reading(log, "", tuple(faults))


def _interpreted(entries: list[Entry], origin: str) -> TuningLog:
    if not entries or entries[0].get("kind") != "header":
        raise ValueError("it does not begin with a header")
    first, rest = entries[0], tuple(entries[1:])
    version = first.get("version")
    if version != VERSION or isinstance(version, bool):
        later = isinstance(version, int) and version > VERSION
        whose = " of a later tvm_moonpoly" if later else ""
        raise ValueError(f"its format is version {version!r}{whose}, not {VERSION}")
    versions = {name: _word(first, name) for name in ("package", "tvm") if name in first}
    if release(versions.get("package", "0")) > release(tvm_moonpoly.__version__):
        raise ValueError(
            f"it was written by tvm_moonpoly {versions['package']}, later than this one, "
            f"{tvm_moonpoly.__version__}"
        )
    machine = first.get("machine")
    if not isinstance(machine, dict):
        raise ValueError("its header describes no machine")
    of_gpu = "gpu" in machine
    for name in ("gpu", "arch") if of_gpu else ("isa", "mcpu"):
        _word(machine, name)
    for name in _GPU_SIZES if of_gpu else _SIZES:
        if not _is_count(machine.get(name)):
            raise ValueError(f"its header's {name} must be a positive number")
    return TuningLog(machine, rest, origin, _needs(first, machine.get("isa")), versions, first)


def _needs(first: Entry, isa: str | None) -> frozenset[str]:
    known = VECTOR_UNITS[isa][0] if isa in VECTOR_UNITS else frozenset()
    listed = first.get("needs", [])
    if not isinstance(listed, list):
        raise ValueError("its header's needs must be a list of features")
    return known | {_word({"needs": each}, "needs") for each in listed}


def _word(fields: Entry, name: str) -> str:
    value = fields.get(name)
    # one line of reasonable length: it is shown, and becomes part of a path
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 64:
        raise ValueError(f"its header's {name} must be a short text")
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def same_machine(log: TuningLog, machine: Machine) -> bool:
    """Whether ``log`` is of ``machine``'s kind of CPU, used through the same instructions."""
    return (log.machine.get("isa"), log.machine.get("mcpu")) == (machine.isa, machine.mcpu)


def lacking(needs: Iterable[str], features: frozenset[str]) -> list[str]:
    """The features among ``needs`` that are missing."""
    return sorted(set(needs) - features)
