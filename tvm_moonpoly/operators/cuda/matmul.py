"""Batched matrix products on a GPU, assembled from micro-kernels at each call.

The packed function runs on the host: it reads the shapes, plans, and launches one micro-kernel for
the whole result or two with a region each. There are micro-kernels for operands whose rows can be
copied 16 bytes at a time, and others for all the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvm_moonpoly import native
from tvm_moonpoly.costmodel.cuda import CudaTable
from tvm_moonpoly.emit import (
    INT,
    Expr,
    Functions,
    as_int,
    ceil_div,
    let,
    loop,
    scratch,
    select,
    switch,
    when,
)
from tvm_moonpoly.microkernels.cuda import (
    MAX_BATCH,
    MAX_OPERAND_ELEMENTS,
    CudaTile,
    Epilogue,
    Form,
    Requirements,
    kernel_name,
    lower,
    requirements,
)
from tvm_moonpoly.microkernels.cuda import build as build_kernel
from tvm_moonpoly.operators import dltensor, errors
from tvm_moonpoly.operators.errors import require
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner.cuda import native as planner
from tvm_moonpoly.planner.cuda.spec import Axis

#: Sizes and strides are int32 in micro-kernels.
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Assembly:
    """The micro-kernels of one form that an operator is assembled from, and their costs, in order.

    Raises ValueError where the table is of other micro-kernels.
    """

    form: Form
    tiles: tuple[CudaTile, ...]
    table: CudaTable

    def __post_init__(self) -> None:
        names = [kernel_name(tile, self.form) for tile in self.tiles]
        if names != [kernel.name for kernel in self.table.kernels]:
            raise ValueError("table: its kernels are not those of the tiles, in the same order")

    @property
    def needs(self) -> Requirements:
        """What a call must keep so that each of the micro-kernels is right."""
        each = [requirements(tile, self.form) for tile in self.tiles]
        # all are powers of two
        names = Requirements.__dataclass_fields__
        return Requirements(**{name: max(getattr(r, name) for r in each) for name in names})


def build(
    name: str,
    assemblies: Sequence[Assembly],
    epilogue: Epilogue | None = None,
    arch: str = "sm_80",
    host: Target | None = None,
    shared_limit: int = 99 << 10,
) -> tvm.runtime.Module:
    """A module with the packed function ``name``: ``C = activation(A @ B + bias + residual)``.

    Its arguments are tensors on the GPU: A (batch, M, K); B (batch, K, N), or (batch, N, K) where
    the assemblies' form is transposed; bias (N,) and residual (batch, M, N) where the epilogue has
    them; C (batch, M, N). Any sizes, 0 included, up to `MAX_BATCH` and `MAX_OPERAND_ELEMENTS` from
    a tensor's first element to its last; any strides of rows and batches (0 included where they are
    read), the last dimension contiguous. The call raises an error that names the
    argument where dtypes, dimensions or strides are not those.

    ``assemblies``: of the same dtypes and layout, the first that suits a call is taken; the last
    must suit all. ``host``: the target of the function itself, by default LLVM for this machine.

    Raises ValueError where the assemblies do not go together or the last does not suit all calls.
    """
    epilogue = epilogue or Epilogue()
    _check(assemblies)
    functions = Functions()
    errors.emit(functions)
    for i, assembly in enumerate(assemblies):
        planner.emit(functions, assembly.table, _plan_name(i))
    _emit(functions, name, assemblies, epilogue)
    module = native.build(functions.module(), host or Target("llvm"), functions.marks)
    kernels = {
        kernel_name(tile, assembly.form, epilogue): build_kernel(
            tile, assembly.form, epilogue, shared_limit
        )
        for assembly in assemblies
        for tile in assembly.tiles
    }
    module.import_module(lower(kernels, arch))
    return module


def _check(assemblies: Sequence[Assembly]) -> None:
    if not assemblies:
        raise ValueError("assemblies: at least one is needed")
    kinds = {(a.form.dtype_in, a.form.dtype_out, a.form.b_transposed) for a in assemblies}
    if len(kinds) > 1:
        raise ValueError(f"assemblies: dtypes and layout must be the same, got {sorted(kinds)}")
    needs = assemblies[-1].needs
    if max(needs.k, needs.n, needs.operands, needs.result) > 1:
        raise ValueError("assemblies: the last one must be of an unaligned form, to suit all calls")


def _plan_name(index: int) -> str:
    return f"{planner.PLAN}_{index}"


def _emit(
    functions: Functions, name: str, assemblies: Sequence[Assembly], epilogue: Epilogue
) -> None:
    form = assemblies[0].form
    extras = ["bias"] * epilogue.bias + ["residual"] * epilogue.residual
    names = ["a", "b", *extras, "c"]

    @functions.public(name, **dict.fromkeys(names, "handle"))
    def _(**handles: Any) -> None:
        given = {key: _operand(handles[key], key, form) for key in names}
        a, c = given["a"], given["c"]
        batch, m, n = (let(c.shape[i]) for i in range(3))
        k = let(a.shape[2])
        require(batch <= MAX_BATCH, "c", "dimension 0 is #, at most # is possible", batch,
                as_int(MAX_BATCH))  # fmt: skip
        _require_sizes(given, form, batch, m, n, k)
        strides = {key: _strides(t) for key, t in given.items() if key != "bias"}
        suited = scratch(1, INT)
        suited[0] = as_int(len(assemblies) - 1)
        for i, assembly in reversed(list(enumerate(assemblies[:-1]))):
            with when(_suits(assembly.needs, given, strides, n, k)):
                suited[0] = as_int(i)

        def launch_all(index: int) -> None:
            plan = scratch(planner.RESULTS, INT)
            functions[_plan_name(index)](m, n, k, batch, plan.at(0))
            _launch(assemblies[index], epilogue, [handles[key] for key in names], plan, m, n)

        with when(batch * m * n > 0):
            switch(suited[0], range(len(assemblies)), launch_all)


def _operand(handle: Any, name: str, form: Form) -> Tensor:
    dtype = form.dtype_in if name in ("a", "b") else form.dtype_out
    tensor = Tensor(handle, name, dtype, dltensor.CUDA)
    dims = 1 if name == "bias" else 3
    require(tensor.ndim == dims, name, f"must have {dims} dimensions, not #", tensor.ndim)
    return tensor


def _require_sizes(
    given: dict[str, Tensor], form: Form, batch: Expr, m: Expr, n: Expr, k: Expr
) -> None:
    b_shape = (batch, n, k) if form.b_transposed else (batch, k, n)
    expected = {
        "a": (batch, m, k),
        "b": b_shape,
        "bias": (n,),
        "residual": (batch, m, n),
        "c": (batch, m, n),
    }
    for name, tensor in given.items():
        for axis, size in enumerate(expected[name]):
            require(
                tensor.shape[axis] == size,
                name,
                f"dimension {axis} is #, by the other operands it must be #",
                tensor.shape[axis],
                size,
            )
            require(
                size <= _LARGEST, name, f"dimension {axis} is #, at most # is possible", size,
                as_int(_LARGEST),
            )  # fmt: skip


def _strides(tensor: Tensor) -> tuple[Expr, Expr]:
    """Elements from one batch entry and from one row to the next; the last dimension is required
    to be contiguous."""
    rows, columns = tensor.shape[1], tensor.shape[2]
    batch, row, last = scratch(1, INT), scratch(1, INT), scratch(1, INT)
    batch[0], row[0], last[0] = rows * columns, columns, as_int(1)
    with when(tensor.has_strides):
        batch[0], row[0], last[0] = (tensor.strides[axis] for axis in range(3))
    require(last[0] == 1, tensor.name, "elements of a row must be adjacent, not # apart", last[0])
    for stride in (batch, row):
        inside = tirx.all(stride[0] >= 0, stride[0] <= _LARGEST)
        require(inside, tensor.name, "strides must be in 0..2147483647, not #", stride[0])
    # of sizes and strides below 2^31, these products fit 64 bits
    last_batch = (tensor.shape[0] - 1) * batch[0]
    last_row = (rows - 1) * row[0]
    for distance in (last_batch, last_row, let(last_batch + last_row + columns)):
        require(
            distance <= MAX_OPERAND_ELEMENTS,
            tensor.name,
            "may span at most # elements, not #",
            as_int(MAX_OPERAND_ELEMENTS),
            distance,
        )
    return let(batch[0]), let(row[0])


def _suits(
    needs: Requirements,
    given: dict[str, Tensor],
    strides: dict[str, tuple[Expr, Expr]],
    n: Expr,
    k: Expr,
) -> Expr:
    """Whether a call keeps what an assembly's micro-kernels need."""
    remainders = [k % needs.k, n % needs.n]
    for name, pair in strides.items():
        multiple = needs.operands if name in ("a", "b") else needs.result
        remainders += [stride % multiple for stride in pair]
    for name, tensor in given.items():
        multiple = needs.pointer_bytes if name in ("a", "b") else needs.result_bytes
        address = tirx.reinterpret("int64", tensor.data.at(0))
        remainders.append(address % multiple)
    total = remainders[0]
    for each in remainders[1:]:
        total = tirx.bitwise_or(total, each)
    return let(total) == 0


