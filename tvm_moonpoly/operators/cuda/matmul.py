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
    Pointer,
    as_int,
    ceil_div,
    div,
    item_size,
    let,
    loop,
    minimum,
    scratch,
    select,
    switch,
    when,
)
from tvm_moonpoly.microkernels.cuda import (
    COMMON_SHARED_BYTES,
    MAX_BATCH,
    MAX_OPERAND_ELEMENTS,
    CudaTile,
    Epilogue,
    Form,
    Requirements,
    kernel_name,
    lower_parts,
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

    def suits(self, n: int, k: int) -> bool:
        """Whether a call with contiguous tensors, as CUDA allocates them, keeps what it needs."""
        needs = self.needs
        row_of_b = k if self.form.b_transposed else n
        return not (
            k % needs.k or n % needs.n or k % needs.operands or row_of_b % needs.operands
            or n % needs.result
        )  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """The packed function ``name``, put together from ``assemblies`` of the same dtypes and layout
    with one epilogue: the first that suits a call is taken, the last must suit all.

    Raises ValueError where the assemblies do not go together or the last does not suit all calls.
    """

    name: str
    assemblies: tuple[Assembly, ...]
    epilogue: Epilogue = Epilogue()

    def __post_init__(self) -> None:
        _check(self.assemblies)

    @property
    def form(self) -> Form:
        """Of the first assembly: dtypes and layout are those of all."""
        return self.assemblies[0].form

    def kernels(self, shared_limit: int) -> dict[str, tirx.PrimFunc]:
        """Its micro-kernels by name, scheduled; see `microkernels.cuda.build`."""
        return {
            kernel_name(tile, assembly.form, self.epilogue): build_kernel(
                tile, assembly.form, self.epilogue, shared_limit
            )
            for assembly in self.assemblies
            for tile in assembly.tiles
        }


def build(
    name: str,
    assemblies: Sequence[Assembly],
    epilogue: Epilogue | None = None,
    arch: str = "sm_80",
    host: Target | None = None,
    shared_limit: int = COMMON_SHARED_BYTES,
) -> tvm.runtime.Module:
    """A module with the packed function ``name``: ``C = activation(A @ B + bias + residual)``.

    Its arguments are tensors on the GPU: A (..., M, K); B (K, N), and then the leading dimensions
    of A are rows as well, or (..., K, N) for one product each, with a single matrix on either side
    shared by all; B's last two dimensions the other way round where the assemblies' form is
    transposed; bias (N,) and residual (..., M, N) where the epilogue has them; C (..., M, N). Any
    sizes, 0 included, up to `MAX_OPERAND_ELEMENTS` from a matrix's first element to its last; rows
    and matrices evenly spaced at any distance, the last dimension contiguous. The call raises an
    error that names the argument where dtypes, dimensions or strides are not those.

    ``host``: the target of the function itself, by default LLVM for this machine.

    Raises ValueError where the assemblies do not go together or the last does not suit all calls.
    """
    operator = Operator(name, tuple(assemblies), epilogue or Epilogue())
    launches, kernels = lower_parts(operator.kernels(shared_limit), arch)
    module = host_module([operator], launches, host)
    for each in kernels:
        module.import_module(each)
    return module


def host_module(
    operators: Sequence[Operator], launches: tvm.IRModule, host: Target | None = None
) -> tvm.runtime.Module:
    """The host module of ``operators``: their packed functions and the planners, with the host
    functions ``launches`` of all their micro-kernels. It imports no kernels yet."""
    functions = Functions()
    errors.emit(functions)
    planned = set()
    for operator in operators:
        for assembly in operator.assemblies:
            if assembly.form not in planned:
                planned.add(assembly.form)
                planner.emit(functions, assembly.table, _plan_name(assembly))
    for operator in operators:
        _emit(functions, operator)
    return native.build(functions.module(), host or Target("llvm"), functions.marks, launches)


def _check(assemblies: Sequence[Assembly]) -> None:
    if not assemblies:
        raise ValueError("assemblies: at least one is needed")
    kinds = {(a.form.dtype_in, a.form.dtype_out, a.form.b_transposed) for a in assemblies}
    if len(kinds) > 1:
        raise ValueError(f"assemblies: dtypes and layout must be the same, got {sorted(kinds)}")
    needs = assemblies[-1].needs
    if max(needs.k, needs.n, needs.operands, needs.result) > 1:
        raise ValueError("assemblies: the last one must be of an unaligned form, to suit all calls")


def _plan_name(assembly: Assembly) -> str:
    return f"{planner.PLAN}_{assembly.form.name}"


@dataclass(frozen=True)
class _Matrices:
    """A tensor seen as ``batch`` matrices of ``rows`` by ``columns``, with the elements from one
    matrix and from one row to the next."""

    tensor: Tensor
    batch: Expr
    rows: Expr
    columns: Expr
    apart: Expr
    row: Expr


def _emit(functions: Functions, operator: Operator) -> None:
    form, epilogue, assemblies = operator.form, operator.epilogue, operator.assemblies
    extras = ["bias"] * epilogue.bias + ["residual"] * epilogue.residual
    names = ["a", "b", *extras, "c"]

    @functions.public(operator.name, **dict.fromkeys(names, "handle"))
    def _(**handles: Any) -> None:
        tensors = {key: _operand(handles[key], key, form) for key in names}
        # a single B: all rows of A are rows of one product
        flat = let(tensors["b"].ndim == 2)
        seen = {key: _matrices(tensors[key], flat) for key in names if key != "bias"}
        a, c = seen["a"], seen["c"]
        batch, m, n, k = c.batch, c.rows, c.columns, a.columns
        _require_sizes(seen, tensors.get("bias"), form)
        suited = scratch(1, INT)
        suited[0] = as_int(len(assemblies) - 1)
        for i, assembly in reversed(list(enumerate(assemblies[:-1]))):
            with when(_suits(assembly.needs, tensors, seen, n, k)):
                suited[0] = as_int(i)
        most = _products_at_once(list(seen.values()))
        views = {key: _view(each) for key, each in seen.items()}
        arguments = [views[key].at(0) if key in views else handles[key] for key in names]

        with when(batch * m * n > 0), loop(ceil_div(batch, most)) as part:
            first = let(part * most)
            count = let(minimum(most, batch - first))
            for key, each in seen.items():
                _move(views[key], each, first, count)

            def launch_all(index: int) -> None:
                plan = scratch(planner.RESULTS, INT)
                functions[_plan_name(assemblies[index])](m, n, k, count, plan.at(0))
                _launch(assemblies[index], epilogue, arguments, plan, m, n)

            switch(suited[0], range(len(assemblies)), launch_all)


def _operand(handle: Any, name: str, form: Form) -> Tensor:
    dtype = form.dtype_in if name in ("a", "b") else form.dtype_out
    tensor = Tensor(handle, name, dtype, dltensor.CUDA)
    if name == "bias":
        tensor.require_vector()
    else:
        least = 2 if name == "b" else 1
        require(tensor.ndim >= least, name, f"must have at least {least} dimensions, not #",
                tensor.ndim)  # fmt: skip
    return tensor


def _matrices(tensor: Tensor, flat: Expr) -> _Matrices:
    """``tensor`` as matrices, as one where it is ``flat``; B, of two dimensions then, is one."""
    one = as_int(1)
    last = let(tensor.ndim - 1)
    columns = let(tensor.shape[last])
    require(tirx.any(flat, last > 0), tensor.name, "must have at least 2 dimensions, as B has more")
    first = let(select(flat, as_int(0), last - 1))
    rows = tensor.size_of(first, last)
    batch = tensor.size_of(as_int(0), first)
    row, apart = scratch(1, INT), scratch(1, INT)
    row[0], apart[0] = columns, rows * columns
    with when(tensor.has_strides):
        adjacent = tirx.any(tensor.strides[last] == one, columns <= 1)
        require(adjacent, tensor.name, "elements of a row must be adjacent, not # apart",
                tensor.strides[last])  # fmt: skip
        row[0] = tensor.spacing(first, last, row[0], "rows")
        apart[0] = tensor.spacing(as_int(0), first, row[0] * rows, "matrices")
    with when(batch <= 1):
        apart[0] = as_int(0)  # one matrix, which may be shared by many products
    for stride in (apart, row):
        inside = tirx.all(stride[0] >= 0, stride[0] <= _LARGEST)
        require(inside, tensor.name, "strides must be in 0..2147483647, not #", stride[0])
    for size in (rows, columns):
        require(size <= _LARGEST, tensor.name, "a dimension is #, at most # is possible", size,
                as_int(_LARGEST))  # fmt: skip
    # of sizes and strides below 2^31, these products fit 64 bits
    span = let((rows - 1) * row[0] + columns)
    require(span <= MAX_OPERAND_ELEMENTS, tensor.name, "a matrix may span # elements, not #",
            as_int(MAX_OPERAND_ELEMENTS), span)  # fmt: skip
    return _Matrices(tensor, batch, rows, columns, let(apart[0]), let(row[0]))


def _require_sizes(seen: dict[str, _Matrices], bias: Tensor | None, form: Form) -> None:
    a, b, c = seen["a"], seen["b"], seen["c"]
    k, n = (b.columns, b.rows) if form.b_transposed else (b.rows, b.columns)
    require(k == a.columns, "b", "it has # rows to multiply with, by a it must have #", k,
            a.columns)  # fmt: skip
    require(a.rows == c.rows, "a", "it has # rows, by c it must have #", a.rows, c.rows)
    require(n == c.columns, "b", "it gives # columns, by c it must give #", n, c.columns)
    for name, each in seen.items():
        fits = each.batch == c.batch
        if name in ("a", "b"):
            fits = tirx.any(fits, each.batch == 1)
        require(fits, name, "it is # matrices, by c it must be #", each.batch, c.batch)
    given = let(select(a.batch == 1, b.batch, a.batch))
    require(c.batch == given, "c", "it is # matrices, by a and b it must be #", c.batch, given)
    if "residual" in seen:
        residual = seen["residual"]
        for what, mine, its in (
            ("rows", residual.rows, c.rows),
            ("columns", residual.columns, c.columns),
        ):
            require(mine == its, "residual", f"it has # {what}, by c it must have #", mine, its)
    if bias is not None:
        require(bias.shape[0] == c.columns, "bias", "it has # elements, by c it must have #",
                bias.shape[0], c.columns)  # fmt: skip


def _products_at_once(seen: Sequence[_Matrices]) -> Expr:
    """As many products as one launch may have: its grid is not higher, and no tensor spans more
    elements than micro-kernels can address."""
    most = scratch(1, INT)
    most[0] = as_int(MAX_BATCH)
    for each in seen:
        with when(each.apart > 0):
            room = MAX_OPERAND_ELEMENTS - ((each.rows - 1) * each.row + each.columns)
            most[0] = minimum(most[0], div(room, each.apart) + 1)
    return let(most[0])


#: A view's shape and strides in memory, after the tensor itself.
_SHAPE, _STEPS = dltensor.WORDS, dltensor.WORDS + 3


def _view(each: _Matrices) -> Pointer:
    """A tensor of three dimensions over the same memory, as launches take it, to be moved with
    `_move`."""
    memory = scratch(dltensor.WORDS + 6, INT)
    for i, number in enumerate((0, each.rows, each.columns, each.apart, each.row, 1)):
        memory[_SHAPE + i] = as_int(number)
    dltensor.write(memory, each.tensor.handle, memory.at(_SHAPE), memory.at(_STEPS), 3)
    return memory


def _move(view: Pointer, each: _Matrices, first: Expr, count: Expr) -> None:
    """Let a view be ``count`` matrices from the ``first`` on; a shared one is seen as often."""
    item = item_size(str(each.tensor.data.buffer.dtype))
    memory = tirx.reinterpret(INT, each.tensor.data.at(0))
    view[0] = memory + first * each.apart * item
    view[_SHAPE] = count


def _suits(
    needs: Requirements,
    given: dict[str, Tensor],
    seen: dict[str, _Matrices],
    n: Expr,
    k: Expr,
) -> Expr:
    """Whether a call keeps what an assembly's micro-kernels need."""
    remainders = [k % needs.k, n % needs.n]
    for name, each in seen.items():
        multiple = needs.operands if name in ("a", "b") else needs.result
        remainders += [stride % multiple for stride in (each.apart, each.row)]
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
            T.evaluate(T.call_cpacked(name, *handles, *(x.astype("int32") for x in numbers)))

        switch(which, range(len(assembly.tiles)), call)
