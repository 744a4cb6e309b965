"""Graphs from `torch.export`, with dimensions that torch says are dynamic."""

from __future__ import annotations

import numpy as np
import pytest
from bounded import Bounded, constant, gelu, layer_norm, relu, softmax, where
from graph_testing import assert_right, check, details, lifted
from relax_testing import tensor

torch = pytest.importorskip("torch", reason="torch is no requirement of the tests")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

BATCH, LENGTH = (torch.export.Dim(name, min=1, max=64) for name in ("batch", "length"))
SIZES = [(2, 3), (1, 1), (5, 17), (64, 2)]


def imported(module, examples, dynamic, **options):
    """The module of the exported program, and its weights by their names in float32."""
    from tvm.relax.frontend.torch import from_exported_program

    module = module.eval()
    examples = tuple(torch.from_numpy(each) for each in examples)
    program = torch.export.export(module, examples, dynamic_shapes=dynamic)
    weights = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    return from_exported_program(program, **options), weights


def seeded(make):
    torch.manual_seed(7)
    return make()


def mlp():
    nn = torch.nn
    layers = nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 4, bias=False)
    return seeded(lambda: nn.Sequential(*layers))


def mlp_reference(x, w):
    y = gelu(Bounded.exact(x) @ w["0.weight"].T + w["0.bias"])
    return relu(y @ w["2.weight"].T + w["2.bias"]) @ w["4.weight"].T


def test_mlp_of_two_dimensions():
    mod, w = imported(mlp(), [tensor(3, 8)], ({0: BATCH},))
    report = check(mod, [(tensor(n, 8),) for n in (1, 5, 64)], lambda x: mlp_reference(x, w))
    assert details(report)[:2] == ["linear, fused bias + gelu", "linear, fused bias + relu"]


def test_mlp_of_three_dimensions():
    mod, w = imported(mlp(), [tensor(3, 5, 8)], ({0: BATCH, 1: LENGTH},))
    check(mod, [(tensor(*size, 8),) for size in SIZES], lambda x: mlp_reference(x, w))


def test_weights_kept_as_parameters():
    module = mlp()
    mod, w = imported(module, [tensor(3, 8)], ({0: BATCH},), keep_params_as_input=True)
    assert int(mod["main"].attrs["num_input"]) == 1
    weights = [w[name] for name, _ in module.named_parameters()]
    feeds = [(tensor(n, 8), *weights) for n in (1, 5, 64)]
    check(mod, feeds, lambda x, *_: mlp_reference(x, w))
    run, report = lifted(mod, weights)
    assert all("weight packed by an operator" in entry.detail for entry in report)
    for x, *_ in feeds:
        assert_right(run((x,)), mlp_reference(x, w))


def test_products_in_the_spellings_of_torch():
    class Products(torch.nn.Module):
        def forward(self, a, b, c):
            return (
                a @ b,
                torch.bmm(a, b),
                torch.einsum("bmk,bkn->bmn", a, b),
                torch.baddbmm(c, a, b),
                torch.addmm(c[0], a[0], b[0], alpha=0.5, beta=2),
                torch.mv(a[0], b[0, :, 0]),
                a.transpose(1, 2) @ a,
                torch.nn.functional.linear(a, b[0].T),
            )

    dynamic = ({0: BATCH, 1: LENGTH}, {0: BATCH}, {0: BATCH, 1: LENGTH})

    def feed(batch, length):
        return tensor(batch, length, 8), tensor(batch, 8, 6), tensor(batch, length, 6)

    def reference(a, b, c):
        a = Bounded.exact(a)
        return (
            *[a @ b] * 3,
            a @ b + c,
            (a[0] @ b[0]) * 0.5 + Bounded.exact(c[0]) * 2.0,
            a[0] @ b[0, :, 0],
            a.transpose(0, 2, 1) @ a,
            a @ b[0],
        )

    mod, _ = imported(Products(), feed(3, 5), dynamic)
    check(mod, [feed(*size) for size in SIZES], reference)


