"""The planner of convolutions: its specification, its native twin, and the bound on workspace."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import tvm
from test_core_planner import SETTINGS

import tvm_moonpoly
from tvm_moonpoly import native
from tvm_moonpoly.costmodel.tables import CostTable, Traffic
from tvm_moonpoly.costmodel.tasks import Level, TaskCost
from tvm_moonpoly.emit import INT, Functions, loop
from tvm_moonpoly.microkernels.records import Form as KernelForm
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner import conv, conv_blocks, native_conv
from tvm_moonpoly.planner import native as native_planner
from tvm_moonpoly.planner.conv_blocks import BAND_PART, BOUNDED_BYTES, BOUNDED_KERNEL
from tvm_moonpoly.planner.conv_numbers import CONVOLUTION
from tvm_moonpoly.planner.conv_shapes import PLAN_FIELDS, Convolution, Form


def random_convolutions(count: int, seed: int) -> list[Convolution]:
    """Convolutions of all forms, small and large."""
    rng = np.random.default_rng(seed)

    def size(highest: int) -> int:
        return int(np.exp(rng.uniform(0, np.log(highest + 0.99))))

    found = []
    for _ in range(count):
        kernel = [(1, 1), (3, 3), (1, size(20)), (size(11), size(11))][rng.integers(0, 4)]
        strides = (1, 1) if rng.integers(0, 2) else (size(4), size(4))
        dilation = (1, 1) if rng.integers(0, 3) else (size(3), size(3))
        oh = 1 if rng.integers(0, 8) == 0 else size(300)
        ow = size(2000 if rng.integers(0, 4) == 0 else 300)
        padding = tuple(size(4) for _ in range(4)) if rng.integers(0, 2) else (0, 0, 0, 0)
        reach = [
            (out - 1) * stride + (places - 1) * apart + 1 - before - after
            for out, stride, places, apart, before, after in zip(
                (oh, ow), strides, kernel, dilation, padding[:2], padding[2:], strict=True
            )
        ]
        square = kernel == (3, 3) and strides == dilation == (1, 1)
        found.append(
            Convolution(
                n=size(32),
                oh=oh,
                ow=ow,
                channels=size(4 if rng.integers(0, 4) == 0 else 2048),
                outputs=16 * size(32) if rng.integers(0, 3) == 0 else size(2048),
                groups=1 if rng.integers(0, 2) else size(64),
                kernel=kernel,
                strides=strides,
                dilation=dilation,
                size=(max(reach[0], 0), max(reach[1], 0)),
                padding=padding,
                half=rng.integers(0, 4) == 0,
                winograd=square and bool(rng.integers(0, 3)),
                residual=rng.integers(0, 4) == 0,
            )
        )
    return found


CONVOLUTIONS = random_convolutions(1200, 5)


def described(each: Convolution) -> dict[str, int]:
    """What the native planner is told."""
    names = ("kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w")
    sizes = (*each.kernel, *each.strides, *each.dilation)
    numbers = dict(zip(names, sizes, strict=True))
    same = ("n", "oh", "ow", "channels", "outputs", "groups", "depth")
    numbers.update({name: getattr(each, name) for name in same})
    numbers.update(zip(("h", "w"), each.size, strict=True))
    numbers.update(zip(("top", "left", "bottom", "right"), each.padding, strict=True))
    flags = {
        "half": each.half,
        "winograd": each.winograd,
        "residual": each.residual,
    }
    return {**numbers, **{name: int(flag) for name, flag in flags.items()}}


def native_plans(machine, table) -> list[tuple[int, ...]]:
    """The plans of `CONVOLUTIONS` by the native planner, compiled alone."""
    defined = Functions()
    native_planner.emit(defined, machine, table)
    native_conv.emit(defined, machine, table)
    size = len(CONVOLUTION)

    @defined.public("plan_many", numbers="handle")
    def _(numbers):
        given = Tensor(numbers, "numbers", INT)
        with loop(given.shape[0]) as i:
            defined[native_conv.PLAN_CONV](given.data.at(i * size))

    function = native.build(defined.module(), tvm_moonpoly.detect_target())["plan_many"]
    given = np.zeros((len(CONVOLUTIONS), size), np.int64)
    for row, each in zip(given, CONVOLUTIONS, strict=True):
        for name, value in described(each).items():
            row[CONVOLUTION.index(name)] = value
    out = tvm.runtime.tensor(given)
    function(out)
    first = CONVOLUTION.index(PLAN_FIELDS[0])
    return [tuple(map(int, row[first : first + len(PLAN_FIELDS)])) for row in out.numpy()]


@pytest.fixture(scope="module", params=SETTINGS)
def setting(request):
    machine, table = SETTINGS[request.param]()
    return machine, table.of_convolutions


@pytest.mark.parametrize("cheap", [None, (3, 3), (2, 4)])
def test_tiles_turned_round(cheap):
    """3x4 from 4x3, no dearer than what is inside it; a little dearer with B far."""
    heights = {1: 8, 2: 6, 3: 4, 4: 2}
    plain = [Record(mr, nv) for nv, most in heights.items() for mr in range(1, most + 1)]
    records = [*plain, Record(1, 2, packed_a=True)]
    tasks = {r: TaskCost.linear(64 * r.mr, 640 * r.nv) for r in records}
    if cheap is not None:
        tasks[Record(*cheap)] = TaskCost.linear(10, 1200)
    table = CostTable(tasks, Traffic(**{f.name: 1 for f in fields(Traffic)}))
    more = table.of_convolutions
    turned = Record(3, 4, decisions={"row_block": 3, "unroll": 4})
    assert more.tasks.keys() - table.tasks.keys() == {turned}
    assert more.of_convolutions.tasks == more.tasks
    parts = {(4, 3): (1, 1), (3, 3): (4, 3), (2, 4): (3, 2)}
    for residency, values in more.tasks[turned].knots.items():
        knots = [
            [value * up // down for value in table.task(*tile, KernelForm.PLAIN).knots[residency]]
            for tile, (up, down) in parts.items()
        ]
        far = residency.b > Level.L1
        assert values == tuple(value + value // 64 * far for value in map(min, *knots))
    more.check()


def test_both_planners_decide_alike(setting):
    machine, table = setting
    seen = set()
    for each, found in zip(CONVOLUTIONS, native_plans(machine, table), strict=True):
        plan = conv.plan(each, machine, table)
        assert tuple(int(getattr(plan, name)) for name in PLAN_FIELDS) == found, each
        seen.add(plan.form)
    assert seen == set(Form)


def test_plans_cover_everything_once(setting):
    machine, table = setting
    for each in CONVOLUTIONS:
        plan = conv.plan(each, machine, table)
        assert plan.rows >= 1 and plan.width >= 1 and plan.blocks >= 1 and plan.splits_n >= 1
        assert 1 <= plan.workers <= min(machine.cores, 127)
        assert plan.workers <= each.groups * plan.blocks * plan.splits_n
        panels = (
            -(-each.outputs // machine.lanes) if each.winograd else each.outputs // machine.lanes
        )
        assert (panels - plan.tail_nv) % plan.nv == 0 and panels >= plan.tail_nv
        if plan.form in (Form.JOINED, Form.PIXELS):
            assert plan.blocks == -(-each.pixels // plan.width)
            continue
        images, high, wide = each.n, each.oh, each.ow
        if plan.form == Form.PATCHES:
            images, high, wide = 1, each.n * -(-each.oh // 2), -(-each.ow // 2)
        if plan.form == Form.PLACES:
            images, high = 1, each.n * each.oh
        assert plan.segments * plan.width >= wide > (plan.segments - 1) * plan.width - plan.segments
        assert plan.blocks == images * -(-high // plan.rows) * plan.segments


def test_workspace_is_bounded(setting):
    """A quarter of an im2col buffer, or the band of one pixel (of one patch) where that is more."""
    machine, table = setting
    for each in CONVOLUTIONS:
        plan = conv.plan(each, machine, table)
        buffer = 4 * each.pixels * each.depth * each.groups
        if each.kernel[0] * each.kernel[1] < BOUNDED_KERNEL or buffer < BOUNDED_BYTES:
            continue
        one = conv_blocks.band_floats(each, plan.form, 1, 1, machine, table)
        assert conv_blocks.workspace_bytes(plan) <= max(
            buffer // BAND_PART, 4 * plan.workers * one
        ), each


def test_pixels_that_lie_apart_are_costly_to_copy(setting):
    """Those of strided 1x1 convolutions, where the input is beyond the second-level cache."""
    machine, table = setting
    near = Convolution(1, 4, 4, channels=64, outputs=128, strides=(2, 2), size=(8, 8))
    far = replace(near, n=8 * machine.l2_bytes // (8 * 8 * 64 * 4))
    windows = replace(far, kernel=(3, 3))
    assert [conv.scattered(each, machine) for each in (near, far, windows)] == [False, True, False]
    block = conv_blocks.Cut(1, 28, 1, 1)
    costs = [conv.filling(each, Form.PIXELS, block, machine, table) for each in (near, far)]
    more = 28 * conv.SCATTERED * table.traffic.axpy_step
    assert costs[1] - costs[0] == more
