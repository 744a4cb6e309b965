"""The attention operator against numpy in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from attention_testing import call, check, mask_axes, plain
from core_testing import CANARY, ROOT, tensor, values
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_moonpoly import operators
from tvm_moonpoly.operators.attention_constants import (
    ATTENTION,
    ATTENTION_MASKED,
    AttentionSpec,
    Causal,
    Place,
)

WORKER = Path(__file__).with_name("attention_memory_worker.py")


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


SIZES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 129)


@settings(max_examples=150)
@given(data=st.data())
def test_of_any_size(library, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    draw = lambda options: data.draw(st.sampled_from(options))  # noqa: E731
    batch, kv_heads, group = draw((0, 1, 2, 3)), draw((1, 2, 3)), draw((1, 1, 2, 4))
    rows, keys, size, value_size = draw(SIZES), draw(SIZES), draw(SIZES[1:]), draw(SIZES[1:])
    heads = kv_heads * group
    q = values(rng, batch, heads, rows, size)
    k = values(rng, draw((1, batch)), kv_heads, keys, size)
    v = values(rng, draw((1, batch)), kv_heads, keys, value_size)
    causal = draw(list(Causal))
    mask = None
    if data.draw(st.booleans()):
        shape = [draw((1, batch)), draw((1, heads)), draw((1, rows)), keys]
        mask = values(rng, *shape[data.draw(st.integers(0, 3)) :])
        mask[rng.random(mask.shape) < draw((0.0, 0.3, 1.0))] = draw((-np.inf, -1e4, -3e38))
    scale = draw((1.0, 0.125, -0.5, 3.0))
    result = plain(library, q, k, v, mask, scale, causal)
    check(result, q, k, v, mask, scale, causal)


@pytest.mark.parametrize(
    ("rows", "keys", "size"),
    [(300, 300, 32), (64, 1200, 64), (1, 1500, 64), (33, 2100, 17), (1, 11000, 64)],
)
@pytest.mark.parametrize("causal", list(Causal))
def test_of_many_keys(library, rng, rows, keys, size, causal):
    """More rows than a tile has, keys beyond a piece of the reduction and beyond the caches, and
    several workers."""
    q, k, v = (
        values(rng, 2, 3, rows, size),
        values(rng, 2, 3, keys, size),
        values(rng, 2, 3, keys, 40),
    )
    check(plain(library, q, k, v, None, size**-0.5, causal), q, k, v, None, size**-0.5, causal)


def _stored(logical, place):
    """(batch, head, row, element) as ``place`` has it, with other columns around."""
    batch, heads, rows, size = logical.shape
    if not place.merged:
        return np.ascontiguousarray(logical.transpose(np.argsort(place.axes)))
    memory = np.full((batch, rows, place.offset + heads * size + 5), CANARY)
    inner = memory[:, :, place.offset : place.offset + heads * size]
    inner[...] = logical.transpose(0, 2, 1, 3).reshape(batch, rows, heads * size)
    return memory


@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("size", [5, 8, 32])
def test_reads_and_writes_where_it_is_told(library, rng, rows, size):
    keys = 37
    q, k, v = (
        values(rng, 2, 3, rows, size),
        values(rng, 2, 3, keys, size),
        values(rng, 2, 3, keys, size),
    )
    mask = values(rng, 2, 1, 1, keys)
    places = [
        Place(),
        Place((0, 2, 1, 3)),
        Place((1, 2, 0, 3)),
        Place.columns(),
        Place.columns(2 * 3 * size),
    ]
    for i, of_q in enumerate(places):
        of_k = (*places, Place((0, 1, 3, 2)), Place((0, 2, 3, 1)))[(i * 3) % 7]
        of_v, of_out = places[(i * 2 + 1) % 5], places[(i + 3) % 5]
        spec = AttentionSpec(
            3, size, size, 0.3, q=of_q, k=of_k, v=of_v, out=of_out, mask=(0, None, 1, 2)
        )
        out = _stored(np.full((2, 3, rows, size), CANARY), of_out)
        memory = out.copy()
        call(library, spec, _stored(q, of_q), _stored(k, of_k), _stored(v, of_v), out, mask[:, 0])
        if of_out.merged:
            columns = slice(of_out.offset, of_out.offset + 3 * size)
            inner = out[:, :, columns].reshape(2, rows, 3, size).transpose(0, 2, 1, 3)
            memory[:, :, columns] = out[:, :, columns]
            np.testing.assert_array_equal(out, memory)
        else:
            inner = out.transpose(of_out.axes)
        check(inner, q, k, v, mask, 0.3)


def test_reads_one_tensor_as_all_three(library, rng):
    """The product of a merged layer: (batch, row, 3 * heads * size)."""
    heads, size = 4, 32
    qkv = values(rng, 2, 50, 3 * heads * size)
    parts = [
        each.reshape(2, 50, heads, size).transpose(0, 2, 1, 3) for each in np.split(qkv, 3, axis=2)
    ]
    spec = AttentionSpec(
        heads,
        size,
        size,
        0.2,
        q=Place.columns(),
        k=Place.columns(heads * size),
        v=Place.columns(2 * heads * size),
        out=Place.columns(),
    )
    out = np.full((2, 50, heads * size), CANARY)
    call(library, spec, qkv, qkv, qkv, out)
    check(out.reshape(2, 50, heads, size).transpose(0, 2, 1, 3), *parts, None, 0.2)


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_nan_stays_in_its_row(library, rng, rows):
    q, k, v = values(rng, 1, 2, rows, 24), values(rng, 1, 2, 41, 24), values(rng, 1, 2, 41, 24)
    q[0, 1, rows // 2, 3] = np.nan
    result = plain(library, q, k, v)
    lost = np.isnan(result)
    assert lost[0, 1, rows // 2].all()
    assert lost.sum() == 24
    q[0, 1, rows // 2, 3] = 0.0
    mask = np.zeros((1, 2, rows, 41), np.float32)
    mask[0, 0, rows - 1] = -np.inf  # sees nothing
    mask[0, 1, 0, 5] = np.nan
    result = plain(library, q, k, v, mask)
    lost = np.isnan(result)
    assert lost[0, 0, rows - 1].all()
    assert lost[0, 1, 0].all()
    assert lost.sum() == 2 * 24


def test_what_is_masked_does_not_count_at_all(library, rng):
    """Not even by what exp rounds to: the weight is 0."""
    q, k, v = values(rng, 1, 1, 3, 8), values(rng, 1, 1, 20, 8), values(rng, 1, 1, 20, 8)
    v[0, 0, 7:] = 3e38
    mask = np.zeros((1, 20), np.float32)
    mask[0, 7:] = -np.inf
    result = plain(library, q, k, v, mask)
    check(result, q, k[:, :, :7], v[:, :, :7])


@pytest.mark.parametrize("large", [80.0, 1e4, 3e37])
def test_large_scores(library, rng, large):
    q, k, v = values(rng, 1, 1, 9, 1), values(rng, 1, 1, 30, 1), values(rng, 1, 1, 30, 9)
    q[...], k[...] = large, np.linspace(-1, 1, 30, dtype=np.float32)[:, None]
    result = plain(library, q, k, v)
    check(result, q, k, v)


def test_same_result_by_one_thread_and_two(library, rng):
    q, k, v = values(rng, 2, 4, 130, 32), values(rng, 2, 4, 130, 32), values(rng, 2, 4, 130, 32)
    first = plain(library, q, k, v, None, 0.2)
    for _ in range(5):
        np.testing.assert_array_equal(plain(library, q, k, v, None, 0.2), first)
    check(first, q, k, v, None, 0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect is called as on Linux")
def test_operands_against_protected_pages(library):
    """In a process of its own: a crash names the case that it came from."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(WORKER.parent)])}
    command_line = [sys.executable, "-X", "faulthandler", str(WORKER)]
    ran = subprocess.run(command_line, capture_output=True, text=True, env=environment, timeout=600)
    lines = ran.stdout.splitlines() or ["nothing ran"]
    assert ran.returncode == 0, f"ended with {ran.returncode} in: {lines[-1]}\n{ran.stderr[-3000:]}"
    assert lines[-1] == "all cases ran"


