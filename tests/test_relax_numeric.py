"""Whole functions through `pipeline`, against numpy in float64."""

import math

import numpy as np
import pytest
import tvm
from relax_testing import TARGET, module, tensor
from tvm import relax
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import Report, pipeline

W1, B1, W2, B2 = tensor(16, 40), tensor(40), tensor(16, 40) * 0.5, tensor(16)
w1, b1, w2t, b2 = (relax.const(each) for each in (W1, B1, W2, B2))
WQ, WK, WV = (tensor(16, 16) * scale for scale in (0.5, 0.6, 0.7))
wq, wk, wv = (relax.const(each) for each in (WQ, WK, WV))


@R.function
def feed_forward(x: R.Tensor(("batch", "seq", 16), "float32")):
    with R.dataflow():
        y = R.matmul(x, w1)
        z = R.add(y, b1)
        g = R.nn.gelu(z)
        t = R.permute_dims(w2t)
        u = R.matmul(g, t)
        v = R.add(u, b2)
        r = R.add(v, x)
        R.output(r)
    return r


@R.function
def attention(x: R.Tensor(("batch", "seq", 16), "float32")):
    batch, seq = T.int64(), T.int64()
    with R.dataflow():
        q = R.permute_dims(R.reshape(R.matmul(x, wq), (batch, seq, 2, 8)), axes=[0, 2, 1, 3])
        k = R.permute_dims(R.reshape(R.matmul(x, wk), (batch, seq, 2, 8)), axes=[0, 2, 3, 1])
        v = R.permute_dims(R.reshape(R.matmul(x, wv), (batch, seq, 2, 8)), axes=[0, 2, 1, 3])
        p = R.nn.softmax(R.matmul(q, k), axis=-1)
        o = R.permute_dims(R.matmul(p, v), axes=[0, 2, 1, 3])
        y = R.reshape(o, (batch, seq, 16))
        R.output(y)
    return y


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=["float64"])(x / math.sqrt(2)))


def feed_forward_reference(x):
    x = x.astype("float64")
    return gelu(x @ W1 + B1) @ W2.T + B2 + x


def attention_reference(x):
    batch, seq, _ = x.shape
    x = x.astype("float64")
    q, k, v = ((x @ w).reshape(batch, seq, 2, 8).transpose(0, 2, 1, 3) for w in (WQ, WK, WV))
    scores = q @ k.transpose(0, 1, 3, 2)
    p = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    p /= p.sum(-1, keepdims=True)
    return (p @ v).transpose(0, 2, 1, 3).reshape(batch, seq, 16)


CASES = {
    "feed forward": (feed_forward, feed_forward_reference, 2),
    "attention": (attention, attention_reference, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name):
    func, reference, count = CASES[name]
    report = Report()
    executable = tvm.compile(module(func), TARGET, relax_pipeline=pipeline(TARGET, report=report))
    assert len(report.rewritten) == count and not report.left
    vm = relax.VirtualMachine(executable, tvm.cpu())
    for batch, seq in [(1, 1), (2, 7), (3, 33), (1, 17), (0, 5), (2, 0)]:
        x = tensor(batch, seq, 16)
        result = vm["main"](tvm.runtime.tensor(x)).numpy()
        assert result.shape == x.shape
        np.testing.assert_allclose(result, reference(x), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("cores", [1, 2])
def test_reshapes_between_operators_stay_views(cores):
    several = {**dict(TARGET.attrs.items()), "kind": "llvm", "num-cores": cores}
    # of one core it is without saying, and has a library of its own where that is said
    target = TARGET if cores == 1 else tvm.target.Target(several)
    executable = tvm.compile(
        module(attention), target, relax_pipeline=pipeline(target, attention=False)
    )
    assert executable.as_text().count("vm.builtin.reshape") >= 3


def test_pipeline_leaves_a_static_model_to_tvm():
    @R.function
    def static(x: R.Tensor((4, 16), "float32")):
        y = R.matmul(x, w1)
        return y

    report = Report()
    executable = tvm.compile(module(static), TARGET, relax_pipeline=pipeline(TARGET, report=report))
    assert [entry.detail for entry in report] == ["static shapes"]
    x = tensor(4, 16)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(result, x @ W1, rtol=1e-4, atol=1e-5)
