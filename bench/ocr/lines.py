"""Lines of text: written as images, and made into the input of the networks.

The input is what the networks were trained on: height 48, colours in the order blue, green, red,
from -1 to 1, and zeros behind lines that are shorter than others of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

HEIGHT = 48
FONT_SIZE = 34
MARGIN = 4
INK, PAPER = (24, 26, 40), (250, 250, 246)

#: Of many widths, from two characters to more than a line of a book.
TEXTS = (
    "42",
    "Exit",
    "Gate B17",
    "Room 4.032",
    "14:35 to Zurich",
    "Total due: $1,284.50",
    "Please mind the gap.",
    "Ship to: 17 Harbour Road, Springfield",
    "The quick brown fox jumps over the lazy dog.",
    "Every line has a width of its own, and one executable reads them all.",
    "Matrix products and convolutions are put together from tuned pieces while the model runs.",
)
#: The same lines, several at once, of widths that are not far apart: where a line fills half of its
#: width, the recogniser magnifies rounding so much that onnxruntime itself is up to 5e-4 from a
#: result in float64 (and we are as much, on other lines).
BATCHES = ((0, 1), (2, 3, 4), (5, 6, 7, 8), (8, 8, 8, 8, 8, 8))


def write(text: str, height: int = HEIGHT) -> Image.Image:
    """An image with ``text`` in the font that Pillow brings."""
    font = ImageFont.load_default(FONT_SIZE * height / HEIGHT)
    left, _, right, _ = font.getbbox(text, anchor="lm")
    width = math.ceil(right - left) + 2 * MARGIN
    image = Image.new("RGB", (width, height), PAPER)
    ImageDraw.Draw(image).text((MARGIN - left, height / 2), text, INK, font, anchor="lm")
    return image


def prepare(image: Image.Image) -> np.ndarray:
    """One line as float32 (3, 48, width): scaled to the height, from -1 to 1, BGR."""
    if image.height != HEIGHT:
        width = max(1, math.ceil(image.width * HEIGHT / image.height))
        image = image.resize((width, HEIGHT), Image.Resampling.BILINEAR)
    pixels = np.asarray(image.convert("RGB"), np.float32)[..., ::-1]
    return np.ascontiguousarray((pixels / 255 - 0.5) / 0.5).transpose(2, 0, 1)


def batch(images: Sequence[Image.Image]) -> np.ndarray:
    """Lines as float32 (number, 3, 48, width of the widest), zeros behind the shorter ones."""
    prepared = [prepare(image) for image in images]
    result = np.zeros(
        (len(prepared), 3, HEIGHT, max(each.shape[2] for each in prepared)), np.float32
    )
    for at, each in enumerate(prepared):
        result[at, :, :, : each.shape[2]] = each
    return result
