"""How a convolution is assembled: its form, blocks and micro-kernels, the cost, and the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.target import Target

from tvm_moonpoly.arguments import require, require_flags, size_or_none, sizes, target_of
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.explanation import used, used_json
from tvm_moonpoly.logs import TuningLog
from tvm_moonpoly.machine import Machine, no_convolutions
from tvm_moonpoly.operators.conv_constants import ConvSpec
from tvm_moonpoly.planner import conv
from tvm_moonpoly.planner.conv_blocks import workspace_bytes
from tvm_moonpoly.planner.conv_shapes import Convolution, ConvPlan, Form

#: What is said of each form.
FORMS = {
    Form.JOINED: "rows of the products are the pixels of the input, as they lie",
    Form.ROWS: "rows of the products are windows of the input, as they lie, row by row",
    Form.WINDOWS: "a band of overlapping windows is copied for each block",
    Form.PIXELS: "a band of windows, each on its own, is copied for each block",
    Form.PLACES: "each place of the kernel by itself, on the pixels that see the input there",
    Form.OFFSETS: "windows are read at offsets in the rows of the input, with zeros around them",
    Form.PATCHES: "by Winograd's algorithm F(2x2, 3x3): 16 products of transformed 4x4 patches",
}


@dataclass(frozen=True)
class ConvExplanation:
    """All that is known of how a convolution of (n, ``h``, ``w``, in_channels) is computed;
    ``ranked`` are the plans of all forms that were weighed, the cheapest, which is taken, first."""

    spec: ConvSpec
    h: int
    w: int
    convolution: Convolution
    machine: Machine
    log: TuningLog
    table: CostTable
    ranked: tuple[ConvPlan, ...]

    @property
    def plan(self) -> ConvPlan:
        return self.ranked[0]

    @property
    def gflops(self) -> float:
        """GFLOP/s on one core, as predicted; of the products of a direct convolution."""
        each = self.convolution
        products = each.pixels * each.depth * each.outputs * each.groups
        return 2e3 * products / max(self.plan.picoseconds, 1)

    def to_json(self) -> dict[str, Any]:
        """Plain data; times in picoseconds on one core."""
        each = self.convolution
        return {
            "output": [each.n, each.oh, each.ow, self.spec.out_channels],
            **used_json(self.machine, self.log),
            "plan": plan_json(self.plan),
            "workspace_bytes": workspace_bytes(self.plan),
            "predicted_ps": self.plan.picoseconds,
            "predicted_gflops": round(self.gflops, 2),
            "ranked": [plan_json(plan) for plan in self.ranked],
        }


def plan_json(plan: ConvPlan) -> dict[str, Any]:
    """A plan as plain data."""
    return {**vars(plan), "form": plan.form.name.lower()}


def convolution_of(spec: ConvSpec, n: int, h: int, w: int, half: bool = False) -> Convolution:
    """The convolution of an input (n, h, w, in_channels) as the planner sees it."""
    oh, ow = spec.output_size(h, w)
    return Convolution(
        n=n,
        oh=oh,
        ow=ow,
        channels=spec.in_channels // spec.groups,
        outputs=spec.out_channels // spec.groups,
        groups=spec.groups,
        kernel=spec.kernel,
        strides=spec.strides,
        dilation=spec.dilation,
        size=(h, w),
        padding=spec.padding,
        half=half,
        winograd=spec.winograd,
    )


def explained_conv2d(
    n: int,
    h: int,
    w: int,
    spec: ConvSpec,
    target: Target | dict[str, Any] | None = None,
    threads: int | None = None,
    half: bool = False,
) -> ConvExplanation:
    """How the convolution of an input (n, h, w, in_channels) is assembled. See `explain_conv2d`."""
    n, h, w = sizes(n=n, h=h, w=w)
    threads = size_or_none("threads", threads)
    require(isinstance(spec, ConvSpec), "spec", "a ConvSpec", spec)
    require_flags(half=half)
    target = None if target is None else target_of(target)
    reason = None if target is None else no_convolutions(target)
    if reason is not None:
        raise ValueError(f"target: {reason}")
    machine, log, table = used(target, threads)
    table = table.of_convolutions
    each = convolution_of(spec, n, h, w, half)
    ranked = sorted(conv.candidates(each, machine, table), key=lambda plan: plan.picoseconds)
    return ConvExplanation(spec, h, w, each, machine, log, table, tuple(ranked))


def explain_conv2d(
    n: int,
    h: int,
    w: int,
    spec: ConvSpec,
    target: Target | dict[str, Any] | None = None,
    threads: int | None = None,
    half: bool = False,
) -> str:
    """The plan for a convolution of (n, h, w, in_channels) as text, with its predicted cost.

    ``target`` is this machine's by default, ``threads`` the target's cores; ``half``: operands are
    float16. Raises ValueError for sizes below 1, an input smaller than the kernel, and targets
    without convolutions.
    """
    return text(explained_conv2d(n, h, w, spec, target, threads, half))


def text(found: ConvExplanation) -> str:
    """All of it, in a few lines."""
    spec, each, machine, plan = found.spec, found.convolution, found.machine, found.plan
    kh, kw = each.kernel
    threads = "thread" if machine.cores == 1 else "threads"
    others = [
        f"{other.form.name.lower()} would take {other.picoseconds / 1e6:.2f} us"
        for other in found.ranked[1:]
    ]
    lines = [
        f"out[{each.n}, {each.oh}, {each.ow}, {spec.out_channels}] by {kh}x{kw} kernels over "
        f"{spec.in_channels} channels"
        + (f" in {each.groups} groups" if each.groups > 1 else "")
        + f", {'fp16' if each.half else 'fp32'}, on {machine.mcpu} ({machine.isa}, "
        f"{machine.lanes} lanes, {machine.cores} {threads})",
        f"costs from the log of {found.log.machine['mcpu']} ({found.log.origin})",
        "",
        f"{plan.form.name.lower()}: {FORMS[plan.form]}",
        _blocks(plan) + (f", for each of {each.groups} groups" if each.groups > 1 else ""),
        _tiles(found),
        _threads(plan),
        _workspace(found),
        f"predicted on one core: {plan.picoseconds / 1e6:.2f} us, {found.gflops:.1f} GFLOP/s",
        *others,
    ]
    return "\n".join(lines) + "\n"


def _blocks(plan: ConvPlan) -> str:
    unit = "patches" if plan.form == Form.PATCHES else "pixels"
    rows = f"{plan.rows} rows of {plan.width} {unit}"
    block = f"{plan.width} {unit}" if plan.form in (Form.JOINED, Form.PIXELS) else rows
    return f"{plan.blocks} block{'s' * (plan.blocks > 1)} of up to {block}"


def _tiles(found: ConvExplanation) -> str:
    plan = found.plan
    tail = f", then {plan.tail_mr}x{plan.tail_nv}v" if plan.tail_nv else ""
    steps = found.convolution.channels if plan.form == Form.PATCHES else found.convolution.depth
    kc = f", {plan.kc} at a time" if plan.kc else ""
    if plan.form == Form.PLACES:
        kc = f", {found.convolution.channels} at each place"
    return f"micro-kernels {plan.mr}x{plan.nv}v{tail}, {steps} steps{kc}"


def _threads(plan: ConvPlan) -> str:
    if plan.workers == 1:
        return "by the calling thread alone"
    columns = f", each cut in {plan.splits_n} by columns" if plan.splits_n > 1 else ""
    return f"the blocks{columns}, shared out among {plan.workers} threads"


def _workspace(found: ConvExplanation) -> str:
    each, size = found.convolution, workspace_bytes(found.plan)
    buffer = 4 * each.pixels * each.depth * each.groups
    return f"workspace: {size} bytes, {size / max(buffer, 1):.1%} of an im2col buffer"
