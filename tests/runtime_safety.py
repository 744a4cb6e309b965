"""A model that uses all packed functions, for test_runtime_safety. Run as a process, it does what
the process of the tests must not: it measures its memory, and forks."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from relax_testing import tensor
from tvm import relax
from tvm.script import relax as R

from relax_passes import pipeline

K, N = 64, 90  # more than whole panels
W, B = tensor(K, N), tensor(N)
w, b = relax.const(W), relax.const(B)


@R.function
def linear(x: R.Tensor(("n", 64), "float32")):
    with R.dataflow():
        y = R.matmul(x, w)
        z = R.add(y, b)
        u = R.nn.relu(z)
        R.output(u)
    return u


@R.function
def residual(x: R.Tensor(("n", 64), "float32"), r: R.Tensor(("n", 90), "float32")):
    with R.dataflow():
        y = R.matmul(x, w)
        z = R.add(y, b)
        u = R.add(z, r)
        R.output(u)
    return u


@R.function
def product(p: R.Tensor(("b", "m", "k"), "float32"), q: R.Tensor(("b", "k", "n"), "float32")):
    y = R.matmul(p, q)
    return y


@R.function
def transposed(p: R.Tensor(("b", "m", "k"), "float32"), q: R.Tensor(("b", "n", "k"), "float32")):
    with R.dataflow():
        t = R.permute_dims(q, axes=[0, 2, 1])
        y = R.matmul(p, t)
        R.output(y)
    return y


@R.function
def chained(x: R.Tensor(("n", 64), "float32"), r: R.Tensor(("n", 90), "float32")):
    with R.dataflow():
        y = R.matmul(x, w)
        z = R.sigmoid(y)
        u = R.multiply(z, r)
        R.output(u)
    return u


@R.function
def scaled(p: R.Tensor(("b", "m", "k"), "float32"), q: R.Tensor(("b", "k", "n"), "float32")):
    with R.dataflow():
        y = R.matmul(p, q)
        z = R.multiply(y, R.const(0.125, "float32"))
        u = R.nn.relu(z)
        R.output(u)
    return u


@R.function
def doubles(p: R.Tensor(("b", "m", "k"), "float64"), q: R.Tensor(("b", "k", "n"), "float64")):
    y = R.matmul(p, q)
    return y


FUNCTIONS = {
    "linear": linear,
    "residual": residual,
    "chained": chained,
    "product": product,
    "transposed": transposed,
    "scaled": scaled,
    "doubles": doubles,
}

REFERENCES = {
    "linear": lambda x: np.maximum(x @ W.astype("float64") + B, 0),
    "residual": lambda x, r: x @ W.astype("float64") + B + r,
    "chained": lambda x, r: r / (1 + np.exp(-(x @ W.astype("float64")))),
    "product": lambda p, q: p.astype("float64") @ q,
    "transposed": lambda p, q: p.astype("float64") @ q.swapaxes(1, 2),
    "scaled": lambda p, q: np.maximum(p.astype("float64") @ q / 8, 0),
    "doubles": lambda p, q: p @ q,
}


def compile_model(target):
    functions = {name: func.with_attr("global_symbol", name) for name, func in FUNCTIONS.items()}
    executable = tvm.compile(tvm.IRModule(functions), target, relax_pipeline=pipeline(target))
    return relax.VirtualMachine(executable, tvm.cpu())


def call(vm, name, *arrays):
    """On the memory of the arrays, with their strides: nothing is copied."""
    return vm[name](*map(tvm_ffi.from_dlpack, arrays)).numpy()


def check(vm, name, *arrays):
    expected = REFERENCES[name](*arrays)
    np.testing.assert_allclose(call(vm, name, *arrays), expected, rtol=1e-4, atol=1e-4)


def calls_of_many_sizes():
    """Calls of all functions, small and large enough for more than one thread."""
    calls = []
    for n in (1, 2, 7, 33, 130, 400):
        calls += [("linear", tensor(n, K)), ("residual", tensor(n, K), tensor(n, N))]
        calls += [("chained", tensor(n, K), tensor(n, N))]
        calls += [("product", tensor(2, n, K), tensor(2, K, n))]
        calls += [("scaled", tensor(2, n, K), tensor(2, K, n))]
        calls += [("doubles", *(tensor(1, 7, 7).astype("float64") for _ in range(2)))]
        calls += [("transposed", tensor(2, n, K), tensor(2, n, K))]
    return calls


def resident_kib():
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1])


def threads():
    return len(os.listdir("/proc/self/task"))


def growth(vm, most=512, attempts=3):
    """By how many KiB the process grows in 10,000 calls, after the first thousand. Where that is
    more than ``most``, the least of some attempts: what is lost is lost each time, and what the
    allocator keeps is not."""
    calls = [
        (vm[name], [tvm_ffi.from_dlpack(array) for array in arrays])
        for name, *arrays in calls_of_many_sizes()
    ]

    def repeat(count):
        for i in range(count):
            function, arguments = calls[i % len(calls)]
            function(*arguments)

    repeat(1000)
    grown = []
    while len(grown) < attempts and (not grown or min(grown) > most):
        before = resident_kib()
        repeat(10_000)
        grown.append(resident_kib() - before)
    return min(grown)


def child(vm, patience):
    """How a child that is forked now fares with a call large enough for two threads: its exit code,
    or "hangs" if it did not end in `patience` seconds."""
    x = tensor(400, K)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check(vm, "linear", x)
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


def main():
    import tvm_moonpoly

    vm = compile_model(tvm_moonpoly.detect_target(cores=2))
    before = threads()
    seen = {"forked before": child(vm, patience=300)}
    check(vm, "linear", tensor(400, K))
    seen["started"] = threads() - before
    seen["growth"] = growth(vm)
    # with threads of TVM's pool it is known to hang
    seen["forked after"] = child(vm, patience=4 if seen["started"] else 300)
    check(vm, "linear", tensor(400, K))
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