def _launch(
    assembly: Assembly, epilogue: Epilogue, handles: list[Any], plan: Any, m: Expr, n: Expr
) -> None:
    """The launches of a plan: its one region, or two."""
    axis, cut = let(plan[planner.AXIS]), let(plan[planner.CUT])
    by_rows, by_columns = axis == int(Axis.ROWS), axis == int(Axis.COLUMNS)
    with loop(select(axis == int(Axis.NONE), as_int(1), as_int(2))) as part:
        second = part > 0
        which = let(select(second, plan[planner.SECOND], plan[planner.FIRST]))
        m0 = let(select(tirx.all(second, by_rows), cut, as_int(0)))
        n0 = let(select(tirx.all(second, by_columns), cut, as_int(0)))
        rows = let(select(tirx.all(part == 0, by_rows), cut, m - m0))
        columns = let(select(tirx.all(part == 0, by_columns), cut, n - n0))

        def call(index: int) -> None:
            tile = assembly.tiles[index]
            numbers = (m0, n0, ceil_div(rows, tile.block_m), ceil_div(columns, tile.block_n))
            name = kernel_name(tile, assembly.form, epilogue)
            T.evaluate(T.call_packed(name, *handles, *(x.astype("int32") for x in numbers)))

        switch(which, range(len(assembly.tiles)), call)