def encoder_reference(x, w, heads):
    """torch.nn.TransformerEncoderLayer, norm last, relu."""
    batch, length, width = x.shape
    x = Bounded.exact(x)
    qkv = x @ w["self_attn.in_proj_weight"].T + w["self_attn.in_proj_bias"]
    q, k, v = (
        qkv[..., i * width : (i + 1) * width]
        .reshape(batch, length, heads, width // heads)
        .transpose(0, 2, 1, 3)
        for i in range(3)
    )
    root = constant((width // heads) ** -0.25)  # torch scales both operands
    mixed = softmax((q * root) @ (k * root).transpose(0, 1, 3, 2)) @ v
    mixed = mixed.transpose(0, 2, 1, 3).reshape(batch, length, width)
    y = x + (mixed @ w["self_attn.out_proj.weight"].T + w["self_attn.out_proj.bias"])
    y = layer_norm(y, w["norm1.weight"], w["norm1.bias"], 1e-5)
    z = relu(y @ w["linear1.weight"].T + w["linear1.bias"])
    z = y + (z @ w["linear2.weight"].T + w["linear2.bias"])
    return layer_norm(z, w["norm2.weight"], w["norm2.bias"], 1e-5)


def test_encoder_layer():
    layer = seeded(lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))
    mod, w = imported(layer, [tensor(3, 5, 16)], ({0: BATCH, 1: LENGTH},))
    feeds = [(tensor(*size, 16),) for size in SIZES]
    report = check(mod, feeds, lambda x: encoder_reference(x, w, 2))
    assert len(report) == 6


def test_causal_attention():
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def feed(batch, length):
        return tuple(tensor(batch, 2, length, 8) * scale for scale in (0.25, 0.5, 1))

    def reference(q, k, v):
        root = constant(8**-0.25)
        scores = (q * root) @ (k * root).transpose(0, 1, 3, 2)
        hidden = np.triu(np.ones(scores.shape[-2:], "bool"), 1)
        return softmax(where(hidden, -1e30, scores)) @ v

    mod, _ = imported(Attention(), feed(3, 5), tuple({0: BATCH, 2: LENGTH} for _ in range(3)))
    check(mod, [feed(*size) for size in SIZES], reference)


def test_branches():
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 24), torch.nn.Linear(24, 8)

        def forward(self, x, taken):
            return torch.cond(
                taken,
                lambda x: self.down(torch.relu(self.up(x))),
                lambda x: self.down(self.up(x)),
                (x,),
            )

    module = seeded(Branches)
    examples = [tensor(3, 8), np.array(True)]
    mod, w = imported(module, examples, ({0: BATCH}, None))

    def reference(x, taken):
        y = Bounded.exact(x) @ w["up.weight"].T + w["up.bias"]
        return (relu(y) if taken else y) @ w["down.weight"].T + w["down.bias"]

    feeds = [(tensor(n, 8), np.array(taken)) for n in (1, 5, 64) for taken in (True, False)]
    check(mod, feeds, reference)


def test_dimensions_that_are_expressions():
    class Halves(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 24)

        def forward(self, x):
            halves = x.reshape(x.shape[0] * 2, 4)
            twice = torch.cat([x, x])
            return self.layer(halves), twice @ x.T, twice.T @ halves.reshape(-1, 4)

    module = seeded(Halves)
    mod, w = imported(module, [tensor(6, 8)], ({0: BATCH},))

    def reference(x):
        halves, twice = Bounded.exact(x.reshape(-1, 4)), np.concatenate([x, x])
        layer = halves @ w["layer.weight"].T + w["layer.bias"]
        return layer, Bounded.exact(twice) @ x.T, twice.T @ halves

    check(mod, [(tensor(n, 8),) for n in (1, 6, 33)], reference)
