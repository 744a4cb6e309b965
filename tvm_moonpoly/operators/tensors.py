"""Reading tensor arguments inside a packed function: any number of dimensions, any strides."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    let,
    loop,
    scratch,
    select,
    unless,
    when,
)
from tvm_moonpoly.operators import dltensor
from tvm_moonpoly.operators.errors import require

#: Dimensions that a product can have.
MAX_DIMS = 8

#: Where an axes code holds the number of its dimensions, and what stands for one that is absent.
COUNT_BIT, ABSENT = 32, 15


class Tensor:
    """A tensor argument, checked to be float32 (or the given type) on the CPU (or the given kind
    of device)."""

    def __init__(
        self, handle: Expr, name: str, dtype: str = FLOAT, device: int = dltensor.CPU
    ) -> None:
        self.handle, self.name = handle, name
        require(
            tirx.Not(tirx.isnullptr(handle)), name, "must be a tensor, not None", kind="TypeError"
        )
        code, bits = dltensor.type_of(dtype)
        require(
            tirx.all(
                dltensor.number(handle, dltensor.TYPE_CODE) == tirx.const(code, "uint8"),
                dltensor.number(handle, dltensor.TYPE_BITS) == tirx.const(bits, "uint8"),
                dltensor.number(handle, dltensor.TYPE_LANES) == tirx.const(1, "uint16"),
            ),
            name,
            f"must be {dtype}",
            kind="TypeError",
        )
        found = dltensor.number(handle, dltensor.DEVICE_TYPE)
        require(found == device, name, f"must be on {dltensor.DEVICES[device]}")
        require(
            dltensor.number(handle, dltensor.BYTE_OFFSET) == tirx.const(0, "uint64"),
            name,
            "must have byte offset 0",
        )
        self.ndim = let(dltensor.number(handle, dltensor.NDIM).astype(INT))
        self.shape = Pointer.to(dltensor.address(handle, dltensor.SHAPE, INT), INT)
        self._strides = T.Bind(dltensor.address(handle, dltensor.STRIDES, INT))
        self.strides = Pointer.to(self._strides, INT)
        # tvm's LLVM code generator crashes on pointers to bfloat16
        memory = "uint16" if dtype == "bfloat16" else dtype
        self.data = Pointer.to(dltensor.address(handle, dltensor.DATA, memory), memory)

    @property
    def has_strides(self) -> Expr:
        """Whether the tensor says its strides; without them it is compact."""
        return tirx.Not(tirx.isnullptr(self._strides))

    def size_of(self, first: Expr, end: Expr) -> Expr:
        """The product of the dimensions from ``first`` to before ``end``."""
        size = scratch(1, INT)
        size[0] = as_int(1)
        with loop(end - first) as i:
            size[0] = size[0] * self.shape[first + i]
        return let(size[0])

    def size_of_leading(self) -> Expr:
        """The product of all dimensions but the last."""
        return self.size_of(as_int(0), self.ndim - 1)

    def spacing(self, first: Expr, end: Expr, default: Expr, what: str) -> Expr:
        """Elements between neighbours along the dimensions from ``first`` to before ``end``, taken
        as one; ``default`` where there is one neighbour at most, or nothing at all.

        Of a tensor that says its strides. Raises at run time, naming ``what`` there is, unless the
        neighbours are evenly spaced.
        """
        stride, count = scratch(1, INT), scratch(1, INT)
        stride[0], count[0] = default, as_int(1)
        with loop(end - first) as i:
            dim = let(end - 1 - i)
            with when(self.shape[dim] > 1):
                branch(
                    count[0] == 1,
                    lambda: stride.__setitem__(0, self.strides[dim]),
                    lambda: require(
                        self.strides[dim] == stride[0] * count[0],
                        self.name,
                        f"{what} must be evenly spaced in memory",
                    ),
                )
                count[0] = count[0] * self.shape[dim]
        return stride[0]

    def row_stride(self, row: Expr, count: Expr | None = None) -> Expr:
        """Floats from one row to the next, when the tensor is seen as rows of ``row`` elements.

        ``count`` is the number of rows, where the caller has it already.

        Raises at run time unless the rows are evenly spaced with adjacent elements. Strides that
        no element depends on (of dimensions of size 1, of an empty tensor) may be anything.
        """
        stride = scratch(1, INT)
        stride[0] = row
        count = self.size_of_leading() if count is None else count
        with when(tirx.all(self.has_strides, count * row > 0)):
            self._require_adjacent()
            stride[0] = self.spacing(as_int(0), self.ndim - 1, row, "rows")
        return let(stride[0])

    def require_vector(self) -> None:
        """Raise at run time unless the tensor is a vector of adjacent elements."""
        require(self.ndim == 1, self.name, "must have 1 dimension, not #", self.ndim)
        with when(self.has_strides):
            self._require_adjacent()

    def _require_adjacent(self) -> None:
        last = self.ndim - 1
        require(
            tirx.any(self.strides[last] == 1, self.shape[last] <= 1),
            self.name,
            "elements of the last dimension must be adjacent",
        )


#: The memory of a view: sizes, strides, and what is wrong with the axes code (0 for nothing).
_SIZES, _STRIDES, _FAULT, _VIEW_SIZE = 0, MAX_DIMS, 2 * MAX_DIMS, 2 * MAX_DIMS + 1
_BAD_COUNT, _BAD_NAMES = 1, 2

#: 1 in each 4 bits of `MAX_DIMS` dimensions.
_ONCE = sum(1 << 4 * i for i in range(MAX_DIMS))


def emit(functions: Functions) -> None:
    """Define ``moonpoly_view``, before any function that uses a `View`."""
    parameters = {"tensor": "handle", "strides": INTS, "axes": INT, "ndim": INT, "view": INTS}

    @functions.separate("moonpoly_view", **parameters)
    def _(tensor: Expr, strides: Pointer, axes: Expr, ndim: Expr, view: Pointer) -> None:
        """Writes sizes and strides as ``axes`` has them, aligned right in ``ndim`` dimensions."""
        own = let(dltensor.number(tensor, dltensor.NDIM).astype(INT))
        shape = Pointer.to(dltensor.address(tensor, dltensor.SHAPE, INT), INT)
        count = let(count_of(axes))
        missing = let(ndim - count)

        def read() -> None:
            with loop(missing) as i:
                view[_SIZES + i] = as_int(1)
                view[_STRIDES + i] = as_int(0)
            # how often each dimension is named, in 4 bits each
            names, at, rest = scratch(1, INT), scratch(1, INT), scratch(1, INT)
            names[0], at[0] = as_int(0), missing
            # a bit beyond the last dimension ends the loop, which is too short to be unrolled
            end = let(tirx.shift_left(as_int(1), count * 4))
            rest[0] = tirx.bitwise_or(tirx.bitwise_and(axes, end - 1), end)
            with T.While(rest[0] > 1):
                dim = let(tirx.bitwise_and(rest[0], as_int(15)))
                names[0] = names[0] + tirx.shift_left(as_int(1), dim * 4)

                def present() -> None:
                    size = let(shape[dim])
                    view[_SIZES + at[0]] = size
                    # a stride that no element depends on may be anything
                    view[_STRIDES + at[0]] = select(size <= 1, 0, strides[dim])

                def absent() -> None:
                    view[_SIZES + at[0]] = as_int(1)
                    view[_STRIDES + at[0]] = as_int(0)

                branch(dim < own, present, absent)
                rest[0] = tirx.shift_right(rest[0], as_int(4))
                at[0] = at[0] + 1
            but_absent = tirx.bitwise_and(names[0], as_int((1 << 4 * ABSENT) - 1))
            once = tirx.bitwise_and(as_int(_ONCE), tirx.shift_left(as_int(1), own * 4) - 1)
            view[_FAULT] = select(but_absent == once, 0, _BAD_NAMES)

        view[_FAULT] = as_int(_BAD_COUNT)
        with when(tirx.all(count >= 2, count <= MAX_DIMS, missing >= 0)):
            view[_FAULT] = as_int(_BAD_NAMES)
            with when(own <= MAX_DIMS):
                unless(
                    tirx.Not(tirx.isnullptr(strides.buffer.data)),
                    lambda: functions["moonpoly_compact_view"](tensor, axes, ndim, view.at(0)),
                    read,
                )

    del parameters["strides"]

    @functions.rare("moonpoly_compact_view", **parameters)
    def _(tensor: Expr, axes: Expr, ndim: Expr, view: Pointer) -> None:
        """The view of a tensor that does not tell its strides, of at most `MAX_DIMS`."""
        shape = Pointer.to(dltensor.address(tensor, dltensor.SHAPE, INT), INT)
        strides, step = scratch(MAX_DIMS, INT), scratch(1, INT)
        step[0] = as_int(1)
        own = let(dltensor.number(tensor, dltensor.NDIM).astype(INT))
        with loop(own) as i:
            dim = let(own - 1 - i)
            strides[dim] = step[0]
            step[0] = step[0] * shape[dim]
        functions["moonpoly_view"](tensor, strides.at(0), axes, ndim, view.at(0))


def count_of(axes: Expr) -> Expr:
    """The number of product dimensions that an axes code holds."""
    return tirx.bitwise_and(tirx.shift_right(axes, as_int(COUNT_BIT)), as_int(15))


class View:
    """A tensor as a product sees it: in the order of an axes code, ``ndim`` dimensions.

    ``shape`` and ``stride`` are indexed by the dimensions of the product; one that the tensor
    lacks has size 1. Strides are in elements, 0 for dimensions of at most one element. Raises at
    run time when ``axes`` is no code of 2 to ``ndim`` dimensions that names each of the tensor's.
    """

    def __init__(
        self,
        handle: Expr,
        name: str,
        axes: Expr,
        argument: str,
        ndim: Expr,
        most: int | Expr = MAX_DIMS,
    ) -> None:
        """``most``: dimensions that ``axes`` may have, for the error that says so."""
        self.name = name
        memory = scratch(_VIEW_SIZE, INT)
        strides = dltensor.address(handle, dltensor.STRIDES, INT)
        Functions.current()["moonpoly_view"](handle, strides, axes, ndim, memory.at(0))
        require(
            memory[_FAULT] != _BAD_COUNT,
            argument,
            "must be the code of at least 2 and at most # dimensions",
            as_int(most),
        )
        require(
            memory[_FAULT] == 0,
            argument,
            f"must name each of the # dimensions of {name} once",
            dltensor.number(handle, dltensor.NDIM).astype(INT),
        )
        self.shape = Pointer.to(memory.at(_SIZES), INT)
        self.stride = Pointer.to(memory.at(_STRIDES), INT)
