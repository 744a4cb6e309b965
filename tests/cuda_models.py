"""Models for GPUs: what they are, and how they are compiled without one and run in the emulator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op
from tvm.target import Target

from relax_passes import Report, pipeline
from tvm_moonpoly.costmodel import cuda_analytic
from tvm_moonpoly.microkernels.cuda import CudaTile, Form, products
from tvm_moonpoly.operators.cuda import assemblies, library, machine_code
from tvm_moonpoly.operators.cuda.assembly import Assembly

WORKER = Path(__file__).with_name("cuda_machine_worker.py")

TARGET = Target("nvidia/nvidia-a100")

#: Small micro-kernels, which are quick to compile.
ALIGNED, ANY = CudaTile(16, 64, 32, 1, 2, 3), CudaTile(16, 64, 32, 1, 2, 2, epilogue="elements")


def few_assemblies(
    target: Target, dtype_in: str, dtype_out: str, transposed: bool
) -> tuple[Assembly, ...]:
    """One micro-kernel for aligned operands and one for the rest."""
    if not products(target):
        return assemblies.assemblies(target, dtype_in, dtype_out, transposed)
    gpu, found = products(target)[0], []
    for tile, aligned in ((ALIGNED, True), (ANY, False)):
        form = Form(dtype_in, dtype_out, transposed, aligned)
        found.append(Assembly(form, (tile,), cuda_analytic.table((tile,), form, gpu)))
    return tuple(found)


class NoCompiler:
    """Stands for the compiler of CUDA: keeps the sources, and makes of each what begins as machine
    code does."""

    def __init__(self, monkeypatch) -> None:
        self.sources: list[str] = []
        monkeypatch.setattr(library, "assemblies", few_assemblies)
        monkeypatch.setattr(machine_code, "compiled", self._compiled)
        monkeypatch.setattr(machine_code, "compiler", lambda: "none, for tests")

    def _compiled(self, sources: Sequence[str], arch: str, *_: object) -> list[bytes]:
        self.sources += sources
        return [b"\x7fELF" + arch.encode() for _ in sources]


def compiled(mod: tvm.IRModule, target: Target = TARGET, **options) -> tuple[object, Report]:
    """The executable for a GPU, and what became of the matmuls."""
    report = Report()
    passes = pipeline(target, report=report, **options)
    return tvm.compile(mod, target, relax_pipeline=passes), report


@dataclass(frozen=True)
class Run:
    """A run of an executable on the emulated GPU: the result, and the kernels launched."""

    result: np.ndarray
    kernels: list[str]


def run(
    executable: object, sources: Sequence[str], feeds: Sequence[np.ndarray], folder: Path
) -> list[Run]:
    """What an executable, exported to ``folder`` and loaded by a process with an emulated GPU,
    makes of each input. ``sources``: of the kernels that may be launched."""
    executable.export_library(str(folder / "model.so"))
    for i, each in enumerate(joined(sources)):
        (folder / f"kernels_{i}.cu").write_text(each)
    for i, each in enumerate(feeds):
        save(folder / f"input_{i}", each)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(WORKER), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert set(report["formats"]) == {"cubin"}
    results = [load(folder / f"output_{i}") for i in range(len(feeds))]
    return [Run(result, each) for result, each in zip(results, report["kernels"], strict=True)]


def save(path: Path, array: np.ndarray) -> None:
    """Write an array, of a type that numpy does not know as well."""
    np.save(path.with_suffix(".npy"), array.view(f"u{array.dtype.itemsize}"))
    path.with_suffix(".txt").write_text(array.dtype.name)


def load(path: Path) -> np.ndarray:
    """What `save` wrote."""
    name = path.with_suffix(".txt").read_text()
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else name
    return np.load(path.with_suffix(".npy")).view(dtype)


_PREAMBLE_END = "#define ushort unsigned short\n#endif\n"
_HELPER = re.compile(r"^__forceinline__ __device__ .*?^}\n", re.MULTILINE | re.DOTALL)


def joined(sources: Sequence[str]) -> list[str]:
    """Sources that TVM printed, as few that are compiled faster: one for each preamble."""
    bodies: dict[str, list[str]] = {}
    for source in sources:
        preamble, mark, body = source.partition(_PREAMBLE_END)
        bodies.setdefault(preamble + mark, []).append(body)
    found = []
    for preamble, group in bodies.items():
        helpers = dict.fromkeys(each for body in group for each in _HELPER.findall(body))
        found.append("".join([preamble, *helpers, *(_HELPER.sub("", body) for body in group)]))
    return found


HIDDEN, HEADS, INNER = 64, 4, 128


def transformer_block(dtype: str = "float16") -> tvm.IRModule:
    """A layer of a transformer with dynamic batch and sequence: layer norm, attention with biases,
    another norm, an MLP with gelu, residuals. The weights of the outputs are stored transposed."""
    rng = np.random.default_rng(0)

    def constant(*shape: int, scale: float) -> relax.Expr:
        return relax.const((rng.standard_normal(shape) * scale).astype(dtype), dtype)

    batch, length = (tirx.Var(name, "int64") for name in ("batch", "length"))
    x = relax.Var("x", relax.TensorType((batch, length, HIDDEN), dtype))
    builder = relax.BlockBuilder()
    emit = builder.emit

    def linear(value: relax.Var, inputs: int, outputs: int, transposed: bool = False) -> relax.Var:
        weight = constant(
            *((outputs, inputs) if transposed else (inputs, outputs)), scale=inputs**-0.5
        )
        weight = emit(op.permute_dims(weight)) if transposed else weight
        return emit(op.add(emit(op.matmul(value, weight)), constant(outputs, scale=0.1)))

    def wide(function: Callable[[relax.Expr], relax.Expr], value: relax.Var) -> relax.Var:
        """In float32 where tvm does not have the operator for the type."""
        if dtype == "float16":
            return emit(function(value))
        return emit(op.astype(emit(function(emit(op.astype(value, "float32")))), dtype))

    def norm(value: relax.Var) -> relax.Var:
        kind = "float16" if dtype == "float16" else "float32"
        scale = (relax.const(rng.standard_normal(HIDDEN).astype(kind), kind) for _ in range(2))
        gamma, beta = scale
        return wide(lambda x: op.nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=1e-5), value)

    def heads(value: relax.Var) -> relax.Var:
        apart = emit(op.reshape(value, (batch, length, HEADS, HIDDEN // HEADS)))
        return emit(op.permute_dims(apart, [0, 2, 1, 3]))

    with builder.function("main", [x]):
        with builder.dataflow():
            normed = norm(x)
            q, k, v = (heads(linear(normed, HIDDEN, HIDDEN)) for _ in range(3))
            scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
            scaled = emit(op.multiply(scores, relax.const(np.array(0.25, dtype))))
            mixed = emit(op.matmul(wide(lambda x: op.nn.softmax(x, axis=-1), scaled), v))
            back = emit(op.permute_dims(mixed, [0, 2, 1, 3]))
            whole = emit(op.reshape(back, (batch, length, HIDDEN)))
            attended = emit(op.add(x, linear(whole, HIDDEN, HIDDEN, transposed=True)))
            inner = emit(op.nn.gelu(linear(norm(attended), HIDDEN, INNER)))
            outer = linear(inner, INNER, HIDDEN, transposed=True)
            result = builder.emit_output(op.add(outer, attended))
        builder.emit_func_output(result)
    return builder.get()


def convolutional_network() -> tvm.IRModule:
    """A convolution with a bias and relu, a maximum, a mean and a classifier; float16, with dynamic
    batch, height and width."""
    rng = np.random.default_rng(0)
    sizes = (tirx.Var("batch", "int64"), 3, *(tirx.Var(name, "int64") for name in ("h", "w")))
    x = relax.Var("x", relax.TensorType(sizes, "float16"))
    filters, bias, weight = (
        relax.const((rng.standard_normal(shape) / 4).astype(np.float16), "float16")
        for shape in ((8, 3, 3, 3), (1, 8, 1, 1), (8, 16))
    )
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", [x]):
        with builder.dataflow():
            convolved = emit(op.nn.conv2d(x, filters, strides=(2, 2), padding=(1, 1)))
            active = emit(op.nn.relu(emit(op.add(convolved, bias))))
            pooled = emit(op.nn.max_pool2d(active, pool_size=(2, 2), strides=(2, 2)))
            features = emit(op.mean(pooled, axis=[2, 3]))
            result = builder.emit_output(op.matmul(features, weight))
        builder.emit_func_output(result)
    return builder.get()
