"""Timing one convolution as it is planned; where that is by Winograd's algorithm, also directly.

Its plan is made at the call, within the packed function: the other plans cannot be asked for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from tvm_moonpoly import operators
from tvm_moonpoly.cli import output, timing
from tvm_moonpoly.cli.timing import Call, filled
from tvm_moonpoly.explanation_conv import ConvExplanation
from tvm_moonpoly.operators import CONV2D, CONV2D_F16
from tvm_moonpoly.operators.conv_constants import (
    DEPTHWISE,
    DEPTHWISE_F16,
    ConvSpec,
    pack_conv_weight,
    pack_depthwise_weight,
)
from tvm_moonpoly.planner.conv_shapes import Form


@dataclass(frozen=True)
class ConvMeasurement:
    """Picoseconds of the call on one core, and of one that never uses Winograd's algorithm where
    the plan does. ``wall`` is the time of the call as planned, where that takes more threads than
    one, and ``threads`` how many TVM has for it."""

    found: ConvExplanation
    picoseconds: float
    direct: float | None
    wall: float | None
    threads: int

    def to_json(self) -> dict[str, Any]:
        """For `ConvExplanation.to_json`."""
        times = {
            "measured_ps": self.picoseconds,
            "measured_direct_ps": self.direct,
            "wall_ps": self.wall,
        }
        rounded = {name: None if each is None else round(each) for name, each in times.items()}
        return {**rounded, "threads": self.threads}

    def verdict(self) -> list[str]:
        """What it comes to, in sentences."""
        plan, spec = self.found.plan, self.found.spec
        what = "by micro-kernels of its own" if spec.depthwise else plan.form.name.lower()
        line = f"measured on one core: {self.picoseconds / 1e6:.2f} us, {what}"
        if not spec.depthwise:
            line += f"; {self.picoseconds / max(plan.picoseconds, 1):.2f} of what is predicted"
        lines = [line]
        if self.direct is not None:
            lines.append(
                f"directly: {self.direct / 1e6:.2f} us, {self.direct / self.picoseconds:.2f} times "
                "as long"
            )
        if self.wall is not None:
            lines.append(timing.whole_call(self.wall, plan.workers, self.threads))
        return lines


def measured(found: ConvExplanation, target: Target) -> ConvMeasurement:
    """Time the convolution of ``found`` here. The first time on a machine compiles its library, for
    one core and for all that are planned.

    Raises UserError when code for ``target`` does not run here, or the operands are too large.
    """
    spec, machine, workers = found.spec, found.machine, found.plan.workers
    timing.require_measurable(machine, _bytes(found))
    specs = [spec]
    if found.plan.form == Form.PATCHES and not spec.depthwise:
        specs.append(replace(spec, direct=True))
    with output.working("measuring the convolution"):
        one = [_call(found, each, _with_cores(target, 1)) for each in specs]
        times = np.median(timing.interleaved(one), axis=0)
        wall = None
        if workers > 1:
            wall = timing.after_a_pause(_call(found, spec, _with_cores(target, machine.cores)))
    return ConvMeasurement(
        found,
        float(times[0]),
        float(times[1]) if len(times) > 1 else None,
        wall,
        timing.threads_of(workers),
    )


def _with_cores(target: Target, cores: int) -> Target:
    config = {k: v for k, v in json.loads(str(target)).items() if k not in ("tag", "keys")}
    return Target({**config, "num-cores": cores})


def _bytes(found: ConvExplanation) -> int:
    each, spec, item = found.convolution, found.spec, 2 if found.convolution.half else 4
    images = each.n * (each.oh * each.ow * spec.out_channels)
    images += each.n * found.h * found.w * spec.in_channels
    return item * images + 4 * spec.out_channels * spec.depth


def _call(found: ConvExplanation, spec: ConvSpec, target: Target) -> Call:
    """A call of the packed function on operands of their own."""
    each, lanes = found.convolution, found.machine.lanes
    dtype = "float16" if each.half else "float32"
    x = filled(each.n, found.h, found.w, spec.in_channels, dtype=dtype)
    out = filled(each.n, each.oh, each.ow, spec.out_channels, dtype=dtype)
    inputs = spec.in_channels // spec.groups
    weight = np.full((spec.out_channels, inputs, *spec.kernel), 0.5, np.float32)
    if spec.depthwise:
        name, packed = (
            DEPTHWISE_F16 if each.half else DEPTHWISE,
            pack_depthwise_weight(weight, lanes),
        )
    else:
        name, packed = CONV2D_F16 if each.half else CONV2D, pack_conv_weight(weight, spec, lanes)
    bias = operators.pad_bias(None, spec.out_channels, lanes)
    if not spec.depthwise:
        bias = operators.pad_conv_bias(None, spec, lanes)
    tensors = [tvm.runtime.tensor(each) for each in (packed, bias, spec.encode())]
    function = operators.library(target).module[name]
    return lambda: function(x, *tensors, out)
