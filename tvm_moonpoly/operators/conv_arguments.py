"""What the packed functions of a convolution check, and what follows from their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    FLOATS,
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
    ceil_div,
    div,
    let,
    select,
    when,
)
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators import dltensor
from tvm_moonpoly.operators.conv_constants import MOST, MOST_CHANNELS, ConvActivation
from tvm_moonpoly.operators.errors import require
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner.conv_blocks import PATCH
from tvm_moonpoly.planner.conv_numbers import ATTRIBUTES, CONVOLUTION
from tvm_moonpoly.planner.native_conv import at_offsets

ARGUMENTS = "moonpoly_conv_arguments"

#: The smallest and the largest of each attribute that is a count.
_RANGES = {
    **dict.fromkeys(("kernel_h", "kernel_w", "stride_h", "stride_w"), (1, MOST)),
    **dict.fromkeys(("top", "left", "bottom", "right"), (0, MOST)),
    **dict.fromkeys(("dilation_h", "dilation_w"), (1, MOST)),
    **dict.fromkeys(("groups", "in_channels", "out_channels"), (1, MOST_CHANNELS)),
    "activation": (0, int(max(ConvActivation))),
    "winograd": (0, 1),
    "planes": (0, 1),
}


def operands(dtype: str) -> dict[str, str]:
    """The operands of a convolution, as parameters of native functions."""
    values = f"{dtype}*"
    return {"x": values, "weight": FLOATS, "bias": FLOATS, "residual": values, "out": values}


def addresses(handles: Mapping[str, Expr], dtype: str) -> list[Expr]:
    """The memory of the `operands` that are given as tensors."""
    return [
        dltensor.address(handles[name], dltensor.DATA, kind.removesuffix("*"))
        for name, kind in operands(dtype).items()
    ]


def emit(functions: Functions, kind: str, dtype: str, lanes: int) -> None:
    """Define ``moonpoly_conv_arguments_<kind>``, which writes the attributes and sizes of a call
    into ``numbers``, before any function that calls it. ``residual`` is looked at if ``has`` is 1.
    """
    handles = dict.fromkeys(("x", "weight", "bias", "spec", "residual", "out"), "handle")

    @functions.fallible(f"{ARGUMENTS}_{kind}", **handles, has=INT, numbers=INTS)
    def _(has: Expr, numbers: Pointer, **given: Any) -> None:
        conv = Numbers(CONVOLUTION, numbers)
        x, out = Tensor(given["x"], "x", dtype), Tensor(given["out"], "out", dtype)
        weight, bias = Tensor(given["weight"], "weight"), Tensor(given["bias"], "bias")
        spec = Tensor(given["spec"], "spec", INT)
        for tensor, dims in ((x, 4), (out, 4), (weight, 3)):
            rule = f"must have {dims} dimensions, not #"
            require(tensor.ndim == dims, tensor.name, rule, tensor.ndim)
        bias.require_vector()
        spec.require_vector()
        count = len(ATTRIBUTES)
        require(spec.shape[0] == count, "spec", f"must have {count} elements, not #", spec.shape[0])
        s: dict[str, Expr] = {}
        for i, name in enumerate(ATTRIBUTES):
            s[name] = let(spec.data[i])
            conv[name] = s[name]
            if name in _RANGES:
                low, high = _RANGES[name]
                rule = f"its {name} must be from {low} to {high}, not #"
                require(tirx.all(s[name] >= low, s[name] <= high), "spec", rule, s[name])
        groups = s["groups"]
        channels, outputs = let(div(s["in_channels"], groups)), let(div(s["out_channels"], groups))
        even = tirx.all(
            channels * groups == s["in_channels"], outputs * groups == s["out_channels"]
        )
        require(even, "spec", "its groups, #, must divide the channels", groups)

        winograd = s["winograd"] > 0
        ones = [s[name] == 1 for name in ("stride_h", "stride_w", "dilation_h", "dilation_w")]
        fits = tirx.all(s["kernel_h"] == 3, s["kernel_w"] == 3, *ones)
        rule = "winograd needs a kernel of 3 x 3, without strides or dilation"
        require(tirx.any(tirx.Not(winograd), fits), "spec", rule)

        planes = let(s["planes"])
        n = let(x.shape[0])
        h, w = (let(select(planes > 0, x.shape[i + 1], x.shape[i])) for i in (1, 2))
        c = let(select(planes > 0, x.shape[1], x.shape[3]))
        rule = "its channels must be those of the weight: # and #"
        require(c == s["in_channels"], "x", rule, c, s["in_channels"])
        sizes = []
        for axis, (size, before, after, side) in enumerate(
            ((h, "top", "bottom", "height"), (w, "left", "right", "width"))
        ):
            letter = "hw"[axis]
            padded = let(size + s[before] + s[after])
            reach = let((s[f"kernel_{letter}"] - 1) * s[f"dilation_{letter}"] + 1)
            rule = f"its {side} with padding must be at least that of the kernel: # and #"
            require(padded >= reach, "x", rule, padded, reach)
            sizes.append(let(div(padded - reach, s[f"stride_{letter}"]) + 1))
        oh, ow = sizes
        depth = let(s["kernel_h"] * s["kernel_w"] * channels)
        panels = let(div(outputs, lanes))
        columns = let(outputs - panels * lanes)
        padded_panels = let(groups * ceil_div(outputs, lanes))
        rule = "must have as many panels as groups of outputs: # and #"
        require(weight.shape[0] == padded_panels, "weight", rule, weight.shape[0], padded_panels)
        rule = "must have as many rows as steps of the kernel: # and #"
        steps = let(select(winograd, PATCH * channels, depth))
        require(weight.shape[1] == steps, "weight", rule, weight.shape[1], steps)
        rule = f"must be {lanes} wide, not #"
        require(weight.shape[2] == lanes, "weight", rule, weight.shape[2])
        stride = weight.row_stride(as_int(lanes), padded_panels * steps)
        require(stride == lanes, "weight", "must be compact")
        rule = "must have as many elements as the padded weight has columns: # and #"
        wide = let(padded_panels * lanes)
        require(bias.shape[0] == wide, "bias", rule, bias.shape[0], wide)

        def require_shape(tensor: Tensor) -> None:
            names = ("images", "rows", "columns", "channels")
            for i, size in enumerate((n, oh, ow, s["out_channels"])):
                rule = f"must have as many {names[i]} as the convolution gives: # and #"
                require(tensor.shape[i] == size, tensor.name, rule, tensor.shape[i], size)
            stride = tensor.row_stride(s["out_channels"], n * oh * ow)
            compact = tirx.any(stride == s["out_channels"], n * oh * ow <= 1)
            require(compact, tensor.name, "must be compact")

        require_shape(out)
        count = let(n * h * select(planes > 0, c, w))
        row = let(select(planes > 0, w, c))
        stride = x.row_stride(row, count)
        require(tirx.any(stride == row, count <= 1), "x", "must be compact")
        with when(has > 0):
            added = Tensor(given["residual"], "residual", dtype)
            rule = "must have 4 dimensions, not #"
            require(added.ndim == 4, "residual", rule, added.ndim)
            require_shape(added)
        values = {
            "n": n,
            "h": h,
            "w": w,
            "oh": oh,
            "ow": ow,
            "channels": channels,
            "outputs": outputs,
            "depth": depth,
            "panels": panels,
            "columns": columns,
            "residual": select(has > 0, 1, 0),
            "half": as_int(int(dtype == "float16")),
        }
        conv.fill(values)
        rule = "planes of channels must be few, and outputs whole vectors of #"
        fits = at_offsets({**s, **values}, lanes)
        require(tirx.any(planes == 0, fits), "spec", rule, as_int(lanes))
