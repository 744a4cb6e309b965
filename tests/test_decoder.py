"""A small decoder-only transformer: prefill of any length, then decoding with a growing cache."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm
import tvm_ffi
from bounded import (
    Bounded,
    assert_within,
    concat,
    constant,
    rms_norm,
    sampled,
    silu,
    softmax,
    where,
)
from graph_testing import ours, plain, transformed
from tvm import tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op, spec

WORDS, WIDTH, INNER, LAYERS, LONGEST = 50, 32, 48, 2, 64
GROUPS, SHARING, DEPTH = 2, 2, 8  # two queries share a key and a value, in each of two groups
QUERIES, KEYS = GROUPS * SHARING * DEPTH, GROUPS * DEPTH
EPSILON = 1e-5
LEAST = float(np.finfo("float32").min)


class Layer(nn.Module):
    def __init__(self):
        self.norm1, self.norm2 = (
            nn.RMSNorm(WIDTH, axes=[-1], epsilon=EPSILON, bias=False) for _ in range(2)
        )
        self.qkv = nn.Linear(WIDTH, QUERIES + 2 * KEYS)
        self.out = nn.Linear(QUERIES, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, rotations, mask, past_keys, past_values):
        """x (n, WIDTH); the keys and values so far (GROUPS, past, DEPTH), or None."""
        length = x.shape[0]
        q, k, v = op.split(self.qkv(self.norm1(x)), [QUERIES, QUERIES + KEYS], axis=1)
        q = op.permute_dims(op.reshape(q, (length, GROUPS, SHARING, DEPTH)), [1, 2, 0, 3])
        k, v = (
            op.permute_dims(op.reshape(each, (length, GROUPS, DEPTH)), [1, 0, 2]) for each in (k, v)
        )
        q, k = rotate(q, rotations), rotate(k, rotations)
        if past_keys is not None:
            k, v = op.concat([past_keys, k], dim=1), op.concat([past_values, v], dim=1)
        scores = op.matmul(q, op.permute_dims(op.unsqueeze(k, 1), [0, 1, 3, 2])) * DEPTH**-0.5
        if mask is not None:
            scores = scores + mask
        mixed = op.matmul(op.softmax(scores), op.unsqueeze(v, 1))
        x = x + self.out(op.reshape(op.permute_dims(mixed, [2, 0, 1, 3]), (length, QUERIES)))
        y = self.norm2(x)
        return x + self.down(op.silu(self.gate(y)) * self.up(y)), k, v


def rotate(x, rotations):
    """Rotary positions: x (..., n, DEPTH), the cosines and sines (n, DEPTH)."""
    cosines, sines = rotations
    left, right = op.split(x, 2, axis=x.ndim - 1)
    return x * cosines + op.concat([op.negative(right), left], dim=x.ndim - 1) * sines


class Decoder(nn.Module):
    def __init__(self):
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.cosines, self.sines = (nn.Parameter((LONGEST, DEPTH)) for _ in range(2))
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(WIDTH, axes=[-1], epsilon=EPSILON, bias=False)

    def prefill(self, tokens):
        """(n,) -> logits (n, WORDS), and the keys and values (LAYERS, GROUPS, n, DEPTH)."""
        length = tokens.shape[0]
        mask = op.triu(op.full((length, length), LEAST, "float32"), diagonal=1)
        return self.run(tokens, 0, mask, None, None)

    def decode(self, token, keys, values):
        """The same for one token after `past` others, with theirs in front of its own."""
        return self.run(token, keys.shape[2], None, keys, values)

    def run(self, tokens, past, mask, keys, values):
        positions = op.arange(past, past + tokens.shape[0], dtype="int32")
        rotations = [op.take(each, positions, axis=0) for each in (self.cosines, self.sines)]
        x = self.embedding(tokens)
        all_keys, all_values = [], []
        for i, layer in enumerate(self.layers):
            one_of_each = (None, None)
            if keys is not None:
                one_of_each = [
                    op.squeeze(op.split(each, LAYERS, axis=0)[i], 0) for each in (keys, values)
                ]
            x, k, v = layer(x, rotations, mask, *one_of_each)
            all_keys.append(op.unsqueeze(k, 0))
            all_values.append(op.unsqueeze(v, 0))
        logits = op.matmul(self.norm(x), op.permute_dims(self.embedding.weight))
        return logits, op.concat(all_keys, dim=0), op.concat(all_values, dim=0)


def exported(param_mode="plain"):
    cache = spec.Tensor([LAYERS, GROUPS, "past", DEPTH], "float32")
    modes = {"$": {"param_mode": param_mode, "effect_mode": "none"}}
    return Decoder().export_tvm(
        {
            "prefill": {"tokens": spec.Tensor(["n"], "int32"), **modes},
            "decode": {
                "token": spec.Tensor([1], "int32"),
                "keys": cache,
                "values": cache,
                **modes,
            },
        }
    )


def random_weights(params):
    rng = np.random.default_rng(3)
    angles = np.outer(np.arange(LONGEST), 100.0 ** -(np.arange(DEPTH // 2) / (DEPTH // 2)))
    angles = np.concatenate([angles, angles], axis=1)
    weights = {}
    for name, param in params:
        shape = tuple(int(dim) for dim in param.shape)
        if "norm" in name:
            weights[name] = rng.normal(1, 0.1, shape)
        elif name in ("cosines", "sines"):
            weights[name] = np.cos(angles) if name == "cosines" else np.sin(angles)
        else:
            weights[name] = rng.normal(0, 0.3 if "embedding" in name else shape[-1] ** -0.5, shape)
    return {name: array.astype("float32") for name, array in weights.items()}


def logits_of(tokens, w, start):
    """The whole sequence at once, written from the definition of the model."""
    length = len(tokens)
    cosines, sines = (start(w[name][:length]) for name in ("cosines", "sines"))
    hidden = np.triu(np.ones((length, length), "bool"), 1)

    def turned(x):
        left, right = x[..., : DEPTH // 2], x[..., DEPTH // 2 :]
        return x * cosines + concat([-right, left], -1) * sines

    x = start(w["embedding.weight"][tokens])
    for i in range(LAYERS):
        layer = {name: w[f"layers.{i}.{name}.weight"] for name in ("qkv", "out", "gate", "up")}
        y = rms_norm(x, w[f"layers.{i}.norm1.weight"], EPSILON)
        qkv = y @ layer["qkv"].T + w[f"layers.{i}.qkv.bias"]
        q = qkv[:, :QUERIES].reshape(length, GROUPS, SHARING, DEPTH).transpose(1, 2, 0, 3)
        k, v = (
            qkv[:, begin : begin + KEYS].reshape(length, GROUPS, 1, DEPTH).transpose(1, 2, 0, 3)
            for begin in (QUERIES, QUERIES + KEYS)
        )
        scores = turned(q) @ turned(k).transpose(0, 1, 3, 2) * constant(DEPTH**-0.5)
        mixed = softmax(where(hidden, LEAST, scores)) @ v
        x = x + mixed.transpose(2, 0, 1, 3).reshape(length, QUERIES) @ layer["out"].T
        y = rms_norm(x, w[f"layers.{i}.norm2.weight"], EPSILON)
        inner = silu(y @ layer["gate"].T) * (y @ layer["up"].T)
        x = x + inner @ w[f"layers.{i}.down.weight"].T
    return rms_norm(x, w["norm.weight"], EPSILON) @ w["embedding.weight"].T


def generate(vm, arguments, prompt, count, prefix=0):
    """`prompt` and `count` tokens more, none of them twice, and the logits of each position. Of the
    prompt, `prefix` tokens go through `prefill` (all of them if 0), the rest through `decode`.
    `arguments` are what each of the two functions takes in addition."""

    def call(name, tokens, *cache):
        tokens = tvm.runtime.tensor(np.array(tokens, "int32"))
        return vm[name](tokens, *cache, *arguments[name])

    tokens = list(prompt)
    done = prefix or len(prompt)
    logits, *cache = call("prefill", tokens[:done])
    rows = [logits.numpy()]
    while len(tokens) < len(prompt) + count or done < len(tokens):
        if done == len(tokens):
            likeliest = np.argsort(-rows[-1][-1])
            tokens.append(next(int(each) for each in likeliest if each not in tokens))
        logits, *cache = call("decode", tokens[done : done + 1], *cache)
        done += 1
        assert all(tuple(each.shape) == (LAYERS, GROUPS, done, DEPTH) for each in cache)
        rows.append(logits.numpy())
    return tokens, np.concatenate(rows)


PROMPTS = ([7, 3, 11, 4, 29], [42], list(range(17)))


def check_generation(vm, arguments, weights):
    for prompt in PROMPTS:
        tokens, logits = generate(vm, arguments, prompt, 12)
        assert_within(logits, sampled(lambda start, t=tokens: logits_of(t, weights, start)))
    again, same = generate(vm, arguments, PROMPTS[-1], 12, prefix=1)
    assert_within(same, sampled(lambda start: logits_of(again, weights, start)))


@pytest.fixture(scope="module")
def decoder():
    mod, params = exported()
    return mod, random_weights(params)


def on_device(weights):
    return [tvm.runtime.tensor(array) for array in weights.values()]


def for_both(arguments):
    return {name: arguments for name in ("prefill", "decode")}


def check_report(report):
    """All products of `prefill` are rewritten, two as one attention; of `decode`, whose layers see
    one row, the attention to the cache, since nothing else is dynamic there."""
    counts = Counter(
        (entry.function, entry.action, entry.detail == "static shapes") for entry in report
    )
    assert counts == {
        ("prefill", "rewritten", False): 6 * LAYERS + 1,
        ("decode", "rewritten", False): LAYERS,
        ("decode", "left", True): 5 * LAYERS + 1,
    }


def test_weights_as_parameters(decoder):
    mod, weights = decoder
    vm, report = ours(mod)
    check_generation(vm, for_both(on_device(weights)), weights)
    check_report(report)


def test_verified_call_by_call(decoder):
    mod, weights = decoder
    vm, _ = ours(mod, verify=True)
    check_generation(vm, for_both(on_device(weights)), weights)


def test_plain_tvm_agrees(decoder):
    mod, weights = decoder
    check_generation(plain(mod), for_both(on_device(weights)), weights)


def test_weights_as_one_tuple():
    mod, params = exported("packed")
    weights = random_weights(params)
    vm, report = ours(mod)
    check_report(report)
    check_generation(vm, for_both([tuple(on_device(weights))]), weights)


@pytest.mark.parametrize("param_mode", ["plain", "packed"])
def test_weights_packed_once(param_mode):
    mod, params = exported(param_mode)
    weights = random_weights(params)
    vm, report = ours(mod, lift_parameters=True, static=True)
    assert not report.left, report
    packed = [entry for entry in report if "weight packed by an operator" in entry.detail]
    assert len(packed) == 2 * (5 * LAYERS + 1)
    given = on_device(weights) if param_mode == "plain" else [tuple(on_device(weights))]
    arguments = {name: transformed(vm, name, given) for name in ("prefill", "decode")}
    check_generation(vm, arguments, weights)


class Remembering(nn.Module):
    """Attention over all rows ever given, which TVM's own cache holds and writes in place."""

    def __init__(self):
        self.project = nn.Linear(WIDTH, 2 * WIDTH)
        self.keys, self.values = (nn.KVCache(2, [WIDTH]) for _ in range(2))

    def forward(self, x, total: tirx.Var):
        keys, values = op.split(self.project(x), 2, axis=1)
        self.keys.append(keys)
        self.values.append(values)
        scores = op.matmul(x, op.permute_dims(self.keys.view(total)))
        return op.matmul(op.softmax(scores * WIDTH**-0.5), self.values.view(total))


def test_cache_written_in_place():
    mod, params = Remembering().export_tvm(
        {"forward": {"x": spec.Tensor(["n", WIDTH], "float32"), "total": int}}
    )
    rng = np.random.default_rng(5)
    w = {
        name: (rng.standard_normal([int(dim) for dim in param.shape]) / 4).astype("float32")
        for name, param in params
    }
    steps = [rng.standard_normal((n, WIDTH), "float32") for n in (1, 3, 1, 17, 2)]
    vm, report = ours(mod)
    assert len(report.rewritten) == 2 and not report.left
    for each in (vm, plain(mod)):
        cache = each["_initialize_effect"]()
        for i, x in enumerate(steps):
            seen = np.concatenate(steps[: i + 1])
            arguments = tvm.runtime.tensor(x), tvm_ffi.Shape([len(seen)])
            y, cache = each["forward"](*arguments, *cache, *on_device(w))
            seen = Bounded.exact(seen) @ w["project.weight"].T + w["project.bias"]
            scores = Bounded.exact(x) @ seen[:, :WIDTH].transpose(1, 0) * constant(WIDTH**-0.5)
            assert_within(y.numpy(), softmax(scores) @ seen[:, WIDTH:])
