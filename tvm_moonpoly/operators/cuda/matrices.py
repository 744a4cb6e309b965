"""Tensors on the GPU as evenly spaced matrices, which is what micro-kernels take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import INT, Expr, Pointer, as_int, item_size, let, scratch, select, when
from tvm_moonpoly.microkernels.cuda import MAX_OPERAND_ELEMENTS, Form
from tvm_moonpoly.operators import dltensor
from tvm_moonpoly.operators.errors import require
from tvm_moonpoly.operators.tensors import Tensor

#: Sizes and strides are int32 in micro-kernels.
LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Matrices:
    """``batch`` matrices of ``rows`` by ``columns`` in a tensor, with the elements from one matrix
    and from one row to the next.

    ``strides``: all strides of the tensor but that of columns, or-ed: a power of two divides this
    where it divides each of them.
    """

    tensor: Tensor
    batch: Expr
    rows: Expr
    columns: Expr
    apart: Expr
    row: Expr
    strides: Expr


def operand(handle: Any, name: str, form: Form) -> Tensor:
    """An argument, checked to be of the type that ``form`` says: a and b are operands, all others
    of the type of the result, and a bias is a vector."""
    dtype = form.dtype_in if name in ("a", "b") else form.dtype_out
    tensor = Tensor(handle, name, dtype, dltensor.CUDA)
    if name == "bias":
        tensor.require_vector()
    return tensor


def require_bias(bias: Tensor, columns: Expr) -> None:
    """Raise at run time unless a bias has an element a column."""
    require(bias.shape[0] == columns, "bias", "it has # elements, by c it must have #",
            bias.shape[0], columns)  # fmt: skip


def bounded(each: Matrices) -> Matrices:
    """``each``, checked to be what micro-kernels can address; of which a single one may be shared
    by many products."""
    name = each.tensor.name
    for stride in (each.apart, each.row):
        inside = tirx.all(stride >= 0, stride <= LARGEST)
        require(inside, name, "strides must be in 0..2147483647, not #", stride)
    for size in (each.rows, each.columns):
        require(size <= LARGEST, name, "a dimension is #, at most # is possible", size,
                as_int(LARGEST))  # fmt: skip
    # of sizes and strides below 2^31, these products fit 64 bits
    span = let((each.rows - 1) * each.row + each.columns)
    require(span <= MAX_OPERAND_ELEMENTS, name, "a matrix may span # elements, not #",
            as_int(MAX_OPERAND_ELEMENTS), span)  # fmt: skip
    return each


def matrices(tensor: Tensor, flat: Expr) -> Matrices:
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
    apart, row = let(apart[0]), let(row[0])
    strides = let(tirx.bitwise_or(apart, row))
    return bounded(Matrices(tensor, batch, rows, columns, apart, row, strides))


#: A view's shape and strides in memory, after the tensor itself.
_SHAPE, _STEPS = dltensor.WORDS, dltensor.WORDS + 3


def view(each: Matrices) -> Pointer:
    """A tensor of three dimensions over the same memory, as launches take it, to be moved with
    `move`."""
    memory = scratch(dltensor.WORDS + 6, INT)
    for i, number in enumerate((0, each.rows, each.columns, each.apart, each.row, 1)):
        memory[_SHAPE + i] = as_int(number)
    dltensor.write(memory, each.tensor.handle, memory.at(_SHAPE), memory.at(_STEPS), 3)
    return memory


def move(memory: Pointer, each: Matrices, at: Expr, first: Expr, count: Expr) -> None:
    """Let a view be ``count`` matrices from the ``first`` on, of those that begin at element
    ``at``; a shared one is seen as often."""
    item = item_size(str(each.tensor.data.buffer.dtype))
    begin = tirx.reinterpret(INT, each.tensor.data.at(0))
    memory[0] = begin + (at + first * each.apart) * item
    memory[_SHAPE] = count
