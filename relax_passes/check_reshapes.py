"""Let a reshape that would lose elements, or invent some, raise when it is called."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir import Call, Op
from tvm.relax import Expr
from tvm.relax.expr_functor import PyExprMutator, mutator

from .bindings import is_claimed
from .element_count import count
from .functions import with_rewritten
from .run_time_checks import assert_equal, emit_kept
from .shape_facts import ShapeFacts, facts
from .shapes import dims, fresh_symbols, show_dim, show_dims

RESHAPE = Op.get("relax.reshape")
SQUEEZE = Op.get("relax.squeeze")


@tvm.transform.module_pass(opt_level=0, name="CheckReshapes")
class CheckReshapes:
    """Check at run time that reshapes keep the number of elements, where that is not provable
    from what is known of the sizes (`facts`).

    TVM takes the new shape at its word: a reshape of (n, 8) to (n // 4, 32) loses elements without
    a word where n is no multiple of 4, and one to ((n + 3) // 4, 32) reads beyond its operand.
    After this pass both raise a RuntimeError that names function, operator, shapes and the two
    numbers of elements. `squeeze` of a dimension that is not known to be 1 is treated alike.

    To be run before `LegalizeOps`, for any target. The checks are bindings of `match_cast`, which
    no pass of TVM drops; what they call is part of TVM's runtime.

    A shape that is held by a variable is replaced by its dimensions where the variable's type
    tells them (TVM cannot compile that otherwise). Of operands and shapes that are known by rank
    only, the dimensions are read at run time; where not even the rank is known, the result is
    reshaped back, which fails when it is too small (with an error of TVM's own).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        def rewrite(func: relax.Function, name: str) -> relax.Function:
            known = facts(func)
            if not _is_doubtful(func, known):
                return func
            return _InsertChecks(mod, name, known).visit_expr(func)

        return with_rewritten(mod, rewrite)


def _is_doubtful(func: relax.Function, known: ShapeFacts) -> bool:
    """Whether any reshape of `func` is to be changed. Keeps all others from being rebuilt."""
    found = []

    def visit(expr: Expr) -> None:
        if isinstance(expr, Call) and expr.op in (RESHAPE, SQUEEZE):
            before, after = dims(expr.args[0]), _dims_after(expr)
            if before is None or after is None:
                found.append(expr.op == RESHAPE)
            else:
                found.append(_named_shape(expr) or not known.same_product(before, after))

    relax.analysis.post_order_visit(func, visit)
    return any(found)


def _dims_after(call: Call) -> list[Expr] | None:
    """The dimensions of the result of `call`, if they are known."""
    if call.op == SQUEEZE:
        return dims(call)
    shape = call.args[1]
    values = shape.values if isinstance(shape, relax.ShapeExpr) else shape.ty.values
    return None if values is None else list(values)


def _named_shape(call: Call) -> bool:
    """Whether the new shape is a variable whose type tells its dimensions."""
    named = call.op == RESHAPE and not isinstance(call.args[1], relax.ShapeExpr)
    return named and call.args[1].ty.values is not None


@mutator
class _InsertChecks(PyExprMutator):
    """Puts a check before each reshape of the function called `name` that needs one."""

    def __init__(self, mod: tvm.IRModule, name: str, known: ShapeFacts) -> None:
        super().__init__(mod)
        self._name = name
        self._known = known
        self._binding: relax.Var | None = None  # the one in hand
        # what has been checked on the way to the binding in hand
        self._checked: list[tuple[Expr, Expr]] = []

    def visit_function_(self, func: relax.Function) -> Expr:
        return func if is_claimed(func) else self._in_scope(super().visit_function_, func)

    def visit_seq_expr_(self, seq: relax.SeqExpr) -> Expr:
        return self._in_scope(super().visit_seq_expr_, seq)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        outer, self._binding = self._binding, binding.var
        super().visit_var_binding_(binding)
        self._binding = outer

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if call.op not in (RESHAPE, SQUEEZE):
            return call
        data, before, after = call.args[0], dims(call.args[0]), _dims_after(call)
        if call.op == RESHAPE:
            if _named_shape(call):
                call = relax.op.reshape(data, relax.ShapeExpr(after))
            before = self._read_dims(data) if before is None else before
            after = self._read_dims(call.args[1]) if after is None else after
            if before is None or after is None:
                return self._reshaped_back(call)
        if before is not None and after is not None:
            self._check(call, before, after)
        return call

    def _check(self, call: Call, before: list[Expr], after: list[Expr]) -> None:
        """Emit the check of `call`, unless it is known to pass."""
        made, given = count(after), count(before)
        if self._known.equal(made, given, self._binding, self._checked):
            return
        self._checked.append((made, given))
        operator = call.op.name.removeprefix("relax.")
        text = (
            f"{self._name}: {operator} {show_dims(before)} -> {show_dims(after)} changes the "
            f"number of elements: {show_dim(made)} instead of {show_dim(given)};"
        )
        emit_kept(self.builder_, assert_equal(made, given, text))

    def _reshaped_back(self, call: Call) -> Expr:
        """The result of the reshape `call`, which is a view of its operand when it comes to be
        executed, after it has proved large enough for a view of the shape of the operand."""
        result = self.builder_.emit(call)
        shape = self.builder_.emit(relax.op.shape_of(call.args[0]))
        ty = relax.TensorType()
        back = relax.op.call_pure_packed("vm.builtin.reshape", result, shape, ty_args=ty)
        emit_kept(self.builder_, back)
        return result

    def _read_dims(self, expr: Expr) -> list[Expr] | None:
        """Names for the dimensions of the tensor or shape `expr`, whose type tells their number;
        None if it does not."""
        ty = expr.ty
        if ty.ndim < 0 or not isinstance(expr, relax.Var):
            return None
        symbols = fresh_symbols(expr)
        if isinstance(ty, relax.ShapeType):
            self.builder_.match_cast(expr, relax.ShapeType(symbols))
        else:
            self.builder_.match_cast(expr, relax.TensorType(symbols, ty.dtype, ty.vdevice))
        return symbols

    def _in_scope(self, visit: Callable[[Expr], Expr], expr: Expr) -> Expr:
        """What is checked inside `expr` need not have been outside."""
        outside = list(self._checked)
        result = visit(expr)
        self._checked = outside
        return result
