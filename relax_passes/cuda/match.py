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
from ..calls import is_permuted
from ..epilogue import Epilogue, Link, match_epilogue
from ..match import Axes, Left, Operand, objection, stored_as
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
    """`matmul(a, b)`, the operands as they are stored: b with its last two dimensions the other way
    round where that is `transposed`. `aligned`: all rows are known to be multiples of 16 bytes.

    `plain`: the leading dimensions are those of one operand, in the order that they are stored in.
    `batched`: both operands have more than one matrix.
    """

    a: Operand
    b: Operand
    dtype_in: str
    dtype_out: str
    transposed: bool
    aligned: bool
    plain: bool
    batched: bool

    @property
    def has_vectors(self) -> bool:
        """Whether an operand is no matrix but a vector, for an operator that takes axes."""
        return not self.plain and None in (*self.a.axes, *self.b.axes)


@dataclass(frozen=True, eq=False)
class Fused:
    """A product with the operators after it, up to `last`: activation(a @ b + bias + residual)."""

    last: Var
    bias: Expr | None
    residual: Expr | None
    activation: str

    def matmul(self, form: Form, by_axes: bool) -> Matmul:
        """The operator that computes it."""
        return Matmul(
            form.dtype_in,
            form.dtype_out,
            form.transposed,
            self.bias is not None,
            self.activation,
            self.residual is not None,
            by_axes,
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
    batched = all(_is_batched(known_dims(expr)) for expr in (a, b))
    left, right = _left(a, var, bindings, batched), _right(b, var, bindings)
    transposed = _is_transposed(right.axes)
    reason = refusal(operand, out, transposed)
    if reason:
        return Left(reason)
    rows = (known_dims(a)[-1], known_dims(b)[-1]) if len(known_dims(b)) > 1 else ()
    aligned = all(isinstance(dim, IntImm) and dim.value % CHUNK == 0 for dim in rows)
    plain = _is_plain(a, b) and not (is_permuted(left.axes) or is_permuted(straight(right.axes)))
    return Form(left, right, operand, out, transposed, aligned and bool(rows), plain, batched)


def _is_batched(dims: list[Expr]) -> bool:
    """Whether a tensor of these dimensions may be more than one matrix."""
    return not all(same_dim(dim, 1) for dim in dims[:-2])


def _is_plain(a: Expr, b: Expr) -> bool:
    """Whether the leading dimensions are those of one operand, which is no vector on the right, nor
    one on the left of many matrices."""
    of_a, of_b = known_dims(a), known_dims(b)
    if len(of_b) < 2 or (len(of_a) < 2 and len(of_b) > 2):
        return False
    single = not (_is_batched(of_a) and _is_batched(of_b))
    return single or (len(of_a) == len(of_b) and all(map(same_dim, of_a[:-2], of_b[:-2])))


def _is_transposed(axes: Axes) -> bool:
    """Whether the last dimension that is stored is the one but last of the operand."""
    return len(axes) - 1 == axes[-2]


def straight(axes: Axes) -> Axes:
    """The axes of b, its last two dimensions as micro-kernels take them."""
    return (*axes[:-2], axes[-1], axes[-2]) if _is_transposed(axes) else axes


def _left(a: Expr, var: Var, bindings: Bindings, batched: bool) -> Operand:
    """Where `a`, the left operand of `var`, can be read from: its last dimension stays the last.

    Rows that share one matrix are rows of one product only where they lie in order.
    """
    ndim = len(known_dims(a))
    if ndim == 1:
        return Operand(a, (None, 0))
    fits = (lambda axes: axes[-1] == ndim - 1) if batched else (lambda axes: not is_permuted(axes))
    return _read_from(a, var, bindings, fits)


def _right(b: Expr, var: Var, bindings: Bindings) -> Operand:
    """Where `b`, the right operand of `var`, can be read from: one of its last two dimensions is
    the last."""
    ndim = len(known_dims(b))
    if ndim == 1:
        return Operand(b, (0, None))
    return _read_from(b, var, bindings, lambda axes: ndim - 1 in axes[-2:])


def _read_from(expr: Expr, var: Var, bindings: Bindings, fits: Callable[[Axes], bool]) -> Operand:
    """`expr`, an operand of `var`, read from as far up as the layout there `fits`."""
    found = Operand(expr, tuple(range(len(known_dims(expr)))))
    for operand in stored_as(found, var, bindings):
        if fits(operand.axes) and bindings.reaches(operand.stored, bindings.block[var]):
            found = operand
    return found


def match_fused(var: Var, form: Form, bindings: Bindings) -> Fused:
    """The operators after the matmul `var` that are done on its sums."""
    if form.has_vectors:
        return Fused(var, None, None, "none")
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
