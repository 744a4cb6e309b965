"""A small vision transformer with a dynamic batch, end to end."""

from __future__ import annotations

import numpy as np
import pytest
from bounded import concat, constant, gelu, layer_norm, sampled, softmax
from graph_testing import assert_right, check, lifted
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op, spec

IMAGE, PATCH, CHANNELS = 16, 4, 3
PATCHES = (IMAGE // PATCH) ** 2
WIDTH, HEADS, INNER, BLOCKS, CLASSES = 32, 4, 64, 2, 10
DEPTH = WIDTH // HEADS
EPSILON = 1e-5
BATCHES = (1, 2, 5, 17, 0)


class Block(nn.Module):
    def __init__(self):
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, eps=EPSILON) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        qkv = op.reshape(self.qkv(self.norm1(x)), (batch, length, 3, HEADS, DEPTH))
        qkv = op.permute_dims(qkv, [2, 0, 3, 1, 4])
        parts = op.split(qkv, 3, axis=0)
        q, k, v = (op.reshape(part, (batch, HEADS, length, DEPTH)) for part in parts)
        scores = op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])) * DEPTH**-0.5
        mixed = op.permute_dims(op.matmul(op.softmax(scores), v), [0, 2, 1, 3])
        x = x + self.out(op.reshape(mixed, (batch, length, WIDTH)))
        return x + self.down(op.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self):
        self.patches = nn.Conv2D(CHANNELS, WIDTH, PATCH, stride=PATCH)
        self.token = nn.Parameter((1, 1, WIDTH))
        self.positions = nn.Parameter((1, PATCHES + 1, WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.norm = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, image):
        batch = image.shape[0]
        x = op.reshape(self.patches(image), (batch, WIDTH, PATCHES))
        x = op.permute_dims(x, [0, 2, 1])
        x = op.concat([op.broadcast_to(self.token, (batch, 1, WIDTH)), x], dim=1)
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        first, _ = op.split(self.norm(x), [1], axis=1)
        return self.head(op.reshape(first, (batch, WIDTH)))


def random_weights(params):
    """Scaled by the width of the input, so that values stay near 1 from layer to layer."""
    rng = np.random.default_rng(7)
    weights = {}
    for name, param in params:
        shape = tuple(int(dim) for dim in param.shape)
        scale = max(1, int(np.prod(shape[1:]))) ** -0.5 if name.endswith("weight") else 0.5
        weights[name] = rng.normal(0, scale, shape).astype("float32")
        if "norm" in name and name.endswith("weight"):
            weights[name] = (1 + 0.1 * weights[name]).astype("float32")
    return weights


def reference(image, w):
    """The model in float64, written from its definition, with the bound of a run in float32."""
    return sampled(lambda start: forward(start(image), w))


def forward(image, w):
    batch, side = image.shape[0], IMAGE // PATCH

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], EPSILON)

    def attention(x, name):
        qkv = linear(x, f"{name}.qkv").reshape(*x.shape[:2], 3, HEADS, DEPTH)
        q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        scale = constant(DEPTH**-0.5)
        mixed = softmax(q @ k.transpose(0, 1, 3, 2) * scale) @ v
        return linear(mixed.transpose(0, 2, 1, 3).reshape(*x.shape), f"{name}.out")

    patches = image.reshape(batch, CHANNELS, side, PATCH, side, PATCH)
    patches = patches.transpose(0, 2, 4, 1, 3, 5).reshape(batch, PATCHES, CHANNELS * PATCH**2)
    x = patches @ w["patches.weight"].reshape(WIDTH, -1).T + w["patches.bias"]
    x = concat([np.broadcast_to(w["token"], (batch, 1, WIDTH)), x], 1) + w["positions"]
    for i in range(BLOCKS):
        name = f"blocks.{i}"
        x = x + attention(norm(x, f"{name}.norm1"), name)
        x = x + linear(gelu(linear(norm(x, f"{name}.norm2"), f"{name}.up")), f"{name}.down")
    return linear(norm(x, "norm")[:, 0], "head")


@pytest.fixture(scope="module")
def model():
    image = spec.Tensor(["batch", CHANNELS, IMAGE, IMAGE], "float32")
    mod, params = VisionTransformer().export_tvm({"forward": {"image": image}})
    rng = np.random.default_rng(11)
    shape = CHANNELS, IMAGE, IMAGE
    images = [rng.standard_normal((batch, *shape), "float32") for batch in BATCHES]
    return mod, random_weights(params), images


def test_weights_as_parameters(model):
    mod, weights, images = model
    feeds = [(image, *weights.values()) for image in images]
    report = check(mod, feeds, lambda image, *_: reference(image, weights), name="forward")
    assert len(report.rewritten) == BLOCKS * 5 + 1


def test_weights_packed_once(model):
    mod, weights, images = model
    run, report = lifted(mod, list(weights.values()), "forward")
    packed = [entry for entry in report if "weight packed by an operator" in entry.detail]
    assert len(packed) == BLOCKS * 4 + 1 and not report.left
    convolution = next(entry for entry in report if entry.operator == "conv2d")
    assert "weight packed by operators" in convolution.detail
    for image in images:
        assert_right(run((image,)), reference(image, weights))


def test_weights_as_constants(model):
    mod, weights, images = model
    names = [param.name for param in mod["forward"].params[1:]]
    bound = dict(zip(names, weights.values(), strict=True))
    mod = relax.transform.BindParams("forward", bound)(mod)
    feeds = [(image,) for image in images]
    report = check(mod, feeds, lambda image: reference(image, weights), name="forward")
    kinds = [entry.detail.split(",")[0] for entry in report]
    assert kinds.count("linear") == BLOCKS * 4 + 1 and kinds.count("4 heads of 8") == BLOCKS
