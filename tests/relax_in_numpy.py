"""Run a Relax function operator by operator in numpy, in float64: no compiler takes part.

Packed functions are those that are registered, on tensors of the data type of their result.
"""

import math

import numpy as np
import tvm
import tvm_ffi
from relax_conv_testing import convolve
from tvm import relax
from tvm.ir import Call, GenericConst, TupleGetItem
from tvm.relax import ShapeExpr, Var
from tvm.tirx import FloatImm, IntImm

from tvm_moonpoly.operators.conv_constants import ConvSpec


def evaluate(mod, *inputs, name="main"):
    """What the function `name` of `mod`, whose dimensions are variables, returns for `inputs`."""
    bound = {}
    for parameter, value in zip(mod[name].params, inputs, strict=True):
        for dim, size in zip(parameter.ty.shape.values, value.shape, strict=True):
            if not isinstance(dim, IntImm):
                bound[dim] = size
    func = relax.transform.BindSymbolicVars(bound, name)(mod)[name] if bound else mod[name]
    values = {
        parameter: np.asarray(value, np.float64)
        for parameter, value in zip(func.params, inputs, strict=True)
    }
    for block in func.body.blocks:
        for binding in block.bindings:
            if not isinstance(binding, relax.MatchCast):  # nothing reads a check
                values[binding.var] = _value(binding.value, values)
    return _value(func.body.body, values)


def _value(expr, values):
    if isinstance(expr, Var):
        return values[expr]
    if isinstance(expr, GenericConst):
        array = expr.value.numpy()
        return array.astype(np.float64) if array.dtype.kind == "f" else array
    if isinstance(expr, IntImm | FloatImm):
        return expr.value
    if isinstance(expr, ShapeExpr):
        return [int(dim) for dim in expr.values]
    if isinstance(expr, relax.Tuple):
        return [_value(each, values) for each in expr.fields]
    if isinstance(expr, TupleGetItem):
        return _value(expr.tuple_value, values)[expr.index]
    assert isinstance(expr, Call)
    operator = expr.op.name.removeprefix("relax.")
    if operator == "call_dps_packed":
        return _call_packed(expr, _value(expr.args[1], values))
    if operator == "call_pure_packed":  # a check
        return None
    arguments = [_value(each, values) for each in expr.args]
    return OPERATORS[operator](expr.attrs, *arguments)


def _call_packed(call, arguments):
    shape, dtype = [int(dim) for dim in call.ty.shape.values], str(call.ty.dtype)
    out = tvm.runtime.empty(shape, dtype)
    *tensors, spec = arguments
    weight, bias = tensors[1:3]
    given = [tensors[0].astype(dtype), np.float32(weight), np.float32(bias)]
    given += [each.astype(dtype) for each in tensors[3:]] + [spec]
    function = tvm_ffi.get_global_func(call.args[0].global_symbol)
    function(*(tvm.runtime.tensor(np.ascontiguousarray(each)) for each in given), out)
    return out.numpy().astype(np.float64)


def _last(x, layout):
    """`x` of the given layout as (N, H, W, C), one row where it has no H."""
    order = [layout.index(letter) for letter in "NHWC" if letter in layout]
    x = x.transpose(order)
    return x if x.ndim == 4 else x[:, None]


def _back(x, layout):
    """Inverse of `_last`."""
    x = x if len(layout) == 4 else x[:, 0]
    here = [letter for letter in "NHWC" if letter in layout]
    return x.transpose([here.index(letter) for letter in layout])


def _two(values):
    return tuple(int(value) for value in ([1] * (2 - len(values)) + list(values)))


def _four(padding):
    top_or_left, *rest = (int(each) for each in padding)
    return (top_or_left, *rest) if len(rest) == 3 else (0, top_or_left, 0, rest[0])


def _conv(attrs, x, weight):
    kernel = weight.transpose(
        [attrs.kernel_layout.index(c) for c in "OIHW" if c in attrs.kernel_layout]
    )
    kernel = kernel if kernel.ndim == 4 else kernel[:, :, None]
    outputs, inputs, *size = kernel.shape
    spec = ConvSpec(
        kernel=tuple(size),
        in_channels=inputs * attrs.groups,
        out_channels=outputs,
        strides=_two(attrs.strides),
        padding=_four(attrs.padding),
        dilation=_two(attrs.dilation),
        groups=attrs.groups,
    )
    grouped = kernel.reshape(spec.groups, -1, inputs, *size).transpose(3, 4, 0, 2, 1)
    y = convolve(_last(x, attrs.data_layout), grouped, spec)
    return _back(y, attrs.data_layout)


def _windows(attrs, x, fill):
    """The values of each window on a new first axis, with the channels last."""
    x = _last(x, attrs.layout)
    top, left, bottom, right = _four(attrs.padding)
    (kh, kw), (sh, sw), (dh, dw) = map(_two, (attrs.pool_size, attrs.strides, attrs.dilation))
    sizes = []
    for size, margin, k, s, d in (
        (x.shape[1], top + bottom, kh, sh, dh),
        (x.shape[2], left + right, kw, sw, dw),
    ):
        rounded = math.ceil if attrs.ceil_mode else math.floor
        sizes.append(rounded((size + margin - (k - 1) * d - 1) / s) + 1)
    more = [max(0, (n - 1) * s + (k - 1) * d + 1 - size) for n, s, k, d, size in (
        (sizes[0], sh, kh, dh, x.shape[1] + top + bottom),
        (sizes[1], sw, kw, dw, x.shape[2] + left + right),
    )]  # fmt: skip
    widths = ((0, 0), (top, bottom + more[0]), (left, right + more[1]), (0, 0))
    padded = np.pad(x, widths, constant_values=fill)
    found = []
    for i in range(kh):
        for j in range(kw):
            rows = np.arange(sizes[0]) * sh + i * dh
            columns = np.arange(sizes[1]) * sw + j * dw
            found.append(padded[:, rows][:, :, columns])
    return np.stack(found)


