"""The operators that a model needs on a GPU, in one module: compiled once, then cached.

The packed functions and planners are one LLVM module; each micro-kernel is a CUDA module of its
own that this imports, so that a call loads no more of them than it launches.
"""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tvm
from tvm.runtime import Module
from tvm.target import Target

import tvm_moonpoly
from tvm_moonpoly.llvm_modules import load_bitcode
from tvm_moonpoly.microkernels.cuda import Epilogue, Form, lower_parts, products
from tvm_moonpoly.operators import cache
from tvm_moonpoly.operators.cuda import device_modules, machine_code
from tvm_moonpoly.operators.cuda.assemblies import assemblies
from tvm_moonpoly.operators.cuda.assembly import Assembly, Operator
from tvm_moonpoly.operators.cuda.matmul import host_module
from tvm_moonpoly.operators.operator_library import sources_digest

PREFIX = "moonpoly_cuda"

SUFFIX = ".zip"

_HOST = "host.bc"


@dataclass(frozen=True, order=True)
class Matmul:
    """A product that a model has: ``activation(A @ B + bias + residual)``, see `cuda.build`.

    ``by_axes``: of tensors with their dimensions in any order, see `operators.cuda.by_axes`.
    ``aligned``: rows of its operands and of its result are multiples of 16 bytes at every call.
    """

    dtype_in: str
    dtype_out: str
    b_transposed: bool = False
    bias: bool = False
    activation: str = "none"
    residual: bool = False
    by_axes: bool = False
    aligned: bool = False

    @property
    def epilogue(self) -> Epilogue:
        """What follows the product."""
        return Epilogue(self.bias, self.activation, self.residual)

    @property
    def function(self) -> str:
        """The name of its packed function."""
        form = Form(self.dtype_in, self.dtype_out, self.b_transposed)
        words = (PREFIX, form.name, "by_axes" if self.by_axes else "", self.epilogue.name)
        return "_".join(word for word in words if word)


def unsupported(target: Target, dtype_in: str, dtype_out: str, b_transposed: bool) -> str | None:
    """Why there are no micro-kernels for such products on ``target``; None when there are."""
    try:
        assemblies(target, dtype_in, dtype_out, b_transposed)
    except (LookupError, ValueError) as error:
        return str(error).removeprefix("target: ")
    return None


def operator(target: Target, matmul: Matmul) -> Operator:
    """The packed function of ``matmul`` for ``target``.

    Raises ValueError or LookupError when there are no micro-kernels for it.
    """
    found = assemblies(target, matmul.dtype_in, matmul.dtype_out, matmul.b_transposed)
    if matmul.aligned and len(found) > 1:
        # the rest is then tensors in memory that is not aligned, which must be right and no more
        found = (found[0], first_only(found[-1]))
    return Operator(matmul.function, found, matmul.epilogue, matmul.by_axes)


def first_only(assembly: Assembly) -> Assembly:
    """An assembly of the first micro-kernel alone."""
    table = replace(assembly.table, kernels=assembly.table.kernels[:1])
    return replace(assembly, tiles=assembly.tiles[:1], table=table)


def merged(matmuls: Iterable[Matmul]) -> list[Matmul]:
    """One for each packed function, which all of its calls suit."""
    found: dict[str, Matmul] = {}
    for each in sorted(matmuls):
        found.setdefault(each.function, each)  # those that may be unaligned come first
    return list(found.values())


def library(target: Target, matmuls: Iterable[Matmul]) -> Module:
    """A host module with the packed functions of ``matmuls``, which imports their kernels.

    It holds machine code for ``target`` where there is a compiler for CUDA (`machine_code`), else
    source that is compiled when an executable is loaded.

    Raises ValueError or LookupError when there are no micro-kernels for one of them.
    """
    operators = [operator(target, each) for each in merged(matmuls)]
    key = _key(target, operators)
    path = cache.load(key, SUFFIX)
    found = _read(path) if path is not None else None
    return _built(target, operators, key) if found is None else found


def _built(target: Target, operators: Sequence[Operator], key: str) -> Module:
    gpu = products(target)[0]
    limit = gpu.architecture.block_shared_bytes
    kernels = {name: func for each in operators for name, func in each.kernels(limit).items()}
    with device_modules.as_source():
        launches, devices = lower_parts(kernels, gpu.arch, apart=True)
    host = host_module(operators, launches, _host(target))
    compiled = device_modules.with_machine_code(devices, gpu.arch)
    if compiled is not None:
        cache.store(key, lambda path: _write(path, host, compiled), SUFFIX)
    for each in compiled or devices:
        host.import_module(each)
    return host


def _host(target: Target) -> Target:
    return target.host if target.host is not None else Target("llvm")


def _key(target: Target, operators: Sequence[Operator]) -> str:
    """A name for all that the compiled library depends on."""
    parts = {
        "arch": products(target)[0].arch,
        "host": str(_host(target)),
        "compiler": machine_code.compiler(),
        "tvm": tvm.__version__,
        "package": tvm_moonpoly.__version__,
        "sources": sources_digest(),
        "operators": [
            {
                "name": each.name,
                "assemblies": [
                    {"form": asdict(a.form), "costs": a.table.to_entries()} for a in each.assemblies
                ],
            }
            for each in operators
        ],
    }
    return cache.key_of(parts)


def _write(path: Path, host: Module, devices: Sequence[Module]) -> None:
    """Put all parts into one file; the modules as they are exported, and their sources."""
    with tempfile.TemporaryDirectory(prefix="moonpoly-") as folder:
        bitcode = Path(folder, _HOST)
        host.write_to_file(str(bitcode), "bc")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(bitcode, _HOST)
            for i, module in enumerate(devices):
                archive.writestr(f"{i:04}.module", device_modules.saved_bytes(module))
                archive.writestr(f"{i:04}.cu", str(module.inspect_source("cuda")))


def _read(path: Path) -> Module | None:
    """What `_write` put there; None where it cannot be used here."""
    with (
        tempfile.TemporaryDirectory(prefix="moonpoly-") as folder,
        contextlib.suppress(KeyError, zipfile.BadZipFile, OSError),
        zipfile.ZipFile(path) as archive,
    ):
        names = sorted(name for name in archive.namelist() if name.endswith(".module"))
        saved = [archive.read(name) for name in names]
        sources = [archive.read(name.replace(".module", ".cu")).decode() for name in names]
        bitcode = archive.extract(_HOST, folder)
        host = load_bitcode(Path(bitcode))
        devices = device_modules.made(saved, sources)
        if devices is None:
            return None
        for each in devices:
            host.import_module(each)
        return host
    return None
