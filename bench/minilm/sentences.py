"""Real sentences of many lengths, the sizes that are measured, and the model's inputs from both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

Feed = dict[str, np.ndarray]
TEXTS = Path(__file__).with_name("sentences.txt")

# (batch, seq) of every call, in this order: sizes grow and shrink, few are multiples of a tile.
SIZES = (
    (1, 7),
    (1, 64),
    (2, 16),
    (1, 256),
    (1, 33),
    (8, 13),
    (4, 64),
    (1, 128),
    (2, 100),
    (1, 512),
    (8, 128),
    (1, 16),
    (3, 200),
)
QUICK_SIZES = ((1, 16), (2, 100), (1, 33), (1, 256))

# The first two mean the same, the others something else.
COMPARED = (
    "She plays the violin in a small orchestra.",
    "He is a musician who performs with a chamber ensemble.",
    "Where does this train go?",
    "The kettle is boiling.",
)


def read_texts(path: Path = TEXTS) -> list[str]:
    """The texts of a file, which have empty lines between them."""
    return [" ".join(text.split()) for text in path.read_text("utf-8").split("\n\n")]


def read_tokenizer(folder: Path) -> Tokenizer:
    """The model's own tokenizer, without any limit on the length."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str], seq: int | None = None) -> Feed:
    """The int64 inputs (len(texts), seq) of the model: cut to ``seq`` tokens and padded to it.

    Without ``seq`` it is the length of the longest text.
    """
    lengths = [len(found.ids) for found in tokenizer.encode_batch(texts)]
    width = max(lengths) if seq is None else seq
    tokenizer.enable_truncation(width)
    tokenizer.enable_padding(length=width)
    try:
        found = tokenizer.encode_batch(texts)
    finally:
        tokenizer.no_padding()
        tokenizer.no_truncation()
    return {
        "input_ids": np.array([each.ids for each in found], np.int64),
        "attention_mask": np.array([each.attention_mask for each in found], np.int64),
        "token_type_ids": np.array([each.type_ids for each in found], np.int64),
    }


def choose(lengths: list[int], batch: int, seq: int) -> list[int]:
    """Which texts make up a batch: one that fills ``seq``, then ever shorter ones, round about.

    ``lengths`` are the texts' tokens. The first is the shortest text of at least ``seq`` tokens,
    or the longest of all; those after it need padding.
    """
    order = sorted(range(len(lengths)), key=lambda at: lengths[at])
    first = next((at for at, text in enumerate(order) if lengths[text] >= seq), len(order) - 1)
    return [order[(first - step) % (first + 1)] for step in range(batch)]


def feed_of_size(tokenizer: Tokenizer, texts: list[str], batch: int, seq: int) -> Feed:
    """Inputs of exactly (batch, seq) made of real texts."""
    lengths = [len(found.ids) for found in tokenizer.encode_batch(texts)]
    return encode(tokenizer, [texts[at] for at in choose(lengths, batch, seq)], seq)


def cosines(embeddings: np.ndarray) -> np.ndarray:
    """Cosine similarities (n, n) of embeddings (n, d), which need not have the length 1."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    return unit @ unit.T
