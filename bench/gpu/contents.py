"""The libraries of a bundle: operators, and every micro-kernel of the tuning log by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tvm
from rich.console import Console

from bench.gpu.progress import shown
from tvm_moonpoly.costmodel.cuda_log import Contents, Kernel
from tvm_moonpoly.microkernels.cuda import (
    CudaTile,
    Epilogue,
    Form,
    Gpu,
    build,
    kernel_name,
    lower_parts,
)
from tvm_moonpoly.operators.cuda import Assembly, device_modules
from tvm_moonpoly.operators.cuda.assemblies import assemblies, log_in_use
from tvm_moonpoly.operators.cuda.assembly import Operator
from tvm_moonpoly.operators.cuda.matmul import host_module

#: Forms of operators: dtypes of operands and of the result, and whether B is (N, K).
BASE = (
    ("float16", "float16", True),
    ("float16", "float16", False),
    ("bfloat16", "bfloat16", True),
    ("bfloat16", "bfloat16", False),
)

#: Others, of which results are checked only: wider results, and epilogues, each activation once.
CHECKED = (
    ("float16", "float32", True, Epilogue()),
    ("bfloat16", "float32", False, Epilogue()),
    ("float16", "float16", True, Epilogue(bias=True, activation="gelu")),
    ("float16", "float16", True, Epilogue(bias=True, residual=True)),
    ("float16", "float16", False, Epilogue(bias=True, activation="silu", residual=True)),
    ("bfloat16", "bfloat16", True, Epilogue(bias=True, activation="gelu_tanh")),
    ("bfloat16", "bfloat16", False, Epilogue(activation="relu")),
)

#: Micro-kernels a form of those that are checked only.
_FEW = 3


@dataclass(frozen=True)
class Library:
    """One shared library: an operator, and micro-kernels, those of the operator among them."""

    operator: Operator
    kernels: tuple[tuple[CudaTile, Form], ...]

    @property
    def name(self) -> str:
        """A short name: form and epilogue."""
        return _name(self.operator.form, self.epilogue)

    @property
    def by_axes(self) -> Operator:
        """The same operator for tensors with their dimensions in any order."""
        return replace(self.operator, name=f"{self.operator.name}_by_axes", by_axes=True)

    @property
    def epilogue(self) -> Epilogue:
        """What follows the product."""
        return self.operator.epilogue

    @property
    def compared(self) -> bool:
        """Whether it is compared with cuBLAS: results as wide as operands, no epilogue."""
        form = self.operator.form
        return not self.epilogue.name and form.dtype_in == form.dtype_out

    def names(self) -> dict[tuple[CudaTile, Form], str]:
        """The micro-kernels' names."""
        return {(t, f): kernel_name(t, f, self.epilogue) for t, f in self.kernels}


def libraries(gpu: Gpu, every_kernel: bool = True) -> list[Library]:
    """Those of a bundle for ``gpu``; ``every_kernel``: also the log's kernels that no operator is
    assembled from.

    Raises LookupError when there is no tuning log for the GPU.
    """
    found = []
    for dtype_in, dtype_out, transposed in BASE:
        made = assemblies(gpu.target(), dtype_in, dtype_out, transposed)
        found.append(library(made, Epilogue(), _all(gpu, made) if every_kernel else ()))
    for dtype_in, dtype_out, transposed, epilogue in CHECKED:
        made = assemblies(gpu.target(), dtype_in, dtype_out, transposed)
        found.append(library([_few(each) for each in made], epilogue))
    return found


def wanted(gpu: Gpu, kernels: Iterable[Kernel]) -> list[Library]:
    """Libraries of some micro-kernels without an epilogue, in the log or not, one for all of the
    same dtypes and layout.

    Raises LookupError when there is no tuning log for the GPU.
    """
    groups: dict[tuple[str, str, bool], list[tuple[CudaTile, Form]]] = {}
    for each in kernels:
        form = each.form
        key = (form.dtype_in, form.dtype_out, form.b_transposed)
        groups.setdefault(key, []).append((each.tile, form))
    return [
        library([_few(a) for a in assemblies(gpu.target(), *key)], Epilogue(), pairs)
        for key, pairs in groups.items()
    ]


