"""Reading tensor arguments inside a packed function: any number of dimensions, any strides."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import FLOAT, INT, Expr, Pointer, as_int, branch, let, loop, scratch, when

#: tvm's numbers of the fields of a DLTensor (TVMStructFieldKind).
DATA, SHAPE, STRIDES, NDIM, TYPE_CODE, TYPE_BITS, TYPE_LANES, BYTE_OFFSET = 1, 2, 3, 4, 5, 6, 7, 8
DEVICE_TYPE = 10

#: Dimensions that the batched product can hold.
MAX_DIMS = 8


def require(condition: Expr, argument: str, rule: str, kind: str = "ValueError") -> None:
    """Raise an error that names the argument and the rule unless ``condition`` holds."""
    with T.Assert(condition, [f"{argument}: {rule}"], error_kind=kind):
        pass


class Tensor:
    """A tensor argument, checked to be float32 (or the given type) on the CPU."""

    def __init__(self, handle: Expr, name: str, dtype: str = FLOAT) -> None:
        self.handle, self.name = handle, name
        require(tirx.Not(tirx.isnullptr(handle)), name, "must be a tensor, not None", "TypeError")
        code, bits = {FLOAT: (2, 32), INT: (0, 64)}[dtype]
        require(
            tirx.all(
                T.tvm_struct_get(handle, 0, TYPE_CODE, "uint8") == tirx.const(code, "uint8"),
                T.tvm_struct_get(handle, 0, TYPE_BITS, "uint8") == tirx.const(bits, "uint8"),
                T.tvm_struct_get(handle, 0, TYPE_LANES, "uint16") == tirx.const(1, "uint16"),
            ),
            name,
            f"must be {dtype}",
            "TypeError",
        )
        require(T.tvm_struct_get(handle, 0, DEVICE_TYPE, "int32") == 1, name, "must be on the CPU")
        require(
            T.tvm_struct_get(handle, 0, BYTE_OFFSET, "uint64") == tirx.const(0, "uint64"),
            name,
            "must have byte offset 0",
        )
        self.ndim = let(T.tvm_struct_get(handle, 0, NDIM, "int32").astype(INT))
        self.shape = Pointer.to(T.tvm_struct_get(handle, 0, SHAPE, _pointer(INT)), INT)
        self._strides = T.Bind(T.tvm_struct_get(handle, 0, STRIDES, _pointer(INT)))
        self.strides = Pointer.to(self._strides, INT)
        self.data = Pointer.to(T.tvm_struct_get(handle, 0, DATA, _pointer(dtype)), dtype)

    @property
    def has_strides(self) -> Expr:
        """Whether the tensor says its strides; without them it is compact."""
        return tirx.Not(tirx.isnullptr(self._strides))

    def size_of_leading(self) -> Expr:
        """The product of all dimensions but the last."""
        size = scratch(1, INT)
        size[0] = as_int(1)
        with loop(self.ndim - 1) as i:
            size[0] = size[0] * self.shape[i]
        return let(size[0])

    def row_stride(self, row: Expr) -> Expr:
        """Floats from one row to the next, when the tensor is seen as rows of ``row`` elements.

        Raises at run time unless the rows are evenly spaced with adjacent elements. Strides that
        no element depends on (of dimensions of size 1, of an empty tensor) may be anything.
        """
        stride, rows = scratch(1, INT), scratch(1, INT)
        stride[0], rows[0] = row, as_int(1)
        last = self.ndim - 1
        with when(self.has_strides), when(self.size_of_leading() * row > 0):
            self._require_adjacent()
            with loop(last) as i:
                dim = let(last - 1 - i)
                with when(self.shape[dim] > 1):
                    branch(
                        rows[0] == 1,
                        lambda: stride.__setitem__(0, self.strides[dim]),
                        lambda: require(
                            self.strides[dim] == stride[0] * rows[0],
                            self.name,
                            "rows must be evenly spaced in memory",
                        ),
                    )
                    rows[0] = rows[0] * self.shape[dim]
        return let(stride[0])

    def require_vector(self) -> None:
        """Raise at run time unless the tensor is a vector of adjacent elements."""
        require(self.ndim == 1, self.name, "must have 1 dimension")
        with when(self.has_strides):
            self._require_adjacent()

    def _require_adjacent(self) -> None:
        last = self.ndim - 1
        require(
            tirx.any(self.strides[last] == 1, self.shape[last] <= 1),
            self.name,
            "elements of the last dimension must be adjacent",
        )


class View:
    """The operand of a batched product: permuted, and broadcast to ``ndim`` dimensions.

    ``shape`` and ``stride`` are indexed by the dimensions of the product; a dimension that the
    tensor lacks has size 1. Strides are in elements. The permutation must have been checked.
    """

    def __init__(self, tensor: Tensor, permutation: Expr, ndim: Expr) -> None:
        require(tensor.ndim >= 2, tensor.name, "must have at least 2 dimensions")
        require(tensor.ndim <= ndim, tensor.name, "has more dimensions than the output")
        stored = scratch(MAX_DIMS, INT)
        step = scratch(1, INT)
        step[0] = as_int(1)

        def given() -> None:
            with loop(tensor.ndim) as i:
                stored[i] = tensor.strides[i]

        def compact() -> None:
            with loop(tensor.ndim) as i:
                dim = let(tensor.ndim - 1 - i)
                stored[dim] = step[0]
                step[0] = step[0] * tensor.shape[dim]

        branch(tensor.has_strides, given, compact)
        self.name = tensor.name
        self.shape, self.stride = scratch(MAX_DIMS, INT), scratch(MAX_DIMS, INT)
        missing = let(ndim - tensor.ndim)
        with loop(missing) as i:
            self.shape[i] = as_int(1)
            self.stride[i] = as_int(0)
        with loop(tensor.ndim) as i:
            dim = let(tirx.bitwise_and(tirx.shift_right(permutation, i * 4), as_int(15)))
            self.shape[missing + i] = tensor.shape[dim]
            self.stride[missing + i] = stored[dim]


def require_permutation(permutation: Expr, argument: str, tensor: Tensor) -> None:
    """Raise at run time unless ``permutation`` names each dimension of ``tensor`` once."""
    named = scratch(1, INT)
    named[0] = as_int(0)
    with loop(tensor.ndim) as i:
        dim = tirx.bitwise_and(tirx.shift_right(permutation, i * 4), as_int(15))
        named[0] = tirx.bitwise_or(named[0], tirx.shift_left(as_int(1), dim))
    require(
        named[0] == tirx.shift_left(as_int(1), tensor.ndim) - 1,
        argument,
        f"must name each dimension of {tensor.name} once",
    )


def _pointer(dtype: str) -> Any:
    return PointerType(PrimType(dtype), "global")
