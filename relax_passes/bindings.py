"""Who binds and who uses each variable of a Relax function, and where memory may be written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, GlobalVar, Op, StringImm, TupleGetItem, is_prim_expr
from tvm.relax import Expr, Var

# A function with one of these belongs to another backend, which matches its body operator by
# operator: it is opaque to us.
CLAIMED_BY_OTHERS = ("Primitive", "Composite", "Codegen")
# TVM counts these as pure, on the promise that nobody reads the old values any more.
IN_PLACE = tuple(Op.get(f"relax.{name}") for name in ("call_inplace_packed", "call_tir_inplace"))
PURE_INTRINSIC = 1  # the last of the effect kinds of scalar intrinsics that is none


def is_claimed(func: relax.Function) -> bool:
    """Whether another pass has already set `func` aside for a backend of its own."""
    attrs = func.attrs
    return attrs is not None and any(attrs.get(name) is not None for name in CLAIMED_BY_OTHERS)


@dataclass
class Bindings:
    """The bindings of one function, those in its branches and nested functions included.

    `value` maps a variable to what it is bound to, in program order; `cast` does so for
    `match_cast`, which checks at run time and therefore may never be dropped. `block` numbers the
    binding block that a variable is bound in, `order` the variables in program order. `users`
    lists, with multiplicity, the variables whose bound value mentions a variable; `None` stands
    for all that is not a binding: a function's output, a branch's condition, the inside of a
    function of another backend.

    `writers` are the places, as in `order`, of the calls that may write to memory that exists
    already. Each is taken to write to all tensors but constants, for no aliases are followed.
    `scope` numbers the (nested) function that a variable is bound in.

    `parameters` are the weights among the function's parameters, and what is made from them alone.
    """

    mod: tvm.IRModule | None = None
    value: dict[Var, Expr] = field(default_factory=dict)
    cast: dict[Var, Expr] = field(default_factory=dict)
    block: dict[Var, int] = field(default_factory=dict)
    order: dict[Var, int] = field(default_factory=dict)
    users: dict[Var, list[Var | None]] = field(default_factory=dict)
    writers: list[int] = field(default_factory=list)
    scope: dict[Var, int] = field(default_factory=dict)
    parameters: set[Var] = field(default_factory=set)
    block_numbers: Iterator[int] = field(default_factory=count)
    scope_numbers: Iterator[int] = field(default_factory=count)

    def only_user(self, var: Var) -> Var | None:
        """The variable whose value holds the one and only use of `var`, if it is so."""
        users = self.users.get(var, [])
        return users[0] if len(users) == 1 else None

    def undisturbed(self, first: Var, last: Var) -> bool:
        """Whether what is read at the binding of `first` reads the same at that of `last`, which
        comes after it: nothing in between may write.

        A nested function runs later than it is defined and any number of times, so that for a
        read which moves into one, no call of the whole function may write.
        """
        if self.scope[first] != self.scope[last]:
            return not self.writers
        following = bisect_right(self.writers, self.order[first])
        return following == len(self.writers) or self.writers[following] > self.order[last]

    def is_parameter(self, expr: Expr) -> bool:
        """Whether `expr` is a weight given as a parameter, or made from such alone, and nothing in
        the function may write to it."""
        return isinstance(expr, Var) and expr in self.parameters and not self.writers

    def call(self, expr: Expr | None, *operators: Op) -> Call | None:
        """The call of one of `operators` that the variable `expr` is bound to, if it is so."""
        value = self.value.get(expr) if isinstance(expr, Var) else None
        return value if isinstance(value, Call) and value.op in operators else None

    def calls(self, *operators: Op) -> list[Var]:
        """The variables bound to a call of one of `operators`, in program order."""
        return [var for var in self.value if self.call(var, *operators) is not None]

    def definitions(self, expr: Expr) -> Iterator[Expr]:
        """`expr`, then what it is bound to, through other names and `match_cast` only.

        A `match_cast` gives the same tensor under a better known type, so that the tensor below
        it can stand for it as long as the cast itself is kept.
        """
        yield expr
        while isinstance(expr, Var):
            below = self.cast.get(expr, self.value.get(expr))
            if below is None:
                return
            yield below
            expr = below

    def rebind(self, var: Var, value: Expr) -> None:
        """Bind `var`, a call until now, to the call `value`."""
        self._forget_uses(var)
        self.value[var] = value
        for used in variables_of(value):
            self.users.setdefault(used, []).append(var)

    def drop_unused(self, var: Var) -> bool:
        """Remove the binding of `var` if nothing uses it any more; says whether it did."""
        if var not in self.value or self.users.get(var):
            return False
        self._forget_uses(var)
        del self.value[var]
        return True

    def _forget_uses(self, var: Var) -> None:
        for used in variables_of(self.value[var]):
            self.users[used] = [user for user in self.users[used] if not var.same_as(user)]

    def reaches(self, expr: Expr, block: int) -> bool:
        """Whether `expr` (a variable or a constant) can be named inside `block`, given that a
        value made from it is named there: dataflow variables end with their block."""
        if isinstance(expr, relax.DataflowVar):
            return self.block.get(expr) == block
        return isinstance(expr, Var | GenericConst)


def analyze(
    func: relax.Function, mod: tvm.IRModule | None = None, parameters: bool = False
) -> Bindings:
    """The bindings of `func`, a function of `mod`. Without `mod`, all calls of global functions
    are taken to write.

    If `parameters`, those after the first `num_input` (an attribute that Relax's own frontends
    set) are weights.
    """
    found = Bindings(mod)
    if parameters and func.attrs is not None and "num_input" in func.attrs:
        found.parameters.update(func.params[int(func.attrs["num_input"]) :])
    _walk_sequence(func.body, next(found.scope_numbers), found)
    return found


def variables_of(expr: Expr) -> Iterator[Var]:
    """Each mention of a tensor, tuple or other non-scalar variable in `expr`."""
    if is_prim_expr(expr) and not isinstance(expr, Call):
        return  # scalars and dimensions: nothing that we ever move or drop
    if isinstance(expr, Var):
        yield expr
    elif isinstance(expr, Call):
        for child in (expr.op, *expr.args):
            yield from variables_of(child)
    elif isinstance(expr, relax.Tuple):
        for child in expr.fields:
            yield from variables_of(child)
    elif isinstance(expr, TupleGetItem):
        yield from variables_of(expr.tuple_value)
    elif not isinstance(expr, GenericConst | GlobalVar | Op | StringImm):
        yield from (var for var in relax.analysis.free_vars(expr) if not is_prim_expr(var))


def _may_write(call: Call, found: Bindings, seen: list[relax.Function]) -> bool:
    """Whether `call` is not known to leave all existing memory as it is. `seen` are the functions
    that are being looked into already."""
    op = call.op
    if isinstance(op, Op):
        if op in IN_PLACE:
            return True
        effect = op.get_attr("TCallEffectKind")
        return not op.get_attr("FPurity") and (effect is None or int(effect) > PURE_INTRINSIC)
    if not (isinstance(op.ty, relax.FuncType) and op.ty.purity):
        return True
    # The type of a function that writes in place through `IN_PLACE` says that it is pure.
    if isinstance(op, GlobalVar):
        callee = found.mod.functions.get(op) if found.mod is not None else None
        return not isinstance(callee, relax.Function) or _function_may_write(callee, found, seen)
    local = (each for each in found.definitions(op) if isinstance(each, relax.Function))
    return any(_function_may_write(each, found, seen) for each in local)


def _function_may_write(func: relax.Function, found: Bindings, seen: list[relax.Function]) -> bool:
    if any(func.same_as(each) for each in seen):
        return False
    seen.append(func)
    calls: list[Call] = []
    relax.analysis.post_order_visit(
        func.body, lambda expr: calls.append(expr) if isinstance(expr, Call) else None
    )
    return any(_may_write(call, found, seen) for call in calls)


def _walk_sequence(body: Expr, scope: int, found: Bindings) -> None:
    if not isinstance(body, relax.SeqExpr):
        _walk_value(body, None, scope, found)
        return
    for block in body.blocks:
        number = next(found.block_numbers)
        for binding in block.bindings:
            found.block[binding.var] = number
            found.order[binding.var] = len(found.order)
            found.scope[binding.var] = scope
            known = found.cast if isinstance(binding, relax.MatchCast) else found.value
            known[binding.var] = binding.value
            if isinstance(binding.value, Call) and _may_write(binding.value, found, []):
                found.writers.append(found.order[binding.var])
            if _is_made_of_parameters(binding.value, found):
                found.parameters.add(binding.var)
            _walk_value(binding.value, binding.var, scope, found)
    _walk_value(body.body, None, scope, found)


def _is_made_of_parameters(value: Expr, found: Bindings) -> bool:
    """Whether `value` is a parameter under another name, or the result of a pure operator on
    parameters."""
    if isinstance(value, Call) and not (isinstance(value.op, Op) and value.op.get_attr("FPurity")):
        return False
    named = isinstance(value, Call | Var | TupleGetItem)
    used = list(variables_of(value)) if named else []
    return bool(used) and all(var in found.parameters for var in used)


def _walk_value(value: Expr, user: Var | None, scope: int, found: Bindings) -> None:
    if isinstance(value, relax.If):
        _walk_value(value.cond, None, scope, found)
        _walk_sequence(value.true_branch, scope, found)
        _walk_sequence(value.false_branch, scope, found)
    elif isinstance(value, relax.Function) and not is_claimed(value):
        _walk_sequence(value.body, next(found.scope_numbers), found)
    elif isinstance(value, relax.SeqExpr):
        _walk_sequence(value, scope, found)
    else:
        opaque = isinstance(value, relax.Function)
        for var in variables_of(value):
            found.users.setdefault(var, []).append(None if opaque else user)