def _max_pool(attrs, x):
    return _back(_windows(attrs, x, -np.inf).max(axis=0), attrs.layout)


def _avg_pool(attrs, x):
    total = _windows(attrs, x, 0.0)
    inside = _windows(attrs, np.ones_like(x), 1.0 if attrs.count_include_pad else 0.0)
    return _back(total.sum(axis=0) / inside.sum(axis=0), attrs.layout)


def _adaptive_avg_pool(attrs, x):
    x = _last(x, attrs.layout)
    oh, ow = _two(attrs.output_size)
    assert (oh, ow) == (1, 1)
    return _back(x.mean(axis=(1, 2), keepdims=True), attrs.layout)


def _batch_norm(attrs, x, gamma, beta, mean, variance):
    shape = [1] * x.ndim
    shape[attrs.axis] = -1
    gamma, beta, mean, variance = (each.reshape(shape) for each in (gamma, beta, mean, variance))
    return [(x - mean) / np.sqrt(variance + attrs.epsilon) * gamma + beta, None, None]


def _resize(attrs, x, size):
    assert attrs.method == "nearest_neighbor"
    x = _last(x, attrs.layout)
    (oh, ow), (h, w) = size, x.shape[1:3]
    assert oh == 2 * h and ow == 2 * w
    return _back(x.repeat(2, axis=1).repeat(2, axis=2), attrs.layout)


def _pad(attrs, x):
    widths = np.array(attrs.pad_width, int).reshape(-1, 2)
    return np.pad(x, widths, constant_values=float(attrs.pad_value))


def _softmax(attrs, x):
    shifted = np.exp(x - x.max(axis=attrs.axis, keepdims=True, initial=-np.inf))
    return shifted / shifted.sum(axis=attrs.axis, keepdims=True)


def _reduction(function):
    def reduce(attrs, x):
        axes = tuple(int(axis) for axis in attrs.axis)
        with np.errstate(all="ignore"):
            return function(x, axis=axes, keepdims=bool(attrs.keepdims))

    return reduce


def _split(attrs, x):
    parts = attrs.indices_or_sections
    parts = int(parts) if isinstance(parts, int | IntImm) else [int(each) for each in parts]
    return np.split(x, parts, axis=attrs.axis)


def _strided_slice(attrs, x, axes, begin, end, strides=None):
    index = [slice(None)] * x.ndim
    for i, axis in enumerate(axes):
        index[axis] = slice(begin[i], end[i], strides[i] if strides else 1)
    return x[tuple(index)]


def _erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _plain(function):
    return lambda attrs, *arguments: function(*arguments)


OPERATORS = {
    **{name: _plain(getattr(np, name)) for name in ("add", "subtract", "multiply", "divide")},
    **{name: _plain(getattr(np, name)) for name in ("maximum", "minimum", "power", "matmul")},
    **{name: _plain(getattr(np, name)) for name in ("exp", "sqrt", "tanh", "abs", "where")},
    "negative": _plain(np.negative),
    "greater": _plain(np.greater),
    "erf": _plain(_erf),
    "sigmoid": _plain(_sigmoid),
    "clip": _plain(np.clip),
    "astype": lambda attrs, x: x,
    "nn.relu": _plain(lambda x: np.maximum(x, 0)),
    "nn.leakyrelu": lambda attrs, x: np.where(x > 0, x, attrs.alpha * x),
    "nn.prelu": lambda attrs, x, a: np.where(
        x > 0, x, x * a.reshape([-1] + [1] * (x.ndim - 1 - attrs.axis % x.ndim))
    ),
    "nn.silu": _plain(lambda x: x * _sigmoid(x)),
    "nn.gelu": _plain(lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2)))),
    "nn.gelu_tanh": _plain(
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "nn.conv2d": _conv,
    "nn.conv1d": _conv,
    "nn.max_pool2d": _max_pool,
    "nn.max_pool1d": _max_pool,
    "nn.avg_pool2d": _avg_pool,
    "nn.adaptive_avg_pool2d": _adaptive_avg_pool,
    "nn.batch_norm": _batch_norm,
    "nn.pad": _pad,
    "nn.softmax": _softmax,
    "image.resize2d": _resize,
    "mean": _reduction(np.mean),
    "sum": _reduction(np.sum),
    "max": _reduction(np.max),
    "concat": lambda attrs, tensors: np.concatenate(tensors, axis=int(attrs.axis)),
    "cumsum": lambda attrs, x: np.cumsum(x, axis=int(attrs.axis)),
    "split": _split,
    "strided_slice": _strided_slice,
    "reshape": lambda attrs, x, shape: x.reshape(shape),
    "broadcast_to": lambda attrs, x, shape: np.broadcast_to(x, shape),
    "squeeze": lambda attrs, x: np.squeeze(x, tuple(int(axis) for axis in attrs.axis)),
    "expand_dims": lambda attrs, x: np.expand_dims(x, tuple(int(axis) for axis in attrs.axis)),
    "permute_dims": lambda attrs, x: x.transpose(attrs.axes and [int(a) for a in attrs.axes]),
}