GOOD = {
    "q": np.zeros((2, 4, 5, 8), np.float32),
    "k": np.zeros((2, 2, 6, 8), np.float32),
    "v": np.zeros((2, 2, 6, 3), np.float32),
    "mask": np.zeros((2, 1, 5, 6), np.float32),
    "out": np.zeros((2, 4, 5, 3), np.float32),
}
#: What is wrong, and how the error begins.
WRONG = {
    "q: must be float32": {"q": np.zeros((2, 4, 5, 8))},
    "q: must have as many heads as its spec says: 3 and 4": {"q": np.zeros((2, 3, 5, 8), "f4")},
    "q: its rows must have the elements that its spec says: 7 and at least 8": {
        "q": np.zeros((2, 4, 5, 7), "f4")
    },
    "q: its batch must be 1 or that of out: 3 and 2": {"q": np.zeros((3, 4, 5, 8), "f4")},
    "q: elements of its rows must be adjacent": {"q": np.zeros((2, 4, 5, 16), "f4")[..., ::2]},
    "k: elements of its rows or of its columns must be adjacent": {
        "k": np.zeros((2, 2, 6, 16), "f4")[..., ::2]
    },
    "v: must have as many rows as k: 7 and 6": {"v": np.zeros((2, 2, 7, 3), "f4")},
    "spec: must name each of the 3 dimensions of v once": {"v": np.zeros((2, 6, 3), "f4")},
    "out: must have as many rows as q: 6 and 5": {"out": np.zeros((2, 4, 6, 3), "f4")},
    "mask: its rows must be 1 or those of the scores: 4 and 5": {
        "mask": np.zeros((2, 1, 4, 6), "f4")
    },
    "mask: must have as many columns as k has rows: 1 and 6": {
        "mask": np.zeros((2, 1, 5, 1), "f4")
    },
    "mask: elements of its rows must be adjacent": {
        "mask": np.zeros((2, 1, 5, 12), "f4")[..., ::2]
    },
    "spec: must have 19 elements, not 18": {"spec": np.zeros(18, np.int64)},
    "spec: its heads must be from 1 to 1048576, not 0": {"spec": np.zeros(19, np.int64)},
}


