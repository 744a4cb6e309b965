"""Straight lines through what tasks cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def line_through(
    steps: Sequence[float], costs: Sequence[float] | np.ndarray
) -> tuple[float, float]:
    """``start`` and ``step`` of the line ``start + step * k``, neither below 0, through ``costs``
    at ``steps``: that of the least squares of relative errors."""
    from scipy.optimize import nnls

    each = np.asarray(costs, np.float64)
    terms = np.stack([np.ones(len(each)), np.asarray(steps, np.float64)], axis=1)
    (start, step), _ = nnls(terms / each[:, None], np.ones(len(each)))
    return float(start), float(step)
