"""Who binds and who uses each variable of a Relax function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from tvm import relax
from tvm.ir import Call, GenericConst, GlobalVar, Op, StringImm, TupleGetItem, is_prim_expr
from tvm.relax import Expr, Var

# A function with one of these belongs to another backend, which matches its body operator by
# operator: it is opaque to us.
CLAIMED_BY_OTHERS = ("Primitive", "Composite", "Codegen")


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
    """

    value: dict[Var, Expr] = field(default_factory=dict)
    cast: dict[Var, Expr] = field(default_factory=dict)
    block: dict[Var, int] = field(default_factory=dict)
    order: dict[Var, int] = field(default_factory=dict)
    users: dict[Var, list[Var | None]] = field(default_factory=dict)
    block_numbers: Iterator[int] = field(default_factory=count)

    def only_user(self, var: Var) -> Var | None:
        """The variable whose value holds the one and only use of `var`, if it is so."""
        users = self.users.get(var, [])
        return users[0] if len(users) == 1 else None

    def call(self, expr: Expr | None, *operators: Op) -> Call | None:
        """The call of one of `operators` that the variable `expr` is bound to, if it is so."""
        value = self.value.get(expr) if isinstance(expr, Var) else None
        return value if isinstance(value, Call) and value.op in operators else None

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


def analyze(func: relax.Function) -> Bindings:
    """The bindings of `func`."""
    found = Bindings()
    _walk_sequence(func.body, found)
    return found


def variables_of(expr: Expr) -> Iterator[Var]:
    """Each mention of a tensor, tuple or other non-scalar variable in `expr`."""
    if is_prim_expr(expr):  # scalars and dimensions: nothing that we ever move or drop
        return
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


def _walk_sequence(body: Expr, found: Bindings) -> None:
    if not isinstance(body, relax.SeqExpr):
        _walk_value(body, None, found)
        return
    for block in body.blocks:
        number = next(found.block_numbers)
        for binding in block.bindings:
            found.block[binding.var] = number
            found.order[binding.var] = len(found.order)
            known = found.cast if isinstance(binding, relax.MatchCast) else found.value
            known[binding.var] = binding.value
            _walk_value(binding.value, binding.var, found)
    _walk_value(body.body, None, found)


def _walk_value(value: Expr, user: Var | None, found: Bindings) -> None:
    if isinstance(value, relax.If):
        _walk_value(value.cond, None, found)
        _walk_sequence(value.true_branch, found)
        _walk_sequence(value.false_branch, found)
    elif isinstance(value, relax.Function) and not is_claimed(value):
        _walk_sequence(value.body, found)
    elif isinstance(value, relax.SeqExpr):
        _walk_sequence(value, found)
    else:
        opaque = isinstance(value, relax.Function)
        for var in variables_of(value):
            found.users.setdefault(var, []).append(None if opaque else user)
