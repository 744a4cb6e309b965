"""Which operators compute with the channels last, and by which rule."""

from __future__ import annotations

from tvm import relax
from tvm.ir import Op

from . import channels_last_rules as rules


def _op(name: str) -> Op:
    return Op.get(f"relax.{name}")


SPLIT = _op("split")
UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "erf", "exp", "floor", "isfinite", "isinf"),
    *("isnan", "log", "negative", "logical_not", "round", "rsqrt", "sigmoid", "sign", "sin"),
    *("sqrt", "square", "tan", "tanh", "clip", "astype", "nn.relu", "nn.leakyrelu", "nn.gelu"),
    *("nn.gelu_tanh", "nn.selu", "nn.silu", "nn.softplus"),
)
BROADCAST = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "floor_divide"),
    *("equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "where"),
    *("logical_and", "logical_or"),
)
RULES: dict[Op, rules.Rule] = {
    **{_op(name): rules.unary for name in UNARY},
    **{_op(name): rules.broadcast for name in BROADCAST},
    **{
        _op(name): rules.reduction(getattr(relax.op, name))
        for name in ("mean", "sum", "max", "min", "prod", "variance", "std")
    },
    **{
        _op(f"nn.{name}"): rules.softmax(getattr(relax.op.nn, name))
        for name in ("softmax", "log_softmax")
    },
    **{
        _op(f"nn.{kind}_pool{len(first) - 2}d"): rules.pool(
            getattr(relax.op.nn, f"{kind}_pool{len(first) - 2}d"), first, last
        )
        for kind in ("max", "avg")
        for first, last in (("NCW", "NWC"), ("NCHW", "NHWC"))
    },
    **{
        _op(f"nn.adaptive_avg_pool{len(first) - 2}d"): rules.adaptive_pool(
            getattr(relax.op.nn, f"adaptive_avg_pool{len(first) - 2}d"), first, last
        )
        for first, last in (("NCW", "NWC"), ("NCHW", "NHWC"))
    },
    _op("image.resize2d"): rules.resize,
    _op("concat"): rules.concat,
    _op("nn.prelu"): rules.prelu,
    _op("nn.pad"): rules.pad,
    _op("strided_slice"): rules.strided_slice,
    _op("permute_dims"): rules.permute_dims,
    _op("broadcast_to"): rules.broadcast_to,
    **{_op(name): rules.reshape for name in ("reshape", "expand_dims", "squeeze")},
}
