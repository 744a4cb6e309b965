"""Let what works element by element come before a reshape, next to what made its operand."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import Call, Op
from tvm.relax import DataflowVar, Expr, Var
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx import IntImm

from .bindings import Bindings, analyze
from .check_reshapes import RESHAPE
from .functions import with_rewritten
from .shape_facts import ShapeFacts, facts
from .shapes import dims

UNARY = frozenset(
    Op.get(f"relax.{name}")
    for name in (
        *("abs", "erf", "exp", "log", "negative", "rsqrt", "sigmoid", "sqrt", "tanh", "astype"),
        *("nn.gelu", "nn.gelu_tanh", "nn.relu", "nn.silu"),
    )
)
BINARY = frozenset(
    Op.get(f"relax.{name}")
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
)
#: What an epilogue can be fused into.
PRODUCERS = frozenset(Op.get(f"relax.{name}") for name in ("matmul", "nn.conv1d", "nn.conv2d"))


@tvm.transform.module_pass(opt_level=0, name="SinkReshapes")
class SinkReshapes:
    """Rewrite `f(reshape(y))` to `reshape(f(y))` where `f` works element by element.

    What follows a product or a convolution, bias, activation and residual, can then be fused with
    it although a reshape was between, and chains on both sides of one become one. The reshape must
    keep the number of elements for all that is known of sizes, all uses of its result work element
    by element, and `y` be computed by a product, a convolution, or element by element. A second
    operand is taken if it is one number, if the dimensions that it meets are those of `y` too (a
    bias), or if it has the shape of the result: then a view of it, in the shape of `y`, takes its
    place.

    To be run before `PolymerizeDynamicOps`, for any target.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        def rewrite(func: relax.Function, _name: str) -> relax.Function:
            bindings = analyze(func, mod)
            if bindings.writers or not any(
                set(bindings.users.get(var, [])) & set(bindings.calls(*UNARY, *BINARY))
                for var in bindings.calls(RESHAPE)
            ):
                return func
            sink = _Sink(mod, bindings, facts(func))
            after = sink.visit_expr(func)
            return relax.analysis.remove_all_unused(after) if sink.sunk else func

        return with_rewritten(mod, rewrite)


@dataclass(frozen=True, eq=False)
class _Reshaped:
    """An operand, the reshape that it is bound to, and what is reshaped."""

    operand: Var
    source: Var

    @property
    def before(self) -> list[Expr]:
        return dims(self.source) or []

    @property
    def after(self) -> list[Expr]:
        return dims(self.operand) or []


@mutator
class _Sink(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, bindings: Bindings, known: ShapeFacts) -> None:
        super().__init__(mod)
        self._bindings = bindings
        self._known = known
        self._at: Var | None = None  # the binding in hand
        self.sunk = 0

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        outer, self._at = self._at, binding.var
        super().visit_var_binding_(binding)
        self._at = outer

    def visit_call_(self, call: Call) -> Expr:
        old, call = call, super().visit_call_(call)
        if call.op not in UNARY | BINARY or dims(call) is None:
            return call
        for i, (before, operand) in enumerate(zip(old.args, call.args, strict=True)):
            found = self._reshaped(before, operand)
            if found is None or not self._same(found.after, dims(call)):
                continue
            operands = [
                found.source if j == i else self._beside(found, each)
                for j, each in enumerate(call.args)
            ]
            if None in operands:
                continue
            self.sunk += 1
            inner = self.builder_.emit(Call(call.op, operands, call.attrs, call.ty_args))
            return relax.op.reshape(inner, relax.ShapeExpr(found.after))
        return call

    def _reshaped(self, before: Expr, operand: Expr) -> _Reshaped | None:
        """`operand` (`before` in the function as it was), if it is a reshape to be sunk."""
        if not isinstance(before, DataflowVar) or not self._only_feeds_elements(before):
            return None
        source = self._source(operand)
        if source is None:
            return None
        made = self.lookup_binding(source)
        if not isinstance(made, Call) or made.op not in PRODUCERS | UNARY | BINARY:
            return None
        found = _Reshaped(operand, source)
        kept = self._known.same_product(found.before, found.after, at=self._at)
        return found if kept else None

    def _only_feeds_elements(self, var: Var) -> bool:
        """Whether all that uses `var` works element by element, so that all of it can come before
        the reshape, such as a gelu that is spelled out."""
        users = self._bindings.users.get(var, [])
        return all(self._bindings.call(user, *UNARY, *BINARY) is not None for user in users)

    def _source(self, operand: Expr) -> Var | None:
        """What the variable `operand` is a reshape of, both shapes known."""
        value = self.lookup_binding(operand) if isinstance(operand, Var) else None
        if not isinstance(value, Call) or value.op != RESHAPE:
            return None
        data = value.args[0]
        told = isinstance(data, Var) and dims(data) is not None and dims(operand) is not None
        return data if told else None

    def _beside(self, found: _Reshaped, other: Expr) -> Expr | None:
        """What stands for the operand `other` beside the source; None where nothing does."""
        sizes = dims(other)
        if sizes is None:
            return None
        if self._meets_both(found, sizes):
            return other
        if not self._same(sizes, found.after):
            return None
        source = self._source(other)
        if source is not None and self._same(dims(source), found.before):
            return source
        return self.builder_.emit(relax.op.reshape(other, relax.ShapeExpr(found.before)))

    def _meets_both(self, found: _Reshaped, sizes: list[Expr]) -> bool:
        """Whether dimensions broadcast against both shapes alike, and make neither larger."""
        if len(sizes) > min(len(found.before), len(found.after)):
            return False
        count = len(sizes)
        last = (shape[len(shape) - count :] for shape in (found.before, found.after))
        return all(
            (isinstance(size, IntImm) and size.value == 1)
            or (self._equal(size, before) and self._equal(size, after))
            for size, before, after in zip(sizes, *last, strict=True)
        )

    def _same(self, a: list[Expr] | None, b: list[Expr] | None) -> bool:
        if a is None or b is None or len(a) != len(b):
            return False
        return all(self._equal(x, y) for x, y in zip(a, b, strict=True))

    def _equal(self, a: Expr, b: Expr) -> bool:
        return self._known.equal(a, b, at=self._at)
