"""Which matmuls are computed by micro-kernels of a GPU, and in which form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax
from tvm.ir import GenericConst, Op
from tvm.relax import Expr, Var
from tvm.tirx import IntImm

from tvm_moonpoly.microkernels.cuda.tile import CHUNK
from tvm_moonpoly.operators import Activation, Step
from tvm_moonpoly.operators.cuda.library import Matmul

from ..bindings import Bindings
from ..epilogue import Epilogue, Link, match_epilogue
from ..match import Left, Operand, objection, stored_as
from ..shapes import dims, dtype_of, is_static, known_dims, same_dim, same_tensor

ASTYPE = Op.get("relax.astype")

#: Takes types of operands and of results, and whether B is stored transposed.
Refusal = Callable[[str, str, bool], str | None]

#: Types of the operands; sums are float32.
OPERANDS = ("float16", "bfloat16")

ACTIVATIONS = {
    Activation.RELU: "relu",
    Activation.GELU: "gelu",
    Activation.GELU_TANH: "gelu_tanh",
    Activation.SILU: "silu",
}


@dataclass(frozen=True)
class Form:
    """`matmul(a, b)`, b as it is stored: with its last two dimensions the other way round where
    that is `transposed`. `aligned`: all rows are known to be multiples of 16 bytes."""

    a: Expr
    b: Expr
    dtype_in: str
    dtype_out: str
    transposed: bool
    aligned: bool


@dataclass(frozen=True, eq=False)
class Fused:
    """A product with the operators after it, up to `last`: activation(a @ b + bias + residual)."""

    last: Var
    bias: Expr | None
    residual: Expr | None
    activation: str

    def matmul(self, form: Form) -> Matmul:
        """The operator that computes it."""
        return Matmul(
            form.dtype_in,
            form.dtype_out,
            form.transposed,
            self.bias is not None,
            self.activation,
            self.residual is not None,
            form.aligned,
        )


def result_of(var: Var, bindings: Bindings) -> Var:
    """The variable that the result of the matmul `var` is in, in its final type: that of a
    conversion to the operands' type, where nothing else uses sums in float32."""
    user = bindings.only_user(var)
    call = bindings.call(user, ASTYPE)
    if user is None or call is None or bindings.block[user] != bindings.block[var]:
        return var
    wide, narrow = dtype_of(var), dtype_of(bindings.value[var].args[0])
    converted = wide == "float32" and dtype_of(user) == narrow
    return user if converted and bindings.undisturbed(var, user) else var


def classify(
    var: Var, result: Var, bindings: Bindings, refusal: Refusal, static: bool
) -> Form | Left:
    """The form of the matmul that `var` is bound to, whose `result` is `result_of` it, or why it is
    none of ours.

    `refusal` tells of types and a layout why there are no micro-kernels for them, or None. Static
    shapes are ours if `static` says so.
    """
    call = bindings.value[var]
    reason = objection(call, static)
    if reason:
        return Left(reason)
    a, b = call.args
    operand, out = dtype_of(a), dtype_of(result)
    if operand not in OPERANDS or dtype_of(b) != operand or out not in (operand, "float32"):
        return Left(f"dtype {operand} x {dtype_of(b)} to {out}")
    if any(dims(expr) is None for expr in (a, b, call)):
        return Left("no shape known")
    reason = _shape_objection(known_dims(a), known_dims(b))
    if reason:
        return Left(reason)
    stored, transposed = _stored(b, var, bindings)
    reason = refusal(operand, out, transposed)
    if reason:
        return Left(reason)
    rows = (known_dims(a)[-1], known_dims(call)[-1])
    aligned = all(isinstance(dim, IntImm) and dim.value % CHUNK == 0 for dim in rows)
    return Form(a, stored, operand, out, transposed, aligned)


def _shape_objection(a: list[Expr], b: list[Expr]) -> str | None:
    """Why the operators take no operands of these shapes, or None: the leading dimensions must be
    those of one of them."""
    if len(b) < 2:
        return "a vector on the right"
    if len(a) < 2 and len(b) > 2:
        return "a vector on the left of many matrices"
    of_a, of_b = a[:-2], b[:-2]
    equal = len(of_a) == len(of_b) and all(map(same_dim, of_a, of_b))
    single = any(all(same_dim(dim, 1) for dim in each) for each in (of_a, of_b))
    return None if equal or single else "leading dimensions that differ"


def _stored(b: Expr, var: Var, bindings: Bindings) -> tuple[Expr, bool]:
    """Where `b`, an operand of `var`, can be read from, and whether its last two dimensions are the
    other way round there."""
    ndim = len(known_dims(b))
    straight = tuple(range(ndim))
    swapped = (*straight[:-2], ndim - 1, ndim - 2)
    found = b, False
    for operand in stored_as(Operand(b, straight), var, bindings):
        if operand.axes not in (straight, swapped):
            continue
        if bindings.reaches(operand.stored, bindings.block[var]):
            found = operand.stored, operand.axes == swapped
    return found


def match_fused(var: Var, bindings: Bindings) -> Fused:
    """The operators after the matmul `var` that are done on its sums."""
    epilogue = match_epilogue(var, bindings, lambda links: _parts(links, var) is not None)
    return _fused(epilogue, var)


def _fused(epilogue: Epilogue, var: Var) -> Fused:
    parts = _parts(epilogue.links, var)
    assert parts is not None
    return Fused(epilogue.last, *parts)


def _parts(links: Sequence[Link], var: Var) -> tuple[Expr | None, Expr | None, str] | None:
    """Bias, residual and activation that `links` are, or None where they are something else."""
    bias = residual = None
    activation = "none"
    for link in links:
        if activation != "none":
            return None
        if isinstance(link.step, Activation):
            if link.step not in ACTIVATIONS:
                return None
            activation = ACTIVATIONS[link.step]
        elif link.step != Step.ADD or link.operand is None:
            return None
        elif bias is None and _is_bias(link, var):
            bias = link.operand
        elif residual is None and same_tensor(link.operand, var):
            residual = link.operand
        else:
            return None
    return bias, residual, activation


def _is_bias(link: Link, var: Var) -> bool:
    """Whether `link` adds one value a column, in a form that `as_vector` takes."""
    features = known_dims(var)[-1]
    operand = link.operand
    if isinstance(operand, GenericConst) and operand.value.numpy().size == 1:
        return is_static([features])
    if not link.is_bias(features):
        return False
    return isinstance(operand, GenericConst) or len(known_dims(operand)) == 1


def as_vector(bias: Expr, features: Expr) -> Expr:
    """A bias (see `match_fused`) as a vector, which a constant may be in more dimensions."""
    if not isinstance(bias, GenericConst) or len(known_dims(bias)) == 1:
        return _widened(bias, features)
    array = bias.value.numpy().reshape(-1)
    return _widened(relax.const(array, dtype_of(bias)), features)


def _widened(bias: Expr, features: Expr) -> Expr:
    """A single value, repeated for each column."""
    if not isinstance(bias, GenericConst) or same_dim(known_dims(bias)[0], features):
        return bias
    return relax.const(bias.value.numpy().repeat(int(features)), dtype_of(bias))
