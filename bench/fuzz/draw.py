"""Drawing a form. Each kind has its own product; layouts, epilogues and outputs vary in all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bench.fuzz.epilogues import chain
from bench.fuzz.graph import Body, Dim, Form, Input, Node, Pair, Role, static
from bench.fuzz.products import RANKS, Style, matmul, product, result_dims
from bench.fuzz.run import MAX_SIZE
from bench.fuzz.sketch import Known, Sketch

#: Number of the stream of random numbers that forms are drawn from.
FORM_STREAM = 1


def draw_form(seed: int, index: int) -> Form:
    """Form number ``index`` of ``seed``."""
    rng = np.random.default_rng([FORM_STREAM, seed, index])
    sketch = Sketch(rng)
    kind = sketch.weighted({kind: weight for kind, (weight, _) in KINDS.items()})
    outputs = [KINDS[kind][1](sketch)]
    if sketch.chance(0.2):  # a result that is used twice
        outputs.append(sketch.pick([node.name for node in sketch.nodes]))
    if sketch.chance(0.1):
        outputs.append(chain(sketch, outputs[0], None, steps=1))
    order = [Role.DYNAMIC, Role.CONDITION, Role.CONSTANT, Role.WEIGHT]
    bounded = sketch.symbols and sketch.chance(0.1) and sketch.pick(list(sketch.symbols))
    return Form(
        index=index,
        kind=kind,
        inputs=tuple(sorted(sketch.inputs, key=lambda each: order.index(each.role))),
        nodes=tuple(sketch.nodes),
        outputs=tuple(dict.fromkeys(outputs)),
        symbols=dict(sketch.symbols),
        pairs=tuple(sketch.pairs),
        work=tuple(sketch.work),
        dataflow=kind != "branch" and sketch.chance(0.8),
        bounds={bounded: MAX_SIZE} if bounded else {},
    )


def _constant_weight(sketch: Sketch) -> str:
    return _linear(sketch, Role.CONSTANT)


def _parameter_weight(sketch: Sketch) -> str:
    return _linear(sketch, Role.WEIGHT)


def _linear(sketch: Sketch, weight: Role) -> str:
    p_static = sketch.pick([0.0, 0.2, 0.5])
    y = product(sketch, Style(weight=weight, p_static=p_static))
    return chain(sketch, y, weight)


def _dynamic(sketch: Sketch) -> str:
    style = Style(p_static=sketch.pick([0.0, 0.2, 0.5]), ranks={**RANKS, 1: 0.0})
    if sketch.chance(0.08):  # both operands are the same tensor
        dims = [sketch.dim("batch") for _ in range(sketch.pick([0, 1, 2]))]
        x = sketch.input([*dims, sketch.symbol("m"), sketch.dim("k")])
        axes = list(range(len(dims) + 2))
        turned = sketch.permute(x, [*axes[:-2], axes[-1], axes[-2]])
        pair = (x, turned) if sketch.chance(0.5) else (turned, x)
        return chain(sketch, matmul(sketch, *pair), None)
    return chain(sketch, product(sketch, style), None)


def _vector(sketch: Sketch) -> str:
    ranks = {1: 0.6, 2: 0.2, 3: 0.15, 4: 0.05}
    return chain(sketch, product(sketch, Style(ranks=ranks)), None)


def _half(sketch: Sketch) -> str:
    dtype = sketch.pick(["float16", "float16", "bfloat16"])
    out_dtype = sketch.pick([None, None, "float32", dtype])
    weight = sketch.pick([None, Role.CONSTANT, Role.WEIGHT])
    y = product(sketch, Style(dtype=dtype, out_dtype=out_dtype, weight=weight))
    return chain(sketch, y, weight)


def _mixed(sketch: Sketch) -> str:
    """float16 or bfloat16 by float32, which needs an out_dtype."""
    half = sketch.pick(["float16", "bfloat16"])
    out_dtype = sketch.pick(["float32", "float32", half])
    m, k, n = sketch.symbol("m"), sketch.dim("k"), sketch.dim("n")
    types = [half, "float32"] if sketch.chance(0.5) else ["float32", half]
    a = sketch.input([*([sketch.dim("batch")] if sketch.chance(0.4) else []), m, k], types[0])
    b = sketch.input([k, n], types[1], sketch.pick([Role.DYNAMIC, Role.CONSTANT]))
    return chain(sketch, matmul(sketch, a, b, out_dtype), None)


def _integer(sketch: Sketch) -> str:
    dtype = sketch.pick(["int8", "int8", "int32", "int64"])
    wider = {"int8": ["int32", "int32", "int64", None, "float32"], "int32": [None, "int64"]}
    out_dtype = sketch.pick(wider.get(dtype, [None]))
    weight = sketch.pick([None, None, Role.CONSTANT])
    return chain(sketch, product(sketch, Style(dtype, out_dtype, weight)), weight)


def _double(sketch: Sketch) -> str:
    weight = sketch.pick([None, None, Role.CONSTANT])
    return chain(sketch, product(sketch, Style("float64", weight=weight)), weight)


def _contraction(sketch: Sketch) -> str:
    return chain(sketch, product(sketch, Style(loose="contraction", p_static=0.2)), None)


def _batches(sketch: Sketch) -> str:
    return chain(sketch, product(sketch, Style(loose="batch", p_static=0.2)), None)


def _rank_only(sketch: Sketch) -> str:
    weight = Role.CONSTANT if sketch.chance(0.3) else None
    return chain(sketch, product(sketch, Style(only_rank=True, weight=weight)), None)


def _static(sketch: Sketch) -> str:
    weight = sketch.pick([None, Role.CONSTANT, Role.WEIGHT])
    return chain(sketch, product(sketch, Style(all_static=True, weight=weight)), weight)


def _reshape(sketch: Sketch) -> str:
    """Four rows folded into one by a reshape, which fits multiples of four only."""
    n = sketch.symbol("m")
    quarter = sketch.dim("k", 0.7)
    if quarter.over != 1 or quarter.plus and not quarter.is_static:
        quarter = static(3)
    wide = static(4 * quarter.plus) if quarter.is_static else replace(quarter, times=4)
    x = sketch.input([n, quarter])
    folded = [Dim(n.symbol, over=4), wide]
    x = sketch.emit("reshape", x, dims=folded, dtype="float32", shape=tuple(folded))
    sketch.pairs.append(Pair(n, static(4), "multiple"))
    weight = sketch.pick([None, Role.CONSTANT]) if wide.is_static else None
    return chain(sketch, product(sketch, Style(weight=weight), left=x), weight)


def _several(sketch: Sketch) -> str:
    """Two to four matmuls, one after the other or side by side on one input."""
    weight = sketch.pick([None, Role.CONSTANT, Role.CONSTANT, Role.WEIGHT])
    ranks = {**RANKS, 1: 0.0}
    y = chain(sketch, product(sketch, Style(weight=weight, ranks=ranks)), weight)
    for _ in range(sketch.pick([1, 1, 2, 3])):
        candidates = [
            name
            for name, known in sketch.values.items()
            if known.dtype == "float32" and len(known.dims) >= 2 and known.dims[-1] is not None
        ]
        left = y if sketch.chance(0.7) and y in candidates else sketch.pick(candidates)
        y = chain(sketch, product(sketch, Style(weight=weight), left=left), weight)
    return y


def _branch(sketch: Sketch) -> str:
    """A matmul in each branch of an If, and one before it or after."""
    style = Style(p_static=0.3, ranks={**RANKS, 1: 0.0})
    before = product(sketch, style)
    if sketch.chance(0.5):
        before = chain(sketch, before, None)
    condition = sketch.input([], "bool", Role.CONDITION)
    bodies, results = [], []
    n = sketch.dim("n", 0.5)
    left = sketch.values[before]
    right = sketch.input([_last(left), n])
    for _ in range(2):
        outer = list(sketch.nodes)
        y = sketch.emit(
            "matmul",
            before,
            right,
            dims=result_dims(left.dims, sketch.values[right].dims),
            dtype="float32",
            out_dtype=None,
        )
        results.append(sketch.values[y])
        for _ in range(sketch.pick([0, 1, 2])):
            y = _elementwise_in_branch(sketch, y)
        bodies.append(Body(tuple(sketch.nodes[len(outer) :])))
        for node in sketch.nodes[len(outer) :]:
            del sketch.values[node.name]
        sketch.nodes = outer
    sketch.work.append((*(dim for dim in left.dims if dim is not None), n))
    y = sketch.emit(
        "branch",
        condition,
        dims=results[0].dims,
        dtype="float32",
        then=bodies[0],
        otherwise=bodies[1],
    )
    return chain(sketch, y, None)


def _elementwise_in_branch(sketch: Sketch, value: str) -> str:
    """A step that keeps the shape, so that both branches have the same type."""
    known = sketch.values[value]
    op = sketch.pick(["relu", "tanh", "add", "multiply", "gelu"])
    args = [value]
    if op in ("add", "multiply"):
        last = known.dims[-1]
        assert last is not None
        args.append(sketch.input([last] if sketch.chance(0.5) else [], role=Role.CONSTANT))
    return sketch.emit(op, *args, dims=known.dims, dtype=known.dtype)


def _called(sketch: Sketch) -> str:
    """A private function with a matmul that is called twice, with other shapes the second time."""
    p, q, r = (Dim(name) for name in ("p", "q", "r"))
    parameters = (Input("left", (p, q)), Input("right", (q, r)))
    inner = [Node("y", "matmul", ("left", "right"), {"out_dtype": None})]
    for i, op in enumerate(["relu", "tanh", "gelu"][: sketch.pick([0, 1, 2])]):
        inner.append(Node(f"y{i}", op, (inner[-1].name,)))
    body = Body(tuple(inner), parameters)
    m, k, n = sketch.symbol("m"), sketch.dim("k"), sketch.dim("n")
    second = sketch.dim("n")
    a = sketch.input([m, k])
    b = sketch.input([k, n], role=sketch.pick([Role.DYNAMIC, Role.CONSTANT]))
    c = sketch.input([n, second])
    sketch.work += [(m, k, n), (m, n, second)]
    y = sketch.emit("call", a, b, dims=[m, n], dtype="float32", body=body)
    y = sketch.emit("call", y, c, dims=[m, second], dtype="float32", body=body)
    return chain(sketch, y, None)


def _last(known: Known) -> Dim:
    last = known.dims[-1]
    return last if last is not None else static(1)


#: How often each kind is drawn, and how.
KINDS: dict[str, tuple[float, Callable[[Sketch], str]]] = {
    "constant weight": (18, _constant_weight),
    "parameter weight": (9, _parameter_weight),
    "two operands": (18, _dynamic),
    "vector": (7, _vector),
    "fp16, bf16": (8, _half),
    "mixed floats": (3, _mixed),
    "integer": (7, _integer),
    "float64": (3, _double),
    "contraction of two symbols": (5, _contraction),
    "batches of two symbols": (6, _batches),
    "known by rank": (4, _rank_only),
    "static": (3, _static),
    "reshape": (2, _reshape),
    "several": (8, _several),
    "branch": (4, _branch),
    "private function": (2, _called),
}
