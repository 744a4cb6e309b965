"""Whole networks of random weights: one executable each, every size, against onnxruntime."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from model_testing import GROWTH, assert_alike, assert_same_nan, growth, results
from tvm import relax

import tvm_moonpoly as mp
from bench.engines import OURS, Engine, run_onnxruntime, run_tvm
from bench.models import networks_decoder, networks_resnet, networks_vit
from bench.models.memory import resident
from relax_passes import Report


@dataclass(frozen=True)
class Model:
    """A network, its inputs of a size, sizes, one of several rows, the input that gets a NaN there,
    an empty size, and the largest of those that are drawn at random."""

    build: Callable[[], onnx.ModelProto]
    feed: Callable[..., dict[str, np.ndarray]]
    sizes: tuple[tuple[int, ...], ...]
    several: tuple[int, ...]
    undefined: str
    empty: tuple[int, ...]
    largest: tuple[int, ...]


def model_of(module: Any, *parts: Any) -> Model:
    build = functools.partial(module.build, module.SMALL)
    return Model(build, functools.partial(module.feed, module.SMALL), *parts)


MODELS = {
    "vit": model_of(
        networks_vit, ((1,), (2,), (5,), (17,), (3,)), (3,), networks_vit.INPUT, (0,), (9,)
    ),
    "decoder": model_of(
        networks_decoder,
        (
            (1, 1, 0),
            (1, 7, 0),
            (2, 5, 3),
            (1, 1, 9),
            (3, 1, 1),
            (1, 33, 0),
            (4, 1, 63),
            (1, 17, 16),
        ),
        (3, 2, 5),
        "past_key_values.0.value",
        (0, 3, 2),
        (3, 20, 40),
    ),
    "resnet": model_of(
        networks_resnet,
        ((1, 32, 32), (2, 33, 47), (1, 64, 80), (3, 17, 16), (1, 1, 1), (4, 40, 31)),
        (3, 35, 33),
        networks_resnet.INPUT,
        (0, 32, 32),
        (2, 70, 70),
    ),
}


@dataclass(frozen=True)
class Compiled:
    """A network in both engines, and what became of its operators."""

    model: Model
    ours: Engine
    reference: Engine
    report: Report


@pytest.fixture(scope="module", params=list(MODELS))
def compiled(request, target) -> Compiled:
    model, report = MODELS[request.param], Report()
    written = model.build()
    names = [each.name for each in written.graph.input]
    passes = mp.pipeline(target, report=report)
    ours = run_tvm(OURS, mp.import_onnx(written), target, passes, names)
    return Compiled(model, ours, run_onnxruntime(written, threads=1), report)


def test_every_size_through_one_executable(compiled):
    for size in [*compiled.model.sizes, *reversed(compiled.model.sizes)]:
        assert_alike(compiled.ours, compiled.reference, compiled.model.feed(*size))


def test_nothing_in_nothing_out(compiled):
    for found in results(compiled.ours, compiled.model.feed(*compiled.model.empty)):
        assert found.shape[0] == 0


def test_nan_stays_in_its_row(compiled):
    model = compiled.model
    feed = model.feed(*model.several)
    feed[model.undefined][1, -1, -1, -1] = np.nan
    assert_same_nan(compiled.ours, compiled.reference, feed, row=1)


def test_memory_does_not_grow(compiled):
    """However many different sizes there are."""
    model, rng = compiled.model, np.random.default_rng(0)
    sizes = [rng.integers(1, np.add(model.largest, 1)).tolist() for _ in range(250)]
    assert growth(compiled.ours, [model.feed(*size) for size in sizes]) <= GROWTH


def test_all_products_and_convolutions_are_ours(compiled):
    assert len(compiled.report.rewritten) > 5
    assert not compiled.report.left, compiled.report


def test_the_decoder_goes_on_from_its_own_cache():
    """Any cut of a text into calls gives the same scores, one token at a time as well."""
    config = networks_decoder.SMALL
    reference = run_onnxruntime(networks_decoder.build(config), threads=1)
    whole = networks_decoder.feed(config, 2, 12, 0)
    expected = results(reference, whole)[0]
    for cut in ((12,), (5, 7), (11, 1), (1,) * 12):
        found, past, begin = [], networks_decoder.feed(config, 2, 1, 0), 0
        for count in cut:
            tokens = whole[networks_decoder.INPUT][:, begin : begin + count]
            scores, *present = results(reference, {**past, networks_decoder.INPUT: tokens})
            found.append(scores)
            past = dict(
                zip(networks_decoder.caches(config, "past_key_values"), present, strict=True)
            )
            begin += count
        np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=0, atol=2e-5)


def test_a_growing_cache_takes_no_more_memory(target):
    """What a call returns is what the next one reads, without a copy; of many texts."""
    config = networks_decoder.SMALL
    written = networks_decoder.build(config)
    names = [each.name for each in written.graph.input]
    engine = run_tvm(OURS, mp.import_onnx(written), target, mp.pipeline(target), names)
    caches = networks_decoder.caches(config, "past_key_values")
    rng = np.random.default_rng(0)

    def write(calls: int) -> int:
        while calls > 0:
            batch, seq = rng.integers(1, 4), rng.integers(1, 20)
            feed = networks_decoder.feed(config, batch, seq, 0)
            for _ in range(rng.integers(10, 40)):
                _, *present = engine.prepare(feed)()
                past = dict(zip(caches, map(np.from_dlpack, present), strict=True))
                feed = {networks_decoder.INPUT: feed[networks_decoder.INPUT][:, :1], **past}
                calls -= 1
        return resident("RssAnon")

    before = write(300)
    assert write(1000) - before <= GROWTH


@pytest.mark.parametrize("name", list(MODELS))
def test_dimensions_stay_symbolic(name):
    for function in mp.import_onnx(MODELS[name].build()).functions.values():
        for block in function.body.blocks:
            for binding in block.bindings:
                if isinstance(binding.var.ty, relax.TensorType):
                    assert binding.var.ty.shape is not None, binding


def test_values_stay_sane():
    """Weights are scaled so that a network of any depth neither vanishes nor explodes."""
    for module in (networks_vit, networks_decoder, networks_resnet):
        for seed in (0, 1):
            engine = run_onnxruntime(module.build(module.SMALL, seed), threads=1)
            size = next(m.sizes[1] for m in MODELS.values() if m.build.func is module.build)
            scores = results(engine, module.feed(module.SMALL, *size))[0]
            assert 0.05 < scores.std() < 5 and np.abs(scores).max() < 20
