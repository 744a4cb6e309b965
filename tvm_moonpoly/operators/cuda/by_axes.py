"""Products of tensors with their dimensions in any order, read and written where they lie.

Each tensor comes with the code of its axes (`operators.encode_axes`): operands that otherwise a
`permute_dims` would turn, leading dimensions that broadcast against each other, a result that is
stored in another order. Micro-kernels walk one batch of evenly spaced matrices: dimensions that lie
evenly are taken as one, the longest of the others is the batch, and for each entry of the rest
there is a launch of its own.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import INT, Expr, Functions, as_int, let, loop, scratch, when
from tvm_moonpoly.operators import product, tensors
from tvm_moonpoly.operators.cuda.assembly import Operator
from tvm_moonpoly.operators.cuda.launches import Launches
from tvm_moonpoly.operators.cuda.matrices import Matrices, bounded, operand, require_bias
from tvm_moonpoly.operators.cuda.walk import Walk
from tvm_moonpoly.operators.errors import require
from tvm_moonpoly.operators.product import Product
from tvm_moonpoly.operators.tensors import COUNT_BIT, MAX_DIMS, Tensor, View

#: Axes of a residual: those of the product, in order.
_IN_ORDER = sum(i << 4 * i for i in range(MAX_DIMS))


def emit_checks(functions: Functions) -> None:
    """Define what all functions of `emit` share."""
    tensors.emit(functions)
    product.emit(functions)


def emit(functions: Functions, operator: Operator) -> None:
    """Define the packed function of ``operator``: ``activation(a @ b + bias + residual)``.

    Its arguments: tensors a and b and the codes of their axes, that of the result's, bias (N,) and
    residual (..., M, N) where the epilogue has them, out. As the product sees them, a is
    (..., M, K), b (..., K, N) and the result (..., M, N), with leading dimensions that are equal or
    1. The elements of a along K must be adjacent, those of b along N (along K where the form is
    transposed), and those of the result along N. The call raises an error that names the argument
    where that is not so.
    """
    form, extras = operator.form, operator.extras
    arguments = {name: "handle" for name in ("a", "b")}
    arguments |= {name: INT for name in ("a_axes", "b_axes", "out_axes")}
    arguments |= {name: "handle" for name in (*extras, "out")}

    @functions.public(operator.name, **arguments)
    def _(**handles: Any) -> None:
        given = {name: operand(handles[name], name, form) for name in ("a", "b", *extras, "out")}
        handles["labels"] = tirx.reinterpret("handle", tirx.const(0, "uint64"))
        sizes = Product(handles, (given["a"], given["b"], given["out"]), adjacent=True)
        with when(sizes.not_empty()):
            m, n, k = (let(sizes[name]) for name in ("m", "n", "k"))
            _require_adjacent(sizes, k, n, form.b_transposed)
            if "bias" in given:
                require_bias(given["bias"], n)
            names = ["a", "b", *(["residual"] if "residual" in given else []), "out"]
            walk = Walk(names, m, sizes)
            if "residual" in given:
                _add_residual(walk, given["residual"], handles["out_axes"], sizes, m, n)
            columns = {"a": k, "b": as_int(0), "residual": n, "out": n}
            walk.collapse(columns)
            rows = walk.rows["size"]
            seen = {name: (rows, columns[name], walk.rows[name]) for name in names}
            row_of_b = let(sizes["b_n" if form.b_transposed else "b_k"])
            seen["b"] = (n, k, row_of_b) if form.b_transposed else (k, n, row_of_b)
            matrices = {name: _matrices(given[name], walk, *seen[name]) for name in names}
            launches = Launches(operator, given, matrices)
            with loop(walk.others) as entry:
                launches.emit(walk.offsets(entry))


def _matrices(tensor: Tensor, walk: Walk, rows: Expr, columns: Expr, row: Expr) -> Matrices:
    """The matrices of one launch in a tensor, of rows that are ``row`` elements apart."""
    batch, apart = walk.batch["size"], walk.batch[tensor.name]
    strides = let(tirx.bitwise_or(walk.strides(tensor.name), row))
    return bounded(Matrices(tensor, batch, rows, columns, apart, row, strides))


def _require_adjacent(sizes: Product, k: Expr, n: Expr, transposed: bool) -> None:
    along_k = "elements along the contracted dimension must be adjacent"
    require(tirx.any(sizes["a_k"] == 1, k <= 1), "a", along_k)
    if transposed:
        require(tirx.any(sizes["b_k"] == 1, k <= 1), "b", along_k)
    else:
        require(tirx.any(sizes["b_n"] == 1, n <= 1), "b", "elements of its rows must be adjacent")


def _add_residual(
    walk: Walk, residual: Tensor, out_axes: Expr, sizes: Product, m: Expr, n: Expr
) -> None:
    """Write the steps of a residual into the walk; it must have the shape of the product."""
    ndim = let(tensors.count_of(out_axes))
    once = tirx.shift_left(as_int(1), ndim * 4) - 1
    code = tirx.bitwise_and(as_int(_IN_ORDER), once)
    code = let(tirx.bitwise_or(tirx.shift_left(ndim, as_int(COUNT_BIT)), code))
    view = View(residual.handle, "residual", code, "residual", ndim)
    rule = "it must have the shape of the product"
    same = tirx.all(view.shape[ndim - 2] == m, view.shape[ndim - 1] == n)
    require(same, "residual", rule)
    adjacent = tirx.any(view.stride[ndim - 1] == 1, n <= 1)
    require(adjacent, "residual", "elements of its rows must be adjacent")
    walk.set(as_int(0), "residual", view.stride[ndim - 2])
    seen = scratch(1, INT)
    seen[0] = as_int(0)
    with loop(ndim - 2) as i:
        dim = let(ndim - 3 - i)
        size = let(view.shape[dim])
        with when(size != 1):
            require(seen[0] < sizes["dims"], "residual", rule)
            require(size == walk.get(seen[0] + 1, "size"), "residual", rule)
            seen[0] = seen[0] + 1
            walk.set(seen[0], "residual", view.stride[dim])
    require(seen[0] == sizes["dims"], "residual", rule)
