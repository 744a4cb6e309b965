"""What a bundle measures, as plain data: products to check, to compare, and plans to try.

Shapes are DeepBench's and the linear layers of ``bench/shapes/gemm.csv``, whose rows are swept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bench.gemm.linear_cases import DEEPBENCH, Layer, read_layers
from bench.gpu.contents import Library
from tvm_moonpoly.microkernels.cuda import requirements
from tvm_moonpoly.operators.cuda import Assembly
from tvm_moonpoly.planner.cuda import spec
from tvm_moonpoly.planner.cuda.spec import Product
from tvm_moonpoly.planner.groups import ceil_div

Case = dict[str, Any]

#: Rows that a layer is called with, where its line of the file allows them.
ROWS = (1, 8, 13, 16, 33, 64, 128, 200, 256, 512, 1000, 1024, 2048, 4096)

#: Sizes that find faults: batch, m, n, k. Around the sizes of tiles, primes, nothing to sum up.
SIZES = (
    (1, 1, 1, 1),
    (1, 1, 1, 0),
    (1, 3, 5, 2),
    (1, 16, 64, 0),
    (1, 1, 4096, 4096),
    (1, 4096, 1, 257),
    (1, 15, 63, 31),
    (1, 17, 65, 33),
    (1, 63, 127, 63),
    (1, 64, 128, 64),
    (1, 65, 129, 65),
    (1, 127, 255, 127),
    (1, 129, 257, 129),
    (1, 255, 511, 1023),
    (1, 257, 264, 1032),
    (1, 127, 131, 257),
    (1, 1009, 997, 61),
    (1, 2049, 2056, 72),
    (3, 33, 72, 40),
    (7, 5, 64, 65),
    (65, 128, 128, 64),
    # more products than a launch may have
    (70001, 2, 8, 16),
)

#: The same for operands that do not lie one row after the other, or begin anywhere.
LAYOUTS: tuple[Case, ...] = (
    {"pad": {"a": 8, "b": 16, "c": 8, "residual": 8}},
    {"pad": {"a": 3, "b": 5, "c": 1, "residual": 7}},
    {"shift": 1},
    {"shift": 8, "pad": {"c": 2, "residual": 2}},
    {"shared": True},
)
_LAYOUT_SIZES = ((3, 130, 136, 136), (2, 77, 88, 72))

#: Sizes of products whose heads lie between rows and columns, and how many heads there are.
HEADS = (((6, 130, 136, 136), 3), ((8, 17, 65, 33), 2), ((1, 77, 88, 72), 1))

#: As many elements as an operand, or a result, may have; and of more than that all matrices of B.
LARGEST = ((1, 16, 131072, 8192), (1, 8192, 131072, 64), (9, 16, 131072, 1024))

#: Shapes on which the planner's choice is compared with other plans, and plans of two regions.
PLANNED, TWO_REGIONS = 64, 6


def set_shapes() -> list[tuple[str, int, int, int]]:
    """What they are of, and m, n, k: each once, in the file's order."""
    found: dict[tuple[int, int, int], str] = {}
    for layer in read_layers():
        for m in _rows(layer):
            found.setdefault((m, layer.n, layer.k), layer.name)
    return [(what, *sizes) for sizes, what in found.items()]


def _rows(layer: Layer) -> Iterable[int]:
    low, high = layer.rows
    if layer.source == DEEPBENCH:
        return (low,)
    return sorted({low, high, *(m for m in ROWS if low <= m <= high)})


def correct_cases(libraries: Sequence[Library]) -> list[Case]:
    """Every operator on sizes that find faults, every micro-kernel alone, then the set."""
    found: list[Case] = []
    for library in libraries:
        found += [_case(library, *sizes) for sizes in SIZES]
        for sizes in _LAYOUT_SIZES:
            found += [_case(library, *sizes, **layout) for layout in LAYOUTS]
        found += [_case(library, *sizes, heads=heads) for sizes, heads in HEADS]
    found += kernel_cases(libraries)
    plain = [library for library in libraries if library.compared]
    for library in plain:
        for what, m, n, k in set_shapes():
            found.append(_case(library, 1, m, n, k, what=what))
    found += [_case(library, *sizes) for library in plain for sizes in LARGEST]
    return list({case["key"]: case for case in reversed(found)}.values())[::-1]


