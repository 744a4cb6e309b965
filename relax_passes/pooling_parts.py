"""What is known of the windows in one part of a result: those in the middle, or at one edge.

Of the windows that reach into the pads there are few, and which of their elements lie inside is
known of each: neither an index nor a value is conditional.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, TensorLoad, Var
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, Stmt

from .pooling_match import Pooling, Window
from .tir_terms import variables
from .vector_loops import INDEX, number

Load = Callable[[list[Expr]], Expr]


@dataclass(frozen=True, eq=False)
class Part:
    """Places along one dimension of whose windows the elements `taps` are inside, and no others:
    the place `only`, or any behind those whose windows reach into the pads before."""

    taps: range
    only: int | None = None


# One for each dimension; None where windows are not known to be inside, or there are none.
Parts = Sequence[Part | None]


def in_front(window: Window) -> int:
    """How many windows reach into the pads before."""
    return -(-window.before // window.stride)


def front(window: Window) -> list[Part]:
    """These, where they do not reach into the pads behind as well."""
    firsts = (window.before - place * window.stride for place in range(in_front(window)))
    return [Part(range(first, window.size), place) for place, first in enumerate(firsts)]


def middle(window: Window) -> Part:
    return Part(range(window.size))


def behind(window: Window) -> list[Part]:
    """The parts of the windows that reach into the pads behind: the largest of these first."""
    return [Part(range(window.size - past)) for past in range(1, window.after + 1)]


def least_extent(window: Window) -> int:
    """From which size of the tensor on no window reaches into the pads on both sides, and there
    is an element in each."""
    return max(1, (in_front(window) - 1) * window.stride - window.before + window.size)


def pooled(found: Pooling, at: list[Expr], parts: Parts, load: Load, lanes: int = 1) -> Expr:
    """The elements of the window at `at`, put together."""
    taps = [
        range(1) if window is None else (part.taps if part else range(window.size))
        for window, part in zip(found.windows, parts, strict=True)
    ]
    elements = [_element(found, at, parts, load, offsets, lanes) for offsets in product(*taps)]
    return reduce(found.combine, elements)


def _element(
    found: Pooling,
    at: list[Expr],
    parts: Parts,
    load: Load,
    offsets: tuple[int, ...],
    lanes: int,
) -> Expr:
    """One of them. Where it may lie in the pads, the index is bounded: the largest element is then
    that of the window moved to the edge; in a sum, it counts as zero."""
    indices, conditions = [], []
    for place, window, part, offset in zip(at, found.windows, parts, offsets, strict=True):
        if window is None:
            indices.append(place)
            continue
        index = place * window.stride + (offset - window.before)
        if part is None and window.padded:
            conditions.append(tirx.all(index >= 0, index < window.extent))
            index = tirx.max(tirx.min(index, window.extent - 1), number(0))
        indices.append(index)
    element = load(indices)
    if not conditions or found.combine is not tirx.Add:
        return element
    within, identity = reduce(tirx.all, conditions), found.identity
    if lanes > 1:
        within, identity = tirx.Broadcast(within, lanes), tirx.Broadcast(identity, lanes)
    return tirx.Select(within, element, identity)


def stored(found: Pooling, at: list[Expr], parts: Parts, total: Expr) -> Stmt:
    """The store of the result at `at`, of whose window `total` was made."""
    value = found.value
    for axis, window, part in zip(found.axes, found.windows, parts, strict=True):
        if window is not None and (part is not None or not window.padded):
            value = _in_part(value, axis, window, part or middle(window))
    value = tvm_ffi.structural_map(value, (tirx.Div, lambda node: _by_count(node, found.axes[-1])))
    known = dict(zip(found.axes, at, strict=True))
    # The pooled value last: it may hold variables of the same names.
    place = tvm_ffi.structural_map(value, (Var, lambda var: known.get(var, var)))

    def put(load: TensorLoad) -> Expr:
        return total if load.source.same_as(found.total) else load

    return BufferStore(found.result, tvm_ffi.structural_map(place, (TensorLoad, put)), at)


def _by_count(quotient: tirx.Div, column: Var) -> Expr:
    """A product with the inverse of a count that is the same along memory."""
    count = quotient.b
    if not isinstance(count, tirx.Cast) or column in variables(count):
        return quotient
    return quotient.a * (tirx.const(1.0, "float32") / count)


def _in_part(value: Expr, column: Var, window: Window, part: Part) -> Expr:
    """`value` without those bounds of windows that do not hold in `part`: how many elements an
    average is of is then the same for all places."""
    slack, past = tirx.Var("slack", INDEX), tirx.Var("past", INDEX)
    analyzer = Analyzer()
    for var in (slack, past):
        analyzer.bind(var, Range(number(0), number(1 << 40)))
    place = number(part.only) if part.only is not None else past + in_front(window)
    inside = {column: place}
    reaches_end = part.taps.stop < window.size
    if isinstance(window.extent, Var):
        extent = place * window.stride + (part.taps.stop - window.before)
        inside[window.extent] = extent if reaches_end else extent + slack

    def bound(node: tirx.Max | tirx.Min) -> Expr:
        if str(node.ty) != INDEX or column not in variables(node):
            return node
        known = tvm_ffi.structural_map(node.a - node.b, (Var, lambda var: inside.get(var, var)))
        difference = analyzer.const_int_bound(analyzer.simplify(known))
        first, second = node.a, node.b
        if isinstance(node, tirx.Min):
            first, second = second, first
        if difference.min_value >= 0:
            return first
        return second if difference.max_value <= 0 else node

    same = {column: place} if part.only is not None else {}
    if reaches_end and isinstance(window.extent, Var):
        same[window.extent] = column * window.stride + (part.taps.stop - window.before)

    def count(cast: tirx.Cast) -> Expr:
        known = tvm_ffi.structural_map(cast.value, (Var, lambda var: same.get(var, var)))
        return Analyzer().simplify(known).astype(str(cast.ty))

    bounded = tvm_ffi.structural_map(value, [(tirx.Max, bound), (tirx.Min, bound)])
    return tvm_ffi.structural_map(bounded, (tirx.Cast, count))
