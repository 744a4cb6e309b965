"""Which products are measured: linear layers of public models, and their attention products.

The sizes are those of the models' published configurations. ``n`` and ``k`` belong to a layer,
``m`` is batch times sequence length and is what a dynamic model learns only at the call.
"""

from __future__ import annotations

from dataclasses import dataclass

TINY_FLOPS = 1_000_000
FULL_LIMIT_FLOPS = 3_000_000_000
CLASSES = (
    "tiny",
    "m=1",
    "m=2..4",
    "m=5..17",
    "m=18..100",
    "m=101..512",
    "m>512",
    "attention",
)
FULL_M = (1, 2, 4, 5, 8, 13, 17, 32, 33, 64, 100, 127, 197, 256, 384, 512, 1000, 1024)


@dataclass(frozen=True)
class Shape:
    """One product: (batch, m, k) times (batch, k, n) in float32.

    With ``batch`` 1 the right operand is a constant weight. Otherwise both operands are dynamic and
    ``transposed`` says that the right one is stored as (batch, n, k), as the keys of attention are.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    layer: str = ""
    transposed: bool = False

    @property
    def dynamic(self) -> bool:
        """Whether both operands come at the call, as in attention."""
        return self.batch > 1

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiplication and an addition counted as two."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def group(self) -> str:
        """The class under which the shape is summed up, one of ``CLASSES``.

        "tiny" is work below 1 MFLOP, where a call takes so little time that a library's own
        overhead from Python decides (1 us for numpy up to 15 us for oneDNN through torch).
        """
        if self.dynamic:
            return "attention"
        if self.flops < TINY_FLOPS:
            return "tiny"
        for limit, name in ((1, "m=1"), (4, "m=2..4"), (17, "m=5..17"), (100, "m=18..100")):
            if self.m <= limit:
                return name
        return "m=101..512" if self.m <= 512 else "m>512"


@dataclass(frozen=True)
class Layer:
    """A linear layer and the row counts with which the quick run calls it."""

    name: str
    n: int
    k: int
    quick_m: tuple[int, ...] = ()


LAYERS = (
    Layer("minilm attn_out", 384, 384, (1, 13, 127, 1024)),
    Layer("minilm ffn_up", 1536, 384, (5, 64, 512)),
    Layer("minilm ffn_down", 384, 1536, (2, 33, 1000)),
    Layer("bert-base attn_out", 768, 768, (1, 4, 17, 33, 100, 384, 1024)),
    Layer("bert-base qkv_fused", 2304, 768, (8, 32, 256)),
    Layer("bert-base ffn_up", 3072, 768, (1, 13, 64, 127, 512)),
    Layer("bert-base ffn_down", 768, 3072, (1, 5, 32, 100, 384)),
    Layer("vit-base attn_out", 768, 768, (197,)),
    Layer("vit-base ffn_up", 3072, 768, (197,)),
    Layer("vit-base ffn_down", 768, 3072, (197,)),
    Layer("vit-base classifier", 1000, 768, (1, 8, 64)),
    Layer("bert-large attn_out", 1024, 1024, (2, 33, 256, 1000)),
    Layer("bert-large qkv_fused", 3072, 1024),
    Layer("bert-large ffn_up", 4096, 1024, (1, 17, 127)),
    Layer("bert-large ffn_down", 1024, 4096, (4, 64, 197)),
    Layer("qwen2.5-0.5b q_proj", 896, 896, (1, 64, 512)),
    Layer("qwen2.5-0.5b kv_proj", 128, 896, (1, 8, 256)),
    Layer("qwen2.5-0.5b gate_up", 4864, 896, (1, 13, 100)),
    Layer("qwen2.5-0.5b down", 896, 4864, (2, 32, 197)),
    Layer("tinyllama-1.1b q_proj", 2048, 2048, (1, 5, 33)),
    Layer("tinyllama-1.1b kv_proj", 256, 2048),
    Layer("tinyllama-1.1b gate_up", 5632, 2048, (1,)),
    Layer("tinyllama-1.1b down", 2048, 5632),
)


def attention(model: str, heads: int, head: int, rows: int, keys: int) -> list[Shape]:
    """Scores (queries times keys, transposed) and context (weights times values) of one sequence.

    ``rows`` queries attend to ``keys`` positions; ``rows`` is 1 when a language model decodes.
    """
    return [
        Shape(rows, keys, head, heads, f"{model} scores", transposed=True),
        Shape(rows, head, keys, heads, f"{model} context"),
    ]


def quick_shapes() -> list[Shape]:
    """The shapes of ``--quick``: every class and model, about 25 GFLOP in all."""
    shapes = [Shape(m, la.n, la.k, 1, la.name) for la in LAYERS for m in la.quick_m]
    shapes += attention("bert-base", 12, 64, 17, 17)
    shapes += attention("bert-base", 12, 64, 128, 128)
    shapes += attention("vit-base", 12, 64, 197, 197)
    shapes += attention("qwen2.5-0.5b", 14, 64, 1, 512)
    return shapes


def full_shapes() -> list[Shape]:
    """Every distinct layer with every ``FULL_M``, up to 3 GFLOP a product, and attention."""
    distinct: dict[tuple[int, int], Layer] = {}
    for layer in LAYERS:
        distinct.setdefault((layer.n, layer.k), layer)
    linear = [Shape(m, la.n, la.k, 1, la.name) for la in distinct.values() for m in FULL_M]
    shapes = [shape for shape in linear if shape.flops <= FULL_LIMIT_FLOPS]
    for length in (5, 8, 17, 33, 64, 100, 128, 197, 256, 384, 512):
        shapes += attention("bert-base", 12, 64, length, length)
    for keys in (33, 128, 512, 1000):
        shapes += attention("qwen2.5-0.5b", 14, 64, 1, keys)
        shapes += attention("tinyllama-1.1b", 32, 64, 1, keys)
    return shapes


def parse_shapes(text: str) -> list[Shape]:
    """Shapes from ``"m,n,k;m,n,k,batch"``.

    A batch above 1 makes both operands dynamic. Raises ValueError that names the part at fault.
    """
    shapes = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        try:
            numbers = [int(number) for number in part.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) not in (3, 4) or min(numbers) < 1:
            raise ValueError(f"--shapes takes m,n,k or m,n,k,batch, each at least 1, got {part!r}")
        m, n, k, batch = [*numbers, 1][:4]
        shapes.append(Shape(m, n, k, batch, layer="given"))
    if not shapes:
        raise ValueError("--shapes must name at least one shape, such as 33,768,768")
    return shapes
