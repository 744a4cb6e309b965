"""From the recogniser's scores to text (connectionist temporal classification, best path)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

BLANK = 0


@dataclass(frozen=True)
class Reading:
    """What was read of one line, and the mean of the probabilities of its characters."""

    text: str
    confidence: float


def alphabet(model: onnx.ModelProto) -> list[str]:
    """The characters that the recogniser's scores are of, which its metadata lists.

    The first is the blank between characters, the last a space. Raises ValueError for a model
    without the list.
    """
    found = {each.key: each.value for each in model.metadata_props}
    if "character" not in found:
        raise ValueError("the model's metadata lists no characters")
    return ["", *found["character"].split("\n"), " "]


def decode(scores: np.ndarray, characters: list[str]) -> list[Reading]:
    """The texts of probabilities (lines, steps, characters).

    In each step the most probable character counts; one that stays for several steps is one
    character, unless a blank lies between.
    """
    readings = []
    best, probability = scores.argmax(2), scores.max(2)
    for indices, certain in zip(best, probability, strict=True):
        new = np.concatenate([[True], indices[1:] != indices[:-1]])
        kept = new & (indices != BLANK)
        text = "".join(characters[index] for index in indices[kept])
        readings.append(Reading(text, float(certain[kept].mean()) if kept.any() else 0.0))
    return readings
