"""Batched matrix products on a GPU, assembled from micro-kernels at each call.

The packed function runs on the host: it reads the shapes, plans, and launches one micro-kernel for
the whole result or two with a region each. There are micro-kernels for operands whose rows can be
copied 16 bytes at a time, and others for all the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_moonpoly import native
from tvm_moonpoly.emit import Functions, let, select, when
from tvm_moonpoly.microkernels.cuda import COMMON_SHARED_BYTES, Epilogue, Form, lower_parts
from tvm_moonpoly.operators import errors
from tvm_moonpoly.operators.cuda import by_axes
from tvm_moonpoly.operators.cuda.assembly import Assembly, Operator
from tvm_moonpoly.operators.cuda.launches import Launches, plan_name
from tvm_moonpoly.operators.cuda.matrices import Matrices, matrices, operand, require_bias
from tvm_moonpoly.operators.errors import require
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner.cuda import native as planner


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
    assemblies = [each for operator in operators for each in operator.assemblies]
    for name, assembly in {plan_name(each): each for each in assemblies}.items():
        planner.emit(functions, assembly.table, name)
    if any(operator.by_axes for operator in operators):
        by_axes.emit_checks(functions)
    for operator in operators:
        if operator.by_axes:
            by_axes.emit(functions, operator)
        else:
            _emit(functions, operator)
    return native.build(functions.module(), host or Target("llvm"), functions.marks, launches)


def _emit(functions: Functions, operator: Operator) -> None:
    names = ["a", "b", *operator.extras, "c"]

    @functions.public(operator.name, **dict.fromkeys(names, "handle"))
    def _(**handles: Any) -> None:
        tensors = {key: operand(handles[key], key, operator.form) for key in names}
        for key, least in (("a", 1), ("b", 2), *((name, 1) for name in names[2:])):
            if key != "bias":
                ndim = tensors[key].ndim
                require(ndim >= least, key, f"must have at least {least} dimensions, not #", ndim)
        # a single B: all rows of A are rows of one product
        flat = let(tensors["b"].ndim == 2)
        seen = {key: matrices(tensors[key], flat) for key in names if key != "bias"}
        _require_sizes(seen, tensors.get("bias"), operator.form)
        launches = Launches(operator, tensors, seen)
        c = seen["c"]
        with when(c.batch * c.rows * c.columns > 0):
            launches.emit()


def _require_sizes(seen: dict[str, Matrices], bias: Tensor | None, form: Form) -> None:
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
        require_bias(bias, c.columns)
