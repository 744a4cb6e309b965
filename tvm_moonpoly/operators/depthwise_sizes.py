"""The arguments of a depthwise convolution: checked, and as numbers that its loops go by."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    FLOAT,
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
    cell,
    div,
    when,
)
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators.conv_constants import MOST, ConvActivation
from tvm_moonpoly.operators.errors import require
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner.conv_numbers import ATTRIBUTES

#: The numbers of a call: sizes of the tensors, the spec (of its activation, what the micro-kernels
#: take), how far the taps reach, columns of the padded weight, whether there is a residual; and how
#: the work is cut: floats of a copy of inputs of a chunk (0: there is none), rows and channels of a
#: chunk, columns that are copied at once, blocks of rows and of channels in each image.
SIZES = (
    *("n", "h", "w", "c", "oh", "ow"),
    *ATTRIBUTES,
    *("reach_h", "reach_w", "weight_row", "adds"),
    *("workers", "copy", "far", "rows", "columns", "channels", "row_blocks", "blocks"),
)


def check_name(dtype: str) -> str:
    """The function that checks the arguments of a call."""
    return f"moonpoly_depthwise_check_{dtype}"


def emit(functions: Functions) -> None:
    """Define `check_name` of float32 and float16.

    They raise errors that name the argument and the rule, and write `SIZES` but for those that say
    how the work is cut. The residual counts where ``adds`` is not 0.
    """
    for dtype in (FLOAT, "float16"):
        names = ("x", "weight", "bias", "residual", "spec", "out")

        @functions.fallible(
            check_name(dtype), **dict.fromkeys(names, "handle"), adds=INT, sizes=INTS
        )
        def _(adds: Expr, sizes: Pointer, dtype: str = dtype, **handles: Any) -> None:
            s = Numbers(SIZES, sizes)
            s["adds"] = adds
            _read_spec(Tensor(handles["spec"], "spec", INT), s)
            _check_inputs(handles, s, dtype)
            _check_result(Tensor(handles["out"], "out", dtype), s)
            with when(adds != 0):
                _check_result(Tensor(handles["residual"], "residual", dtype), s)


def _read_spec(spec: Tensor, s: Numbers) -> None:
    spec.require_vector()
    size = spec.shape[0]
    require(size == len(ATTRIBUTES), "spec", f"must have {len(ATTRIBUTES)} numbers, not #", size)
    for i, name in enumerate(ATTRIBUTES):
        s[name] = spec.data[i]
    for what, least, first, second in (
        ("kernel", 1, "kernel_h", "kernel_w"),
        ("strides", 1, "stride_h", "stride_w"),
        ("dilation", 1, "dilation_h", "dilation_w"),
        ("padding", 0, "top", "left"),
        ("padding", 0, "bottom", "right"),
    ):
        pair = s[first], s[second]
        within = tirx.all(*(tirx.all(value >= least, value <= MOST) for value in pair))
        require(within, "spec", f"its {what} must be from {least} to {MOST}: # and #", *pair)
    same = tirx.all(s["groups"] == s["in_channels"], s["groups"] == s["out_channels"])
    rule = "each channel must be a group of its own, with one output: # groups of # channels"
    require(same, "spec", rule, s["groups"], s["in_channels"])
    known = tirx.any(*(s["activation"] == int(kind) for kind in ConvActivation))
    require(known, "spec", "its activation is no known number: #", s["activation"])
    _bound_activation(s)


def _bound_activation(s: Numbers) -> None:
    """Without an activation, and with relu, there are bounds as well."""
    infinity, negative = 0x7F800000, 0xFF800000 - (1 << 32)  # as bits of a float32
    clip = as_int(int(ConvActivation.CLIP))
    for kind, low in ((ConvActivation.NONE, negative), (ConvActivation.RELU, 0)):
        with when(s["activation"] == int(kind)):
            s.fill({"activation": clip, "first": as_int(low), "second": as_int(infinity)})


def _check_inputs(handles: dict[str, Any], s: Numbers, dtype: str) -> None:
    x = Tensor(handles["x"], "x", dtype)
    weight, bias = (Tensor(handles[name], name) for name in ("weight", "bias"))
    require(x.ndim == 4, "x", "must have 4 dimensions, not #", x.ndim)
    require(weight.ndim == 2, "weight", "must have 2 dimensions, not #", weight.ndim)
    bias.require_vector()
    for i, name in enumerate("nhwc"):
        s[name] = x.shape[i]
    rule = "its channels must be those of the weight: # and #"
    require(s["c"] == s["in_channels"], "x", rule, s["c"], s["in_channels"])
    taps = s["kernel_h"] * s["kernel_w"]
    rule = "must have as many rows as the kernel has taps: # and #"
    require(weight.shape[0] == taps, "weight", rule, weight.shape[0], taps)
    width = cell(weight.shape[1])
    s["weight_row"] = width
    rule = "must have the channels of x, padded to whole vectors: # and #"
    require(width >= s["c"], "weight", rule, width, s["c"])
    require(bias.shape[0] == width, "bias", rule, bias.shape[0], s["c"])
    require(weight.row_stride(width, taps) == width, "weight", "must be compact")
    for axis, side, before, after in (
        ("h", "height", "top", "bottom"),
        ("w", "width", "left", "right"),
    ):
        reach = cell((s[f"kernel_{axis}"] - 1) * s[f"dilation_{axis}"] + 1)
        padded = cell(s[axis] + s[before] + s[after])
        rule = f"its {side} with padding, #, is less than that of the kernel, #"
        require(padded >= reach, "x", rule, padded, reach)
        s[f"reach_{axis}"] = reach
        s[f"o{axis}"] = div(padded - reach, s[f"stride_{axis}"]) + 1
    count = cell(s["n"] * s["h"] * s["w"])
    require(x.row_stride(s["c"], count) == s["c"], "x", "must be compact")


def _check_result(result: Tensor, s: Numbers) -> None:
    name = result.name
    require(result.ndim == 4, name, "must have 4 dimensions, not #", result.ndim)
    for i, (what, size) in enumerate(
        (("images", "n"), ("rows", "oh"), ("columns", "ow"), ("channels", "c"))
    ):
        rule = f"its {what} must be those of the convolution: # instead of #"
        require(result.shape[i] == s[size], name, rule, result.shape[i], s[size])
    count = cell(s["n"] * s["oh"] * s["ow"])
    require(result.row_stride(s["c"], count) == s["c"], name, "must be compact")
