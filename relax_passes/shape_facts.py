"""What is known of the sizes of a function before it is called: a pure analysis.

Passes decide by relations between sizes, not by their values: this is where they ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, product
from math import gcd
from typing import NamedTuple

import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Expr, Var
from tvm.sym import Analyzer, ConstIntBound, ModularSet

from tvm_moonpoly.arguments import require

from .element_count import count, equal_given, provably_equal
from .shape_promises import places, promised
from .shape_range import Range
from .shape_relations import Relation, relations_of
from .tir_terms import variables

MOST_LIKELY = 16  # values of one expression that are worth a thought


class Bounds(NamedTuple):
    """The smallest and the largest value of an expression; None where there is none."""

    smallest: int | None
    largest: int | None


@dataclass(frozen=True, eq=False)
class ShapeFacts:
    """What holds in each call of one function.

    `ranges` tells of the symbolic dimensions. `relations` hold from a binding on: queries count
    those that precede the variable `at`, and without one none of them. `order` numbers variables
    in program order.
    """

    ranges: Mapping[Var, Range] = field(default_factory=dict)
    relations: tuple[Relation, ...] = ()
    order: Mapping[Var, int] = field(default_factory=dict)

    def equal(
        self, a: Expr, b: Expr, at: Var | None = None, given: Sequence[tuple[Expr, Expr]] = ()
    ) -> bool:
        """Whether the sizes `a` and `b` are provably equal if those of each pair `given` are."""
        if provably_equal(a, b):
            return True
        left, right = self._in_multiples(a), self._in_multiples(b)
        if provably_equal(left, right):
            return True
        pairs = [*given, *((each.left, each.right) for each in self.relations_at(at))]
        known = [(self._in_multiples(c), self._in_multiples(d)) for c, d in pairs]
        return bool(known) and equal_given(left, right, known)

    def same_product(self, a: list[Expr], b: list[Expr], at: Var | None = None) -> bool:
        """Whether shapes of the dimensions `a` and `b` provably have the same number of
        elements: one is a view of the other."""
        return self.equal(count(a), count(b), at)

    def bounds(self, expr: Expr) -> Bounds:
        """The smallest and the largest value of `expr`."""
        found = self.analyzer.const_int_bound(self._in_multiples(expr))
        low, high = int(found.min_value), int(found.max_value)
        return Bounds(
            None if low <= ConstIntBound.NEG_INF else low,
            None if high >= ConstIntBound.POS_INF else high,
        )

    def multiple_of(self, expr: Expr) -> int:
        """The largest number of which `expr` is known to be a multiple; 0 if it is 0."""
        found = self.analyzer.modular_set(self._in_multiples(expr))
        return gcd(int(found.coeff), int(found.base))

    def likely(self, expr: Expr) -> tuple[int, ...]:
        """Values of `expr` to be fast for; none where those of a variable are not known."""
        names = list(variables(expr))
        choices = [self.ranges[name].likely if name in self.ranges else () for name in names]
        values: dict[int, None] = {}
        for chosen in islice(product(*choices), MOST_LIKELY):
            known = {
                name: tirx.const(size, str(name.ty))
                for name, size in zip(names, chosen, strict=True)
            }
            value = self.analyzer.simplify(_replaced(expr, known))
            if isinstance(value, tirx.IntImm):
                values[int(value)] = None
        return tuple(values)

    def holds(self, condition: Expr) -> bool | None:
        """Whether a condition on sizes is true, or false, in each call; None where that cannot be
        told."""
        condition = self._in_multiples(condition)
        if self.analyzer.can_prove(condition):
            return True
        return False if self.analyzer.can_prove(tirx.Not(condition)) else None

    def simplify(self, expr: Expr) -> Expr:
        """`expr` in a simpler form, of the same value in each call."""
        return self.analyzer.simplify(expr)

    def relations_at(self, at: Var | None) -> list[Relation]:
        """The relations that hold when the variable `at` comes to be bound."""
        if at is None or at not in self.order:
            return []
        return [each for each in self.relations if self.order[each.since] < self.order[at]]

    @cached_property
    def analyzer(self) -> Analyzer:
        """TVM's analyzer, told of the ranges; not to be told of anything else."""
        found = Analyzer()
        for name, known in self.ranges.items():
            tell(found, name, known)
            if name in self._quotients:
                least, most = _quotient_range(known)
                tell(found, self._quotients[name].a, Range(least, most))
        return found

    @cached_property
    def _quotients(self) -> dict[Var, tirx.Mul]:
        """Each dimension that is a multiple, as the product of a new variable and a number."""
        return {
            name: tirx.Mul(
                tirx.Var(f"{name.name}_parts", str(name.ty)),
                tirx.const(known.multiple_of, str(name.ty)),
            )
            for name, known in self.ranges.items()
            if known.multiple_of > 1
        }

    def _in_multiples(self, expr: Expr) -> Expr:
        """`expr` with multiples written as such: n // 4 of n = 8 p is 2 p, without a division."""
        return self.analyzer.simplify(_replaced(expr, self._quotients)) if self._quotients else expr