def library(
    made: Sequence[Assembly],
    epilogue: Epilogue,
    more: Iterable[tuple[CudaTile, Form]] = (),
) -> Library:
    """The library of the operator of some assemblies, with ``more`` micro-kernels."""
    name = f"product_{_name(made[0].form, epilogue)}"
    own = [(tile, each.form) for each in made for tile in each.tiles]
    return Library(Operator(name, tuple(made), epilogue), tuple(dict.fromkeys([*own, *more])))


def _name(form: Form, epilogue: Epilogue) -> str:
    words = [replace(form, aligned=True).name, epilogue.name]
    return "_".join(word for word in words if word)


def _few(assembly: Assembly) -> Assembly:
    table = replace(assembly.table, kernels=assembly.table.kernels[:_FEW])
    return Assembly(assembly.form, assembly.tiles[:_FEW], table)


def _all(gpu: Gpu, made: Sequence[Assembly]) -> list[tuple[CudaTile, Form]]:
    form = made[0].form
    contents = log(gpu, form.dtype_in)
    forms = [replace(form, aligned=aligned) for aligned in (True, False)]
    return [(k.tile, k.form) for each in forms for k in contents.of(each)]


def log(gpu: Gpu, dtype: str) -> Contents:
    """What the tuning log says of the micro-kernels for operands of ``dtype``.

    Raises LookupError when there is none for the GPU.
    """
    return log_in_use(gpu.target(), dtype)[1]


def export(found: Sequence[Library], gpu: Gpu, folder: Path) -> list[dict[str, Any]]:
    """Compile libraries into ``folder``, and show how far that is; their entries of the manifest.

    Needs a C++ compiler, which links. Raises RuntimeError when nvcc is missing or does not accept a
    kernel.
    """
    console = Console()
    with shown(console, "generating libraries", len(found)) as advance:
        lowered = []
        for each in found:
            lowered.append(lower(each, gpu))
            advance()
    devices = [module for _, modules in lowered for module in modules]
    with shown(console, "compiling libraries", len(devices)) as advance:
        compiled = device_modules.with_machine_code(devices, gpu.arch, advance)
    if compiled is None:
        raise RuntimeError("machine code cannot be made here: see the warning above")
    machine_code = dict(zip(map(id, devices), compiled, strict=True))
    for each, (launches, modules) in zip(found, lowered, strict=True):
        host = host_module([each.operator, each.by_axes], launches)
        for module in modules:
            host.import_module(machine_code[id(module)])
        host.export_library(str(folder / file_name(each)))
    return [entry(each) for each in found]


def lower(found: Library, gpu: Gpu) -> tuple[tvm.IRModule, list[tvm.runtime.Module]]:
    """A library's host functions that launch, and its kernels as CUDA source."""
    limit = gpu.architecture.block_shared_bytes
    functions = {
        name: build(tile, form, found.epilogue, limit)
        for (tile, form), name in found.names().items()
    }
    with device_modules.as_source():
        return lower_parts(functions, gpu.arch)


def file_name(found: Library) -> str:
    """The file of a library."""
    return f"{found.name}.so"


def entry(found: Library) -> dict[str, Any]:
    """A library in the manifest."""
    form = found.operator.form
    return {
        "name": found.name,
        "file": file_name(found),
        "function": found.operator.name,
        "by_axes": found.by_axes.name,
        "dtype_in": form.dtype_in,
        "dtype_out": form.dtype_out,
        "b_transposed": form.b_transposed,
        **asdict(found.epilogue),
        "kernels": [_kernel(name, *pair) for pair, name in found.names().items()],
    }


def _kernel(name: str, tile: CudaTile, form: Form) -> dict[str, Any]:
    return {
        "name": name,
        "form": form.name,
        "aligned": form.aligned,
        "block_m": tile.block_m,
        "block_n": tile.block_n,
        "block_k": tile.block_k,
    }


def measured_kernels(gpu: Gpu, found: Sequence[Library]) -> list[Kernel]:
    """The log's kernels that are in the libraries without an epilogue, the most useful of all
    forms first."""
    held = {pair for each in found if not each.epilogue.name for pair in each.kernels}
    by_place: list[tuple[int, Kernel]] = []
    for dtype_in, dtype_out, transposed in BASE:
        contents = log(gpu, dtype_in)
        for aligned in (True, False):
            listed = contents.of(Form(dtype_in, dtype_out, transposed, aligned))
            by_place += enumerate(k for k in listed if (k.tile, k.form) in held)
    return [kernel for _, kernel in sorted(by_place, key=lambda pair: pair[0])]
