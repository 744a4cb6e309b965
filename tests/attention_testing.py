"""What the tests of attention share: the packed functions on numpy arrays, and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from core_testing import CANARY, EPS, check_close, tensor

from tvm_moonpoly.operators import OperatorLibrary
from tvm_moonpoly.operators.attention_constants import (
    ATTENTION,
    ATTENTION_MASKED,
    AttentionSpec,
    Causal,
)


def call(
    library: OperatorLibrary,
    spec: AttentionSpec,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """The packed function on stored tensors."""
    name = ATTENTION if mask is None else ATTENTION_MASKED
    masks = [] if mask is None else [mask]
    library.module[name](*map(tensor, [q, k, v, *masks, spec.encode(), out]))
    return out


def plain(
    library: OperatorLibrary,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None = None,
    scale: float = 1.0,
    causal: Causal = Causal.NONE,
) -> np.ndarray:
    """Of (batch, head, row, element), all stored like that."""
    batch, heads, rows, size = q.shape
    spec = AttentionSpec(heads, size, v.shape[3], scale, k.shape[1], causal, mask=mask_axes(mask))
    out = np.full((batch, heads, rows, v.shape[3]), CANARY, np.float32)
    return call(library, spec, q, k, v, out, mask)


def mask_axes(mask: np.ndarray | None) -> Any:
    """A mask lacks leading dimensions."""
    absent = 4 - (4 if mask is None else mask.ndim)
    return (*[None] * absent, *range(4 - absent))


def visible(rows: int, keys: int, causal: Causal) -> np.ndarray:
    """Which keys each row sees."""
    later = np.arange(keys) - np.arange(rows)[:, None]
    if causal == Causal.NONE:
        return np.ones((rows, keys), bool)
    return later <= (abs(keys - rows) if causal == Causal.FROM_LAST else 0)


def parts(
    q: np.ndarray,
    k: np.ndarray,
    mask: np.ndarray | None,
    scale: float,
    causal: Causal,
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities in float64, and how far off each row of scores may be."""
    group = q.shape[1] // k.shape[1]
    q, k = q.astype(np.float64), np.repeat(k.astype(np.float64), group, 1)
    scores = scale * q @ k.swapaxes(2, 3)
    size = abs(scale) * np.abs(q) @ np.abs(k).swapaxes(2, 3)
    if mask is not None:
        scores = scores + mask.astype(np.float64)
        size = size + np.where(np.isinf(mask), 0, np.abs(mask))
    seen = visible(*scores.shape[2:], causal)
    scores = np.where(seen, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        largest = scores.max(-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - largest)
    off = np.where(seen, size, 0).max(-1, keepdims=True, initial=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = weights / weights.sum(-1, keepdims=True)
    return weights, (q.shape[3] + 4) * EPS * off


def check(
    result: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None = None,
    scale: float = 1.0,
    causal: Causal = Causal.NONE,
) -> None:
    """``result`` is the attention within what its arithmetic explains; all (batch, head, row,
    element)."""
    weights, off = parts(q, k, mask, scale, causal)
    v = np.repeat(v.astype(np.float64), q.shape[1] // k.shape[1], 1)
    keys = k.shape[2]
    with np.errstate(invalid="ignore"):
        # where nothing is seen, 0 * NaN is meant; unseen values do not count
        expected = np.where(np.isnan(weights), 0, weights) @ v
        size = np.where(np.isnan(weights), 0, weights) @ np.abs(v)
    lost = np.isnan(weights).any(-1, keepdims=True) if keys else np.zeros(expected.shape, bool)
    expected = np.where(lost, np.nan, expected)
    assert np.isnan(result[np.broadcast_to(lost, result.shape)]).all()
    # weights are off by twice what scores are, exp by some ulp, and the sums by their length
    bound = (2 * off + (keys + 12) * EPS) * size + 1e-30
    kept = ~np.broadcast_to(lost, result.shape)
    shown = np.where(kept, result, 0), np.where(kept, expected, 0)
    check_close(shown[0].astype(np.float32), shown[1], np.where(kept, bound, 1))
