"""The numbers of operands and results as numpy has them, which knows no bfloat16."""

from __future__ import annotations

import numpy as np

#: Bytes of an element; bfloat16 lies in numpy arrays as its bits.
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

_STORED: dict[str, np.dtype] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
}

#: Twice the largest relative error of rounding to the type, what a result may be off by.
ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-16}


def stored(dtype: str) -> np.dtype:
    """The numpy type that numbers of ``dtype`` lie in arrays as."""
    return _STORED[dtype]


def to_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    """Stored numbers of ``dtype`` as float32."""
    if dtype != "bfloat16":
        return values.astype(np.float32)
    return (values.astype(np.uint32) << 16).view(np.float32)


def from_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 rounded to ``dtype``, ties to even, as stored numbers. Not for NaN or infinity."""
    if dtype != "bfloat16":
        return values.astype(stored(dtype))
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
