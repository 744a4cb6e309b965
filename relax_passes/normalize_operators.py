"""Write what importers spell out as the operators that the passes for convolutions know."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, GenericConst, GlobalVar, Op, TupleGetItem
from tvm.relax import Expr, Var
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target
from tvm.tirx import FloatImm, IntImm

from tvm_moonpoly.arguments import require_flags, target_of

from .activation import CLIP, clip_bounds
from .bindings import Bindings, is_claimed
from .conv_functions import rewrite_with_convolutions
from .conv_match import Convolution
from .scalar_bound import scalar_bound
from .shapes import dims, dtype_of, is_static, known_dims, same_tensor

#: Results that are computed in numpy: the operators below on constants of at most so many numbers,
#: but a constant of any size may change its shape.
MOST_NUMBERS = 1 << 16

RESHAPES = tuple(Op.get(f"relax.{name}") for name in ("reshape", "expand_dims", "squeeze"))
PERMUTE_DIMS = Op.get("relax.permute_dims")
FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negative": np.negative,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "isnan": np.isnan,
    "where": np.where,
}
ELEMENTWISE = {Op.get(f"relax.{name}"): function for name, function in FUNCTIONS.items()}
ASTYPE, BATCH_NORM = Op.get("relax.astype"), Op.get("relax.nn.batch_norm")
CALL_TIR = Op.get("relax.call_tir")
MAXIMUM, MINIMUM = Op.get("relax.maximum"), Op.get("relax.minimum")
RELU = Op.get("relax.nn.relu")


@tvm.transform.module_pass(opt_level=0, name="NormalizeOperators")
class NormalizeOperators:
    """In functions with a convolution of ours, give common operators one form.

    * Operators on constants are constants.
    * Bounds one after the other, and those that the ONNX importer makes of a `call_tir`, become
      one `clip`, or `relu`.
    * `batch_norm` with constant statistics becomes a product and a sum.
    """

    def __init__(self, target: Target, static: bool = False, pack_parameters: bool = False) -> None:
        require_flags(static=static, pack_parameters=pack_parameters)
        self.target = target_of(target)
        self.static = static
        self.pack_parameters = pack_parameters

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        def rewrite(
            func: relax.Function, _bindings: Bindings, _ours: dict[Var, Convolution]
        ) -> relax.Function:
            return relax.analysis.remove_all_unused(_Normalize(mod).visit_expr(func))

        new = rewrite_with_convolutions(
            mod, self.target, self.static, rewrite, self.pack_parameters
        )
        return mod if new.same_as(mod) else _without_unused(mod, new)


def _without_unused(before: tvm.IRModule, after: tvm.IRModule) -> tvm.IRModule:
    """`after`, a copy, without those private functions that were used in `before` alone."""
    for gv in _used_functions(before) - _used_functions(after):
        func = after[gv]
        if isinstance(func, tirx.PrimFunc) and "global_symbol" not in (func.attrs or {}):
            del after[gv]
    return after


def _used_functions(mod: tvm.IRModule) -> set[GlobalVar]:
    found: set[GlobalVar] = set()
    for func in mod.functions.values():
        tvm_ffi.structural_walk(func, (GlobalVar, found.add))
    return found


@mutator
class _Normalize(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod

    def visit_function_(self, op: relax.Function) -> relax.Function:
        return op if is_claimed(op) else super().visit_function_(op)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if not isinstance(call.op, Op):
            return call
        if call.op == CALL_TIR:
            return self._bound_of_call(call)
        args = [self._constant_or_same(arg) for arg in call.args]
        folded = _folded(call, args)
        if folded is not None:
            return folded
        if call.op in ELEMENTWISE:
            call = self.builder_.normalize(Call(call.op, args, call.attrs, call.ty_args))
        return self._clip(call) if call.op in (MAXIMUM, MINIMUM, CLIP) else call

    def visit_tuple_getitem_(self, op: TupleGetItem) -> Expr:
        op = super().visit_tuple_getitem_(op)
        value = self._below(op.tuple_value)
        if isinstance(value, relax.Tuple):
            return value.fields[op.index]
        if op.index == 0 and isinstance(value, Call) and value.op == BATCH_NORM:
            affine = self._batch_norm(value)
            return op if affine is None else affine
        return op

    def _below(self, expr: Expr) -> Expr:
        """What `expr` is bound to, through other names."""
        while isinstance(expr, Var):
            below = self.lookup_binding(expr)
            if below is None:
                return expr
            expr = below
        return expr

    def _constant_or_same(self, expr: Expr) -> Expr:
        below = self._below(expr)
        return below if isinstance(below, GenericConst) else expr

    def _bound_of_call(self, call: Call) -> Expr:
        """`maximum` or `minimum` of a tensor and a scalar, where the function that `call` calls
        computes no more than that; `call` itself otherwise."""
        func = self._mod[call.args[0]] if isinstance(call.args[0], GlobalVar) else None
        found = scalar_bound(func) if isinstance(func, tirx.PrimFunc) else None
        operands = list(call.args[1].fields) if found is not None else []
        if found is None or not same_tensor(operands[0], call):
            return call
        name, value = found
        bound = relax.const(value, dtype_of(call)) if value is not None else operands[1]
        make = relax.op.maximum if name == "maximum" else relax.op.minimum
        bounded = make(operands[0], self._constant_or_same(bound))
        return self._clip(self.builder_.normalize(bounded))

    def _clip(self, call: Call) -> Call:
        """`call`, which bounds a tensor, together with one that bounds its operand; as `relu` where
        that is what it is."""
        found = _bounds(call)
        if found is None or found[0].ty.ndim < 0:
            return call
        x, low, high = found
        below = self._below(x)
        inner = _bounds(below) if isinstance(below, Call) and same_tensor(below, call) else None
        if inner is not None and max(low, inner[1]) <= min(high, inner[2]):
            x, low, high = inner[0], max(low, inner[1]), min(high, inner[2])
        elif (low, high) != (0.0, math.inf):
            return call
        if (low, high) == (0.0, math.inf):
            return relax.op.nn.relu(x)
        return relax.op.clip(x, FloatImm("float64", low), FloatImm("float64", high))

    def _batch_norm(self, call: Call) -> Expr | None:
        x, *statistics = call.args
        constants = [self._below(each) for each in statistics]
        attrs = call.attrs
        shape = dims(x)
        if attrs.training or shape is None:
            return None
        if not all(isinstance(each, GenericConst) for each in constants):
            return None
        gamma, beta, mean, variance = (each.value.numpy().astype("float64") for each in constants)
        scale = 1.0 / np.sqrt(variance + attrs.epsilon)
        if attrs.scale:
            scale = scale * gamma
        shift = (beta if attrs.center else 0.0) - mean * scale
        if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
            return None
        axis = int(attrs.axis) % len(shape)
        by_channel = [-1] + [1] * (len(shape) - axis - 1)
        scale, shift = (each.reshape(by_channel).astype(dtype_of(x)) for each in (scale, shift))
        scaled = self.builder_.emit(relax.op.multiply(x, relax.const(scale)))
        return relax.op.add(scaled, relax.const(shift))


def _folded(call: Call, args: list[Expr]) -> Expr | None:
    """The value of `call`, if it is an operator of those above on constants."""
    if not is_static(dims(call)) or any(dtype_of(each) == "bfloat16" for each in (*args, call)):
        return None
    shape = [int(dim) for dim in known_dims(call)]
    if call.op in RESHAPES or call.op == PERMUTE_DIMS:
        if not isinstance(args[0], GenericConst):
            return None
        values = args[0].value.numpy()
        if call.op == PERMUTE_DIMS:
            # of a matrix, it is a weight's, which is not copied
            if len(shape) < 3:
                return None
            values = values.transpose(call.attrs.axes and [int(a) for a in call.attrs.axes])
        return relax.const(np.ascontiguousarray(values.reshape(shape)), dtype_of(call))
    if not args or not all(isinstance(arg, GenericConst) for arg in args):
        return None
    if np.prod(shape, dtype=np.int64) > MOST_NUMBERS:
        return None
    values = [arg.value.numpy() for arg in args]
    if call.op == ASTYPE:
        return relax.const(values[0].astype(dtype_of(call)), dtype_of(call))
    if call.op not in ELEMENTWISE or any(array.dtype.kind not in "fb" for array in values):
        return None  # integers are divided otherwise in numpy
    with np.errstate(all="ignore"):
        return relax.const(ELEMENTWISE[call.op](*values).astype(dtype_of(call)), dtype_of(call))


def _number(expr: Expr) -> float | None:
    """The value of a constant of one number."""
    if isinstance(expr, GenericConst) and "float" in str(expr.value.dtype):
        values = expr.value.numpy()
        return float(values.reshape(())) if values.size == 1 else None
    return float(expr.value) if isinstance(expr, IntImm | FloatImm) else None


def _bounds(call: Call) -> tuple[Expr, float, float] | None:
    """The tensor that `call` bounds, and by what, if it is an operator that does so by numbers."""
    if call.op == RELU:
        return call.args[0], 0.0, math.inf
    if call.op not in (MAXIMUM, MINIMUM, CLIP) or "float" not in dtype_of(call):
        return None
    x = call.args[0]
    if not same_tensor(x, call):
        return None
    if call.op == CLIP:
        bounds = clip_bounds(call)
        return (x, *bounds) if bounds is not None and bounds[0] <= bounds[1] else None
    bound = _number(call.args[1])
    if bound is None:
        return None
    return (x, bound, math.inf) if call.op == MAXIMUM else (x, -math.inf, bound)
