"""Whole graphs: compiled once by our pipeline and once by plain TVM, run at many sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tvm
from bounded import Bounded, assert_within
from relax_testing import TARGET, module
from tvm import relax

from relax_passes import Report, pipeline

Feed = Sequence[Any]  # arrays, and whatever else a function takes: shapes, integers


def compiled(mod: tvm.IRModule, passes: tvm.transform.Pass) -> relax.VirtualMachine:
    return relax.VirtualMachine(
        tvm.compile(mod, TARGET, relax_pipeline=passes),
        tvm.cpu(),
    )


def ours(mod: tvm.IRModule, **options: Any) -> tuple[relax.VirtualMachine, Report]:
    report = Report()
    return compiled(mod, pipeline(TARGET, report=report, **options)), report


def plain(mod: tvm.IRModule) -> relax.VirtualMachine:
    return compiled(mod, relax.get_default_pipeline(TARGET))


def flat(results: Any) -> list[Any]:
    """The leaves of nested tuples, in order."""
    if isinstance(results, tuple | list | tvm.ir.Array):
        return [leaf for each in results for leaf in flat(each)]
    return [results]


def run(vm: relax.VirtualMachine, feed: Feed, name: str = "main") -> list[np.ndarray]:
    """The tensors that `name` returns for `feed`, of which it gets copies."""
    copies = [tvm.runtime.tensor(x.copy()) if isinstance(x, np.ndarray) else x for x in feed]
    return [leaf.numpy() for leaf in flat(vm[name](*copies))]


def assert_right(actual: Sequence[np.ndarray], expected: Any) -> None:
    """Bounded values within their bounds; arrays, which are exact, equal."""
    expected = flat(expected)
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        if isinstance(want, Bounded):
            assert_within(got, want)
        else:
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want, strict=True)


def check(
    mod: tvm.IRModule | relax.Function,
    feeds: Iterable[Feed],
    reference: Callable[..., Any],
    *,
    name: str = "main",
    ours_only: Iterable[Feed] = (),
    also_plain: bool = True,
) -> Report:
    """Our executable and plain TVM's agree with `reference` on `feeds`.

    `reference` takes what the function takes and returns Bounded values or exact arrays, in nested
    tuples. Plain TVM is wrong on the feeds `ours_only`, or on all of them and on the module itself
    without `also_plain`; a comment at the call says why. All matmuls must have been rewritten.
    """
    mod = mod if isinstance(mod, tvm.IRModule) else module(mod)
    vm, report = ours(mod)
    assert len(report) > 0
    checked = [(feed, reference(*feed)) for feed in feeds]
    for feed, expected in [*checked, *((feed, reference(*feed)) for feed in ours_only)]:
        assert_right(run(vm, feed, name), expected)
    if also_plain:
        vm = plain(mod)
        for feed, expected in checked:
            assert_right(run(vm, feed, name), expected)
    # only convolutions of weights that are no constants
    reasons = {(each.operator, each.detail) for each in report.left}
    assert reasons <= {("conv2d", "the weight is not a constant")}, report
    return report


def lifted(
    mod: tvm.IRModule, weights: Sequence[np.ndarray], name: str = "main", **options: Any
) -> tuple[Callable[[Feed], list[np.ndarray]], Report]:
    """`name` as a function of its inputs alone: its other parameters, `weights`, have been
    transformed once by `NAME_transform_params`."""
    vm, report = ours(mod, lift_parameters=True, **options)
    arguments = transformed(vm, name, [tvm.runtime.tensor(each) for each in weights])
    return lambda feed: run(vm, (*feed, *arguments), name), report


def transformed(vm: relax.VirtualMachine, name: str, weights: Sequence[Any]) -> list[Any]:
    """What `name` takes for the parameters `weights` when they have been lifted out of it."""
    return list(vm[f"{name}_transform_params"](tuple(weights)))


def details(report: Report) -> list[str]:
    return [entry.detail for entry in report]