@pytest.mark.parametrize("message", WRONG)
def test_errors_name_the_argument_and_the_rule(library, message):
    spec = AttentionSpec(4, 8, 3, 1.0, 2)
    given = {**GOOD, "spec": spec.encode(), **WRONG[message]}
    order = ("q", "k", "v", "mask", "spec", "out")
    with pytest.raises((ValueError, TypeError), match="^" + message.replace("(", r"\(")):
        library.module[ATTENTION_MASKED](*(tensor(given[name]) for name in order))


def test_takes_no_other_numbers():
    for wrong in ({"kv_heads": 3}, {"size": 0}, {"q": Place(offset=-1)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AttentionSpec(**{"heads": 4, "size": 8, "value_size": 8, "scale": 1.0, **wrong})


def test_the_mask_may_be_a_null_only_where_there_is_none(library):
    spec = AttentionSpec(4, 8, 3, 1.0, 2, mask=mask_axes(None))
    arrays = [GOOD["q"], GOOD["k"], GOOD["v"], spec.encode(), GOOD["out"].copy()]
    library.module[ATTENTION](*map(tensor, arrays))
    with pytest.raises(TypeError, match="^mask: must be a tensor, not None"):
        library.module[ATTENTION_MASKED](*map(tensor, arrays[:3]), None, *map(tensor, arrays[3:]))
