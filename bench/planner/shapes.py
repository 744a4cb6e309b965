"""The shapes that the planner is judged on: products of public models, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_moonpoly.planner.plan import BMode
from tvm_moonpoly.planner.spec import Product

#: Multiply-adds of the least product: with less, a call from Python takes as long as the product.
LEAST = 1 << 17

#: Multiply-adds of the largest product (2 GFLOP), and of the quick run's.
LARGEST, QUICK_LARGEST = 10**9, 10**8

#: Elements of the largest right operand: three sets of it are made.
LARGEST_B = 1 << 24

#: How B is stored, as `Product.b_mode` says it, in words; and how many of ten random shapes.
KINDS = {
    BMode.PREPACKED: ("constant", 7),
    BMode.DIRECT: ("by rows", 2),
    BMode.PACKED: ("by columns", 1),
}


@dataclass(frozen=True)
class Shape:
    """``batch`` products (m, k) @ (k, n); ``b_mode`` says how B is stored, as in `Product`."""

    name: str
    m: int
    n: int
    k: int
    b_mode: BMode = BMode.PREPACKED
    batch: int = 1

    @property
    def product(self) -> Product:
        return Product(self.m, self.n, self.k, self.batch, self.b_mode)

    @property
    def work(self) -> int:
        """Multiply-adds of one product."""
        return self.m * self.n * self.k

    @property
    def kind(self) -> str:
        """How B is stored, in words."""
        return KINDS[self.b_mode][0]

    @property
    def random(self) -> bool:
        return self.name == RANDOM


RANDOM = "random"

# (layer, n, k, rows): linear layers, and convolutions as products, of published configurations
_CONSTANT = (
    ("gpt2 attn_out", 768, 768, (1, 7, 48)),
    ("gpt2 qkv", 2304, 768, (16, 220)),
    ("gpt2 ffn_up", 3072, 768, (3, 96)),
    ("gpt2 ffn_down", 768, 3072, (1, 12, 300)),
    ("llama-2-7b o_proj", 4096, 4096, (1, 9)),
    ("llama-3-8b kv_proj", 1024, 4096, (2, 40, 230)),
    ("tinyllama-1.1b gate_up", 5632, 2048, (4, 70)),
    ("tinyllama-1.1b down", 2048, 5632, (1, 24)),
    ("qwen2.5-0.5b qkv", 1152, 896, (6, 150)),
    ("alexnet fc8", 1000, 4096, (1, 20)),
    ("resnet50 fc", 1000, 2048, (11,)),
    ("resnet50 conv2 3x3", 64, 576, (3136,)),
    ("resnet50 conv3 3x3", 128, 1152, (784,)),
    ("resnet50 conv4 3x3", 256, 2304, (196,)),
    ("resnet50 conv5 3x3", 512, 4608, (49,)),
    ("resnet50 conv1", 64, 147, (12544,)),
    ("mobilenet pointwise", 96, 24, (3136,)),
    ("deepbench 1760", 1760, 1760, (16, 128)),
    ("deepbench 2560", 2560, 2560, (32,)),
    ("deepbench 8457", 8457, 2560, (35,)),
    ("dlrm bottom", 256, 512, (64, 2048)),
)

# (name, b_mode, batch, m, n, k): attention products, and a product of two activations
_DYNAMIC = (
    ("bert-base scores", BMode.PACKED, 12, 160, 160, 64),
    ("llama-3-8b scores, decoding", BMode.PACKED, 8, 1, 700, 128),
    ("bert-large context", BMode.DIRECT, 16, 96, 64, 96),
    ("vit-base context", BMode.DIRECT, 12, 197, 64, 197),
    ("qwen2.5-0.5b context, decoding", BMode.DIRECT, 14, 1, 64, 900),
    ("llama-3-8b context, 4 queries a key", BMode.DIRECT, 8, 4, 128, 700),
    ("two activations", BMode.DIRECT, 1, 300, 800, 500),
    ("two activations, one transposed", BMode.PACKED, 1, 120, 1500, 1100),
)


def listed() -> list[Shape]:
    """The products of public models."""
    shapes = [Shape(name, m, n, k) for name, n, k, rows in _CONSTANT for m in rows]
    shapes += [Shape(name, m, n, k, mode, batch) for name, mode, batch, m, n, k in _DYNAMIC]
    return shapes


def random_shapes(count: int, seed: int, largest: int = LARGEST) -> list[Shape]:
    """``count`` shapes of at most ``largest`` multiply-adds, sizes log-uniform, by ``seed``.

    Two of five have at most 16 rows, as when a language model decodes. In half of them ``n`` is a
    multiple of 16, as most sizes of models are; in the others the last panel may be partial.
    """
    rng = np.random.default_rng(seed)

    def size(low: int, high: int) -> int:
        return int(round(np.exp(rng.uniform(np.log(low), np.log(high)))))

    modes = list(KINDS)
    shares = [share / 10 for _, share in KINDS.values()]
    found: list[Shape] = []
    while len(found) < count:
        few = rng.random() < 0.4
        m = size(1, 16) if few else size(17, 2048)
        n, k = size(16, 8192), size(16, 8192)
        if rng.random() < 0.5:
            n -= n % 16
        mode = modes[int(rng.choice(len(modes), p=shares))]
        if LEAST <= m * n * k <= largest and n * k <= LARGEST_B:
            found.append(Shape(RANDOM, m, n, k, mode))
    return found


def chosen_shapes(count: int, seed: int, largest: int = LARGEST) -> list[Shape]:
    """``count`` shapes of at most ``largest`` multiply-adds: half of them `listed` ones, or all of
    those where there are fewer, then random ones."""
    known = [shape for shape in listed() if shape.work <= largest]
    number = min(count // 2, len(known))
    return spread(known, number) + random_shapes(count - number, seed, largest)


def spread(shapes: Sequence[Shape], count: int) -> list[Shape]:
    """``count`` of ``shapes``, evenly over the sequence."""
    return [shapes[i * len(shapes) // count] for i in range(count)]
