"""Compute with the channels as the last dimension, from one border of a network to the other."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, Op, TupleGetItem
from tvm.relax import Expr, Var
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_moonpoly.arguments import require_flags, target_of

from .bindings import Bindings, is_claimed
from .channels_last_rules import Twin, split
from .channels_last_table import RULES, SPLIT
from .conv_functions import rewrite_with_convolutions
from .conv_match import Convolution
from .layouts import permuted_shape, to_first, to_last, transposed
from .shapes import dims, same_tensor


@tvm.transform.module_pass(opt_level=0, name="ConvertToChannelsLast")
class ConvertToChannelsLast:
    """Convert the convolutions that are ours, and the operators between them, from NCHW to NHWC
    (NCW to NWC).

    A tensor is transposed where the first operator of ours reads it, and back where something reads
    it that has no rule in `channels_last_table`, or the function returns it. A transpose of the
    model itself that goes the same way is taken in. To be run before `PolymerizeConvolutions`,
    which otherwise transposes around each convolution.
    """

    def __init__(self, target: Target, static: bool = False, pack_parameters: bool = False) -> None:
        require_flags(static=static, pack_parameters=pack_parameters)
        self.target = target_of(target)
        self.static = static
        self.pack_parameters = pack_parameters

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        def rewrite(
            func: relax.Function, bindings: Bindings, ours: dict[Var, Convolution]
        ) -> relax.Function:
            new = _ChannelsLast(mod, bindings, ours).visit_expr(func)
            return relax.analysis.remove_all_unused(new)

        return rewrite_with_convolutions(
            mod, self.target, self.static, rewrite, self.pack_parameters
        )


@mutator
class _ChannelsLast(PyExprMutator):
    """Binds, for a variable with the channels second, a twin with the channels last.

    `twins` are those that exist in the block in hand. `pending` are variables that exist by their
    twin alone: they are bound when something asks for them. A tuple is either one of twins, for it
    is in `twins` and nothing reads it but its items, or has none.
    """

    def __init__(self, mod: tvm.IRModule, bindings: Bindings, ours: dict[Var, Convolution]) -> None:
        super().__init__(mod)
        self._bindings = bindings
        self._ours = ours
        self._twins: dict[Var, Expr] = {}
        self._pending: set[Var] = set()

    # What the rules ask for.

    def is_twin_known(self, expr: Expr) -> bool:
        """Whether `expr` exists with its channels last."""
        return isinstance(expr, Var) and expr in self._twins

    def twin(self, expr: Expr) -> Expr:
        """`expr`, of rank 3 at least and of known shape, with its channels last."""
        if not isinstance(expr, Var):
            return transposed(expr, to_last(expr.ty.ndim))
        if expr not in self._twins:
            new = transposed(self.visit_expr(expr), to_last(expr.ty.ndim))
            self._twins[expr] = self.builder_.emit(new, f"{expr.name}_nhwc")
        return self._twins[expr]

    def plain(self, expr: Expr) -> Expr:
        """`expr` with its dimensions as in the program."""
        return self.visit_expr(expr)

    def bound(self, expr: Expr) -> Expr:
        """A variable that is bound to `expr`."""
        return expr if isinstance(expr, Var | GenericConst) else self.builder_.emit(expr)

    # The walk.

    def visit_function_(self, op: relax.Function) -> relax.Function:
        return op if is_claimed(op) else super().visit_function_(op)

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        return self._in_block(super().visit_binding_block_, block)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        return self._in_block(super().visit_dataflow_block_, block)

    def _in_block(
        self, visit: Callable[[relax.BindingBlock], relax.BindingBlock], block: relax.BindingBlock
    ) -> relax.BindingBlock:
        """Visit `block`, whose variables may not be visible after it."""
        outer, self._twins = self._twins, {}
        new = visit(block)
        self._twins = outer
        return new

    def visit_var_(self, op: Var) -> Expr:
        self._settle(op)
        return super().visit_var_(op)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> Expr:
        self._settle(op)
        return super().visit_dataflow_var_(op)

    def _settle(self, var: Var) -> None:
        """Bind `var` if it exists by its twin alone."""
        if var in self._pending:
            self._pending.remove(var)
            new = transposed(self._twins[var], to_first(var.ty.ndim))
            self.set_var_remap(var, self.builder_.emit(new, var.name))

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        found = self._converted(var, value)
        if found is None:
            super().visit_var_binding_(binding)
        elif isinstance(found, Var) and self._is_local(var):
            self.set_var_remap(var, found)
        elif not isinstance(found, Twin):
            super().visit_var_binding_(relax.VarBinding(var, found))
        elif self._is_local(var):
            self._twins[var] = self._bind(found.value, var)
            if isinstance(var.ty, relax.TensorType):
                self._pending.add(var)
        else:
            self._twins[var] = twin = self._bind(found.value, var)
            back = transposed(twin, to_first(var.ty.ndim))
            super().visit_var_binding_(relax.VarBinding(var, back))

    def _bind(self, value: Expr, var: Var) -> Expr:
        return value if isinstance(value, Var) else self.builder_.emit(value, var.name)

    def _converted(self, var: Var, value: Expr) -> Twin | Expr | None:
        """What to bind `var` to, or its twin, in the place of `value`; None if just to that."""
        if var in self._ours:
            return self._convolution(var, self._ours[var])
        if isinstance(value, Var):
            return Twin(self._twins[value]) if value in self._twins else None
        if isinstance(value, TupleGetItem) and self.is_twin_known(value.tuple_value):
            return Twin(TupleGetItem(self._twins[value.tuple_value], value.index))
        if isinstance(value, Call) and value.op == SPLIT:
            return split(value, self) if self._is_local(var) and self._is_items(var) else None
        if not (isinstance(value, Call) and isinstance(value.op, Op)) or dims(var) is None:
            return None
        rule = RULES.get(value.op)
        found = rule(value, self) if rule is not None else None
        if not isinstance(found, Twin):
            return found
        # the rule gives what Relax infers the same shape for, or else is not to be trusted
        new = self.builder_.normalize(found.value)
        expected = relax.TensorType(permuted_shape(var, to_last(var.ty.ndim)), var.ty.dtype)
        if not same_tensor(new, relax.Var("expected", expected)):
            return None
        return Twin(new)

    def _convolution(self, var: Var, conv: Convolution) -> Twin | None:
        if conv.channels_last:
            return None
        weight = None if conv.is_constant else self.plain(conv.weight)
        return Twin(conv.call(self.twin(conv.x), weight, channels_last=True))

    def _is_items(self, var: Var) -> bool:
        """Whether all that reads the tuple `var` takes an item of known shape from it."""
        values = [self._bindings.value.get(user) for user in self._bindings.users.get(var, ())]
        shaped = all(isinstance(field.shape, relax.ShapeExpr) for field in var.ty.fields)
        return shaped and all(isinstance(value, TupleGetItem) for value in values)

    def _is_local(self, var: Var) -> bool:
        """Whether all that reads `var` is in its own block."""
        bindings = self._bindings
        users = bindings.users.get(var, ())
        block = bindings.block[var]
        return all(user is not None and bindings.block[user] == block for user in users)
