"""Which cases are measured: all workloads of the full run, and the part of ``--quick``."""

from __future__ import annotations

from bench.gemm.linear_cases import linear_cases
from bench.gemm.random_cases import random_cases
from bench.gemm.shapes import Shape

KIB = 256  # float32 values
QUICK_FLOPS = 2_500_000_000
QUICK_WEIGHT_BYTES = 40 << 20
QUICK_A_CLASS = 4  # linear cases of the quick run
MODELS = (  # heads, their width, prompts' lengths, keys that one query attends to
    ("bert-base", 12, 64, (8, 33, 128, 384, 2048), (100,)),
    ("qwen2.5-0.5b", 14, 64, (5, 64, 256, 1024), (512, 1000)),
    ("bert-large", 16, 64, (17, 100, 512), (128,)),
    ("wide heads", 16, 128, (16, 197), (1024,)),
    ("tinyllama-1.1b", 32, 64, (1, 77, 256), (33, 2048)),
    ("llama-2-7b", 32, 128, (7, 128, 512), (256, 2000)),
)


def all_cases(seed: int) -> list[Shape]:
    """The full run. ``seed`` draws its random part."""
    return [
        *linear_cases(),
        *dynamic_cases(),
        *row_cases(),
        *attention_cases(),
        *fused_cases(),
        *stream_cases(),
        *chain_cases(),
        *random_cases(seed),
    ]


def quick_cases(seed: int) -> list[Shape]:
    """Some small cases of every workload, the same ones each time but for the random ones."""

    def small(cases: list[Shape]) -> list[Shape]:
        return [
            case
            for case in cases
            if case.flops <= QUICK_FLOPS and case.right_bytes <= QUICK_WEIGHT_BYTES
        ]

    def some(cases: list[Shape], step: int) -> list[Shape]:
        return small(cases)[step - 1 :: step]

    linear: dict[str, list[Shape]] = {}
    for case in small(linear_cases()):
        linear.setdefault(case.group, []).append(case)

    return [
        *(case for members in linear.values() for case in spread(members, QUICK_A_CLASS)),
        *some(dynamic_cases(), 6),
        *some(row_cases(), 5),
        *some(attention_cases(), 6),
        *some(fused_cases(), 6),
        *stream_cases()[:1],
        *some(chain_cases(), 4),
        *some(random_cases(seed), 7),
    ]


def spread(cases: list[Shape], count: int) -> list[Shape]:
    """``count`` of ``cases``, evenly spaced; all of them if there are no more."""
    if len(cases) <= count:
        return cases
    return [cases[(2 * at + 1) * len(cases) // (2 * count)] for at in range(count)]


def dynamic_cases() -> list[Shape]:
    """A right operand that is new at each call, by rows and by columns, with M >= 2.

    Among them are wide ones whose rows are a multiple of 16 KiB apart: few cache sets hold a column
    of such a matrix.
    """

    def case(m: int, n: int, k: int, transposed: bool = False, stride: int | None = None) -> Shape:
        return Shape(
            m,
            n,
            k,
            layer="dynamic",
            transposed=transposed,
            workload="dynamic",
            constant=False,
            row_stride=stride,
        )

    wide = [
        case(m, n, k, stride=stride)
        for n, k, stride, rows in (
            (3072, 768, None, (2, 8, 32)),
            (3072, 768, 16 * KIB, (4, 16)),
            (3584, 512, 16 * KIB, (3, 24)),
            (4096, 1024, None, (2, 8, 32, 128)),
            (4096, 1024, 32 * KIB, (5, 17)),
            (4096, 512, 4096 + 16, (8, 32)),
        )
        for m in rows
    ]
    sizes = ((768, 768), (1024, 1024), (2304, 768), (512, 2048), (1000, 768), (384, 1536))
    rows = (2, 5, 8, 16, 33, 64, 100, 197, 256, 384, 777, 1024)
    square = [
        case(rows[(5 * at + 3 * side + 6 * turn) % len(rows)], n, k, transposed=side == 1)
        for at, (n, k) in enumerate(sizes)
        for side in (0, 1)
        for turn in (0, 1)
    ]
    columns = [
        case(m, n, k, transposed=True, stride=stride)
        for m, n, k, stride in ((4, 1024, 768, 1024), (16, 3072, 768, 4096), (64, 768, 3072, 4096))
    ]
    return wide + square + columns


def row_cases() -> list[Shape]:
    """Products of one row: constant weights of models, and every kind of distance between rows."""
    weights = ((768, 768), (3072, 768), (768, 3072), (1024, 4096), (4096, 1024), (30522, 768))
    cases = [Shape(1, n, k, layer="one row", workload="row") for n, k in weights]
    for n, k in ((768, 768), (1000, 2048), (3072, 768), (4096, 1024)):
        for transposed in (False, True):
            length = k if transposed else n
            odd, page, far = (
                length | 1,
                round_up(length + 1, 4 * KIB),
                round_up(length + 1, 16 * KIB),
            )
            for stride in dict.fromkeys((None, odd, page, far)):
                if transposed and stride == page:
                    continue
                cases.append(Shape(1, n, k, 1, "one row", transposed, "row", False, stride))
    return cases


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below ``value``."""
    return -(-value // multiple) * multiple


def attention_cases() -> list[Shape]:
    """Queries times keys and weights times values, of prompts and of decoding with one query."""
    cases = []
    for model, heads, width, prompts, keys in MODELS:
        for length in prompts:
            cases += attention(model, heads, width, length, length)
        for length in keys:
            cases += attention(model, heads, width, 1, length)
    return cases


def attention(model: str, heads: int, width: int, rows: int, keys: int) -> list[Shape]:
    """Scores (queries times keys, transposed) and context (weights times values) of one sequence.

    ``rows`` queries attend to ``keys`` positions; ``rows`` is 1 when a language model decodes.
    """
    return [
        Shape(rows, keys, width, heads, f"{model} scores", transposed=True),
        Shape(rows, width, keys, heads, f"{model} context"),
    ]


def fused_cases() -> list[Shape]:
    """Layers of transformers with what follows them: gelu after the first of a pair of layers that
    go up and down, the residual after the second and after attention."""
    up: dict[tuple[int, int], tuple[int, ...]] = {
        (1536, 384): (4, 64, 512),
        (3072, 768): (1, 17, 128, 384),
        (4096, 1024): (8, 33),
        (4864, 896): (2, 13, 100),
    }
    down: dict[tuple[int, int], tuple[int, ...]] = {
        (384, 1536): (5, 77),
        (768, 768): (1, 16, 197),
        (768, 3072): (8, 64, 256),
        (1024, 1024): (4, 127),
        (896, 4864): (13, 48),
    }
    return [
        Shape(m, n, k, layer=name, workload="fused", epilogue=epilogue)
        for epilogue, name, sizes in (
            ("bias_gelu", "bias + gelu", up),
            ("bias_residual", "bias + residual", down),
        )
        for (n, k), rows in sizes.items()
        for m in rows
    ]


def stream_cases() -> list[Shape]:
    """Weights of 150 MB and more, larger than a last-level cache; a call reads each once."""
    sizes = ((50257, 768), (11008, 4096), (4096, 11008), (32000, 2048))
    return [
        Shape(m, n, k, layer="larger than cache", workload="stream")
        for n, k in sizes
        for m in (1, 2, 4)
    ]


def chain_cases() -> list[Shape]:
    """Small products one after the other in one executable, where the caller counts little."""
    return [
        Shape(m, k, k, layer="chain of 32", workload="chain")
        for k in (64, 128, 256, 384)
        for m in (1, 8, 32)
    ]