def facts(func: relax.Function | tirx.PrimFunc) -> ShapeFacts:
    """What is known of the sizes of `func`, without changing anything.

    Its attributes tell the ranges: `tir_var_upper_bound` and `tir_var_lower_bound`, which TVM
    knows, `moonpoly.multiple_of` and `moonpoly.likely` (see `promised`). They are believed, and
    `PromiseShapes` lets each call check them. A dimension of a tensor is never negative. Checks at
    run time and casts tell relations (see `relations_of`). What operators do to shapes is in the
    types: there, TVM adds for a concat and divides for a split.
    """
    known_kind = isinstance(func, relax.Function | tirx.PrimFunc)
    require(known_kind, "func", "a Relax function or a PrimFunc", func)
    named = promised(func)
    ranges = {name: named.get(name.name, Range()) for name in _dimensions(func)}
    if isinstance(func, tirx.PrimFunc):
        return ShapeFacts(ranges)
    relations, order = relations_of(func)
    known = ShapeFacts(ranges)
    new = tuple(each for each in relations if not known.equal(each.left, each.right))
    return ShapeFacts(ranges, new, order)


def _dimensions(func: relax.Function | tirx.PrimFunc) -> Iterator[Var]:
    """The variables that are sizes of tensors, and others of which something is promised."""
    seen: set[Var] = set()
    named = promised(func)
    for size, is_dimension in _sizes(func):
        if isinstance(size, Var) and size not in seen and (is_dimension or size.name in named):
            seen.add(size)
            yield size


def _sizes(func: relax.Function | tirx.PrimFunc) -> Iterator[tuple[Expr, bool]]:
    """The sizes in the parameters of `func`, and whether each is a dimension of a tensor."""
    if isinstance(func, tirx.PrimFunc):
        for param in func.params:
            if tirx.is_buffer_var(param):
                yield from ((size, True) for size in param.shape)
            else:
                yield param, False
        return
    for place in places(func):
        yield place.size, place.is_dimension
    for block in func.body.blocks:
        for binding in block.bindings:
            ty = binding.var.ty
            if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
                yield from ((size, True) for size in ty.shape.values)


def tell(analyzer: Analyzer, name: Var, known: Range) -> None:
    """Tell TVM's analyzer what is known of a variable."""
    largest = ConstIntBound.POS_INF if known.largest is None else known.largest
    analyzer.update(name, ConstIntBound(known.smallest, largest), True)
    if known.multiple_of > 1:
        analyzer.update(name, ModularSet(known.multiple_of, 0), True)


def _quotient_range(known: Range) -> tuple[int, int | None]:
    step = known.multiple_of
    largest = None if known.largest is None else known.largest // step
    return -(-known.smallest // step), largest


def _replaced(expr: Expr, by: Mapping[Var, Expr]) -> Expr:
    return tvm_ffi.structural_map(expr, (Var, lambda var: by.get(var, var)))
