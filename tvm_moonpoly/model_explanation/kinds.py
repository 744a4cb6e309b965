"""What kind of work a function does, by the operators that its name lists."""

from __future__ import annotations

import re

# The first kind of which a word is in the name: a fused function belongs to its dearest operator.
KINDS = {
    "attention": ("attention",),
    "convolutions": ("conv1d", "conv2d", "depthwise", "conv"),
    "products": ("matmul", "linear", "dense"),
    "softmax, norms, sums": (
        *("softmax", "norm", "mean", "sum", "variance", "max", "min", "pool2d", "pool", "argmax"),
    ),
    "moves": (
        *("transpose", "transposed", "reshape", "concatenate", "concat", "split", "slice", "take"),
        *("gather", "pad", "copy", "broadcast", "tile", "where", "resize2d", "flatten", "expand"),
    ),
}
ELEMENTWISE = "element by element"


def kind_of(name: str) -> str:
    """The kind of the function `name`: `fused_matmul1_add2` is a product."""
    words = {re.sub(r"\d+$", "", word) for word in name.split("_")} | set(name.split("_"))
    for kind, marks in KINDS.items():
        if words & set(marks):
            return kind
    return ELEMENTWISE
