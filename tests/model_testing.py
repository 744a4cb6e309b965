"""What is asked of every whole model: results, NaN and memory as in onnxruntime."""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping, Sequence

import numpy as np

from bench.engines import Engine, as_arrays, relative_error
from bench.models.memory import resident

TOLERANCE = 1e-4
GROWTH = 2 << 20  # bytes in a thousand calls: a tensor of 2 KiB each would be noticed

Feed = Mapping[str, np.ndarray]


def results(engine: Engine, feed: Feed) -> list[np.ndarray]:
    """All outputs of one call."""
    return as_arrays(engine.prepare(feed)())


def assert_alike(ours: Engine, reference: Engine, feed: Feed) -> None:
    """All results within the tolerance of the largest output."""
    for found, expected in zip(results(ours, feed), results(reference, feed), strict=True):
        assert found.dtype == expected.dtype
        assert relative_error(found, expected) <= TOLERANCE


def assert_same_nan(ours: Engine, reference: Engine, feed: Feed, row: int) -> None:
    """NaN where onnxruntime has it, which is in ``row`` of the batch and in no other; the rest
    within the tolerance."""
    all_expected = results(reference, feed)
    assert any(np.isnan(each[row]).any() for each in all_expected), "the test's NaN is nowhere"
    for found, expected in zip(results(ours, feed), all_expected, strict=True):
        undefined = np.isnan(expected)
        assert not np.delete(undefined, row, axis=0).any(), "the test's NaN is elsewhere"
        np.testing.assert_array_equal(np.isnan(found), undefined)
        assert relative_error(found[~undefined], expected[~undefined]) <= TOLERANCE


def growth(engine: Engine, feeds: Sequence[Feed], calls: int = 1000, before: int = 300) -> int:
    """Bytes by which this process grows in ``calls`` calls of changing sizes, after others. Where
    that is more than ``GROWTH``, the least of three times so many: what is lost is lost each time,
    and what the allocator keeps is not."""
    draw = random.Random(0)

    def repeated(count: int) -> int:
        gc.collect()
        start = resident()
        for _ in range(count):
            engine.prepare(draw.choice(feeds))()
        gc.collect()
        return resident() - start

    repeated(before)
    grown = [repeated(calls)]
    while min(grown) > GROWTH and len(grown) < 3:
        grown.append(repeated(calls))
    return min(grown)
