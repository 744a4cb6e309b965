"""Drawing one matmul: ranks, broadcast batch dimensions, layouts, kinds of operands."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

from bench.fuzz.graph import Dim, Pair, Role, static
from bench.fuzz.sketch import STATIC, Known, Sketch

RANKS = {1: 0.06, 2: 0.4, 3: 0.28, 4: 0.18, 5: 0.08}


@dataclass(frozen=True)
class Style:
    """What a form wants of its product. ``weight``: the right operand is a static matrix that comes
    in this role. ``loose``: the contraction or the batch is of two symbols. ``ranks``: of both
    operands, drawn when None."""

    dtype: str = "float32"
    out_dtype: str | None = None
    weight: Role | None = None
    loose: str | None = None
    only_rank: bool = False
    all_static: bool = False
    ranks: dict[int, float] = field(default_factory=lambda: dict(RANKS))
    p_static: float = 0.3


def product(sketch: Sketch, style: Style, left: str | None = None) -> str:
    """A matmul of new operands, or of ``left`` by a new one; often with a `permute_dims` after."""
    if left is None:
        a_dims, b_dims = _shapes(sketch, style)
        a = sketch.operand(a_dims, style.dtype, _a_role(sketch, style), style.only_rank)
    else:
        a_dims, b_dims = _continued(sketch, style, sketch.values[left])
        a = left
    b_role = style.weight or (Role.CONSTANT if sketch.chance(0.1) else Role.DYNAMIC)
    only_rank = style.only_rank and sketch.chance(0.6)
    b = sketch.operand(b_dims, style.dtype, b_role, only_rank)
    return matmul(sketch, a, b, style.out_dtype)


def matmul(sketch: Sketch, a: str, b: str, out_dtype: str | None = None) -> str:
    """``a @ b`` of values that are there, perhaps permuted, perhaps cast to the shape it has."""
    left, right = sketch.values[a], sketch.values[b]
    dtype = out_dtype or left.dtype
    dims = result_dims(left.dims, right.dims)
    worst = [dim for dim in (*left.dims, *right.dims[-1:], *right.dims[:-2]) if dim is not None]
    sketch.work.append(tuple(dict.fromkeys(worst)))
    result = sketch.emit("matmul", a, b, dims=dims, dtype=dtype, out_dtype=out_dtype)
    if len(dims) >= 2 and sketch.chance(0.15):
        result = sketch.permute(result, sketch.some_axes(len(dims)))
    if sketch.chance(0.05):
        result = sketch.cast_shape(result)
    return result


def result_dims(a: tuple[Dim | None, ...], b: tuple[Dim | None, ...]) -> list[Dim | None]:
    """The dimensions of a product."""
    batch: list[Dim | None] = []
    for left, right in zip_longest(a[:-2][::-1], b[:-2][::-1], fillvalue=static(1)):
        if left == right or right == static(1):
            batch.append(left)
        else:
            batch.append(right if left == static(1) else None)
    return [*batch[::-1], *(a[-2:-1]), *(b[-1:] if len(b) >= 2 else ())]


def _shapes(sketch: Sketch, style: Style) -> tuple[list[Dim], list[Dim]]:
    p_static = 1.0 if style.all_static else style.p_static
    a_rank = sketch.weighted(style.ranks)
    b_rank = 2 if style.weight else sketch.weighted(style.ranks)
    if style.loose == "batch":
        a_rank, b_rank = max(a_rank, 3), max(b_rank, 3)
    if style.weight and not style.all_static:
        a_rank = max(a_rank, 2)  # a vector by a static matrix has no dynamic dimension
    if style.weight:
        k, other = static(sketch.pick(STATIC["k"])), None
        a_batch = [sketch.dim("batch", p_static) for _ in range(a_rank - 2)]
        b_batch: list[Dim] = []
    else:
        k, other = sketch.dim("k", p_static), None
        a_batch, b_batch = _batches(sketch, style, max(a_rank - 2, 0), max(b_rank - 2, 0))
    if style.loose == "contraction":
        k, other = _two(sketch, "k")
        sketch.pairs.append(Pair(k, other, "contraction"))
    m = [sketch.dim("m", p_static)] if a_rank >= 2 else []
    n = sketch.dim("n", 1.0 if style.weight else p_static)
    a_dims = [*a_batch, *m, k]
    b_dims = [*b_batch, other or k, *([n] if b_rank >= 2 else [])]
    if not style.all_static and all(dim.is_static for dim in (*a_dims, *b_dims)):
        if a_rank >= 2:
            a_dims[-2] = sketch.symbol("m")
        else:
            a_dims[0] = sketch.symbol("k")
            b_dims[0 if b_rank == 1 else -2] = a_dims[0]
    return a_dims, b_dims


def _batches(
    sketch: Sketch, style: Style, a_count: int, b_count: int
) -> tuple[list[Dim], list[Dim]]:
    """Batch dims that fit: equal, 1 against n, one absent; with ``loose`` one pair of two
    symbols."""
    p_static = 1.0 if style.all_static else style.p_static
    a: list[Dim] = []
    b: list[Dim] = []
    both = min(a_count, b_count)
    loose = int(sketch.rng.integers(both)) if style.loose == "batch" else -1
    for i in range(both):
        dim = sketch.dim("batch", p_static)
        ways = {"equal": 0.6, "1 left": 0.15, "1 right": 0.15, "ones": 0.1}
        way = sketch.weighted(ways)
        pair = (dim, dim)
        if i == loose:
            pair = _two(sketch, "batch")
            sketch.pairs.append(Pair(*pair, "batch"))
        elif way == "1 left":
            pair = (static(1), dim)
        elif way == "1 right":
            pair = (dim, static(1))
        elif way == "ones":
            pair = (static(1), static(1))
        a.insert(0, pair[0])
        b.insert(0, pair[1])
    longer = a if a_count > b_count else b
    for _ in range(abs(a_count - b_count)):
        longer.insert(0, sketch.dim("batch", p_static))
    return a, b


def _two(sketch: Sketch, purpose: str) -> tuple[Dim, Dim]:
    """Two dims of which nothing says that they are equal; one of them is a plain symbol."""
    first = sketch.symbol(purpose)
    second = sketch.weighted({"symbol": 0.7, "expression": 0.2, "static": 0.1})
    if second == "symbol":
        other = sketch.symbol(purpose)
    elif second == "expression":
        other = Dim(sketch.symbol(purpose).symbol, 2, plus=sketch.pick([0, 1]))
    else:
        other = static(sketch.pick([2, 3, 4, 8]))
    pair = (first, other)
    return pair if sketch.chance(0.5) else pair[::-1]


def _continued(sketch: Sketch, style: Style, left: Known) -> tuple[list[Dim], list[Dim]]:
    """The dims of ``left`` and of a right operand that fits it."""
    k = left.dims[-1]
    assert k is not None
    weight = style.weight is not None and k.is_static
    n = sketch.dim("n", 1.0 if weight else style.p_static)
    shared = [dim or static(1) for dim in left.dims[:-2]]
    batch: list[Dim] = []
    if not weight and shared and sketch.chance(0.4):
        count = int(sketch.rng.integers(1, len(shared) + 1))
        batch = [dim if sketch.chance(0.7) else static(1) for dim in shared[-count:]]
    return [dim or static(1) for dim in left.dims], [*batch, k, n]


def _a_role(sketch: Sketch, style: Style) -> Role:
    return Role.CONSTANT if style.weight is None and sketch.chance(0.08) else Role.DYNAMIC
