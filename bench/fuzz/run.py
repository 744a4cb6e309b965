"""One case: which form, its sizes, the values of its inputs, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bench.fuzz.graph import Form, Input, Pair, Role
from bench.fuzz.values import REGIMES, VALUE_STREAM, Regime, constant, draw, poison

#: Cases of one form.
RUNS = 25
#: Forms that are compiled as one module.
FORMS_IN_MODULE = 8
#: Number of the stream of random numbers that cases are drawn from.
RUN_STREAM = 2

#: Multiplications of a case, and how often; inputs have at most `MAX_ELEMENTS` elements.
WORK = {3e4: 0.35, 4e5: 0.5, 4e6: 0.13, 3e7: 0.02}
MAX_ELEMENTS = 3_000_000
#: A form with an upper bound of a symbol allocates for that: work and elements there.
WORK_AT_BOUNDS = 3e8
#: No symbol is greater.
MAX_SIZE = 4200

_PRIMES = (2, 3, 5, 7, 11, 13, 19, 29, 37, 53, 71, 97)
_TILES = (4, 6, 8, 9, 10, 12, 14, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65)
_SOME = (80, 96, 100, 127, 128, 129, 150, 197, 200, 255, 256, 257, 300, 384)
_MANY = (500, 511, 512, 513, 768, 1000, 1023, 1024, 1025, 1031, 2049)
#: Sizes of symbols by what they are for, with their weights.
SIZES: Mapping[str, dict[tuple[int, ...], float]] = {
    "batch": {(0,): 0.05, (1,): 0.3, (2, 3, 4, 5, 7, 8, 12, 16): 0.62, (33, 100): 0.03},
    "m": {(0,): 0.05, (1,): 0.16, _PRIMES: 0.25, _TILES: 0.35, _SOME: 0.12, _MANY: 0.07},
    "n": {(0,): 0.05, (1,): 0.08, _PRIMES: 0.25, _TILES: 0.42, _SOME: 0.16, _MANY: 0.04},
    "k": {(0,): 0.06, (1,): 0.08, _PRIMES: 0.28, _TILES: 0.35, _SOME: 0.15, _MANY: 0.08},
}


@dataclass(frozen=True)
class Run:
    """``guarded``: results of the virtual machine lie against protected pages too. ``sides``:
    against which page each input lies. ``gaps``: elements between the rows of an input, where only
    functions of ours read it. ``same``: inputs of one shape share their memory."""

    case: int
    sizes: Mapping[str, int]
    regime: Regime
    guarded: bool
    sides: Mapping[str, str]
    gaps: Mapping[str, int]
    same: bool = False
    seed_of_calls: int = 0
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)


def form_of(case: int) -> int:
    return case // RUNS


def group_of(form: int) -> int:
    return form // FORMS_IN_MODULE


def draw_run(form: Form, seed: int, case: int) -> Run:
    """Case number ``case`` of ``seed``, which belongs to ``form``."""
    rng = np.random.default_rng([RUN_STREAM, seed, case])
    sizes = draw_sizes(rng, form)
    regime = list(REGIMES)[int(rng.choice(len(REGIMES), p=list(REGIMES.values())))]
    values = np.random.default_rng([VALUE_STREAM, seed, case])
    given = form.of_role(Role.DYNAMIC, Role.CONDITION, Role.WEIGHT)
    same = bool(rng.random() < 0.05)
    arrays: dict[str, np.ndarray] = {}
    for each in given:
        shape = tuple(dim.at(sizes) for dim in each.dims)
        twin = _twin(each, given, arrays, shape) if same else None
        arrays[each.name] = draw(values, each, shape, regime) if twin is None else twin
    if regime in (Regime.NAN, Regime.INFINITE):
        targets = [each.name for each in given if not each.divisor]
        poison(values, arrays[targets[int(values.integers(len(targets)))]], regime)
    for each in form.of_role(Role.CONSTANT):
        arrays[each.name] = constant(each, seed, form.index)
    gaps = {
        each.name: int(rng.integers(1, 9))
        for each in given
        if len(each.dims) >= 2 and each.dtype != "bfloat16" and rng.random() < 0.12
    }
    return Run(
        case,
        sizes,
        regime,
        guarded=bool(rng.random() < 0.7),
        sides={each.name: ("begin", "end")[int(rng.random() < 0.7)] for each in given},
        gaps=gaps,
        same=same,
        seed_of_calls=int(rng.integers(1 << 30)),
        arrays=arrays,
    )


def _twin(
    each: Input, given: list[Input], arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> np.ndarray | None:
    """The array of an earlier input that can serve for ``each`` as well."""
    for other in given:
        array = arrays.get(other.name)
        fits = (other.dtype, other.divisor) == (each.dtype, each.divisor)
        if array is not None and fits and array.shape == shape and not each.divisor:
            return array
    return None


def draw_sizes(rng: np.random.Generator, form: Form) -> dict[str, int]:
    """Sizes of the symbols: pairs fit more often than not, and the work is bounded."""
    sizes = {name: _size(rng, purpose) for name, purpose in form.symbols.items()}
    limit = list(WORK)[int(rng.choice(len(WORK), p=list(WORK.values())))]
    fits = [rng.random() for _ in form.pairs]
    draws = [int(rng.integers(4)) for _ in form.pairs]
    for _ in range(100):
        for pair, chance, draw_number in zip(form.pairs, fits, draws, strict=True):
            _relate(pair, chance, draw_number, sizes)
        if _affordable(form, sizes, limit):
            break
        largest = max(sizes.values(), default=0)
        # the others of about that size too: one of a pair follows the other
        sizes.update({name: size // 2 for name, size in sizes.items() if size > largest // 4})
    return sizes


def _size(rng: np.random.Generator, purpose: str) -> int:
    classes = SIZES[purpose]
    chosen = list(classes)[int(rng.choice(len(classes), p=list(classes.values())))]
    return chosen[int(rng.integers(len(chosen)))]


def _affordable(form: Form, sizes: Mapping[str, int], limit: float) -> bool:
    if form.bounds:
        greatest = {**sizes, **form.bounds}
        if max(_work(form, greatest), _elements(form, greatest)) > WORK_AT_BOUNDS:
            return False
    return _work(form, sizes) <= limit and _elements(form, sizes) <= MAX_ELEMENTS


def _elements(form: Form, sizes: Mapping[str, int]) -> float:
    """The size of the largest input."""
    return max(float(np.prod([dim.at(sizes) for dim in each.dims])) for each in form.inputs)


def _work(form: Form, sizes: Mapping[str, int]) -> float:
    """The multiplications of all matmuls, dimensions of 0 taken as 1."""
    return sum(float(np.prod([max(dim.at(sizes), 1) for dim in dims])) for dims in form.work)


def _relate(pair: Pair, chance: float, draw_number: int, sizes: dict[str, int]) -> None:
    """Make the two dims of ``pair`` fit, or leave them as they were drawn."""
    if pair.how == "multiple":
        if chance < 0.6:
            sizes[pair.left.symbol] -= sizes[pair.left.symbol] % pair.right.plus
        return
    plain, other = (pair.left, pair.right) if pair.left.is_plain else (pair.right, pair.left)
    if pair.how == "contraction":
        if chance < 0.6:
            sizes[plain.symbol] = other.at(sizes)
    elif chance < 0.45:
        sizes[plain.symbol] = other.at(sizes)
    elif chance < 0.65:
        sizes[plain.symbol] = 1
    elif chance < 0.85 and other.is_plain:
        sizes[other.symbol] = 1
        sizes[plain.symbol] = (0, 2, 3, 5)[draw_number]


def describe(form: Form, run: Run) -> str:
    """The inputs of a case as one line."""

    def one(each: Input) -> str:
        shape = ", ".join(f"{d}={d.at(run.sizes)}" if d.symbol else str(d) for d in each.dims)
        side = f" {run.sides[each.name]}" if each.name in run.sides else ""
        return f"{each.name} {each.dtype} ({shape}) {each.role.value}{side}"

    return "; ".join(map(one, form.inputs)) + f"; {run.regime.value}"
