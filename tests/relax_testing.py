"""What the tests of the Relax passes share."""

import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import PolymerizeDynamicOps, Report
from tvm_moonpoly import operators
from tvm_moonpoly.machine import Machine

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
LANES = Machine.from_target(TARGET).lanes


def tensor(*shape):
    """Reproducible values, different for each shape."""
    rng = np.random.default_rng([7, *shape])
    return rng.standard_normal(shape, dtype="float32")


def packed(weight):
    return relax.const(operators.pack_weight(weight, LANES))


def padded(bias, n):
    return relax.const(operators.pad_bias(bias, n, LANES))


def table(n, k):
    return relax.const(operators.plan_table(n, k, TARGET), "int64")


def axes(*stored):
    return operators.encode_axes(stored)


def text(value=""):
    return relax.const(np.frombuffer(value.encode(), np.uint8), "uint8")


no_text = text()


def module(func, **others):
    """A module with `func` as its entry, and what the caller adds."""
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main"), **others})


def run_pass(mod):
    """The module after the pass, without the library (which no structural comparison can see),
    and the report."""
    report = Report()
    after = PolymerizeDynamicOps(TARGET, report)(mod)
    return after.without_attr("external_mods") if "external_mods" in after.attrs else after, report


def check(before, expected):
    """The pass turns the function `before` into `expected`. Returns the details of the report."""
    original = module(before)
    relax.analysis.well_formed(original)
    after, report = run_pass(original)
    relax.analysis.well_formed(after)
    tvm.ir.assert_structural_equal(after, module(expected))
    tvm.ir.assert_structural_equal(original, module(before))  # the input is not touched
    return [entry.detail for entry in report]


def check_left(before):
    """The pass leaves the function `before` as it is. Returns the reasons."""
    original = module(before)
    after, report = run_pass(original)
    assert after.same_as(original)
    assert not report.rewritten
    return [entry.detail for entry in report]


@R.function(pure=False)
def branches(x: R.Tensor(("n", 4), "float32"), c: R.Tensor((), "bool")):
    n = T.int64()
    if c:
        y = R.builtin.alloc_tensor(R.shape([n, 3]), R.dtype("float32"), R.prim_value(0))
    else:
        y = R.builtin.alloc_tensor(R.shape([n, 3]), R.dtype("float32"), R.prim_value(0))
    return y
