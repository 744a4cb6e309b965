"""What all products of two operands that change share: argument checks, sizes and strides.

``moonpoly_product`` looks at shapes and strides alone, so it serves operands of every type.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
    cell,
    div,
    let,
    loop,
    scratch,
    select,
    unless,
    when,
)
from tvm_moonpoly.operators.errors import require, require_match
from tvm_moonpoly.operators.tensors import MAX_DIMS, Tensor, View, count_of

#: The parameters of every function of a product, before those that are its own and ``out``.
PARAMETERS = {
    "a": "handle",
    "b": "handle",
    "a_axes": INT,
    "b_axes": INT,
    "out_axes": INT,
    "labels": "handle",
}

#: The memory of a product: numbers, then the batch dimensions of more than one entry, of each its
#: size and the steps of a, b and out.
_NUMBERS = (
    "m",
    "n",
    "k",
    "batch",
    "a_m",
    "a_k",
    "b_k",
    "b_n",
    "out_m",
    "out_n",
    "dims",
    "flipped",
)
_BATCH_FIELDS = 4
_PRODUCT_SIZE = len(_NUMBERS) + _BATCH_FIELDS * (MAX_DIMS - 2)

#: What is asked of the strides.
_ANY, _ADJACENT, _FLIP = 0, 1, 2


class Product:
    """The sizes, strides and batch dimensions of one call, all checked.

    ``self["m"]``, ``["n"]``, ``["k"]`` are the sizes, ``["batch"]`` the number of matrices, and
    ``["a_m"]``, ``["a_k"]`` ... the strides in elements, 0 along a dimension of one element.

    A product ``a @ b`` with one column is also the product of the row ``b.T`` and ``a.T``. Where
    ``["flipped"]`` is 1 it is described as that: a stands for ``b.T`` and b for ``a.T``.
    """

    def __init__(
        self,
        handles: dict[str, Any],
        tensors: tuple[Tensor, ...],
        adjacent: bool,
        flip: bool = False,
    ) -> None:
        """``tensors`` are a, b and out. ``adjacent``: of each operand the elements of its rows or
        of its columns must be adjacent, of the output those of its rows. ``flip``: a column is
        described as a row where its elements are adjacent."""
        self._memory = scratch(_PRODUCT_SIZE, INT)
        Functions.current()["moonpoly_product"](
            *(tensor.handle for tensor in tensors),
            *(handles[name] for name in ("a_axes", "b_axes", "out_axes", "labels")),
            _FLIP if flip else _ADJACENT if adjacent else _ANY,
            self._memory.at(0),
        )

    def __getitem__(self, name: str) -> Expr:
        return self._memory[_NUMBERS.index(name)]

    def not_empty(self) -> Expr:
        """Whether there is anything to be written."""
        return tirx.all(self["batch"] > 0, self["m"] > 0, self["n"] > 0)

    def entries_of_b(self) -> Expr:
        """The matrices of the batch that have a b of their own."""
        entries = scratch(1, INT)
        entries[0] = as_int(1)
        with loop(self["dims"]) as i:
            dim = let(len(_NUMBERS) + _BATCH_FIELDS * i)
            entries[0] = entries[0] * select(self._memory[dim + 2] == 0, 1, self._memory[dim])
        return let(entries[0])

    def batch_dim(self, index: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Of a batch dimension of more than one entry, the last is ``index`` 0: its size, and the
        steps of a, b and out."""
        dim = let(len(_NUMBERS) + _BATCH_FIELDS * index)
        size, a, b, out = (let(self._memory[dim + i]) for i in range(_BATCH_FIELDS))
        return size, a, b, out

    def offsets(self, which: Expr) -> tuple[Expr, Expr, Expr]:
        """Where the matrices of batch entry ``which`` begin in a, b and out."""
        offset, rest = [scratch(1, INT) for _ in range(3)], scratch(1, INT)
        rest[0] = which
        for each in offset:
            each[0] = as_int(0)
        with loop(self["dims"]) as i:
            dim = let(len(_NUMBERS) + _BATCH_FIELDS * i)
            size = let(self._memory[dim])
            quotient = let(div(rest[0], size))
            at = let(rest[0] - quotient * size)
            rest[0] = quotient
            for position, each in enumerate(offset):
                each[0] = each[0] + at * self._memory[dim + 1 + position]
        return let(offset[0][0]), let(offset[1][0]), let(offset[2][0])