def kernel_cases(libraries: Sequence[Library]) -> list[Case]:
    """Every micro-kernel alone."""
    return [_alone(library, at) for library in libraries for at in range(len(library.kernels))]


def _case(library: Library, batch: int, m: int, n: int, k: int, **more: Any) -> Case:
    words = [f"{name}={value}" for name, value in more.items() if name != "what"]
    key = "/".join([library.name, f"{batch}x{m}x{n}x{k}", *words]).replace(" ", "")
    return {"key": key, "library": library.name, "batch": batch, "m": m, "n": n, "k": k, **more}


def _alone(library: Library, at: int) -> Case:
    """A micro-kernel by itself: several tiles each way, the last ones not whole."""
    tile, form = library.kernels[at]
    needs = requirements(tile, form)
    down, across = 2, 3
    m = down * tile.block_m - 5
    n = (across * tile.block_n - 1) // max(needs.n, needs.result) * max(needs.n, needs.result)
    k = (5 * tile.block_k - 1) // needs.k * needs.k
    case = _case(library, 2, m, n, k)
    name = library.names()[tile, form]
    return {**case, "key": f"{name}/2x{m}x{n}x{k}", "launches": [[name, 0, 0, down, across]]}


def baseline_name(n: int, k: int) -> str:
    """The library of TVM's own kernel for a weight (k, n)."""
    return f"tvm_{n}x{k}"


def speed_cases(
    libraries: Sequence[Library], baselines: Sequence[tuple[int, int]] = ()
) -> list[Case]:
    """The set as linear layers are called, with weights (N, K), in an order that a part of it is
    like all of it. Where there is a baseline for fp16 weights of the size, it takes part."""
    found = [
        _case(library, 1, m, n, k, what=what)
        for library in libraries
        if library.compared and library.operator.form.b_transposed
        for what, m, n, k in set_shapes()
    ]
    for case in found:
        size = (case["n"], case["k"])
        if size in baselines and case["library"].startswith("f16"):
            case["baseline"] = baseline_name(*size)
    return sorted(found, key=_shuffled)


def _shuffled(case: Case) -> str:
    return hashlib.sha256(case["key"].encode()).hexdigest()


def planner_cases(libraries: Sequence[Library]) -> list[Case]:
    """Some shapes of the set, each with plans of one micro-kernel and the likeliest of two."""
    library = next(x for x in libraries if x.compared and x.operator.form.b_transposed)
    cases = sorted((_case(library, 1, *sizes) for _, *sizes in set_shapes()), key=_shuffled)
    return [{**case, "plans": list(plans(library, case))} for case in cases[:PLANNED]]


def plans(library: Library, case: Case) -> Iterator[dict[str, Any]]:
    """Plans that can be told from outside, the planner's choice among them: launches, whether it is
    ``chosen``, and the ``predicted`` seconds."""
    product = Product(case["m"], case["n"], case["k"], case["batch"])
    assembly = suited(library.operator.assemblies, product)
    chosen = spec.best(product, assembly.table)
    weighed = list(spec.candidates(product, assembly.table))
    single = [choice for choice in weighed if choice.plan.axis == spec.Axis.NONE]
    double = sorted((c for c in weighed if c not in single), key=lambda c: c.picoseconds)
    taken = [*single, *double[:TWO_REGIONS]]
    names = library.names()
    for choice in dict.fromkeys([chosen, *taken]):
        launches = []
        for region in spec.regions(choice.plan, product):
            tile = assembly.tiles[region.kernel]
            launches.append(
                [
                    names[tile, assembly.form],
                    region.row,
                    region.column,
                    ceil_div(region.rows, tile.block_m),
                    ceil_div(region.columns, tile.block_n),
                ]
            )
        yield {
            "launches": launches,
            "chosen": choice == chosen,
            "predicted": choice.picoseconds * 1e-12,
        }


def suited(assemblies: Sequence[Assembly], product: Product) -> Assembly:
    """The assembly that an operator takes for operands that lie close together."""
    return next(each for each in assemblies if each.suits(product.n, product.k))
