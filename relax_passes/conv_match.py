"""Which convolutions of a function are ours, and what they compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr, Var
from tvm.target import Target
from tvm.tirx import IntImm

from .bindings import Bindings
from .match import Left
from .shapes import dims, dtype_of, is_static, known_dims, same_dim
from .tuned import has_fused_record

CONV1D, CONV2D = Op.get("relax.nn.conv1d"), Op.get("relax.nn.conv2d")
CONVOLUTIONS = (CONV1D, CONV2D)
DTYPES = ("float32", "float16")
#: Layouts of data by operator: with the channels first, and last.
LAYOUTS = {CONV1D: ("NCW", "NWC"), CONV2D: ("NCHW", "NHWC")}
OUT_CHANNELS_FIRST = {CONV1D: "OIW", CONV2D: "OIHW"}


@dataclass(frozen=True, eq=False)
class Convolution:
    """A `conv2d`, or `conv1d`, whose weight is a constant or a parameter.

    `padding` is (top, left, bottom, right), or (left, right) of a `conv1d`; the others have one
    number a spatial dimension. `channels_last` tells the layout of its data.
    """

    op: Op
    x: Expr
    weight: Expr
    kernel_layout: str
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    channels_last: bool
    dtype: str

    @property
    def name(self) -> str:
        """Of the operator: `conv2d`, or `conv1d`."""
        return self.op.name.removeprefix("relax.nn.")

    @property
    def channel_axis(self) -> int:
        return len(self.strides) + 1 if self.channels_last else 1

    @property
    def out_channels(self) -> int:
        return self.weight_shape[0]

    @property
    def in_channels(self) -> int:
        return int(known_dims(self.x)[self.channel_axis])

    @property
    def kernel(self) -> tuple[int, ...]:
        """The size of the kernel in each spatial dimension."""
        return self.weight_shape[2:]

    @property
    def is_constant(self) -> bool:
        """Whether the weight is a constant."""
        return isinstance(self.weight, GenericConst)

    @property
    def weight_axes(self) -> tuple[int, ...]:
        """Which dimensions of the weight are those of `weight_shape`."""
        return tuple(self.kernel_layout.index(letter) for letter in OUT_CHANNELS_FIRST[self.op])

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(OC, C / groups, KH, KW), or without KH."""
        sizes = known_dims(self.weight)
        return tuple(int(sizes[axis]) for axis in self.weight_axes)

    def weight_array(self) -> np.ndarray:
        """The weight, a constant, in its `weight_shape`, float32."""
        return self.weight.value.numpy().transpose(self.weight_axes).astype(np.float32)

    def by_channel(self, values: np.ndarray) -> np.ndarray:
        """`values`, one an output channel, in the shape in which they meet the result."""
        return values.reshape(-1, *[1] * (len(self.strides) + 1 - self.channel_axis))

    def call(
        self,
        x: Expr | None = None,
        weight: np.ndarray | Expr | None = None,
        padding: tuple[int, ...] | None = None,
        channels_last: bool | None = None,
        dtype: str | None = None,
    ) -> Call:
        """The operator of Relax, with what is given in the place of its own; `weight` in the layout
        of its own, or an array as `weight_array` gives it."""
        dtype = self.dtype if dtype is None else dtype
        last = self.channels_last if channels_last is None else channels_last
        kernel, layout = self.weight, self.kernel_layout
        if isinstance(weight, np.ndarray):
            kernel, layout = relax.const(weight, dtype), OUT_CHANNELS_FIRST[self.op]
        elif weight is not None:
            kernel = weight
        make = relax.op.nn.conv2d if self.op == CONV2D else relax.op.nn.conv1d
        return make(
            self.x if x is None else x,
            kernel,
            strides=self.strides,
            padding=self.padding if padding is None else padding,
            dilation=self.dilation,
            groups=self.groups,
            data_layout=LAYOUTS[self.op][last],
            kernel_layout=layout,
            out_dtype=dtype,
        )


def convolutions(bindings: Bindings) -> list[Var]:
    """The variables bound to a convolution of one or two dimensions, in program order."""
    return bindings.calls(*CONVOLUTIONS)


def classify_conv(
    var: Var, bindings: Bindings, static: bool, target: Target | None
) -> Convolution | Left:
    """The convolution that `var` is bound to, or why it is none of ours.

    Static shapes are ours if `static` says so, unless the tuning database in context has a record.
    """
    call = bindings.value[var]
    reason = _objection(call, static)
    if reason is not None:
        return Left(reason)
    x, weight = call.args
    constant = next(
        (each for each in bindings.definitions(weight) if isinstance(each, GenericConst)), None
    )
    if constant is not None:
        weight = constant
    elif not (bindings.is_parameter(weight) and is_static(dims(weight))):
        return Left("the weight is not a constant")
    if any(same_dim(size, 0) for size in known_dims(weight)):
        return Left("empty weight")
    if static and target is not None and has_fused_record(var, bindings, target):
        return Left("tuned: the database has a record")
    attrs = call.attrs
    conv = Convolution(
        call.op,
        x,
        weight,
        str(attrs.kernel_layout),
        _integers(attrs.strides),
        _integers(attrs.padding),
        _integers(attrs.dilation),
        int(attrs.groups),
        str(attrs.data_layout) == LAYOUTS[call.op][True],
        dtype_of(call),
    )
    if not isinstance(known_dims(x)[conv.channel_axis], IntImm):
        return Left("the number of channels is symbolic")
    return conv


def _objection(call: Call, static: bool) -> str | None:
    """Why the convolution `call` is none of ours, whatever its weight, or None."""
    for expr in (*call.args, call):
        if not isinstance(expr.ty, relax.TensorType):
            return "not a tensor"
        if expr.ty.vdevice is not None:
            return "placed on a virtual device"
    x, weight = call.args
    attrs = call.attrs
    data, out, kernel = (
        str(each) for each in (attrs.data_layout, attrs.out_layout, attrs.kernel_layout)
    )
    if data not in LAYOUTS[call.op] or out not in ("", data):
        return f"layout {data} to {out}"
    if sorted(kernel) != sorted(OUT_CHANNELS_FIRST[call.op]):
        return f"layout {kernel} of the weight"
    dtypes = [dtype_of(expr) for expr in (x, weight, call)]
    if len(set(dtypes)) != 1 or dtypes[0] not in DTYPES:
        return f"dtype {' x '.join(dtypes[:2])} to {dtypes[2]}"
    if any(dims(expr) is None for expr in (x, call)):
        return "no shape known"
    if any(same_dim(size, 0) for size in known_dims(x)):
        return "empty operand"  # in a reshape, which one row needs, TVM takes 0 for another size
    if not isinstance(x, Var | GenericConst):
        return "operand not bound to a variable"
    if not static and all(is_static(dims(expr)) for expr in (x, call)):
        return "static shapes"
    return None


def _integers(values: object) -> tuple[int, ...]:
    return tuple(int(value) for value in values)  # type: ignore[attr-defined]