def emit(functions: Functions) -> None:
    """Define ``moonpoly_product``, before any function that uses a `Product`."""
    tensors = dict.fromkeys(("a", "b", "out"), "handle")
    codes = dict.fromkeys(("a_axes", "b_axes", "out_axes"), INT)

    @functions.fallible(
        "moonpoly_product", **tensors, **codes, labels="handle", asked=INT, product=INTS
    )
    def _(
        a: Expr,
        b: Expr,
        out: Expr,
        a_axes: Expr,
        b_axes: Expr,
        out_axes: Expr,
        labels: Expr,
        asked: Expr,
        product: Pointer,
    ) -> None:
        def put(**numbers: Expr) -> None:
            for name, value in numbers.items():
                product[_NUMBERS.index(name)] = value

        ndim = let(count_of(out_axes))
        vc = View(out, "out", out_axes, "out_axes", ndim)
        va, vb = (
            View(tensor, name, axes, f"{name}_axes", ndim, ndim)
            for tensor, name, axes in ((a, "a", a_axes), (b, "b", b_axes))
        )
        row, column = let(ndim - 2), let(ndim - 1)
        m, k, n = let(va.shape[row]), let(va.shape[column]), let(vb.shape[column])
        rows = let(vb.shape[row])
        require_match(k, rows, labels, "b", "its rows must be as many as the columns of a")
        for size, own, rule in (
            (m, let(vc.shape[row]), "must have as many rows as a"),
            (n, let(vc.shape[column]), "must have as many columns as b"),
        ):
            require(own == size, "out", f"{rule}: # and #", own, size)
        a_m, a_k, b_k, b_n, out_m, out_n = (
            let(view.stride[dim]) for view in (va, vb, vc) for dim in (row, column)
        )
        batch, dims = scratch(1, INT), scratch(1, INT)
        batch[0], dims[0] = as_int(1), as_int(len(_NUMBERS))
        # how far the matrices before this dimension reach, if each dimension goes beyond the next
        reach, nested = scratch(1, INT), scratch(1, INT)
        reach[0], nested[0] = select(m > 1, m * out_m, n), as_int(1)
        with loop(ndim - 2) as i:
            dim = let(ndim - 3 - i)
            size = let(vc.shape[dim])
            for view in (va, vb):
                own = let(view.shape[dim])
                require(
                    tirx.any(own == size, own == 1),
                    view.name,
                    "a batch dimension must be 1 or that of the output: # and #",
                    own,
                    size,
                )
            with when(size != 1):
                batch[0] = batch[0] * size
                product[dims[0]] = size
                for position, view in enumerate((va, vb, vc)):
                    product[dims[0] + 1 + position] = view.stride[dim]
                nested[0] = select(vc.stride[dim] < reach[0], 0, nested[0])
                reach[0] = size * vc.stride[dim]
                dims[0] = dims[0] + _BATCH_FIELDS
        put(m=m, n=n, k=k, batch=batch[0], dims=div(dims[0] - len(_NUMBERS), _BATCH_FIELDS))
        put(a_m=a_m, a_k=a_k, b_k=b_k, b_n=b_n, out_m=out_m, out_n=out_n, flipped=as_int(0))

        def look_closer() -> None:
            with when(tirx.all(batch[0] > 0, m > 0, n > 0)):
                require(_apart(vc, ndim), "out", "its elements must not share memory")
                with when(asked >= _ADJACENT):
                    either = "elements of its rows or of its columns must be adjacent"
                    require(tirx.any(a_k == 1, k <= 1, a_m == 1, m <= 1), "a", either)
                    require(tirx.any(b_n == 1, n <= 1, b_k == 1, k <= 1), "b", either)
                    require(
                        tirx.any(out_n == 1, n <= 1),
                        "out",
                        "elements of its rows must be adjacent",
                    )
                with when(tirx.all(asked == _FLIP, n == 1, out_m == 1)):
                    put(m=n, n=m, a_m=b_n, a_k=b_k, b_k=a_k, b_n=a_m, out_m=out_n, out_n=out_m)
                    put(flipped=as_int(1))
                    with loop(div(dims[0] - len(_NUMBERS), _BATCH_FIELDS)) as i:
                        step = let(len(_NUMBERS) + _BATCH_FIELDS * i + 1)
                        of_a = cell(product[step])
                        product[step] = product[step + 1]
                        product[step + 1] = of_a

        usual_out = tirx.all(nested[0] == 1, out_n == 1, tirx.any(out_m >= n, m <= 1))
        unless(
            tirx.all(usual_out, a_k == 1, tirx.any(b_n == 1, b_k == 1)),
            look_closer,
        )


def _apart(view: View, ndim: Expr) -> Expr:
    """Whether no two elements of a tensor share memory: each dimension's stride goes beyond all
    that those of smaller strides reach together.

    (Refuses some layouts that interleave without sharing anything, which nobody stores.)
    """
    apart, inner = scratch(1, INT), scratch(1, INT)
    apart[0] = as_int(1)

    def length(dim: Expr) -> Expr:
        return let(tirx.Select(view.stride[dim] < 0, 0 - view.stride[dim], view.stride[dim]))

    with loop(ndim) as i, when(view.shape[i] > 1):
        own = length(i)
        inner[0] = as_int(0)
        with loop(ndim) as j:
            other = length(j)
            below = tirx.any(other < own, tirx.all(other == own, j > i))
            inner[0] = inner[0] + select(below, (view.shape[j] - 1) * other, 0)
        apart[0] = select(own <= inner[0], 0, apart[0])
    return apart[0] == 1
